//! One limit's result for one request.

use crate::units::Micros;

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
    /// It does not pass. The cell is unchanged.
    Refused {
        /// When the same request passes at the earliest, if no other comes first; none if it never can.
        retry_after: Option<Micros>,
    },
}

impl Outcome {
    pub(crate) fn admitted(remaining: u64, reset_after: Micros) -> Self {
        Outcome { verdict: Verdict::Admitted { delay: Micros::ZERO }, remaining, reset_after }
    }

    pub(crate) fn refused(retry_after: Option<Micros>, remaining: u64, reset_after: Micros) -> Self {
        Outcome { verdict: Verdict::Refused { retry_after }, remaining, reset_after }
    }

    /// Whether this limit admits the request, at once or after a delay.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        matches!(self.verdict, Verdict::Admitted { .. })
    }

    /// When to retry a refused request; none if it never fits.
    #[must_use]
    pub fn retry_after(&self) -> Option<Micros> {
        match self.verdict {
            Verdict::Refused { retry_after } => retry_after,
            Verdict::Admitted { .. } => None,
        }
    }

    /// How long an admitted request must wait; zero for a refusal.
    #[must_use]
    pub fn delay(&self) -> Micros {
        match self.verdict {
            Verdict::Admitted { delay } => delay,
            Verdict::Refused { .. } => Micros::ZERO,
        }
    }
}
