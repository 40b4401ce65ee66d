//! Cells that this node decides itself: those of local and approximate rules, and those whose store is unavailable.
//!
//! All of them live in one memory store, so that a request spends from all of them or from none. A later refusal elsewhere,
//! or dropping the request midway, refunds them. This module calls no other store.

pub(crate) mod approximate;
mod cell_map;
pub(crate) mod fleet;
pub(crate) mod homes;
pub(crate) mod ledger;
pub(crate) mod purses;

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{
    Ask, Charge, Group, Hits, Limit, Micros, Outcome, Over, Stance, Timestamp, Touch, Verdict,
};
use tidegate_rules::Coordination;
use tidegate_store::{
    CellCharge, Clock as _, HELD_RETRY_AFTER, LeaseRef, MemoryConfig, MemoryStore, Refund, Reply, Request,
    Spend, Store,
};

use crate::cell::{CellAsk, KeptAsk, KeptLease};
use crate::lease::issued::IssuedLeases;
use crate::node_clock::NodeClock;
use crate::source::Source;
use approximate::Approximate;
use fleet::Fleet;
use homes::Homes;
use ledger::{Account, Ledger, Settling};
pub use purses::ShareStats;
use purses::{Funds, Purses};

/// The cells that this node decides itself.
pub(crate) struct LocalCells {
    /// Those of a home are in the region's, so that a request spends from all of them or from none.
    pub(crate) memory: Arc<MemoryStore<NodeClock>>,
    pub(crate) approximate: Approximate,
    /// Hits taken from this store: it is the home of rules for all regions.
    pub(crate) purses: Purses,
    /// The same for each home of such rules.
    pub(crate) homes: Homes<Arc<LocalCells>>,
    pub(crate) ledger: Ledger,
    pub(crate) lent: IssuedLeases,
    pub(crate) settling: Settling,
    pub(crate) fleet: Fleet,
}

/// A spend that this node decides itself.
#[derive(Clone, Copy)]
pub(crate) struct LocalSpend<'p> {
    /// Index into the request's cells.
    pub(crate) place: usize,
    pub(crate) ask: CellAsk<'p>,
    pub(crate) reason: LocalReason,
}

/// Why this node decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalReason {
    /// The rule is local.
    Local,
    /// The rule is approximate, and its hits were taken from this node's share.
    Approximate,
    /// The rule is for all regions, and its hits were taken from its home before.
    Prepaid,
    /// The rule is for all regions, and nothing is left to pay with: it refuses.
    Unpaid,
    /// The rule is for all regions, each of which counts for itself and hears of the others.
    Eventual,
    /// The store is unavailable; `last_seen` is what it had left at its last answer.
    StoreUnavailable { last_seen: Option<u64>, portion: Portion },
}

/// How much of a limit this node may admit while its store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Portion {
    /// Its share among the fleet.
    Share,
    /// All of it.
    Whole,
}

impl LocalReason {
    pub(crate) fn source(self) -> Source {
        match self {
            LocalReason::Local => Source::Local,
            LocalReason::Approximate | LocalReason::Eventual => Source::Approximate,
            // Home has decided it.
            LocalReason::Prepaid | LocalReason::Unpaid => Source::Store,
            LocalReason::StoreUnavailable { .. } => Source::FallbackLocal,
        }
    }
}

/// How a rule refuses that could not be decided in time: retry soon.
pub(crate) const ASK_AGAIN: Outcome = Outcome {
    verdict: Verdict::Refused { retry_after: Some(HELD_RETRY_AFTER) },
    remaining: 0,
    reset_after: HELD_RETRY_AFTER,
};

/// What a request has spent from cells of this node. Refunded on drop, unless kept.
pub(crate) struct LocalHold<'c, 'p> {
    cells: &'c LocalCells,
    held: SmallVec<[HeldSpend<'p>; 2]>,
    passes: bool,
}

struct HeldSpend<'p> {
    own: LocalSpend<'p>,
    /// The limit it was decided under: this node's share if the store is unavailable.
    share: Option<Limit>,
    outcome: Outcome,
    /// Whether it spends if the request does.
    spent: bool,
}

impl HeldSpend<'_> {
    /// Whether it stays spent, whatever becomes of the request.
    fn is_charge(&self) -> bool {
        self.own.ask.spend.touch.over() == Over::Charge
    }
}

impl LocalCells {
    pub(crate) fn new(memory: MemoryConfig, bookkeeping: usize, fleet: Fleet, clock: NodeClock) -> Self {
        LocalCells::on(Arc::new(MemoryStore::with_clock(memory, clock)), bookkeeping, fleet)
    }

