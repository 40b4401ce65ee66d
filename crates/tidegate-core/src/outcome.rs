//! One limit's result for one request.

use crate::units::{Hits, Micros};

/// One limit's result for one request, with the numbers for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether this limit admits the request.
    pub verdict: Verdict,
    /// Hits left right after this decision.
    pub remaining: u64,
    /// When the full quota is back if no more requests come (for a fixed window: its end).
    pub reset_after: Micros,
}

/// Whether a limit admits a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes after `delay` (non-zero only for leaky buckets).
    Admitted {
        /// How long the caller must wait before it proceeds.
        delay: Micros,
    },
    /// It passes, and spent less than its cost: all that was left ([`Over::Cap`](crate::Over::Cap)).
    Capped {
        /// How long the caller must wait before it proceeds.
        delay: Micros,
        /// What it spent.
        hits: Hits,
    },
    /// It does not pass. The cell is unchanged.
    Refused {
        /// When the same request passes at the earliest, if no other comes first; none if it never can.
        retry_after: Option<Micros>,
    },
    /// It does not pass, and its whole cost is spent ([`Over::Debt`](crate::Over::Debt)).
    Overdrawn {
        /// As of a refusal.
        retry_after: Option<Micros>,
    },
}

impl Outcome {
    #[inline]
    pub(crate) fn admitted(remaining: u64, reset_after: Micros) -> Self {
        Outcome { verdict: Verdict::Admitted { delay: Micros::ZERO }, remaining, reset_after }
    }

    #[inline]
    pub(crate) fn refused(retry_after: Option<Micros>, remaining: u64, reset_after: Micros) -> Self {
        Outcome { verdict: Verdict::Refused { retry_after }, remaining, reset_after }
    }

    /// Whether this limit admits the request, at once or after a delay.
    #[must_use]
    #[inline]
    pub fn is_admitted(&self) -> bool {
        matches!(self.verdict, Verdict::Admitted { .. } | Verdict::Capped { .. })
    }

    /// Whether this limit spent for the request: it admitted it, or went into debt for it.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        !matches!(self.verdict, Verdict::Refused { .. })
    }

    /// How much of a cost of `asked` this limit spent.
    #[must_use]
    pub fn spent_of(&self, asked: Hits) -> Hits {
        match self.verdict {
            Verdict::Admitted { .. } | Verdict::Overdrawn { .. } => asked,
            Verdict::Capped { hits, .. } => hits,
            Verdict::Refused { .. } => Hits::ZERO,
        }
    }

    /// When to retry a refused request; none if it never fits.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Micros> {
        match self.verdict {
            Verdict::Refused { retry_after } | Verdict::Overdrawn { retry_after } => retry_after,
            Verdict::Admitted { .. } | Verdict::Capped { .. } => None,
        }
    }

    /// How long an admitted request must wait; zero for a refusal.
    #[must_use]
    #[inline]
    pub fn delay(&self) -> Micros {
        match self.verdict {
            Verdict::Admitted { delay } | Verdict::Capped { delay, .. } => delay,
            Verdict::Refused { .. } | Verdict::Overdrawn { .. } => Micros::ZERO,
        }
    }
}
