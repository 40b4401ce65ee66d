//! How old an answer may be: a page that asks every ten seconds says so, and shares the fleet's answer with all who do.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::header::CACHE_CONTROL;
use axum::http::request::Parts;

use crate::control::SHARED_FOR;

/// The oldest answer that is shared, whatever was asked for.
const OLDEST: Duration = Duration::from_secs(30);

/// The age up to which an answer will do, from `cache-control: max-age=SECONDS` of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fresh(pub(crate) Duration);

impl Fresh {
    fn of(header: &str) -> Self {
        let mut directives = header.split(',').map(str::trim);
        let seconds = directives.find_map(|one| one.strip_prefix("max-age=")?.parse().ok());
        Fresh(Duration::from_secs(seconds.unwrap_or(0)).min(OLDEST))
    }

    /// The same for questions to all nodes: they are not asked more often than every [`SHARED_FOR`], whoever asks.
    pub(crate) fn shared(self) -> Duration {
        self.0.max(SHARED_FOR)
    }

    /// The last multiple of that before `now_us`: who asks a moment later asks the same.
    pub(crate) fn even_us(self, now_us: u64) -> u64 {
        now_us / self.us() * self.us()
    }

    pub(crate) fn us(self) -> u64 {
        u64::try_from(self.shared().as_micros()).unwrap_or(1)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Fresh {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let header = parts.headers.get(CACHE_CONTROL).and_then(|header| header.to_str().ok());
        Ok(Fresh::of(header.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_what_was_asked_for_within_bounds() {
        let seconds = |header| Fresh::of(header).0.as_secs();
        let of = ["max-age=10", "no-transform, max-age=5", "", "max-age=0", "no-cache", "max-age=x"];
        assert_eq!(of.map(seconds), [10, 5, 0, 0, 0, 0]);
        assert_eq!(Fresh::of("max-age=1").shared(), SHARED_FOR);
        assert_eq!(seconds("max-age=86400"), OLDEST.as_secs());
    }

    #[test]
    fn all_who_ask_within_a_period_ask_the_same() {
        let fresh = Fresh::of("max-age=10");
        assert_eq!([10, 19, 20].map(|second| fresh.even_us(second * 1_000_000) / 1_000_000), [10, 10, 20]);
    }
}
