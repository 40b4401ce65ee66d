//! One request between its classification and its answer: commits what was classified, and undoes it once if any part refuses
//! or the request is dropped.
//!
//! A request is spent as a whole or not at all, whatever decides its parts.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Charge, Over, Stance, Timestamp};
use tidegate_rules::Coordination;
use tidegate_store::{Clock, Outcomes};

use super::classify::{Cells, Classified, Places, classify};
use super::fallback::Cause;
use super::funds::until_funded;
use super::plan::Plan;
use crate::answer::Answer;
use crate::cell::{CellAsk, Charges};
use crate::lease::pending::TakenLeases;
use crate::limiter::Limiter;
use crate::local::{LocalHold, LocalReason, LocalSpend};
use crate::remote::{Question, Remote, StoreReply};
use crate::source::Source;

/// One answer per request.
pub(crate) type Answers = Vec<Answer>;

/// A check as far as this node can decide it alone.
enum Begun<'p> {
    /// Fully decided.
    Decided(Answer),
    /// The store must be asked. Boxed, so that a check on memory, which never gets here, stays small.
    AskStore(Box<PendingCheck<'p>>),
}

/// A request for which the store must be asked. Dropping it before it is settled refunds what it has spent here.
pub(crate) struct PendingCheck<'p> {
    pub(super) limiter: &'p Limiter,
    pub(super) cells: Cells<'p>,
    /// The cells that the store decides.
    pub(super) store: Places,
    pub(super) held: Option<LocalHold<'p, 'p>>,
    /// The outcome of each cell, once some of them have been decided here.
    pub(super) outcomes: Outcomes,
    pub(super) source: Source,
    /// Why some of its cells are decided without the store, if they are.
    pub(super) cause: Cause,
}

/// A request was refused; its outcomes say why.
pub(super) struct Refused;

/// Decides the request of `plan` on a remote store.
#[inline]
pub(crate) async fn decide_on_remote<'p>(
    limiter: &'p Limiter,
    remote: &'p Arc<Remote>,
    plan: &'p Plan<'_>,
) -> Answer {
    let cells = plan.cells(&limiter.hasher);
    if !limiter.homes.is_empty() {
        until_funded(limiter, std::slice::from_ref(&cells)).await;
    }
    match begin(limiter, remote, cells) {
        Begun::Decided(answer) => answer,
        Begun::AskStore(mut pending) => {
            let mut waiters = remote.ask(std::iter::once(pending.question()));
            let stored = waiters.pop().expect("one request, one waiter").await;
            pending.settle(stored)
        }
    }
}

/// Decides requests on a remote store, which is asked about all of them together. One answer per request, in order.
pub(crate) async fn decide_together<'p>(
    limiter: &'p Limiter,
    remote: &'p Arc<Remote>,
    requests: impl Iterator<Item = Cells<'p>>,
) -> Answers {
    let requests: Vec<Cells<'p>> = requests.collect();
    if !limiter.homes.is_empty() {
        until_funded(limiter, &requests).await;
    }
    let begun: Vec<Begun<'p>> = requests.into_iter().map(|cells| begin(limiter, remote, cells)).collect();
    let pending = begun.iter().filter_map(|begun| match begun {
        Begun::AskStore(pending) => Some(pending.question()),
        Begun::Decided(_) => None,
    });
    let mut waiters = remote.ask(pending).into_iter();
    let mut answers = Answers::with_capacity(begun.len());
    for begun in begun {
        answers.push(match begun {
            Begun::Decided(answer) => answer,
            Begun::AskStore(mut pending) => {
                let stored = waiters.next().expect("one for each that asks").await;
                pending.settle(stored)
            }
        });
    }
    answers
}

