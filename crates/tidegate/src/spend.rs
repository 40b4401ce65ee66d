//! What a request spent, as a value that knows when and from which cells.

use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::Hits;
use tidegate_limiter::{Decision, LeaseError, LeaseToken, Limiter, RefundError, Source, SpentAt};
use tidegate_store::{RefundId, random_bytes};

use crate::ask::Ask;

/// The answer to [`Ask::spend`], with all that is needed to correct it later. It dereferences to its [`Decision`].
///
/// If a concurrency limit issued a lease, this holds it: dropping it releases the lease, but refunds no hits. Await every
/// correction to its end: a dropped one may have reached the store, and [`Spend::spent`] does not know.
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
    /// The part of the hits that was never counted, because the store was unavailable and the rule's policy is open.
    uncounted: u64,
    is_charged: bool,
    /// The last refund, if it failed: what was applied of it is not applied again.
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

    /// Whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision.allowed
    }

    /// Hits spent so far, corrections included; 0 if refused.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Refunds `hits`, at most what was spent, to the window that was charged; nothing if that window is over.
    ///
    /// # Errors
    /// When the rules no longer have the domain, or the store did not answer. A second call for the same hits within a minute
    /// refunds what the failed call did not.
    pub async fn refund(&mut self, hits: u64) -> Result<(), RefundError> {
        let hits = hits.min(self.spent);
        let counted = hits.min(self.spent - self.uncounted);
        if counted > 0 {
            let by = if self.is_charged { SpentAt::Charged } else { SpentAt::By }(&self.decision);
            let entries = self.ask.entries();
            let descriptors = [self.ask.descriptor(&entries)];
            let id = match self.failed_refund {
                Some((failed, id)) if failed == counted => id,
                _ => RefundId::new(random_bytes()),
            };
            self.failed_refund = Some((counted, id));
            self.limiter.refund_once(&self.ask.request(&descriptors), Hits::new(counted), by, id).await?;
            self.failed_refund = None;
        }
        self.spent -= hits;
        self.uncounted -= hits - counted;
        Ok(())
    }

    /// Charges `hits` more, whether or not they fit, as of the time of the request: a bucket has refilled since, and a window that
    /// is over is not charged. They fill each limit and exceed it by at most the rule's `overdraft`; until that is repaid,
    /// requests are refused. Charging a refused request does nothing.
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

    /// Sets what was spent to the actual cost, up or down. May be called repeatedly.
    ///
    /// # Errors
    /// When the rules no longer have the domain, or the store did not answer.
    pub async fn settle(&mut self, actual: u64) -> Result<(), RefundError> {
        match actual.checked_sub(self.spent) {
            Some(more) => self.charge(more).await,
            None => self.refund(self.spent - actual).await,
        }
    }

    /// The lease, if a concurrency limit issued one.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Takes the lease out, to keep it longer than this value.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.lease
    }
}

impl Deref for Spend {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

/// A held slot of a concurrency limit. Dropping it releases the slot, in a task of the limiter's runtime, or in its background
/// work if the thread belongs to no runtime. It keeps the limiter alive.
#[must_use = "the lease ends when this is dropped"]
pub struct Lease {
    limiter: Limiter,
    token: LeaseToken,
    /// Whether another owner releases it.
    let_go: bool,
}

impl Lease {
    pub(crate) fn new(limiter: &Limiter, token: LeaseToken) -> Self {
        Lease { limiter: limiter.clone(), token, let_go: false }
    }

    /// Time to live unless renewed.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.token.ttl().into()
    }

    /// The lease's id, valid on every node of the fleet.
    #[must_use]
    pub fn token(&self) -> &LeaseToken {
        &self.token
    }

    /// Does `work` and keeps the lease until it is done, however long that takes: renews it each time a third of its time to
    /// live has passed. `sleep` waits for a span: `tokio::time::sleep`, or what your runtime has. Then releases it.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = tidegate::in_memory("{ domain: d, rules: [{ name: r, limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }] }")?;
    /// # let sleep = |_| std::future::pending();
    /// # let job = tidegate::Ask::new("d");
    /// # tidegate::block_on(async {
    /// let lease = job.check(&limiter).await?.into_lease().expect("there is room");
    /// let result = lease.around(async { "done" }, sleep).await?;
    /// assert_eq!(result, "done");
    /// assert!(job.check(&limiter).await?.is_allowed(), "its place is free again");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })
    /// # }
    /// # #[cfg(not(feature = "memory"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// When the lease had ended: somebody else may have its place, and `work` is dropped where it stands. A store that does not
    /// answer is asked again at the next third, until the time to live is over.
    pub async fn around<T, S: Future<Output = ()>>(
        self,
        work: impl Future<Output = T>,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<T, LeaseError> {
        let mut work = pin!(work);
        let mut failed = 0;
        loop {
            let mut third = pin!(sleep(self.ttl() / 3));
            let done = poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => third.as_mut().poll(context).map(|()| None),
            });
            if let Some(result) = done.await {
                // Dropped here, it is released in the background: the work is done either way.
                return Ok(result);
            }
            failed = match self.renew().await {
                Ok(()) => 0,
                // The third third in which nobody renewed it ends it.
                Err(LeaseError::Store(_)) if failed < 2 => failed + 1,
                Err(error) => return Err(error),
            };
        }
    }

    /// Renews the lease for another time to live.
    ///
    /// # Errors
    /// When the lease had ended already, or the store did not answer.
    pub async fn renew(&self) -> Result<(), LeaseError> {
        self.limiter.renew(&self.token).await
    }

    /// Releases the lease, and waits until that is done.
    ///
    /// # Errors
    /// When the lease had ended already.
    pub async fn release(mut self) -> Result<(), LeaseError> {
        let released = self.limiter.release(&self.token).await;
        self.let_go = true;
        released
    }

    /// Keeps the slot until its time to live ends, or until [`Limiter::release`] is called with the returned id, on any node.
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
