//! What one limit says about one request.

use crate::units::Micros;

/// What one limit says about one request, and the numbers a caller may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether this limit lets the request pass.
    pub verdict: Verdict,
    /// Hits left right after this decision.
    pub remaining: u64,
    /// When the full quota is back if nobody asks again (a fixed window: its end).
    pub reset_after: Micros,
}

/// Whether a limit lets a request pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass, `delay` from now (only a leaky bucket asks for a delay).
    Admitted {
        /// How long the caller must wait before it goes on.
        delay: Micros,
    },
    /// It may not. The cell is as it was.
    Refused {
        /// The earliest moment at which the same request passes if nobody else asks before; none if it never can.
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

    /// Whether this limit lets the request pass, at once or after a delay.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        matches!(self.verdict, Verdict::Admitted { .. })
    }

    /// When to try again, for a refusal that time heals.
    #[must_use]
    pub fn retry_after(&self) -> Option<Micros> {
        match self.verdict {
            Verdict::Refused { retry_after } => retry_after,
            Verdict::Admitted { .. } => None,
        }
    }

    /// How long an admitted request must wait before it goes on; none for a refusal.
    #[must_use]
    pub fn delay(&self) -> Micros {
        match self.verdict {
            Verdict::Admitted { delay } => delay,
            Verdict::Refused { .. } => Micros::ZERO,
        }
    }
}