    /// What this node keeps of a home store, beside these cells.
    pub(crate) fn of_home(&self, bookkeeping: usize, fleet: Fleet) -> Self {
        LocalCells::on(self.memory.clone(), bookkeeping, fleet)
    }

    fn on(memory: Arc<MemoryStore<NodeClock>>, bookkeeping: usize, fleet: Fleet) -> Self {
        LocalCells {
            memory,
            approximate: Approximate::new(bookkeeping),
            purses: Purses::new(bookkeeping),
            homes: Homes::none(),
            ledger: Ledger::new(bookkeeping),
            lent: IssuedLeases::new(bookkeeping),
            settling: Settling::default(),
            fleet,
        }
    }

    /// How a cell is coordinated. Without a home, each region counts for itself.
    pub(crate) fn coordination(&self, ask: &CellAsk<'_>) -> Coordination {
        let chosen = ask.policy.coordination;
        if chosen.is_global() && self.home(ask).is_none() { Coordination::Exact } else { chosen }
    }

    /// What is kept of the home of this cell, if all regions count it.
    pub(crate) fn home(&self, ask: &CellAsk<'_>) -> Option<&Arc<LocalCells>> {
        let is_global = ask.policy.coordination.is_global();
        self.homes.of(ask.spend.cell.scope).filter(|_| is_global)
    }

    /// The time on which prepaid hits end: it never steps back.
    pub(crate) fn uptime(&self) -> Timestamp {
        Timestamp::from_micros(self.memory.clock().uptime().get())
    }

    /// What a purse has for `ask`.
    pub(crate) fn funds(&self, ask: &CellAsk<'_>) -> Option<Funds> {
        self.home(ask).map(|home| home.purses.funds(ask, self.uptime()))
    }

