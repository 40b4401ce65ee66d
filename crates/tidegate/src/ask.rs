//! A check, built attribute by attribute.

use std::borrow::Cow;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::Hits;
use tidegate_limiter::{BlockingError, CheckRequest, Decision, DescriptorAsk, Limiter, Patience, wait_for};
use tidegate_rules::UnknownDomain;

use crate::attribute::AttributeValue;
use crate::checked::Checked;
use crate::skipped;
use crate::spend::Spend;

/// A check to send to a limiter: whether a request may pass. It can be reused.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # async fn example(limiter: tidegate::Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// let prompt = tidegate::Ask::new("llm").with("user", "alice").cost(400);
/// let mut spend = prompt.spend(&limiter).await?;
/// if spend.is_allowed() {
///     // It took fewer tokens than it might have.
///     spend.settle(250).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    domain: Cow<'a, str>,
    attributes: SmallVec<[Attribute<'a>; 3]>,
    /// Attributes that are known to be absent.
    without: Vec<Cow<'a, str>>,
    cost: Hits,
    patience: Patience,
}

/// A name and its value.
type Attribute<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

impl<'a> Ask<'a> {
    /// A check against the rules of `domain`, with a cost of one hit.
    #[must_use]
    pub fn new(domain: impl Into<Cow<'a, str>>) -> Self {
        let (domain, attributes) = (domain.into(), SmallVec::new());
        Ask { domain, attributes, without: Vec::new(), cost: Hits::ONE, patience: Patience::Waits }
    }

