//! The answer to one request on its way back: from the store, the deny cache or this node to the decision.

use tidegate_core::Timestamp;
use tidegate_store::Outcomes;

use crate::source::Source;

/// The outcome of each cell of a request, and what made it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) outcomes: Outcomes,
    pub(crate) source: Source,
    /// When the store decided, by its own clock; `None` if a part was decided elsewhere. For a repeated refusal, a moment not
    /// before it and not after now, at which the store refuses the request.
    pub(crate) decided_at: Option<Timestamp>,
    /// The request's position among those that the store decided at that moment, if there were several.
    pub(crate) nth: Option<u32>,
}

impl Answer {
    #[inline]
    pub(crate) fn new(outcomes: Outcomes, source: Source, decided_at: Option<Timestamp>) -> Self {
        Answer { outcomes, source, decided_at, nth: None }
    }
}
