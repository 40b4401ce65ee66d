//! Hits that this node has taken from a home store and not yet spent, cell by cell.
//!
//! Home has charged them, so spending them here needs nobody. This module asks nothing: `remote/take.rs` does.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Hits, Micros, Outcome, Prepaid, Purse, Returned, Timestamp, Verdict};

use super::cell_map::CellMap;
use crate::cell::{CellAsk, KeptCell};
use crate::cell_hash::CellHash;

/// A purse is filled for this long ahead.
const TERM: Micros = Micros::from_millis(500);
/// Home is asked again after this long, whatever its refusal said: hits may have come back.
const REFUSED_FOR: Micros = Micros::from_secs(1);
/// Hits reach home within this time, or not at all: a store does not begin with a call that is later.
const TRANSIT: Micros = Micros::from_secs(1);

/// How long an empty purse is kept after home was last asked.
const KEPT_FOR: Micros = Micros::from_secs(5);

/// The purses of a home's cells.
pub(crate) struct Purses {
    cells: CellMap<Held>,
    taken: AtomicU64,
    returned: AtomicU64,
    waits: AtomicU64,
}

struct Held {
    /// Under the limit of its rule, and under the one that hits are taken by.
    cell: KeptCell,
    lent: KeptCell,
    terms: Prepaid,
    purse: Purse,
    /// Whether a take is under way, or about to be.
    is_asked: bool,
    /// When home was last asked, when it answered, and what.
    heard: Option<(Timestamp, Timestamp, Outcome)>,
}

/// What a request finds in a purse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Funds {
    /// Enough for it, or what no purse could ever pay: the limit itself refuses it.
    Enough,
    /// Too little, and home refused more a moment ago.
    Refused(Outcome),
    /// Too little, or nothing is known.
    Unknown,
}

/// Hits to take from home.
pub(crate) struct Order {
    pub(crate) hash: CellHash,
    pub(crate) cell: KeptCell,
    /// None: only a look.
    pub(crate) hits: u32,
}

/// What is in a home's purses, and what went through them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareStats {
    /// Purses.
    pub purses: u64,
    /// Hits in them.
    pub hits: u64,
    /// Hits that were ever taken from home.
    pub taken: u64,
    /// Hits that were ever returned to it.
    pub returned: u64,
    /// Requests that waited for home.
    pub waits: u64,
}

impl Purses {
    pub(crate) fn new(most: usize) -> Self {
        let count = AtomicU64::default;
        Purses { cells: CellMap::new(most), taken: count(), returned: count(), waits: count() }
    }

    /// What `ask` would find now.
    pub(crate) fn funds(&self, ask: &CellAsk<'_>, now: Timestamp) -> Funds {
        let hits = ask.spend.touch.ask.hits.get();
        if hits > ask.limit().quota() {
            return Funds::Enough;
        }
        self.cells.look(ask.hash, |held, _| held.map_or(Funds::Unknown, |held| held.funds(ask, hits, now)))
    }

    /// Pays for `ask`; false if the purse has too little. Also whether more should be taken soon.
    pub(crate) fn pay(&self, ask: &CellAsk<'_>, now: Timestamp) -> (bool, bool) {
        let hits = ask.spend.touch.ask.hits.get();
        if hits > ask.limit().quota() {
            return (true, false);
        }
        let pay = |held: &mut Held| {
            held.follow(ask);
            let is_paid = match hits {
                0 => held.heard.is_some(),
                _ => held.purse.spend(now, hits),
            };
            (is_paid, is_paid && held.is_due(now))
        };
        self.cells.change(ask.hash, pay).unwrap_or_default()
    }

    /// Puts back hits that a request has paid and not spent.
    pub(crate) fn put_back(&self, hash: CellHash, hits: Hits, now: Timestamp) {
        self.cells.change(hash, |held| held.purse.put_back(now, hits.get()));
    }

