//! One question to a limiter, put together attribute by attribute.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tidegate_core::Hits;
use tidegate_limiter::{CheckRequest, Decision, DescriptorAsk, Limiter, Patience, RefundError, SpentAt};
use tidegate_rules::{Descriptor, UnknownDomain};

/// A question to a limiter: may this pass? It can be asked again and again.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # async fn example(limiter: tidegate::Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// let prompt = tidegate::Ask::new("llm").with("user", "alice").cost(400);
/// let decision = prompt.check(&limiter).await?;
/// if decision.allowed {
///     // It took fewer tokens than it might have.
///     prompt.refund(&limiter, &decision, 150).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    domain: Cow<'a, str>,
    attributes: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
    cost: Hits,
    patience: Patience,
}

impl<'a> Ask<'a> {
    /// Asks by the rules of `domain`, for one hit.
    #[must_use]
    pub fn new(domain: impl Into<Cow<'a, str>>) -> Self {
        let (domain, attributes) = (domain.into(), Vec::new());
        Ask { domain, attributes, cost: Hits::ONE, patience: Patience::Waits }
    }

    /// Says something of the request. Where a name occurs twice, the first counts.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.attributes.push((name.into(), Cow::Borrowed(value.as_ref())));
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

    /// Decides. Where the decision holds a lease, give it back with [`Limiter::release`], and renew it before its time to
    /// live is over.
    ///
    /// # Errors
    /// When no rule speaks of the domain.
    pub async fn check(&self, limiter: &Limiter) -> Result<Decision, UnknownDomain> {
        let entries = self.entries();
        limiter.check(&self.request(&[self.descriptor(&entries)])).await
    }

    /// Decides, on a thread that may wait. On a store in memory there is nothing to wait for. One on Redis needs a runtime
    /// on which its calls go on meanwhile: ask it with [`Ask::check`] there.
    ///
    /// # Errors
    /// When no rule speaks of the domain.
    pub fn check_blocking(&self, limiter: &Limiter) -> Result<Decision, UnknownDomain> {
        block_on(self.check(limiter))
    }

    /// Gives `hits` back that `decision` spent and that were not needed after all: into the window that was charged, and
    /// nowhere if that is over.
    ///
    /// # Errors
    /// When no rule speaks of the domain, or the store did not answer.
    pub async fn refund(&self, limiter: &Limiter, decision: &Decision, hits: u64) -> Result<(), RefundError> {
        let entries = self.entries();
        let request = [self.descriptor(&entries)];
        limiter.refund(&self.request(&request), Hits::new(hits), SpentAt::By(decision)).await
    }

    fn entries(&self) -> Vec<(&str, &[u8])> {
        self.attributes.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    fn descriptor<'e>(&self, entries: &'e [(&'e str, &'e [u8])]) -> DescriptorAsk<'e> {
        DescriptorAsk { descriptor: Descriptor { entries }, cost: self.cost, limit: None }
    }

    fn request<'e>(&'e self, descriptors: &'e [DescriptorAsk<'e>]) -> CheckRequest<'e> {
        CheckRequest { domain: &self.domain, descriptors, patience: self.patience }
    }
}

/// Waits for `work` on this thread: for what a [`Limiter`] does where there is no async runtime. On a store in memory there
/// is nothing to wait for.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return answer;
        }
        thread::park();
    }
}