    /// Adds an attribute. If a name occurs twice, the first one counts.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl AttributeValue<'a>) -> Self {
        self.attributes.push((name.into(), value.into_bytes()));
        self
    }

    /// Declares that the request has no such attribute. A rule whose key needs it skips the request, or refuses it if its
    /// `on_missing_key` says so. Without this call a rule logs a warning the first time, because a mistyped name looks the same.
    #[must_use]
    pub fn without(mut self, name: impl Into<Cow<'a, str>>) -> Self {
        self.without.push(name.into());
        self
    }

    /// Sets the cost in hits; 0 reads without spending.
    #[must_use]
    pub fn cost(mut self, hits: u64) -> Self {
        self.cost = Hits::new(hits);
        self
    }

    /// Refuses what a leaky bucket would delay. Without this call the caller must wait for [`Decision::delay`] before it
    /// continues.
    #[must_use]
    pub fn must_go_now(mut self) -> Self {
        self.patience = Patience::MustGoNow;
        self
    }

    /// Decides, and returns what was spent as a value that can be refunded, charged or settled. It holds the lease if a
    /// concurrency limit issued one.
    ///
    /// # Errors
    /// When the rules have no such domain.
    pub async fn spend(&self, limiter: &Limiter) -> Result<Spend, UnknownDomain> {
        Ok(Spend::new(limiter, self, self.decide(limiter).await?))
    }

    /// [`Ask::spend`] for a thread that may block.
    ///
    /// # Errors
    /// When the rules have no such domain, or the limiter's runtime is blocked by this thread.
    pub fn spend_blocking(&self, limiter: &Limiter) -> Result<Spend, BlockingError> {
        Ok(Spend::new(limiter, self, self.decide_blocking(limiter)?))
    }

    /// Decides. If a concurrency limit issues a lease, the answer holds it and releases it when dropped; renew it before its
    /// time to live ends.
    ///
    /// # Errors
    /// When the rules have no such domain.
    pub async fn check(&self, limiter: &Limiter) -> Result<Checked, UnknownDomain> {
        Ok(Checked::new(limiter, self.decide(limiter).await?))
    }

    /// [`Ask::check`] for a thread that may block. A store in memory answers at once. A store on Redis is called on the runtime
    /// that the limiter was created on, which must keep running: call this from a thread that is not one of its workers.
    ///
    /// # Errors
    /// When the rules have no such domain, or the runtime is blocked because this thread is the one that drives it.
    pub fn check_blocking(&self, limiter: &Limiter) -> Result<Checked, BlockingError> {
        Ok(Checked::new(limiter, self.decide_blocking(limiter)?))
    }

    /// Waits until the request may go, and returns its answer: past refusals until their time has come, and as long as a leaky
    /// bucket says. `sleep` waits for a span: `tokio::time::sleep`, or what your runtime has. A refusal that no time ends, such as
    /// of a cost above the whole limit, is returned at once.
    ///
    /// Callers that wait are not queued: of several, any may go first. A leaky bucket queues them.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use tidegate::{Ask, ManualClock, Setup};
    ///
    /// let clock = Arc::new(ManualClock::default());
    /// let rules = "{ domain: d, rules: [{ name: r, limits: [1/minute] }] }";
    /// let limiter = Setup::new(rules).clock(clock.clone()).in_memory()?;
    /// // A test does not wait: it sets its clock.
    /// let sleep = |span: std::time::Duration| std::future::ready(clock.advance(span));
    /// for _ in 0..3 {
    ///     assert!(tidegate::block_on(Ask::new("d").until_ready(&limiter, sleep))?.is_allowed());
    /// }
    /// assert!(!Ask::new("d").check_blocking(&limiter)?.is_allowed());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "memory"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// When the rules have no such domain.
    pub async fn until_ready<S: Future<Output = ()>>(
        &self,
        limiter: &Limiter,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<Checked, UnknownDomain> {
        loop {
            let checked = self.check(limiter).await?;
            match checked.retry_after() {
                Some(span) => sleep(span).await,
                None => {
                    if checked.delay() > Duration::ZERO {
                        sleep(checked.delay()).await;
                    }
                    return Ok(checked);
                }
            }
        }
    }

    async fn decide(&self, limiter: &Limiter) -> Result<Decision, UnknownDomain> {
        let entries = self.entries();
        let descriptors = [self.descriptor(&entries)];
        let request = self.request(&descriptors);
        let decision = match limiter.check_now(&request) {
            Some(decided) => decided?,
            // Its future is large, and need not be where the store answers at once.
            None => Box::pin(limiter.check(&request)).await?,
        };
        skipped::warn_once(self, &decision);
        Ok(decision)
    }

    fn decide_blocking(&self, limiter: &Limiter) -> Result<Decision, BlockingError> {
        let decided = wait_for(self.decide(limiter), limiter.blocks_for());
        Ok(decided.ok_or(BlockingError::RuntimeBlocked)??)
    }

    /// The same check with owned attributes.
    #[must_use]
    pub fn into_owned(self) -> Ask<'static> {
        let own = |(name, value): (Cow<'_, str>, Cow<'_, [u8]>)| {
            (Cow::Owned(name.into_owned()), Cow::Owned(value.into_owned()))
        };
        Ask {
            domain: Cow::Owned(self.domain.into_owned()),
            attributes: self.attributes.into_iter().map(own).collect(),
            without: self.without.into_iter().map(|name| Cow::Owned(name.into_owned())).collect(),
            cost: self.cost,
            patience: self.patience,
        }
    }

    /// Whether this attribute is present, or declared absent.
    pub(crate) fn accounts_for(&self, attribute: &str) -> bool {
        let mut named = self.attributes.iter().map(|(name, _)| name).chain(&self.without);
        named.any(|name| name == attribute)
    }

    pub(crate) fn hits(&self) -> Hits {
        self.cost
    }

    pub(crate) fn entries(&self) -> SmallVec<[(&str, &[u8]); 3]> {
        self.attributes.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    pub(crate) fn descriptor<'e>(&self, entries: &'e [(&'e str, &'e [u8])]) -> DescriptorAsk<'e> {
        DescriptorAsk::one(entries).cost(self.cost)
    }

    pub(crate) fn request<'e>(&'e self, descriptors: &'e [DescriptorAsk<'e>]) -> CheckRequest<'e> {
        CheckRequest::new(&self.domain, descriptors).patience(self.patience)
    }
}
