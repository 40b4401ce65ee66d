//! Cells that this node decides itself: those of local and approximate rules, and those whose store is away.
//!
//! All of them live in one memory store, so that a request spends from all of them or from none. What a later refusal
//! elsewhere makes void is given back, also when the request is dropped half-way. It calls no other store.

pub(crate) mod approximate;
pub(crate) mod ledger;
pub(crate) mod share;

use smallvec::SmallVec;
use tidegate_core::{Ask, Hits, Limit, Micros, Outcome, Stance, Touch};
use tidegate_store::{LeaseRef, MemoryConfig, MemoryStore, Refund, Reply, Request, Spend, Store};

use crate::cell_hash::CellHash;
use crate::decision::Source;
use crate::node_clock::NodeClock;
use approximate::Approximate;
use ledger::{Account, Ledger};
use share::share_of;

/// The cells that this node decides itself.
pub(crate) struct OwnCells {
    pub(crate) memory: MemoryStore<NodeClock>,
    pub(crate) approximate: Approximate,
    pub(crate) ledger: Ledger,
}

/// A spend that this node decides itself.
#[derive(Clone, Copy)]
pub(crate) struct Own<'p> {
    /// Its place among the request's spends.
    pub(crate) place: usize,
    pub(crate) spend: Spend<'p>,
    pub(crate) hash: CellHash,
    pub(crate) why: Why,
}

/// Why this node decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The rule is local.
    Local,
    /// The rule is approximate, and the share is not used up: it was taken already.
    Approximate,
    /// The store is away, which had so much left when it last told.
    StoreIsAway { last_seen: Option<u64> },
}

impl Why {
    pub(crate) fn source(self) -> Source {
        match self {
            Why::Local => Source::Local,
            Why::Approximate => Source::Approximate,
            Why::StoreIsAway { .. } => Source::FallbackLocal,
        }
    }
}

/// What a request has spent from cells of this node. Given back when dropped, unless kept.
pub(crate) struct Reserved<'c, 'p> {
    cells: &'c OwnCells,
    held: SmallVec<[Held<'p>; 2]>,
    passes: bool,
}

struct Held<'p> {
    own: Own<'p>,
    /// The limit it was decided under: this node's share where the store is away.
    share: Option<Limit>,
    outcome: Outcome,
}

impl OwnCells {
    pub(crate) fn new(memory: MemoryConfig, bookkeeping: usize, clock: NodeClock) -> Self {
        OwnCells {
            memory: MemoryStore::with_clock(memory, clock),
            approximate: Approximate::new(bookkeeping),
            ledger: Ledger::new(bookkeeping),
        }
    }