    /// Makes `ask` wait for the next take. True if that has to be started; `None` if there is no room for another purse.
    pub(crate) fn wait(&self, ask: &CellAsk<'_>, now: Timestamp) -> Option<bool> {
        let terms = ask.limit().prepaid()?;
        self.waits.fetch_add(1, Ordering::Relaxed);
        let new = || Held::new(ask, terms, now);
        let wait = |held: &mut Held| {
            held.follow(ask);
            held.purse.wait_for(ask.spend.touch.ask.hits.get());
            !std::mem::replace(&mut held.is_asked, true)
        };
        self.cells.change_or_insert(ask.hash, new, wait)
    }

    /// Whether to ask home again though it refused: before the refusal ends, so that nobody waits for the next one.
    pub(crate) fn doubts(&self, ask: &CellAsk<'_>, now: Timestamp) -> bool {
        let doubts = |held: &mut Held| {
            let is_old = held.heard.is_some_and(|(asked, ..)| now.since(asked).get() > REFUSED_FOR.get() / 2);
            if !is_old || held.is_asked {
                return false;
            }
            held.follow(ask);
            held.purse.wait_for(ask.spend.touch.ask.hits.get());
            held.is_asked = true;
            true
        };
        self.cells.change(ask.hash, doubts).unwrap_or(false)
    }

    /// What to take for this cell now.
    pub(crate) fn order(&self, hash: CellHash, holders: u64, now: Timestamp) -> Option<Order> {
        self.cells.change(hash, |held| {
            let hits = held.purse.order(now, holders).min(held.terms.limit.quota());
            Order { hash, cell: held.lent.clone(), hits: u32::try_from(hits).unwrap_or(u32::MAX) }
        })
    }

    /// Home, asked at `asked`, charged `hits` of `order` and said `outcome` of the last that was asked for. Returns the cell, and how
    /// much of it counts as spent.
    pub(crate) fn received(
        &self,
        order: &Order,
        hits: u64,
        outcome: Outcome,
        (asked, now): (Timestamp, Timestamp),
    ) -> Option<(KeptCell, u64)> {
        self.taken.fetch_add(hits, Ordering::Relaxed);
        let receive = |held: &mut Held| {
            held.is_asked = false;
            held.purse.receive(asked, hits, &outcome, held.terms.held);
            // What was said of another number refuses nobody, and says nothing of what is spent of this one.
            if held.lent.limit() != order.cell.limit() {
                return None;
            }
            held.heard = Some((asked, now, outcome));
            let unspent = outcome.remaining.saturating_add(held.purse.left(now));
            Some((held.cell.clone(), held.cell.limit().quota().saturating_sub(unspent)))
        };
        self.cells.change(order.hash, receive).flatten()
    }

    /// Home did not answer.
    pub(crate) fn not_received(&self, hash: CellHash) {
        self.cells.change(hash, |held| held.is_asked = false);
    }

    /// Takes out hits that are to be returned, of up to `most` cells, and forgets purses that nobody uses.
    pub(crate) fn returns(&self, most: usize, now: Timestamp) -> Vec<(KeptCell, Returned)> {
        self.taken_out(most, |held| held.purse.returns(now, TRANSIT), now)
    }

    /// Takes out everything.
    pub(crate) fn empty(&self, now: Timestamp) -> Vec<(KeptCell, Returned)> {
        self.taken_out(usize::MAX, |held| held.purse.empty(now, TRANSIT), now)
    }

    fn taken_out(
        &self,
        most: usize,
        out: impl Fn(&mut Held) -> Vec<Returned>,
        now: Timestamp,
    ) -> Vec<(KeptCell, Returned)> {
        let of = |held: &mut Held| {
            let cell = held.lent.clone();
            let all = out(held);
            (!all.is_empty()).then(|| all.into_iter().map(move |one| (cell.clone(), one)).collect::<Vec<_>>())
        };
        let all: Vec<(KeptCell, Returned)> = self.cells.collect(most, of).into_iter().flatten().collect();
        self.returned.fetch_add(all.iter().map(|(_, one)| one.hits).sum(), Ordering::Relaxed);
        self.cells.retain(|held| held.is_asked || held.is_in_use(now));
        all
    }

