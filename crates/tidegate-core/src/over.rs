//! What a cost above what is left does to a limit: nothing, all that is left, or a debt.
//!
//! A request that finds not a single hit left is refused and spends nothing, whatever its limits say: retrying never pushes a
//! caller further back. So one hit at a time never goes over. Only [`Over::Charge`] always spends, because what it pays for
//! has happened already.

use crate::cell::Cell;
use crate::limit::{Charge, Limit};
use crate::outcome::{Outcome, Verdict};
use crate::request::{Ask, Touch};
use crate::units::{EXACT_MAX, Hits, Micros, Timestamp};

/// What happens to a request whose cost is above what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Over {
    /// It is refused and spends nothing.
    #[default]
    Refuse,
    /// It passes and spends what is left.
    Cap,
    /// It is refused and spends its whole cost. Time repays the debt; until then the limit admits nothing.
    Debt,
    /// As `Debt`, but also where nothing is left, and whatever the other limits of the request say: the cost was incurred
    /// before it was known (the tokens of an answer). A request with a charge takes no lease.
    Charge,
}

impl Over {
    /// What it means for a cost of `hits`: one hit fits or finds nothing left, and a look spends nothing.
    #[must_use]
    #[inline]
    pub const fn of(self, hits: Hits) -> Over {
        match self {
            Over::Cap | Over::Debt if hits.get() <= 1 => Over::Refuse,
            Over::Charge if hits.get() == 0 => Over::Refuse,
            over => over,
        }
    }
}

/// The debt of a bucket is repaid within this time. More is not counted: one wrong cost must not lock a key out for years.
pub const DEBT_REPAID_WITHIN: Micros = Micros::from_secs(30 * 86_400);

impl Limit {
    /// How far a debt may exceed the quota. A bucket repays it within [`DEBT_REPAID_WITHIN`]; a window ends by itself, so
    /// that only the range of its counter bounds it; a log holds no more than its limit.
    #[must_use]
    pub fn most_debt(&self) -> Hits {
        let Some(meter) = self.facts().meter else { return Hits::new(EXACT_MAX - 1) };
        Hits::new(meter.whole_hits_in(meter.drained_in(DEBT_REPAID_WITHIN).min(EXACT_MAX - 1)))
    }

    /// Spends `hits` whether or not they fit, up to the largest debt.
    fn owe(&self, cell: &mut Cell, now: Timestamp, hits: Hits) {
        self.charge(cell, now, Charge { hits, age: Micros::ZERO, overdraft: self.most_debt() });
    }
}

impl Touch<'_> {
    /// What a cost above what is left does here. A lease is one, whatever the cost.
    #[must_use]
    #[inline]
    pub fn over(&self) -> Over {
        if self.limit.takes_lease() { Over::Refuse } else { self.ask.over.of(self.ask.hits) }
    }

    /// How many hits must be left for the request to pass.
    #[must_use]
    pub fn needs(&self) -> Hits {
        if self.over() == Over::Cap { Hits::ONE } else { self.ask.hits }
    }

    /// Whether this limit lets the request spend: not whether it passes.
    pub(crate) fn may_spend(&self, cell: &Cell, now: Timestamp) -> bool {
        match self.over() {
            Over::Refuse => self.limit.look(cell, now, self.ask).is_admitted(),
            Over::Cap | Over::Debt => self.limit.look(cell, now, Ask::look()).is_admitted(),
            Over::Charge => true,
        }
    }

    /// Decides a request that may go over.
    pub(crate) fn decide_over(&self, cell: &mut Cell, now: Timestamp) -> Outcome {
        let Touch { limit, ask, .. } = *self;
        if !self.may_spend(cell, now) {
            return self.refuse(cell, now, 1);
        }
        let outcome = limit.decide(cell, now, ask);
        if outcome.is_admitted() {
            return outcome;
        }
        self.go_over(cell, now, 1)
    }

    /// Decides `count` equal requests, none of which fits: one, or any number of charges. Returns the outcome of the last.
    pub(crate) fn go_over(&self, cell: &mut Cell, now: Timestamp, count: u32) -> Outcome {
        let Touch { limit, ask, .. } = *self;
        if self.over() == Over::Cap {
            let left = limit.look(cell, now, Ask::look()).remaining;
            let outcome = limit.decide(cell, now, Ask::hits(left));
            let verdict = Verdict::Capped { delay: outcome.delay(), hits: Hits::new(left) };
            return Outcome { verdict, ..outcome };
        }
        limit.owe(cell, now, Hits::new(ask.hits.get().saturating_mul(count.into())));
        let outcome = limit.look(cell, now, ask);
        Outcome { verdict: Verdict::Overdrawn { retry_after: outcome.retry_after() }, ..outcome }
    }
}
