//! What made a decision: the store, this node, or a failure policy.

/// What made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The deny cache of this node: the store refused a moment ago.
    DenyCache,
    /// This node, within an approximate rule's bound.
    Approximate,
    /// This node alone, because the rule is local.
    Local,
    /// The store failed; the rule fails open.
    FallbackOpen,
    /// The store failed; the rule fails closed.
    FallbackClosed,
    /// The store failed; this node decided alone.
    FallbackLocal,
    /// The store was too busy; the rule fails open.
    OverloadOpen,
    /// The store was too busy; the rule fails closed.
    OverloadClosed,
    /// The store was too busy; this node decided alone.
    OverloadLocal,
    /// No limit had to be checked.
    None,
}

impl Source {
    /// All variants, for per-variant metrics.
    pub const ALL: [Source; 11] = [
        Source::Store,
        Source::DenyCache,
        Source::Approximate,
        Source::Local,
        Source::FallbackOpen,
        Source::FallbackClosed,
        Source::FallbackLocal,
        Source::OverloadOpen,
        Source::OverloadClosed,
        Source::OverloadLocal,
        Source::None,
    ];

    /// Whether a rule refused because its store was unavailable, not because a limit was reached.
    #[must_use]
    pub fn is_unavailable(self) -> bool {
        matches!(self, Source::FallbackClosed | Source::OverloadClosed)
    }

    /// Whether the store was too busy to decide: a refusal then says nothing about the caller.
    #[must_use]
    pub fn is_overload(self) -> bool {
        matches!(self, Source::OverloadOpen | Source::OverloadClosed | Source::OverloadLocal)
    }

    /// The source of a request decided in part by each: the one with the weaker guarantee.
    pub(crate) fn precedence(self, other: Source) -> Source {
        let weakness = |source: Source| match source {
            Source::None => 0,
            Source::Local => 1,
            Source::Approximate => 2,
            Source::Store => 3,
            Source::DenyCache => 4,
            Source::OverloadOpen => 5,
            Source::OverloadLocal => 6,
            Source::OverloadClosed => 7,
            Source::FallbackOpen => 8,
            Source::FallbackLocal => 9,
            Source::FallbackClosed => 10,
        };
        if weakness(other) > weakness(self) { other } else { self }
    }

    /// Whether a failure policy decided instead of the store.
    #[must_use]
    pub fn is_without_the_store(self) -> bool {
        match self {
            Source::FallbackOpen | Source::FallbackClosed | Source::FallbackLocal => true,
            Source::OverloadOpen | Source::OverloadClosed | Source::OverloadLocal => true,
            Source::Store | Source::DenyCache | Source::Approximate | Source::Local | Source::None => false,
        }
    }

    /// The name in responses and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Source::Store => "store",
            Source::DenyCache => "deny_cache",
            Source::Approximate => "approximate",
            Source::Local => "local",
            Source::FallbackOpen => "fallback_open",
            Source::FallbackClosed => "fallback_closed",
            Source::FallbackLocal => "fallback_local",
            Source::OverloadOpen => "overload_open",
            Source::OverloadClosed => "overload_closed",
            Source::OverloadLocal => "overload_local",
            Source::None => "none",
        }
    }
}
