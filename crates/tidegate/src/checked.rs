//! The answer to a check; it holds the lease.

use std::ops::Deref;

use tidegate_limiter::{Decision, Limiter};

use crate::spend::Lease;

/// The answer to a check. It dereferences to its [`Decision`].
///
/// If a concurrency limit issued a lease, this holds it: dropping it releases the lease. Keep it, or its lease, until the work
/// is done.
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

    /// The lease, if a concurrency limit issued one.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Takes the lease out, to keep it longer than the answer.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.lease
    }

    /// Splits into the decision and the lease.
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
