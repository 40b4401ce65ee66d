//! Hits that a holder took from a limit's home and has yet to spend.

use super::demand::Demand;
use crate::outcome::Outcome;
use crate::units::{Micros, Timestamp};

/// More takes than this at once are kept as one: as old as the older of the two.
const MOST_LOTS: usize = 8;

/// Prepaid hits of one cell: whoever holds them spends them without asking.
///
/// They are charged at home before they get here. So whatever is lost between home and here is spent by nobody, and holders that
/// cannot reach each other stay within the limit together.
///
/// Times are of one clock that never steps back.
#[derive(Clone, Debug)]
pub struct Purse {
    /// In the order in which they were taken. An empty one stays until its time is over, for hits that are put back.
    lots: Vec<Lot>,
    demand: Demand,
    /// Hits of requests that wait for the next take, and the most that one of them needs.
    waiting: u64,
    largest: u64,
    /// What home had left after the last take; `None` before the first.
    home: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Lot {
    hits: u64,
    /// Before home was asked: they were charged after that.
    asked: Timestamp,
    until: Timestamp,
    /// When home may have forgotten them: what has refilled already is not returned once more.
    forgotten: Timestamp,
}

/// Hits to return to home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// How many.
    pub hits: u64,
    /// How long ago they were asked for.
    pub age: Micros,
}

impl Purse {
    /// An empty purse that is filled for `term` ahead.
    #[must_use]
    pub fn new(term: Micros, now: Timestamp) -> Self {
        Purse { lots: Vec::new(), demand: Demand::new(term, now), waiting: 0, largest: 0, home: None }
    }

    /// The hits that may be spent now.
    #[must_use]
    pub fn left(&self, now: Timestamp) -> u64 {
        self.valid(now).map(|lot| lot.hits).sum()
    }

    /// Spends `hits`, the oldest first, if it has them.
    #[must_use]
    pub fn spend(&mut self, now: Timestamp, hits: u64) -> bool {
        if self.left(now) < hits {
            return false;
        }
        self.demand.note(now, hits);
        let mut owed = hits;
        for lot in self.lots.iter_mut().filter(|lot| now < lot.until) {
            let paid = lot.hits.min(owed);
            lot.hits -= paid;
            owed -= paid;
        }
        true
    }

    /// Puts back hits that were spent a moment ago, by a request that was refused elsewhere. They count as old as the oldest that
    /// is left, and are lost if none is.
    pub fn put_back(&mut self, now: Timestamp, hits: u64) {
        if let Some(lot) = self.lots.iter_mut().find(|lot| now < lot.until) {
            lot.hits += hits;
        }
    }

    /// A request of `hits` waits for the next take.
    pub fn wait_for(&mut self, hits: u64) {
        self.waiting = self.waiting.saturating_add(hits);
        self.largest = self.largest.max(hits);
    }

    /// Whether to take more now, before it is empty: less is left than half of what the next term needs.
    #[must_use]
    pub fn is_due(&mut self, now: Timestamp) -> bool {
        self.left(now) <= self.demand.next_term(now) / 2
    }

    /// How many hits to take now, of a home with so many `holders`: what is needed until the next take, but only a fair part of what
    /// home had left, so that a small budget is divided among all that ask. A request that waits gets its whole cost.
    #[must_use]
    pub fn order(&mut self, now: Timestamp, holders: u64) -> u64 {
        let left = self.left(now);
        let (waiting, largest) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.largest));
        // Of a key that is seen for the first time it is not known whether it comes again.
        let Some(home) = self.home else { return waiting.saturating_sub(left) };
        let wanted = self.demand.next_term(now).saturating_add(waiting).saturating_sub(left);
        let fair = (home / holders.saturating_mul(2).max(1)).max(1);
        wanted.min(fair).max(largest.saturating_sub(left))
    }

    /// Home, asked at `asked`, has charged `hits`, which may be `held` so long: none until their window ends. `outcome` is that of
    /// the last hit that was asked for.
    pub fn receive(&mut self, asked: Timestamp, hits: u64, outcome: &Outcome, held: Option<Micros>) {
        self.home = Some(outcome.remaining);
        if hits == 0 {
            return;
        }
        // Both count from before home was asked, so that no clocks are compared.
        let forgotten = asked + outcome.reset_after;
        let until = held.map_or(forgotten, |held| asked + held);
        let lot = Lot { hits, asked, until, forgotten };
        if self.lots.len() == MOST_LOTS {
            let older = self.lots.remove(0);
            self.lots[0] = self.lots[0].with(older);
        }
        self.lots.push(lot);
    }

    /// Takes out what is worth more to others: hits whose time is over, and those that the demand, which fell, leaves over. They
    /// reach home within `transit`, or are not returned.
    #[must_use]
    pub fn returns(&mut self, now: Timestamp, transit: Micros) -> Vec<Returned> {
        let need = self.demand.next_term(now);
        let left = self.left(now);
        let mut surplus = if left / 2 > need { left - need } else { 0 };
        let mut returned = Vec::new();
        self.lots.retain_mut(|lot| {
            let is_over = lot.until <= now;
            let hits = if is_over { lot.hits } else { lot.hits.min(surplus) };
            if !is_over {
                surplus -= hits;
            }
            lot.hits -= hits;
            returned.extend(Lot { hits, ..*lot }.returned(now, transit));
            !is_over
        });
        returned
    }

    /// Takes out everything: its holder ends.
    #[must_use]
    pub fn empty(&mut self, now: Timestamp, transit: Micros) -> Vec<Returned> {
        self.lots.drain(..).filter_map(|lot| lot.returned(now, transit)).collect()
    }

    /// Whether nothing is in it, and nothing was asked for lately.
    #[must_use]
    pub fn is_idle(&mut self, now: Timestamp) -> bool {
        self.lots.is_empty() && self.waiting == 0 && self.demand.next_term(now) == 0
    }

    /// How many hits are in it, whether or not their time is over.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.lots.iter().map(|lot| lot.hits).sum()
    }

    fn valid(&self, now: Timestamp) -> impl Iterator<Item = &Lot> {
        self.lots.iter().filter(move |lot| now < lot.until)
    }
}

impl Lot {
    /// Both as one, no younger than the older.
    fn with(self, older: Lot) -> Lot {
        Lot {
            hits: self.hits + older.hits,
            asked: older.asked,
            until: self.until.min(older.until),
            forgotten: self.forgotten.min(older.forgotten),
        }
    }

    /// Its hits as home is to be told of them, if it still knows of them when it hears. They may seem older than they are, never
    /// younger: a window that is over takes nothing back, and the next one must not.
    fn returned(self, now: Timestamp, transit: Micros) -> Option<Returned> {
        let is_known = self.hits > 0 && now + transit < self.forgotten;
        is_known.then(|| Returned { hits: self.hits, age: (now + transit) - self.asked })
    }
}