/// Begins to decide a request: everything that this node can do alone.
#[inline]
fn begin<'p>(limiter: &'p Limiter, remote: &'p Arc<Remote>, cells: Cells<'p>) -> Begun<'p> {
    if cells.is_only_shown {
        let now = limiter.clock.now();
        let last_seen = cells.asks.iter().map(|cell| limiter.deny_cache.last_seen(cell, now));
        return Begun::Decided(Answer::new(last_seen.collect(), Source::None, None));
    }
    let now = limiter.clock.now();
    let classified = classify(limiter, remote, &cells, now);
    if let Some(refusal) = classified.deny {
        limiter.observer.deny_cache_hit();
        return Begun::Decided(refusal);
    }
    let mut pending = Box::new(PendingCheck::new(limiter, cells));
    if pending.cells.without_the_store && classified.away.is_empty() {
        // The store has just missed a deadline, but its breaker is closed: it is only too busy.
        pending.cause = Cause::Overload;
    }
    pending.commit(remote, classified, now)
}

impl<'p> PendingCheck<'p> {
    pub(super) fn new(limiter: &'p Limiter, cells: Cells<'p>) -> Self {
        let (store, held, outcomes, source) = (Places::new(), None, Outcomes::new(), Source::None);
        PendingCheck { limiter, cells, store, held, outcomes, source, cause: Cause::Failure }
    }

