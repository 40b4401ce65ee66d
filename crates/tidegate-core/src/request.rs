//! A request over several limits: it spends from all its cells or from none.

use crate::cell::Cell;
use crate::concurrency::LeaseId;
use crate::group::{Blamed, Group, Stance};
use crate::limit::Limit;
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

/// One limit that a request touches.
#[derive(Clone, Copy, Debug)]
pub struct Touch<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// What the request asks of it.
    pub ask: Ask,
    /// Its rule.
    pub group: Group,
}

/// Decides one request at `now`: true if it passes. `touches` gives each limit the index of its cell in `cells`, no
/// index twice (a caller that touches a cell twice asks for the sum). `tell` receives one outcome per touch, in order.
///
/// If a rule refuses the request, no cell is spent from, and the other outcomes report what remains unspent. A limit that goes
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
    // A single limit decides in one step: its refusal spends nothing.
    let alone = touches.len() == 1;
    let spends = alone || may_spend(touches.clone(), cells, now);
    let (mut shadow, mut blamed) = (None, Blamed::default());
    let (mut enforced, mut any_of) = (true, None);
    for (place, touch) in touches.clone() {
        let outcome = if touch.group.is_penalty {
            touch.look_or_start(&mut cells[place], now, blamed.first(touch.group).is_some())
        } else {
            let spends = spends
                && match touch.group.stance {
                    _ if alone => true,
                    Stance::Enforced => true,
                    Stance::AnyOf => touch.may_spend(&cells[place], now),
                    Stance::Shadow => {
                        // Before the first limit of a shadow rule is spent from, all of them are asked.
                        let known = shadow.filter(|(number, _)| *number == touch.group.number);
                        let (_, spends) = *shadow.insert(known.unwrap_or_else(|| {
                            (touch.group.number, shadow_may_spend(touch.group, touches.clone(), cells, now))
                        }));
                        spends
                    }
                };
            let cell = &mut cells[place];
            let spends = spends || !touch.holds_up();
            let fits = spends || touch.fits(cell, now);
            let outcome = match spends {
                true => touch.decide_alone(cell, now),
                false => touch.refuse(cell, now, 1),
            };
            if !alone && !(fits && (!spends || outcome.is_admitted())) {
                blamed.note(&touch, 0);
            }
            outcome
        };
        match touch.group.stance {
            Stance::Enforced => enforced &= outcome.is_admitted(),
            Stance::AnyOf if touch.holds_up() => any_of = any_of.max(Some(outcome.is_admitted())),
            Stance::AnyOf | Stance::Shadow => {}
        }
        tell(outcome);
    }
    spends && enforced && any_of.unwrap_or(true)
}

/// Whether the rules that may refuse a request let it spend.
fn may_spend<'a>(touches: impl Iterator<Item = (usize, Touch<'a>)>, cells: &[Cell], now: Timestamp) -> bool {
    let mut any_of = None;
    for (place, touch) in touches.filter(|(_, touch)| touch.group.stance != Stance::Shadow) {
        match touch.group.stance {
            Stance::Enforced if !touch.may_spend(&cells[place], now) => return false,
            Stance::AnyOf if touch.holds_up() && any_of != Some(true) => {
                any_of = Some(touch.may_spend(&cells[place], now))
            }
            _ => {}
        }
    }
    any_of.unwrap_or(true)
}

/// Whether all limits of a shadow rule, and its penalty, let a request spend. A limit alone is asked when it is spent from.
fn shadow_may_spend<'a>(
    group: Group,
    touches: impl Iterator<Item = (usize, Touch<'a>)> + Clone,
    cells: &[Cell],
    now: Timestamp,
) -> bool {
    let mut own = touches.filter(|(_, touch)| touch.group.number == group.number);
    own.clone().nth(1).is_none() || own.all(|(place, touch)| touch.may_spend(&cells[place], now))
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
