//! A request over several limits: it spends from all its cells or from none.

use crate::concurrency::LeaseId;
use crate::limit::{Cell, Limit};
use crate::outcome::Outcome;
use crate::over::Over;
use crate::units::{Hits, Timestamp};

/// What a request asks of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its cost. Zero is a look: it gets the answer for one hit, and spends nothing.
    pub hits: Hits,
    /// The ID of the lease it takes from a concurrency limit.
    pub lease: Option<LeaseId>,
    /// What a cost above what is left does.
    pub over: Over,
}

impl Ask {
    /// Asks for `count` hits and no lease, and is refused if they do not fit.
    #[must_use]
    pub const fn hits(count: u64) -> Self {
        Ask { hits: Hits::new(count), lease: None, over: Over::Refuse }
    }

    /// The same, where a cost above what is left does this.
    #[must_use]
    pub const fn over(self, over: Over) -> Self {
        Ask { over, ..self }
    }

    /// Looks without spending.
    #[must_use]
    pub const fn look() -> Self {
        Ask::hits(0)
    }
}

/// Whether a limit's refusal refuses the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// A refusal refuses the request.
    Enforced,
    /// A refusal is only reported: the cell is not spent from, and the request proceeds (shadow rules, quotas).
    Advisory,
}

/// One limit that a request touches.
#[derive(Clone, Copy, Debug)]
pub struct Touch<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// What the request asks of it.
    pub ask: Ask,
    /// Whether its refusal refuses the request.
    pub stance: Stance,
}

/// Decides one request at `now`: true if it passes. `touches` gives each limit the index of its cell in `cells`, no
/// index twice (a caller that touches a cell twice asks for the sum). `tell` receives one outcome per touch, in order.
///
/// If an enforced limit refuses, no cell is spent from, and the other outcomes report what remains unspent. A limit that goes
/// into debt refuses too, but the request is spent, from all its cells. An [`Over::Charge`] neither holds the others up nor
/// is held up by them.
pub fn decide_request<'a, T>(
    touches: T,
    cells: &mut [Cell],
    now: Timestamp,
    mut tell: impl FnMut(Outcome),
) -> bool
where
    T: ExactSizeIterator<Item = (usize, Touch<'a>)> + Clone,
{
    let alone = touches.len() == 1;
    let refuses = |cells: &[Cell], (place, touch): (usize, Touch<'a>)| {
        touch.stance == Stance::Enforced && !touch.may_spend(&cells[place], now)
    };
    // A single limit decides in one step: its refusal spends nothing.
    if alone || !touches.clone().any(|touch| refuses(cells, touch)) {
        let mut passes = true;
        for (place, touch) in touches {
            let outcome = touch.decide_alone(&mut cells[place], now);
            passes &= outcome.is_admitted() || touch.stance == Stance::Advisory;
            tell(outcome);
        }
        return passes;
    }
    for (place, touch) in touches {
        let cell = &mut cells[place];
        tell(if touch.over() == Over::Charge {
            touch.decide_over(cell, now)
        } else {
            touch.refuse(cell, now, 1)
        });
    }
    false
}

impl Touch<'_> {
    /// Decides only this touch, and records its refusal if refused requests count.
    pub fn decide_alone(&self, cell: &mut Cell, now: Timestamp) -> Outcome {
        if self.over() != Over::Refuse {
            return self.decide_over(cell, now);
        }
        let outcome = self.limit.decide(cell, now, self.ask);
        if outcome.is_admitted() || !self.limit.counts_refused() {
            return outcome;
        }
        self.refuse(cell, now, 1)
    }

    /// Refuses `count` equal requests and returns the outcome of the last: its refusal, or what remains unspent. Refused
    /// requests that count are recorded first, so that a caller that waits for `retry_after` is admitted.
    pub(crate) fn refuse(&self, cell: &mut Cell, now: Timestamp, count: u32) -> Outcome {
        let Touch { limit, ask, .. } = *self;
        limit.rebase(cell, now);
        limit.note_refused(cell, now, ask, count);
        let outcome = match self.over() {
            // One hit is enough for it to pass.
            Over::Cap => limit.look(cell, now, Ask::look()),
            Over::Refuse | Over::Debt | Over::Charge => limit.look(cell, now, ask),
        };
        if outcome.is_admitted() {
            return limit.look(cell, now, Ask { hits: Hits::ZERO, ..ask });
        }
        outcome
    }
}

/// Decides `requests` first in, first out, at one time: those that a node gathered while a call was in flight. `tell`
/// receives the outcomes of all touches of all requests, in order; returns which requests pass.
pub fn decide_in_order(
    requests: &[&[(usize, Touch<'_>)]],
    cells: &mut [Cell],
    now: Timestamp,
    mut tell: impl FnMut(Outcome),
) -> Vec<bool> {
    requests.iter().map(|touches| decide_request(touches.iter().copied(), cells, now, &mut tell)).collect()
}