    /// Commits the classification: claims the store's nodes, and spends from the cells that this node decides. Shares used up
    /// by other requests since then are asked of the store, or fall to the rule's policy.
    fn commit(
        mut self: Box<Self>,
        remote: &Arc<Remote>,
        classified: Classified,
        now: Timestamp,
    ) -> Begun<'p> {
        let Classified { deny: _, local, store, mut away } = classified;
        let mut claims = remote.claims();
        let (local, taken_by_others) = self.take_shares(&local, now);
        for place in store.into_iter().chain(taken_by_others) {
            let node = remote.node_of(self.cells.asks[place].spend.cell.tag);
            let is_home = self.limiter.local.home(&self.cells.asks[place]).is_some();
            let is_asked = !is_home && !self.cells.without_the_store && claims.claim(node);
            if is_asked { self.store.push(place) } else { away.push(place) }
        }
        if !away.is_empty() && away.iter().all(|place| self.limiter.home_is_late(&self.cells.asks[*place])) {
            self.cause = Cause::Overload;
        }
        self.report_shares(remote, now);
        if local.is_empty() && away.is_empty() {
            claims.sent();
            return Begun::AskStore(self);
        }
        self.source = local.iter().fold(Source::None, |source, own| source.precedence(own.reason.source()));
        match self.hold(local, &away, now) {
            Ok(held) if self.store.is_empty() => {
                held.keep();
                Begun::Decided(self.answer())
            }
            Ok(held) => {
                claims.sent();
                self.held = Some(held);
                Begun::AskStore(self)
            }
            Err(Refused) => {
                self.charge_anyway(remote);
                Begun::Decided(self.answer())
            }
        }
    }

    /// Takes the hits of approximate cells from this node's shares. Also returns the places whose share other requests have
    /// used up since the classification.
    fn take_shares(&self, local: &[usize], now: Timestamp) -> (SmallVec<[LocalSpend<'p>; 2]>, Places) {
        let (mut here, mut taken_by_others) = (SmallVec::<[LocalSpend<'p>; 2]>::new(), Places::new());
        let cells = &self.limiter.local;
        for &place in local {
            let ask = &self.cells.asks[place];
            match cells.coordination(ask) {
                Coordination::Escrow => match self.limiter.pay(ask) {
                    Some(reason) => here.push(self.local_spend(place, reason)),
                    None => taken_by_others.push(place),
                },
                Coordination::Eventual { sync_every } => {
                    let home = cells.home(ask).expect("a rule for all regions has a home");
                    // Without room to count it, the others do not hear of it.
                    let is_counted = home.approximate.count(ask, sync_every, now);
                    let reason = if is_counted { LocalReason::Eventual } else { LocalReason::Local };
                    here.push(self.local_spend(place, reason));
                }
                Coordination::Approximate { sync_every } => {
                    if cells.approximate.take(ask, sync_every, cells.fleet.size(), now) {
                        here.push(self.local_spend(place, LocalReason::Approximate));
                    } else {
                        taken_by_others.push(place);
                    }
                }
                Coordination::Local | Coordination::Exact => {
                    here.push(self.local_spend(place, LocalReason::Local));
                }
            }
        }
        // A rule is decided in one place.
        let group = |place: usize| self.cells.asks[place].group().number;
        let lost: SmallVec<[u16; 2]> = taken_by_others.iter().map(|place| group(*place)).collect();
        let (gone, here): (SmallVec<_>, SmallVec<_>) =
            here.into_iter().partition(|own: &LocalSpend<'_>| lost.contains(&group(own.place)));
        let gone: SmallVec<[LocalSpend<'p>; 2]> = gone;
        cells.put_back(&gone);
        taken_by_others.extend(gone.iter().map(|own| own.place));
        (here, taken_by_others)
    }

    /// Reports used-up shares to the store at once: it decides what comes next.
    fn report_shares(&self, remote: &Arc<Remote>, now: Timestamp) {
        let asks = self.store.iter().map(|place| &self.cells.asks[*place]);
        for ask in asks.filter(|ask| ask.is_approximate()) {
            let used_up = self.limiter.local.approximate.used_up(ask.hash, ask.needs(), now);
            used_up.into_iter().for_each(|unreported| remote.report_soon(unreported));
        }
    }

    /// Completes the request with the store's reply or, without one, by each rule's failure policy.
    fn settle(&mut self, stored: Option<StoreReply>) -> Answer {
        match stored {
            Some(StoreReply::Answered(stored, leases)) => self.after(stored, leases),
            Some(StoreReply::Overloaded) => self.overloaded(),
            None => self.without_store(),
        }
    }

    fn after(&mut self, stored: Answer, leases: Option<TakenLeases>) -> Answer {
        // The store issues leases only to a request that passes, and then nothing is left to refuse it.
        leases.into_iter().for_each(TakenLeases::keep);
        if self.store.len() == self.cells.asks.len() {
            return stored;
        }
        let told = || self.store.iter().zip(&stored.outcomes);
        // What went into debt is refused, but spent: from all its cells.
        let group = |place: usize| self.cells.asks[place].group();
        let passes = Stance::is_satisfied(told().map(|(place, told)| (group(*place), told.is_spent())));
        for (place, outcome) in self.store.iter().zip(&stored.outcomes) {
            self.outcomes[*place] = *outcome;
        }
        let held = self.held.take();
        if passes {
            self.source = self.source.precedence(stored.source);
            held.into_iter().for_each(LocalHold::keep);
        } else {
            self.source = stored.source;
            self.undo(held);
        }
        self.answer()
    }

    /// The request is refused elsewhere: refunds what was held here, and records what is left then.
    pub(super) fn undo(&mut self, held: Option<LocalHold<'p, 'p>>) {
        if let Some(held) = held {
            held.undo(|place, outcome| self.outcomes[place] = outcome);
        }
    }

    /// This node refuses the request, so that the store is not asked. What it charges there is charged all the same.
    fn charge_anyway(&self, remote: &Arc<Remote>) {
        let asks = self.store.iter().map(|place| &self.cells.asks[*place]);
        let charge = |ask: &CellAsk<'_>| {
            let overdraft = ask.limit().most_debt();
            (ask.cell(), Charge { overdraft, ..Charge::now(ask.spend.touch.ask.hits) })
        };
        let charges: Charges =
            asks.filter(|ask| ask.spend.touch.over() == Over::Charge).map(charge).collect();
        if !charges.is_empty() {
            let charging = remote.clone();
            remote.spawn(Box::pin(async move { drop(charging.charge(charges).await) }));
        }
    }

    /// What to ask the store.
    fn question(&self) -> Question<'_> {
        let (cells, places) = (&self.cells.asks[..], &self.store[..]);
        Question { cells, places, repeats_refusals: self.cells.repeats_refusals }
    }

    pub(super) fn local_spend(&self, place: usize, reason: LocalReason) -> LocalSpend<'p> {
        LocalSpend { place, ask: self.cells.asks[place], reason }
    }

    pub(super) fn answer(&mut self) -> Answer {
        Answer::new(std::mem::take(&mut self.outcomes), self.source, None)
    }
}
