//! The answer to a check, which holds its lease.

use std::ops::Deref;

use tidegate_limiter::{Decision, Limiter};

use crate::spend::Lease;

/// The answer to a check. It reads as its [`Decision`].
///
/// Where a concurrency limit admitted it, it holds the lease: dropping it gives the place back. Keep it, or its lease, for as
/// long as the work lasts.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = "{ domain: d, rules: [{ name: r, limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }] }";
/// let limiter = tidegate::in_memory(rules)?;
/// let job = tidegate::Ask::new("d");
/// let held = job.check_blocking(&limiter)?;
/// assert!(held.allowed && !job.check_blocking(&limiter)?.allowed);
/// drop(held);
/// assert!(job.check_blocking(&limiter)?.allowed);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
#[must_use = "a lease that it holds ends when it is dropped"]
pub struct Checked {
    decision: Decision,
    lease: Option<Lease>,
}

impl Checked {
    pub(crate) fn new(limiter: &Limiter, mut decision: Decision) -> Self {
        let lease = decision.lease.take().map(|token| Lease::new(limiter, token));
        Checked { decision, lease }
    }

    /// The lease that it holds, where a concurrency limit admitted it.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The lease alone, to be kept for longer than this.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.lease
    }

    /// The decision, and the lease that it holds.
    #[must_use]
    pub fn into_parts(self) -> (Decision, Option<Lease>) {
        (self.decision, self.lease)
    }
}

impl Deref for Checked {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}
