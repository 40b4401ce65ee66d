//! Pauses between attempts: exponential up to a second, with jitter so that nodes do not synchronise.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(20);

/// The pauses of one series of attempts: none before the second attempt, then 20 ms to 1 s.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// The next pause: between half and all of a doubling span.
    pub(crate) fn next(&mut self) -> Duration {
        let attempts = self.attempts;
        self.attempts = attempts.saturating_add(1);
        if attempts == 0 {
            return Duration::ZERO;
        }
        let span = (SHORTEST * 2_u32.pow((attempts - 1).min(10))).min(LONGEST);
        let half = span / 2;
        // A hasher's key is random, which is enough for jitter.
        let random = RandomState::new().hash_one(attempts) % 1_000;
        half + half * u32::try_from(random).expect("below a thousand") / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_no_further() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(), Duration::ZERO);
        let pauses: Vec<_> = (0..100).map(|_| backoff.next()).collect();
        assert!(pauses[0] >= SHORTEST / 2 && pauses[0] <= SHORTEST, "{:?}", pauses[0]);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST), "{pauses:?}");
        assert!(pauses[20..].iter().all(|pause| *pause >= LONGEST / 2), "{pauses:?}");
    }

    #[test]
    fn two_series_do_not_keep_time() {
        let series = || {
            let mut backoff = Backoff::default();
            (0..20).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        assert_ne!(series(), series());
    }
}
