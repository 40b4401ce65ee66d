//! A request over several limits: it spends from every cell it touches, or from none.

use crate::concurrency::LeaseId;
use crate::limit::{Cell, Limit};
use crate::outcome::Outcome;
use crate::units::{Hits, Timestamp};

/// What a request asks of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How much it spends. None is a look: it answers as one hit would, and spends nothing.
    pub hits: Hits,
    /// The name of the lease it takes, where the limit is one on concurrency.
    pub lease: Option<LeaseId>,
}

impl Ask {
    /// Asks for `count` hits and no lease.
    #[must_use]
    pub const fn hits(count: u64) -> Self {
        Ask { hits: Hits::new(count), lease: None }
    }

    /// Looks without spending.
    #[must_use]
    pub const fn look() -> Self {
        Ask::hits(0)
    }
}

/// Whether a limit's refusal stops the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// A refusal here refuses the request.
    Enforced,
    /// A refusal here is only reported: the cell is not spent from, the request goes on (shadow rules, quotas).
    Advisory,
}

/// One limit that a request touches.
#[derive(Clone, Copy, Debug)]
pub struct Touch<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// What is asked of it.
    pub ask: Ask,
    /// Whether its refusal stops the request.
    pub stance: Stance,
}

/// Decides one request at `now`: true if it passes. `touches` names for each limit its place in `cells`, no place twice
/// (a caller that touches a cell twice asks for the sum). `tell` hears one outcome per touch, in order.
///
/// If any enforced limit refuses, no cell is spent from, and the outcomes of the others say what is left unspent.
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
        touch.stance == Stance::Enforced && !touch.limit.look(&cells[place], now, touch.ask).is_admitted()
    };
    // One limit alone decides in one go: its refusal changes nothing by itself.
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
        tell(touch.refuse(&mut cells[place], now, 1));
    }
    false
}

impl Touch<'_> {
    /// Decides this touch, whatever others the request has, and notes its refusal where refused requests count.
    pub fn decide_alone(&self, cell: &mut Cell, now: Timestamp) -> Outcome {
        let outcome = self.limit.decide(cell, now, self.ask);
        if outcome.is_admitted() || !self.limit.counts_refused() {
            return outcome;
        }
        self.refuse(cell, now, 1)
    }

    /// Refuses `count` equal requests: what the last of them is told, its own refusal or what is left unspent. Where
    /// refused requests count, that is after they were noted, so that who waits as long as it is told is admitted.
    pub(crate) fn refuse(&self, cell: &mut Cell, now: Timestamp, count: u32) -> Outcome {
        let Touch { limit, ask, .. } = *self;
        limit.rebase(cell, now);
        limit.note_refused(cell, now, ask, count);
        let outcome = limit.look(cell, now, ask);
        if outcome.is_admitted() {
            return limit.look(cell, now, Ask { hits: Hits::ZERO, ..ask });
        }
        outcome
    }
}

/// Decides `requests` first in, first out, at one moment: what a node has gathered while a call was under way. `tell`
/// hears the outcomes of all touches of all requests, in order; the answer says which requests pass.
pub fn decide_in_order(
    requests: &[&[(usize, Touch<'_>)]],
    cells: &mut [Cell],
    now: Timestamp,
    mut tell: impl FnMut(Outcome),
) -> Vec<bool> {
    requests.iter().map(|touches| decide_request(touches.iter().copied(), cells, now, &mut tell)).collect()
}