    /// The cell as home knows it.
    pub(crate) fn lent(&self, ask: &CellAsk<'_>) -> Option<KeptCell> {
        let known = self.cells.look(ask.hash, |held, _| held.map(|held| held.lent.clone()));
        known.or_else(|| Some(KeptCell::new(ask.hash, &ask.spend.cell, &ask.limit().prepaid()?.limit)))
    }

    /// How long before it is spent a hit of this cell may have been charged.
    pub(crate) fn charged_before(&self, ask: &CellAsk<'_>) -> Micros {
        self.cells.look(ask.hash, |held, _| held.and_then(|held| held.terms.held).unwrap_or_default())
    }

    /// Forgets what is in a cell's purse: home has forgotten that it was charged for.
    pub(crate) fn forget(&self, hash: CellHash) {
        self.cells.change_or_remove(hash, |_| true);
    }

    pub(crate) fn stats(&self) -> ShareStats {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let mut hits = 0;
        self.cells.any(|held| {
            hits += held.purse.holds();
            false
        });
        ShareStats {
            purses: self.cells.len() as u64,
            hits,
            taken: count(&self.taken),
            returned: count(&self.returned),
            waits: count(&self.waits),
        }
    }
}

impl ShareStats {
    pub(crate) fn plus(self, other: ShareStats) -> ShareStats {
        ShareStats {
            purses: self.purses + other.purses,
            hits: self.hits + other.hits,
            taken: self.taken + other.taken,
            returned: self.returned + other.returned,
            waits: self.waits + other.waits,
        }
    }
}

impl Held {
    fn new(ask: &CellAsk<'_>, terms: Prepaid, now: Timestamp) -> Self {
        let term = terms.held.map_or(TERM, |held| TERM.min(Micros::new(held.get() / 2)));
        Held {
            cell: ask.cell(),
            lent: KeptCell::new(ask.hash, &ask.spend.cell, &terms.limit),
            terms,
            purse: Purse::new(term, now),
            is_asked: false,
            heard: None,
        }
    }

    /// Goes by the number of `ask` from now on, if the rule's has changed: however busy the key is, and whether it was refused or not.
    /// What was taken under the old one stays.
    fn follow(&mut self, ask: &CellAsk<'_>) {
        if self.cell.limit() == ask.limit() {
            return;
        }
        if let Some(terms) = ask.limit().prepaid() {
            self.cell = ask.cell();
            self.lent = KeptCell::new(ask.hash, &ask.spend.cell, &terms.limit);
            self.terms = terms;
            self.heard = None;
        }
    }

    fn funds(&self, ask: &CellAsk<'_>, hits: u64, now: Timestamp) -> Funds {
        let is_enough = if hits == 0 { self.heard.is_some() } else { self.purse.left(now) >= hits };
        match self.refusal(now) {
            _ if is_enough => Funds::Enough,
            Some(refusal) if self.cell.limit() == ask.limit() => Funds::Refused(refusal),
            _ => Funds::Unknown,
        }
    }

    /// What home refused with, while that holds.
    fn refusal(&self, now: Timestamp) -> Option<Outcome> {
        let (asked, answered, outcome) = self.heard?;
        let Verdict::Refused { retry_after } = outcome.verdict else { return None };
        let holds = retry_after.unwrap_or(REFUSED_FOR).min(REFUSED_FOR);
        let since = now.since(answered);
        let retry_after = retry_after.map(|span| span.saturating_sub(since));
        let verdict = Verdict::Refused { retry_after };
        let reset_after = outcome.reset_after.saturating_sub(since);
        (now.since(asked) < holds).then_some(Outcome { verdict, reset_after, ..outcome })
    }

    /// Whether to take more before it is empty; then it is about to be.
    fn is_due(&mut self, now: Timestamp) -> bool {
        let is_due = !self.is_asked && self.refusal(now).is_none() && self.purse.is_due(now);
        self.is_asked |= is_due;
        is_due
    }

    fn is_in_use(&self, now: Timestamp) -> bool {
        let is_recent = |(asked, ..): (Timestamp, Timestamp, Outcome)| now.since(asked) < KEPT_FOR;
        self.purse.holds() > 0 || self.heard.is_some_and(is_recent)
    }
}
