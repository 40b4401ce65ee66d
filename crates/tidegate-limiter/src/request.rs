//! What a transport asks of the limiter.

use tidegate_core::{FixedWindow, Hits, Limit, LimitError, Micros, Scope};
use tidegate_rules::{Descriptor, RuleLimit};

/// One request to decide: it passes as a whole, or spends nothing.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckRequest<'a> {
    /// Whose rules apply.
    pub domain: &'a str,
    /// What the request says of itself; several where a gateway asks several questions at once.
    pub descriptors: &'a [DescriptorAsk<'a>],
    /// Whether it may be asked to wait.
    pub patience: Patience,
    /// Whether each of its cells is asked, also where one of them is known to refuse it.
    pub(crate) asks_every_cell: bool,
    /// When a penalty begins that it causes.
    pub(crate) penalty_start: PenaltyStart,
}

/// When the penalty of a refused request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PenaltyStart {
    /// Once it is refused.
    AtOnce,
    /// When [`Limiter::penalize`](crate::Limiter::penalize) is called, if ever: for who plays again what happened.
    WhenTold,
}

impl<'a> CheckRequest<'a> {
    /// One that can wait, under the rules of `domain`.
    #[must_use]
    pub const fn new(domain: &'a str, descriptors: &'a [DescriptorAsk<'a>]) -> Self {
        let (patience, penalty_start) = (Patience::Waits, PenaltyStart::AtOnce);
        CheckRequest { domain, descriptors, patience, asks_every_cell: false, penalty_start }
    }

    /// The same, with another patience.
    #[must_use]
    pub const fn patience(self, patience: Patience) -> Self {
        CheckRequest { patience, ..self }
    }

    /// The same, with penalties that begin then.
    #[must_use]
    pub const fn penalties(self, penalty_start: PenaltyStart) -> Self {
        CheckRequest { penalty_start, ..self }
    }

    /// The same, for who wants to know what every cell holds, and not only whether the request passes.
    pub(crate) const fn asking_every_cell(self) -> Self {
        CheckRequest { asks_every_cell: true, ..self }
    }
}

/// Whether a caller can hold its request back for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Patience {
    /// It can: a leaky bucket may ask it to wait.
    Waits,
    /// It cannot: what would have to wait is refused, and takes no place in the queue.
    MustGoNow,
}

/// One descriptor, and what is asked for it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DescriptorAsk<'a> {
    /// The attributes.
    pub descriptor: Descriptor<'a>,
    /// What to spend; none looks without spending.
    pub cost: Hits,
    /// A limit that the caller brings along, which replaces what the rules say for this descriptor.
    pub limit: Option<&'a LimitOverride>,
}

impl<'a> DescriptorAsk<'a> {
    /// One hit for these attributes.
    #[must_use]
    pub const fn one(entries: &'a [(&'a str, &'a [u8])]) -> Self {
        DescriptorAsk::of(Descriptor { entries })
    }

    /// One hit for this descriptor.
    #[must_use]
    pub const fn of(descriptor: Descriptor<'a>) -> Self {
        DescriptorAsk { descriptor, cost: Hits::ONE, limit: None }
    }

    /// The same at another cost; none looks without spending.
    #[must_use]
    pub const fn cost(self, cost: Hits) -> Self {
        DescriptorAsk { cost, ..self }
    }

    /// The same with a limit that replaces what the rules say.
    #[must_use]
    pub fn limit(self, limit: impl Into<Option<&'a LimitOverride>>) -> Self {
        DescriptorAsk { limit: limit.into(), ..self }
    }
}

/// A limit that a caller brings along: so many hits per fixed window, counted per descriptor.
#[derive(Debug)]
pub struct LimitOverride {
    pub(crate) limit: RuleLimit,
}

impl LimitOverride {
    /// `limit` hits per `window` for descriptors of `domain`.
    ///
    /// # Errors
    /// When the window is zero or the limit cannot be counted.
    pub fn new(domain: &str, limit: u64, window: Micros) -> Result<Self, LimitError> {
        let name = format!("override/{window}");
        let scope = Scope::new(&[domain.as_bytes(), b"", name.as_bytes()]);
        let limit = Limit::FixedWindow(FixedWindow::new(limit, window)?);
        Ok(LimitOverride { limit: RuleLimit { limit, name, scope } })
    }

    /// How many hits.
    #[must_use]
    pub fn quota(&self) -> u64 {
        self.limit.limit.quota()
    }

    /// Per how long.
    #[must_use]
    pub fn window(&self) -> Micros {
        self.limit.limit.quota_window().unwrap_or_default()
    }
}
