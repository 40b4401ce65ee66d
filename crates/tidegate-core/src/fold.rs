//! Decides equal requests at one time as one.
//!
//! Within a call time stands still and cells only fill. So of n equal requests the first k pass and the rest are refused,
//! and a single look yields k: the work does not grow with n. The outcome of each request follows from its index.
//!
//! Where the cost may be above what is left, the one after the k that fit goes [over](Over), and finds more than nothing left
//! for the last time; of charges, all after the k go over, and are one charge.

use crate::algorithm::Facts;
use crate::cell::Cell;
use crate::group::{Blamed, Group, Stance};
use crate::limit::Limit;
use crate::outcome::{Outcome, Verdict};
use crate::over::Over;
use crate::request::{Ask, Touch};
use crate::units::{Hits, Micros, Timestamp};

/// One limit's result for equal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The number admitted with their whole cost; they are the first ones.
    pub admitted: u32,
    /// The outcome of the last of those; same as `last` if there is none.
    pub last_admitted: Outcome,
    /// The number that went over the limit: one, or all the rest of charges. They come next.
    pub over: u32,
    /// The outcome of the last of those, and of all of them: what is owed then is what each must wait for. Same as `last` if
    /// there is none.
    pub last_over: Outcome,
    /// The outcome of the last request, and of all others that were refused: if refused requests count, the outcome that
    /// each would have had alone is void once the next is recorded.
    pub last: Outcome,
}

impl Fold {
    /// The result if none is admitted and none goes over.
    #[must_use]
    pub const fn refused(last: Outcome) -> Self {
        Fold { admitted: 0, last_admitted: last, over: 0, last_over: last, last }
    }

    /// The result of a single request.
    #[must_use]
    pub fn of_one(outcome: Outcome) -> Self {
        let (admitted, over) = match outcome.verdict {
            Verdict::Admitted { .. } => (1, 0),
            Verdict::Capped { .. } | Verdict::Overdrawn { .. } => (0, 1),
            Verdict::Refused { .. } => (0, 0),
        };
        Fold { admitted, over, ..Fold::refused(outcome) }
    }

    /// The result of these requests and of `rest`, which come after them and are refused.
    #[must_use]
    pub const fn followed_by(self, rest: Fold) -> Self {
        let last_admitted = match (rest.admitted, self.admitted) {
            (0, 0) => rest.last,
            (0, _) => self.last_admitted,
            _ => rest.last_admitted,
        };
        let (over, last_over) = match (self.over, rest.over) {
            (0, 0) => (0, rest.last),
            (0, over) => (over, rest.last_over),
            (over, _) => (over, self.last_over),
        };
        let admitted = self.admitted.saturating_add(rest.admitted);
        Fold { admitted, last_admitted, over, last_over, last: rest.last }
    }

    /// How many requests spent from this limit; they are the first ones.
    #[must_use]
    pub const fn spent(&self) -> u32 {
        self.admitted.saturating_add(self.over)
    }

    /// How many requests this limit lets pass; they are the first ones. One that spends what is left passes too.
    #[must_use]
    pub fn passed(&self) -> u32 {
        if self.over > 0 && self.last_over.is_admitted() { self.spent() } else { self.admitted }
    }

    /// The outcome for the equal request at index `place`, which asked `hits` of `limit`.
    ///
    /// Its spans may be up to a microsecond longer than for a single request, never shorter.
    #[must_use]
    pub fn at(&self, place: u32, limit: &Limit, hits: Hits) -> Outcome {
        if place >= self.spent() {
            return self.last;
        }
        if place >= self.admitted {
            return self.last_over;
        }
        let later = u64::from(self.admitted - 1 - place);
        limit.told_before(self.last_admitted, later.saturating_mul(hits.get()))
    }
}

