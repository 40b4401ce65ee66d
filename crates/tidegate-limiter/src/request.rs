//! What a transport asks of the limiter.

use tidegate_core::{FixedWindow, Hits, Limit, LimitError, Micros, Over, Scope};
use tidegate_rules::{Descriptor, OnHangup, Policy, RuleLimit};

/// One request to decide: it passes as a whole, or spends nothing.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckRequest<'a> {
    /// The domain whose rules apply.
    pub domain: &'a str,
    /// The request's descriptors; several if a gateway asks several questions at once.
    pub descriptors: &'a [DescriptorAsk<'a>],
    /// Whether the caller can be delayed.
    pub patience: Patience,
    /// Whether its descriptors are alternative readings of one request.
    pub(crate) are_readings: bool,
    /// Asks every cell, even if one of them is known to refuse.
    pub(crate) asks_every_cell: bool,
    /// Does not ask the store.
    pub(crate) without_the_store: bool,
}

impl<'a> CheckRequest<'a> {
    /// A request that can wait, under the rules of `domain`.
    #[must_use]
    pub const fn new(domain: &'a str, descriptors: &'a [DescriptorAsk<'a>]) -> Self {
        let patience = Patience::Waits;
        let (are_readings, asks_every_cell, without_the_store) = (false, false, false);
        CheckRequest { domain, descriptors, patience, are_readings, asks_every_cell, without_the_store }
    }

    /// Sets the patience.
    #[must_use]
    pub const fn patience(self, patience: Patience) -> Self {
        CheckRequest { patience, ..self }
    }

    /// Takes its descriptors as alternative readings by the backend: it spends what each reading would spend, but from each
    /// cell only once.
    #[must_use]
    pub const fn readings(self) -> Self {
        CheckRequest { are_readings: true, ..self }
    }

    /// Decides by the failure policies of its rules: for a caller that has just asked a remote store in vain. A store in memory is
    /// asked all the same.
    #[must_use]
    pub const fn without_the_store(self) -> Self {
        CheckRequest { without_the_store: true, ..self }
    }

    /// Asks every cell, for callers that want the state of each and not only the verdict.
    pub(crate) const fn asking_every_cell(self) -> Self {
        CheckRequest { asks_every_cell: true, ..self }
    }
}

/// Whether a caller can delay its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Patience {
    /// It can: a leaky bucket may delay it.
    Waits,
    /// It cannot: what would have to wait is refused, and takes no place in the queue.
    MustGoNow,
}

/// One descriptor, its cost, and an optional limit override.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DescriptorAsk<'a> {
    /// The attributes.
    pub descriptor: Descriptor<'a>,
    /// Hits to spend; zero looks without spending.
    pub cost: Hits,
    /// A limit supplied by the caller, which replaces the rules for this descriptor.
    pub limit: Option<&'a LimitOverride>,
    /// Whether the cost is still to be incurred.
    pub incurred: Incurred,
}

/// When the cost of a request is incurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incurred {
    /// When it passes: the caller asks first.
    #[default]
    IfAdmitted,
    /// Before it was known, such as the tokens of an answer. A limit whose rule says `over: debt` counts it whatever is left,
    /// and whatever the other limits say.
    Already,
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
        DescriptorAsk { descriptor, cost: Hits::ONE, limit: None, incurred: Incurred::IfAdmitted }
    }

    /// Sets the cost; zero looks without spending.
    #[must_use]
    pub const fn cost(self, cost: Hits) -> Self {
        DescriptorAsk { cost, ..self }
    }

    /// Sets whether the cost is still to be incurred.
    #[must_use]
    pub const fn incurred(self, incurred: Incurred) -> Self {
        DescriptorAsk { incurred, ..self }
    }

    /// Sets a limit that replaces the rules.
    #[must_use]
    pub fn limit(self, limit: impl Into<Option<&'a LimitOverride>>) -> Self {
        DescriptorAsk { limit: limit.into(), ..self }
    }
}

/// A limit supplied by the caller: a quota per fixed window, counted per descriptor. A cost above what is left is counted, as
/// envoyproxy/ratelimit does.
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
        Ok(LimitOverride {
            limit: RuleLimit {
                limit,
                name,
                scope,
                over: Some(Over::Debt),
                on_hangup: OnHangup::default(),
                held: None,
                policy: Policy::ONLY,
            },
        })
    }

    /// The hits per window.
    #[must_use]
    pub fn quota(&self) -> u64 {
        self.limit.limit.quota()
    }

    /// The window.
    #[must_use]
    pub fn window(&self) -> Micros {
        self.limit.limit.quota_window().unwrap_or_default()
    }
}