    /// Decides `own`, all or nothing.
    pub(crate) fn reserve<'p>(&self, own: &[Own<'p>], fleet: u64) -> Reserved<'_, 'p> {
        let shares: SmallVec<[Option<Limit>; 2]> = own.iter().map(|own| self.share(own, fleet)).collect();
        let spends: SmallVec<[Spend<'_>; 2]> =
            own.iter().zip(&shares).map(|(own, share)| under(own.spend, share.as_ref())).collect();
        let outcomes = at_once(self.memory.decide(&[Request::once(&spends)]));
        let stops = |(own, outcome): (&Own<'_>, &Outcome)| {
            own.spend.touch.stance == Stance::Enforced && !outcome.is_admitted()
        };
        let passes = !own.iter().zip(&outcomes).any(stops);
        drop(spends);
        let held: SmallVec<[Held<'p>; 2]> = own
            .iter()
            .zip(shares)
            .zip(outcomes)
            .map(|((own, share), outcome)| Held { own: *own, share, outcome })
            .collect();
        for held in &held {
            self.book(held, passes);
        }
        Reserved { cells: self, held, passes }
    }

    /// The limit under which a cell is decided here whose store is away. The first time it starts where the store was.
    fn share(&self, own: &Own<'_>, fleet: u64) -> Option<Limit> {
        let Why::StoreIsAway { last_seen } = own.why else { return None };
        let share = share_of(own.spend.touch.limit, fleet);
        if !matches!(share, Limit::Concurrency(_)) && self.ledger.open(own.hash, &own.spend) == Account::New {
            let left = last_seen.map_or(share.quota(), |left| left.div_ceil(fleet.max(1)));
            let spent = Ask::hits(share.quota().saturating_sub(left));
            let touch = Touch { limit: &share, ask: spent, stance: own.spend.touch.stance };
            at_once(self.memory.charge(&[Spend { cell: own.spend.cell, touch }]));
        }
        Some(share)
    }

    /// Keeps account of what was decided.
    fn book(&self, held: &Held<'_>, passes: bool) {
        let hits = held.own.spend.touch.ask.hits;
        let spent = passes && held.outcome.is_admitted();
        match held.own.why {
            Why::Local => {}
            Why::Approximate if !spent => drop(self.approximate.put_back(held.own.hash, hits)),
            Why::Approximate => {}
            Why::StoreIsAway { .. } if spent => self.ledger.spent(held.own.hash, hits.get()),
            Why::StoreIsAway { .. } => {}
        }
    }

    fn unbook(&self, held: &Held<'_>) {
        let hits = held.own.spend.touch.ask.hits;
        match held.own.why {
            Why::Local => {}
            Why::Approximate => drop(self.approximate.put_back(held.own.hash, hits)),
            Why::StoreIsAway { .. } => self.ledger.gave_back(held.own.hash, hits.get()),
        }
    }

    /// What a cell says without being spent from.
    pub(crate) fn look(&self, spend: Spend<'_>) -> Outcome {
        let ask = Ask { hits: Hits::ZERO, lease: None };
        let look = [Spend { touch: Touch { ask, ..spend.touch }, ..spend }];
        at_once(self.memory.decide(&[Request::once(&look)]))[0]
    }

    /// Makes a cell count `spent` hits, whatever it counted before.
    pub(crate) fn set(&self, spend: Spend<'_>, spent: u64) {
        at_once(self.memory.reset(spend.cell, spend.touch.limit));
        let touch = Touch { ask: Ask::hits(spent), ..spend.touch };
        at_once(self.memory.charge(&[Spend { touch, ..spend }]));
    }

    /// Gives hits back to a cell.
    pub(crate) fn refund(&self, spend: Spend<'_>, hits: Hits) {
        let Spend { cell, touch } = spend;
        at_once(self.memory.refund(&[Refund { cell, limit: touch.limit, hits, age: Micros::ZERO }]));
    }

    pub(crate) fn release(&self, lease: LeaseRef<'_>) -> bool {
        at_once(self.memory.release(lease))
    }

    pub(crate) fn renew(&self, lease: LeaseRef<'_>) -> bool {
        at_once(self.memory.renew(lease))
    }

    fn give_back(&self, held: &Held<'_>) {
        let spend = under(held.own.spend, held.share.as_ref());
        let (cell, limit) = (spend.cell, spend.touch.limit);
        match (limit, spend.touch.ask.lease) {
            (Limit::Concurrency(_), Some(id)) => drop(self.release(LeaseRef { cell, limit, id })),
            // A refused request leaves its trace there, and this one is refused.
            _ if limit.counts_refused() => {}
            _ => self.refund(spend, spend.touch.ask.hits),
        }
        self.unbook(held);
    }
}

impl Reserved<'_, '_> {
    /// Whether these cells let the request pass.
    pub(crate) fn passes(&self) -> bool {
        self.passes
    }

    /// What each cell said, by its place among the request's spends.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (usize, Outcome)> {
        self.held.iter().map(|held| (held.own.place, held.outcome))
    }

    /// The request passes: what was spent is spent.
    pub(crate) fn keep(mut self) {
        self.passes = false;
    }

    /// The request is refused elsewhere: gives everything back, and tells what is left then.
    pub(crate) fn undo(mut self, mut tell: impl FnMut(usize, Outcome)) {
        self.give_back();
        for held in &self.held {
            let admitted = held.outcome.is_admitted();
            let outcome = if admitted {
                self.cells.look(under(held.own.spend, held.share.as_ref()))
            } else {
                held.outcome
            };
            tell(held.own.place, outcome);
        }
    }

    fn give_back(&mut self) {
        if std::mem::take(&mut self.passes) {
            for held in self.held.iter().filter(|held| held.outcome.is_admitted()) {
                self.cells.give_back(held);
            }
        }
    }
}

impl Drop for Reserved<'_, '_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn under<'s>(spend: Spend<'s>, share: Option<&'s Limit>) -> Spend<'s> {
    match share {
        Some(limit) => Spend { touch: Touch { limit, ..spend.touch }, ..spend },
        None => spend,
    }
}

fn at_once<T>(reply: Reply<'_, T>) -> T {
    match reply {
        Reply::Now(Ok(answer)) => answer,
        Reply::Now(Err(_)) | Reply::Later(_) => unreachable!("memory answers at once"),
    }
}