    /// Decides `spends`, all or nothing.
    pub(crate) fn hold<'p>(&self, spends: &[LocalSpend<'p>]) -> LocalHold<'_, 'p> {
        let shares: SmallVec<[Option<Limit>; 2]> = spends.iter().map(|own| self.share(own)).collect();
        let asked: SmallVec<[Spend<'_>; 2]> =
            spends.iter().zip(&shares).map(|(own, share)| own.asks(share.as_ref())).collect();
        let mut outcomes = at_once(self.memory.decide(&[Request::once(&asked)])).outcomes;
        let told = || spends.iter().map(|own| own.ask.group()).zip(&outcomes);
        let passes = Stance::is_satisfied(told().map(|(group, told)| (group, told.is_admitted())));
        let is_spent = Stance::is_satisfied(told().map(|(group, told)| (group, told.is_spent())));
        let spent: SmallVec<[bool; 2]> = told()
            .map(|(group, one)| {
                one.is_spent() && group.is_spent_with(told().map(|(other, told)| (other, told.is_spent())))
            })
            .collect();
        drop(asked);
        for (own, outcome) in spends.iter().zip(outcomes.iter_mut()) {
            self.as_home_says(own, outcome);
        }
        let held: SmallVec<[HeldSpend<'p>; 2]> = spends
            .iter()
            .zip(shares)
            .zip(outcomes)
            .zip(spent)
            .map(|(((own, share), outcome), spent)| HeldSpend { own: *own, share, outcome, spent })
            .collect();
        for held in &held {
            if !(is_spent && held.spent) {
                self.put_back(std::slice::from_ref(&held.own));
            }
            if !passes && (is_spent || held.is_charge()) {
                // It is refused, and what went into debt for it stays spent.
                self.owe_what_is_kept(held);
            }
        }
        LocalHold { cells: self, held, passes }
    }

    /// Tells a refusal of a rule for all regions by what its home said; or makes this node hear of its home.
    fn as_home_says(&self, own: &LocalSpend<'_>, outcome: &mut Outcome) {
        match (own.reason, self.home(&own.ask)) {
            (LocalReason::Unpaid, _) => {
                let said = self.funds(&own.ask);
                *outcome = if let Some(Funds::Refused(refusal)) = said { refusal } else { ASK_AGAIN };
            }
            (LocalReason::Eventual, Some(home)) if !outcome.is_admitted() => {
                home.approximate.wants_to_hear(own.ask.hash);
            }
            _ => {}
        }
    }

    /// The limit for a cell whose store is unavailable: this node's share, granted once per window however often the store
    /// fails in it, and at most its part of what the store had left.
    fn share(&self, own: &LocalSpend<'_>) -> Option<Limit> {
        let LocalReason::StoreUnavailable { last_seen, portion } = own.reason else { return None };
        let fleet = self.divisor(portion);
        let share = own.ask.limit().divided(fleet);
        let part = last_seen.map_or(u64::MAX, |left| left.div_ceil(fleet));
        if share.takes_lease() {
            // The store does not know of leases that were issued here: they are part of what it had left.
            return Some(share.with_leases_at_most(part));
        }
        if self.ledger.open(&own.ask, portion) != Account::Known {
            let spend = under(own.ask.spend, Some(&share));
            let too_much = self.look(spend).remaining.saturating_sub(part);
            self.charge(charge_now(spend, too_much));
        }
        Some(share)
    }

    /// The divisor of a limit for this portion of it.
    pub(crate) fn divisor(&self, portion: Portion) -> u64 {
        match portion {
            Portion::Share => self.fleet.size().max(1),
            Portion::Whole => 1,
        }
    }

    /// What stays spent here is owed to a store that is unavailable.
    fn owe_what_is_kept(&self, held: &HeldSpend<'_>) {
        if let (true, LocalReason::StoreUnavailable { portion, .. }) = (held.spent, held.own.reason) {
            self.owe(held, portion);
        }
    }

    /// Records a debt: the store must learn what was spent without it.
    fn owe(&self, held: &HeldSpend<'_>, portion: Portion) {
        let ask = &held.own.ask;
        if ask.limit().takes_lease() {
            let kept = KeptAsk { group: Group::ENFORCED, ..ask.keep() };
            self.lent.add(kept, self.memory.clock().now());
        } else {
            self.ledger.spent(ask, held.outcome.spent_of(ask.spend.touch.ask.hits).get(), portion);
        }
    }

    /// Returns what approximate spends took from shares: they did not spend it after all.
    pub(crate) fn put_back(&self, spends: &[LocalSpend<'_>]) {
        for LocalSpend { ask, reason, .. } in spends {
            let (hash, hits) = (ask.hash, ask.spend.touch.ask.hits);
            match (reason, self.home(ask)) {
                (LocalReason::Approximate, _) => {
                    self.approximate.put_back(hash, hits, Timestamp::MAX);
                }
                (LocalReason::Eventual, Some(home)) => {
                    home.approximate.put_back(hash, hits, Timestamp::MAX);
                }
                (LocalReason::Prepaid, Some(home)) => home.purses.put_back(hash, hits, self.uptime()),
                _ => {}
            }
        }
    }

    /// Whether this node may decide an approximate cell. Instead of refusing by an old answer, it asks the store.
    pub(crate) fn may_decide(&self, ask: &CellAsk<'_>, now: Timestamp) -> bool {
        // A share requires a reliable fleet size.
        self.fleet.is_settled()
            && (self.approximate.is_fresh(ask.hash, now) || self.look(ask.spend).is_admitted())
            && self.approximate.has_room(ask, self.fleet.size())
    }

    /// Applies the store's answer about an approximate cell.
    pub(crate) fn hear(&self, ask: &CellAsk<'_>, outcome: &Outcome, now: Timestamp) {
        if let Some(spent) = self.approximate.heard(ask.hash, outcome, self.fleet.size(), now) {
            self.set(ask.spend, spent);
        }
    }

    /// The outcome of a cell without spending from it.
    pub(crate) fn look(&self, spend: Spend<'_>) -> Outcome {
        let ask = Ask::look();
        let look = [Spend { touch: Touch { ask, ..spend.touch }, ..spend }];
        at_once(self.memory.decide(&[Request::once(&look)]))[0]
    }

    /// Sets a cell's count to `spent` hits, whatever it was before.
    pub(crate) fn set(&self, spend: Spend<'_>, spent: u64) {
        self.memory.set(spend.cell, spend.touch.limit, Hits::new(spent));
    }

    /// Refunds hits to a cell.
    pub(crate) fn refund(&self, spend: Spend<'_>, hits: Hits, age: Micros) {
        let Spend { cell, touch } = spend;
        at_once(self.memory.refund(&[Refund { cell, limit: touch.limit, hits, age, id: None }]));
    }

    /// Charges hits whether or not they fit.
    pub(crate) fn charge(&self, charge: CellCharge<'_>) {
        at_once(self.memory.charge(&[charge]));
    }

    pub(crate) fn release(&self, lease: &KeptLease) -> bool {
        at_once(self.memory.release(lease.as_ref())).value
    }

    pub(crate) fn renew(&self, lease: &KeptLease) -> bool {
        at_once(self.memory.renew(lease.as_ref())).value
    }

    fn give_back(&self, held: &HeldSpend<'_>) {
        let spend = under(held.own.ask.spend, held.share.as_ref());
        let (cell, limit) = (spend.cell, spend.touch.limit);
        match spend.touch.ask.lease {
            Some(id) if limit.takes_lease() => {
                at_once(self.memory.release(LeaseRef { cell, limit, id }));
            }
            // Such a limit counts refused requests, and this one is refused.
            _ if limit.counts_refused() => {}
            _ => self.refund(spend, held.outcome.spent_of(spend.touch.ask.hits), Micros::ZERO),
        }
        self.put_back(std::slice::from_ref(&held.own));
    }
}

impl LocalHold<'_, '_> {
    /// Whether these cells admit the request.
    pub(crate) fn passes(&self) -> bool {
        self.passes
    }

    /// The outcome of each cell, by its index in the request's spends.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (usize, Outcome)> {
        self.held.iter().map(|held| (held.own.place, held.outcome))
    }

    /// The request passes: what was spent stays spent, and the store must learn of it. Not before: it would keep a lease that
    /// another cell's refusal gives back.
    pub(crate) fn keep(mut self) {
        self.passes = false;
        self.held.iter().for_each(|held| self.cells.owe_what_is_kept(held));
    }

    /// The request is refused elsewhere: refunds everything, and reports what each cell has left then.
    pub(crate) fn undo(mut self, mut says: impl FnMut(usize, Outcome)) {
        self.give_back();
        for held in &self.held {
            let outcome = match held.outcome.is_admitted() {
                true => self.cells.look(under(held.own.ask.spend, held.share.as_ref())),
                false => held.outcome,
            };
            says(held.own.place, outcome);
        }
    }

    fn give_back(&mut self) {
        if std::mem::take(&mut self.passes) {
            for held in self.held.iter().filter(|held| held.spent) {
                match held.is_charge() {
                    true => self.cells.owe_what_is_kept(held),
                    false => self.cells.give_back(held),
                }
            }
        }
    }
}

impl Drop for LocalHold<'_, '_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl<'p> LocalSpend<'p> {
    /// What is asked of the cell here. What cannot be paid fits nowhere, so that its rule refuses it as any other.
    fn asks<'s>(&self, share: Option<&'s Limit>) -> Spend<'s>
    where
        'p: 's,
    {
        let mut spend = under(self.ask.spend, share);
        if self.reason == LocalReason::Unpaid {
            spend.touch.ask.hits = Hits::new(u64::MAX);
        }
        spend
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

/// A charge, now, of `hits` to the cell of `spend`.
pub(crate) fn charge_now(spend: Spend<'_>, hits: u64) -> CellCharge<'_> {
    CellCharge { cell: spend.cell, limit: spend.touch.limit, charge: Charge::now(Hits::new(hits)) }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;

    use tidegate_core::{Concurrency, LeaseId, RefusedHits, Scope};
    use tidegate_store::{CellKey, ManualClock};

    use super::*;
    use crate::cell::CellPolicy;
    use crate::cell_hash::CellHasher;

    #[test]
    fn a_lease_that_is_given_back_because_the_store_refuses_is_never_handed_over() {
        let clock = NodeClock(Arc::new(ManualClock::at(Timestamp::from_micros(1))));
        let local = LocalCells::new(MemoryConfig::new(), 10, Fleet::new(1, None), clock);
        let limit = Concurrency::new(10, Micros::from_secs(60), RefusedHits::Forget).unwrap();
        let (limit, scope) = (Limit::Concurrency(limit), Scope::new(&[b"a"]));
        let cell = CellKey { scope: &scope, key: b"k", tag: b"k" };
        let ask = Ask { lease: Some(LeaseId(NonZeroU64::MIN)), ..Ask::hits(1) };
        let spend = Spend { cell, touch: Touch { limit: &limit, ask, group: Group::ENFORCED } };
        let reason = LocalReason::StoreUnavailable { last_seen: None, portion: Portion::Share };
        let ask = CellAsk::new(&CellHasher::new([1, 2]), spend, CellPolicy::CALLER_LIMIT);
        let own = LocalSpend { place: 0, ask, reason };

        let held = local.hold(&[own]);
        assert_eq!((held.passes(), local.lent.unknown()), (true, 0), "not before the request passes");
        held.undo(|_, _| {});
        assert_eq!(local.lent.unknown(), 0);

        local.hold(&[own]).keep();
        assert_eq!(local.lent.unknown(), 1, "one that is kept is handed over");
    }
}
