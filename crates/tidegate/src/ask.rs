//! One question to a limiter, put together attribute by attribute.

use std::borrow::Cow;
use std::time::Duration;

use tidegate_core::Hits;
use tidegate_limiter::{CheckRequest, Decision, DescriptorAsk, Limiter, Patience};
use tidegate_rules::UnknownDomain;

use crate::blocking::{self, BlockingError};
use crate::checked::Checked;
use crate::skipped;
use crate::spend::Spend;

/// A question to a limiter: may this pass? It can be asked again and again.
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
    attributes: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
    /// The attributes that it lacks on purpose.
    without: Vec<Cow<'a, str>>,
    cost: Hits,
    patience: Patience,
}

impl<'a> Ask<'a> {
    /// Asks by the rules of `domain`, for one hit.
    #[must_use]
    pub fn new(domain: impl Into<Cow<'a, str>>) -> Self {
        let (domain, attributes) = (domain.into(), Vec::new());
        Ask { domain, attributes, without: Vec::new(), cost: Hits::ONE, patience: Patience::Waits }
    }

    /// Says something of the request. Where a name occurs twice, the first counts.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.attributes.push((name.into(), Cow::Borrowed(value.as_ref())));
        self
    }

    /// Says that the request has no such attribute. A rule whose key has it skips the request (or refuses it, as its
    /// `on_missing_key` says); without this, the first such request of a rule is warned of, for a mistyped name looks the same.
    #[must_use]
    pub fn without(mut self, name: impl Into<Cow<'a, str>>) -> Self {
        self.without.push(name.into());
        self
    }

    /// Asks for so many hits; none looks without spending.
    #[must_use]
    pub fn cost(mut self, hits: u64) -> Self {
        self.cost = Hits::new(hits);
        self
    }

    /// Cannot wait: what a leaky bucket would delay, it refuses. Otherwise the caller must wait for [`Decision::delay`]
    /// before it goes on.
    #[must_use]
    pub fn must_go_now(mut self) -> Self {
        self.patience = Patience::MustGoNow;
        self
    }

    /// Decides, and gives what was spent as a value: it can be refunded, charged with more, settled, and it holds the lease
    /// where a concurrency limit gave one.
    ///
    /// # Errors
    /// When no rule speaks of the domain.
    pub async fn spend(&self, limiter: &Limiter) -> Result<Spend, UnknownDomain> {
        Ok(Spend::new(limiter, self, self.decide(limiter).await?))
    }

    /// As [`Ask::spend`], on a thread that may wait.
    ///
    /// # Errors
    /// When no rule speaks of the domain, or nothing goes on while this thread waits.
    pub fn spend_blocking(&self, limiter: &Limiter) -> Result<Spend, BlockingError> {
        Ok(Spend::new(limiter, self, self.decide_blocking(limiter)?))
    }

    /// Decides. Where a concurrency limit admits it, the answer holds the lease, and gives it back when it is dropped; renew it
    /// before its time to live is over.
    ///
    /// # Errors
    /// When no rule speaks of the domain.
    pub async fn check(&self, limiter: &Limiter) -> Result<Checked, UnknownDomain> {
        Ok(Checked::new(limiter, self.decide(limiter).await?))
    }

    /// Decides, on a thread that may wait. On a store in memory there is nothing to wait for. One on Redis is asked by the
    /// runtime that the limiter was made on, which must go on meanwhile: call this from a thread that is not one of its
    /// workers.
    ///
    /// # Errors
    /// When no rule speaks of the domain; or when the runtime does not go on, because this thread is the one that runs it.
    pub fn check_blocking(&self, limiter: &Limiter) -> Result<Checked, BlockingError> {
        Ok(Checked::new(limiter, self.decide_blocking(limiter)?))
    }

    async fn decide(&self, limiter: &Limiter) -> Result<Decision, UnknownDomain> {
        let entries = self.entries();
        let decision = limiter.check(&self.request(&[self.descriptor(&entries)])).await?;
        skipped::warn_once(self, &decision);
        Ok(decision)
    }

    fn decide_blocking(&self, limiter: &Limiter) -> Result<Decision, BlockingError> {
        // A store answers, or its rules' failure policies do, within the time-out; ten times that is a runtime that stands.
        let patience = limiter.answers_within().map(|span| span * 10 + Duration::from_secs(1));
        let decided = blocking::wait_for(self.decide(limiter), patience);
        Ok(decided.ok_or(BlockingError::NothingGoesOn)??)
    }

    /// The same question, owning all that it says.
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

    /// Whether it has this attribute, or says that it has not.
    pub(crate) fn accounts_for(&self, attribute: &str) -> bool {
        let mut named = self.attributes.iter().map(|(name, _)| name).chain(&self.without);
        named.any(|name| name == attribute)
    }

    pub(crate) fn hits(&self) -> Hits {
        self.cost
    }

    pub(crate) fn entries(&self) -> Vec<(&str, &[u8])> {
        self.attributes.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    pub(crate) fn descriptor<'e>(&self, entries: &'e [(&'e str, &'e [u8])]) -> DescriptorAsk<'e> {
        DescriptorAsk::one(entries).cost(self.cost)
    }

    pub(crate) fn request<'e>(&'e self, descriptors: &'e [DescriptorAsk<'e>]) -> CheckRequest<'e> {
        CheckRequest::new(&self.domain, descriptors).patience(self.patience)
    }
}
