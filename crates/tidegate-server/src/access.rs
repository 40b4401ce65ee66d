//! Authenticates callers of HTTP and gRPC by bearer tokens.
//!
//! A token has at least 128 bits, so wrong ones are counted and logged, but nobody is locked out for them: one address is
//! often a whole fleet behind a gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;
use tidegate_access::{TokenSource, bearer};

use tidegate_runtime::Occasional;

/// The header for a token if `Authorization` is taken: a gateway's request carries its client's `Authorization`.
pub const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-tidegate-token");

/// The least time between two log lines about refused callers.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// The accepted tokens; every caller must present one.
#[derive(Debug)]
pub struct Access {
    tokens: Arc<TokenSource>,
    refused: AtomicU64,
    log: Mutex<Occasional>,
}

/// Why a caller is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no token.
    #[error("no token was given")]
    Missing,
    /// The token is not accepted.
    #[error("the token is not one that is accepted here")]
    Wrong,
}

/// Which headers may carry the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// `Authorization: Bearer`, or a header of our own.
    InEither,
    /// Only the header of our own.
    InOurs,
}

impl Access {
    /// Accepts callers with one of `tokens`.
    #[must_use]
    pub fn new(tokens: Arc<TokenSource>) -> Self {
        Access { tokens, refused: AtomicU64::new(0), log: Mutex::new(Occasional::every(LOG_PAUSE)) }
    }

    /// Callers refused since the start.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether a request with these headers may be answered.
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, headers: &HeaderMap, carried: Carried, peer: SocketAddr) -> Result<(), Refused> {
        let ours = headers.get(TOKEN_HEADER).map(|value| value.as_bytes());
        let given = ours.or_else(|| (carried == Carried::InEither).then(|| bearer(headers)).flatten());
        let refused = match given {
            Some(token) if self.tokens.accept(token) => return Ok(()),
            Some(_) => Refused::Wrong,
            None => Refused::Missing,
        };
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(requests) = self.log.lock().happened() {
            let address = peer.ip();
            tracing::warn!(%address, requests, "refused: {refused}");
        }
        Err(refused)
    }
}
