//! What a request has spent, as a value: it remembers when and from which cells.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::time::Duration;

use tidegate_core::Hits;
use tidegate_limiter::{Decision, LeaseError, LeaseToken, Limiter, RefundError, Source, SpentAt};
use tidegate_store::RefundId;

use crate::ask::Ask;

/// The answer to an [`Ask`] that spends, with all that is needed to correct it later. It reads as its [`Decision`].
///
/// Where a concurrency limit admitted it, it holds the lease: dropping it gives the lease back, at the latest. Dropped, it gives no
/// hits back. A correction is awaited to its end: one that is dropped may have reached the store, and [`Spend::spent`] does not know.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = tidegate::in_memory("{ domain: llm, rules: [{ name: tokens, key: [user], limits: [1000/h] }] }")?;
/// # tidegate::block_on(async {
/// // A prompt of unknown length: 400 tokens are set aside, 250 were used.
/// let mut spend = tidegate::Ask::new("llm").with("user", "ann").cost(400).spend(&limiter).await?;
/// assert!(spend.is_allowed() && spend.remaining() == Some(600));
/// spend.settle(250).await?;
/// # assert_eq!(tidegate::Ask::new("llm").with("user", "ann").cost(0).check(&limiter).await?.remaining(), Some(750));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
#[must_use = "a lease that it holds ends when it is dropped"]
pub struct Spend {
    limiter: Limiter,
    ask: Ask<'static>,
    decision: Decision,
    lease: Option<Lease>,
    spent: u64,
    /// Of what was spent, what nobody counted, because the store was away and the rule lets requests pass without it.
    uncounted: u64,
    is_charged: bool,
    /// The last refund, if it failed: what may have been applied of it is not applied again.
    failed_refund: Option<(u64, RefundId)>,
}

impl Spend {
    pub(crate) fn new(limiter: &Limiter, ask: &Ask<'_>, mut decision: Decision) -> Self {
        let lease = decision.lease.take().map(|token| Lease::new(limiter, token));
        let spent = if decision.allowed { ask.hits().get() } else { 0 };
        let uncounted = if decision.source == Source::FallbackOpen { spent } else { 0 };
        let (limiter, ask) = (limiter.clone(), ask.clone().into_owned());
        Spend { limiter, ask, decision, lease, spent, uncounted, is_charged: false, failed_refund: None }
    }

    /// Whether it may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision.allowed
    }

    /// How many hits it has spent so far, corrections included. None if it was refused.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Gives `hits` back, at most what was spent: into the window that was charged, and nowhere if that is over.
    ///
    /// # Errors
    /// When the rules no longer have the domain, or the store did not answer. Called again for as many hits, within a minute, it
    /// gives back what the failed call did not.
    pub async fn refund(&mut self, hits: u64) -> Result<(), RefundError> {
        let hits = hits.min(self.spent);
        let counted = hits.min(self.spent - self.uncounted);
        if counted > 0 {
            let by = if self.is_charged { SpentAt::Charged } else { SpentAt::By }(&self.decision);
            let entries = self.ask.entries();
            let descriptors = [self.ask.descriptor(&entries)];
            let id = match self.failed_refund {
                Some((failed, id)) if failed == counted => id,
                _ => random_id(),
            };
            self.failed_refund = Some((counted, id));
            self.limiter.refund_once(&self.ask.request(&descriptors), Hits::new(counted), by, id).await?;
            self.failed_refund = None;
        }
        self.spent -= hits;
        self.uncounted -= hits - counted;
        Ok(())
    }

    /// Takes `hits` more, whether or not they fit, as if they had been spent with the request: a bucket has refilled since, and a
    /// window that is over is not charged. They fill each limit, and go beyond it as far as the rule's `overdraft` says: until
    /// that has come back, requests are refused. A request that was refused spends nothing.
    ///
    /// # Errors
    /// When the rules no longer have the domain, or the store did not answer.
    pub async fn charge(&mut self, hits: u64) -> Result<(), RefundError> {
        if hits > 0 && self.is_allowed() {
            let (entries, by) = (self.ask.entries(), SpentAt::By(&self.decision));
            let descriptors = [self.ask.descriptor(&entries)];
            self.limiter.charge(&self.ask.request(&descriptors), Hits::new(hits), by).await?;
            self.spent = self.spent.saturating_add(hits);
            self.is_charged = true;
        }
        Ok(())
    }

    /// Corrects what was spent to what it turned out to be, up or down. May be called again as more is known.
    ///
    /// # Errors
    /// When the rules no longer have the domain, or the store did not answer.
    pub async fn settle(&mut self, actual: u64) -> Result<(), RefundError> {
        match actual.checked_sub(self.spent) {
            Some(more) => self.charge(more).await,
            None => self.refund(self.spent - actual).await,
        }
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
}

/// One that no other refund has.
fn random_id() -> RefundId {
    let random = RandomState::new();
    let halves = [random.hash_one(0), random.hash_one(1)].map(u128::from);
    RefundId::new((halves[0] << 64 | halves[1]).to_le_bytes())
}

impl Deref for Spend {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

/// A held place under a concurrency limit. Dropping it gives it back: by a task of the limiter's runtime, or by its background
/// where the thread belongs to none. It keeps the limiter alive.
#[must_use = "the lease ends when this is dropped"]
pub struct Lease {
    limiter: Limiter,
    token: LeaseToken,
    /// Whether somebody else gives it back.
    let_go: bool,
}

impl Lease {
    pub(crate) fn new(limiter: &Limiter, token: LeaseToken) -> Self {
        Lease { limiter: limiter.clone(), token, let_go: false }
    }

    /// How long it lives unless it is renewed.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.token.ttl().into()
    }

    /// Its name, which any node of the fleet knows it by.
    #[must_use]
    pub fn token(&self) -> &LeaseToken {
        &self.token
    }

    /// Gives it another time to live.
    ///
    /// # Errors
    /// When it had ended already, or the store did not answer.
    pub async fn renew(&self) -> Result<(), LeaseError> {
        self.limiter.renew(&self.token).await
    }

    /// Gives it back, and waits until that is done.
    ///
    /// # Errors
    /// When it had ended already.
    pub async fn release(mut self) -> Result<(), LeaseError> {
        let released = self.limiter.release(&self.token).await;
        self.let_go = true;
        released
    }

    /// Keeps the place until its time to live is over, or until [`Limiter::release`] is called with what this returns,
    /// perhaps on another node.
    #[must_use]
    pub fn leak(mut self) -> LeaseToken {
        self.let_go = true;
        self.token.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.let_go {
            self.limiter.release_soon(&self.token);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.token).finish()
    }
}