/// Decides `count` equal requests at `now` and returns how many pass, as [`decide_request`](crate::decide_request) would
/// one after another. `tell` receives one fold per touch, in order. None of them takes a lease, nor do they charge under a rule
/// with a penalty: it would start in their midst.
pub fn decide_fold<'a, T>(
    touches: T,
    cells: &mut [Cell],
    now: Timestamp,
    count: u32,
    mut tell: impl FnMut(Fold),
) -> u32
where
    T: Iterator<Item = (usize, Touch<'a>)> + Clone,
{
    let holding = touches.clone().filter(|(_, touch)| touch.holds_up());
    let asked = holding.map(|(place, touch)| (touch.group, touch.spending(&cells[place], now, count)));
    let spending = Stance::satisfied(asked, count);
    let (mut shadow, mut blamed) = (None, Blamed::default());
    let (mut enforced, mut any_of) = (spending, None);
    for (place, touch) in touches.clone() {
        let group = touch.group;
        let fold = if group.is_penalty {
            touch.fold_penalty(&mut cells[place], now, count, blamed.first(group))
        } else {
            let spent = match group.stance {
                _ if !touch.holds_up() => count,
                Stance::Enforced => spending,
                Stance::AnyOf => touch.spending(&cells[place], now, spending),
                Stance::Shadow => {
                    let known = shadow.filter(|(number, _)| *number == group.number);
                    let (_, spent) = *shadow.insert(known.unwrap_or_else(|| {
                        (group.number, shadow_spending(group, touches.clone(), cells, now, spending))
                    }));
                    spent
                }
            };
            let (fold, fits) = touch.decide_fold(&mut cells[place], now, count, spent);
            if !fits {
                blamed.note(&touch, fold.passed());
            }
            fold
        };
        match group.stance {
            Stance::Enforced => enforced = enforced.min(fold.passed()),
            Stance::AnyOf if touch.holds_up() => any_of = any_of.max(Some(fold.passed())),
            Stance::AnyOf | Stance::Shadow => {}
        }
        tell(fold);
    }
    enforced.min(any_of.unwrap_or(count))
}

/// How many of `most` equal requests the limits of a shadow rule, and its penalty, let spend.
fn shadow_spending<'a>(
    group: Group,
    touches: impl Iterator<Item = (usize, Touch<'a>)>,
    cells: &[Cell],
    now: Timestamp,
    most: u32,
) -> u32 {
    let own = touches.filter(|(_, touch)| touch.group.number == group.number);
    own.fold(most, |most, (place, touch)| touch.spending(&cells[place], now, most))
}

impl Touch<'_> {
    /// How many of `most` equal requests this limit lets spend, one after another: not how many pass.
    fn spending(&self, cell: &Cell, now: Timestamp, most: u32) -> u32 {
        match self.over() {
            Over::Refuse => self.limit.admits(cell, now, self.ask, most),
            Over::Cap | Over::Debt => self.limit.begins(cell, now, self.ask, most),
            Over::Charge => most,
        }
    }

    /// Decides `count` equal requests of which `spent` may spend. Also returns whether there was room for the last of them.
    fn decide_fold(&self, cell: &mut Cell, now: Timestamp, count: u32, spent: u32) -> (Fold, bool) {
        let Touch { limit, ask, .. } = *self;
        let admitted = match self.over() {
            Over::Refuse => spent,
            Over::Cap | Over::Debt | Over::Charge => limit.admits(cell, now, ask, spent),
        };
        let last_admitted = (admitted > 0).then(|| limit.admit(cell, now, ask, admitted));
        let last_over = (admitted < spent).then(|| self.go_over(cell, now, spent - admitted));
        if count - spent > 1 && limit.counts_refused() {
            limit.rebase(cell, now);
            limit.note_refused(cell, now, ask, count - spent - 1);
        }
        let fits =
            if spent < count { self.fits(cell, now) } else { admitted == spent || self.over() == Over::Cap };
        let refused = (spent < count).then(|| self.refuse(cell, now, 1));
        let last = refused.or(last_over).or(last_admitted).expect("there is at least one request");
        let fold = Fold {
            admitted,
            last_admitted: last_admitted.unwrap_or(last),
            over: spent - admitted,
            last_over: last_over.unwrap_or(last),
            last,
        };
        (fold, fits)
    }

    /// Looks at a penalty for `count` equal requests, and starts it with the first that its rule refuses.
    fn fold_penalty(&self, cell: &mut Cell, now: Timestamp, count: u32, first: Option<u32>) -> Fold {
        let before = self.limit.look(cell, now, Ask::look());
        let told = self.look_or_start(cell, now, first.is_some());
        let (admitted, over) = match (before.is_admitted(), first) {
            (true, Some(first)) => (first, 1),
            (true, None) => (count, 0),
            (false, _) => (0, 0),
        };
        let last = match over == 1 && admitted + over < count {
            true => self.limit.look(cell, now, Ask::look()),
            false => told,
        };
        let last_admitted = if admitted > 0 { before } else { last };
        Fold { admitted, last_admitted, over, last_over: told, last }
    }
}

impl Limit {
    /// How many of `most` equal requests fit, one after another.
    #[must_use]
    pub fn admits(&self, cell: &Cell, now: Timestamp, ask: Ask, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let first = self.look(cell, now, ask);
        if !first.is_admitted() {
            return 0;
        }
        // Looks spend nothing, and each lease is asked for by itself.
        if ask.hits == Hits::ZERO || self.takes_lease() {
            return most;
        }
        if self.min_interval() > Micros::ZERO {
            return 1;
        }
        let others = first.remaining / ask.hits.get();
        u32::try_from(others.saturating_add(1)).map_or(most, |fit| fit.min(most))
    }

    /// How many of `most` equal requests find at least one hit left, one after another: those that fit, and one more if not
    /// all is spent then.
    fn begins(&self, cell: &Cell, now: Timestamp, ask: Ask, most: u32) -> u32 {
        let fit = self.admits(cell, now, ask, most);
        if fit == most || (fit > 0 && self.min_interval() > Micros::ZERO) {
            return fit;
        }
        let all = self.look(cell, now, Ask::hits(ask.hits.get().saturating_mul(fit.into())));
        fit + u32::from(all.is_admitted() && all.remaining > 0)
    }

    /// Spends for `count` equal requests, which must fit, and returns the outcome of the last.
    fn admit(&self, cell: &mut Cell, now: Timestamp, ask: Ask, count: u32) -> Outcome {
        let spends = ask.hits > Hits::ZERO && !self.takes_lease();
        if spends && count > 1 {
            self.decide(cell, now, Ask::hits(ask.hits.get() * u64::from(count - 1)));
        }
        self.decide(cell, now, ask)
    }

    /// The outcome before another `hits` were admitted at the same time, the last of them with outcome `last`.
    fn told_before(&self, last: Outcome, hits: u64) -> Outcome {
        let Facts { meter, lease_ttl, .. } = self.facts();
        if lease_ttl.is_some() {
            return last;
        }
        let drained = meter.map_or(Micros::ZERO, |meter| meter.least_time_to_drain(hits));
        let verdict = match last.verdict {
            Verdict::Admitted { delay } => Verdict::Admitted { delay: delay.saturating_sub(drained) },
            other => other,
        };
        Outcome {
            verdict,
            remaining: last.remaining.saturating_add(hits),
            reset_after: last.reset_after.saturating_sub(drained),
        }
    }
}
