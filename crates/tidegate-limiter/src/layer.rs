//! What this node does before and after the store for one request.
//!
//! Before: what is known to be refused is refused here (the deny cache), and cells that this node decides itself are spent
//! from. Then the store is asked for the rest. After: if it refuses, what was spent here is given back; if it does not
//! answer, each rule's policy decides. A request passes as a whole or spends nothing, whoever decides its parts.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Micros, Stance, Timestamp};
use tidegate_rules::{Coordination, OnStoreFailure, Rule};
use tidegate_store::{Clock, Outcomes, Spend};

use crate::cell_hash::LaneId;
use crate::decision::Source;
use crate::own::approximate::Taken;
use crate::own::{Own, Reserved, Why};
use crate::plan::Plan;
use crate::recall::{Certainty, Under};
use crate::remote::owned::{OwnedSpend, OwnedSpends};
use crate::remote::{Remote, StoreWaiter, Stored, TakenLeases};
use crate::shared::{Known, Shared};

/// What all the cells of a request said, and who answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) outcomes: Outcomes,
    pub(crate) source: Source,
}

/// How a rule wants one of its cells treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) coordination: Coordination,
    pub(crate) on_store_failure: OnStoreFailure,
}

impl Terms {
    /// Those of a limit that the caller brought along.
    pub(crate) const OF_A_CALLER: Terms =
        Terms { coordination: Coordination::Exact, on_store_failure: OnStoreFailure::Local };

    pub(crate) fn of(rule: &Rule) -> Self {
        Terms { coordination: rule.coordination(), on_store_failure: rule.on_store_failure() }
    }
}

/// What is left to do after the local layer.
pub(crate) enum LocalLayer<'p> {
    /// Nothing: it is decided.
    Decided(Answer),
    /// The store must be asked. In a box, so that a check on memory, which never has one, stays small.
    Ask(Box<Asking<'p>>),
}

/// A request for which the store must be asked. Dropped before it is settled, it gives back what it has spent here.
pub(crate) struct Asking<'p> {
    pub(crate) shared: &'p Shared,
    pub(crate) spends: &'p [Spend<'p>],
    pub(crate) known: SmallVec<[Known<'p>; 4]>,
    pub(crate) terms: SmallVec<[Terms; 4]>,
    /// Which of its spends the store decides.
    pub(crate) ask: Places,
    pub(crate) reserved: Option<Reserved<'p, 'p>>,
    /// What each cell says, once some of them have been decided here.
    pub(crate) outcomes: Outcomes,
    pub(crate) source: Source,
}

/// Places among a request's spends.
pub(crate) type Places = SmallVec<[usize; 4]>;

/// Begins to decide the request of `plan`: all that this node can do by itself.
pub(crate) fn local_layer<'p>(remote: &'p Arc<Remote>, plan: &'p Plan<'_>, rules: u64) -> LocalLayer<'p> {
    let known = known_of(&remote.shared, &plan.spends, rules);
    if plan.lacks_a_key || plan.spends.is_empty() {
        // Refused whatever the store says, or nothing to say: the store is spared the question.
        let outcomes = remote.shared.all_last_seen(&known);
        return LocalLayer::Decided(Answer { outcomes, source: Source::None });
    }
    begin(remote, &plan.spends, known, plan.terms())
}

/// Begins to decide a request whose limits the caller brought along.
pub(crate) fn local_layer_of_a_caller<'p>(
    remote: &'p Arc<Remote>,
    spends: &'p [Spend<'p>],
) -> LocalLayer<'p> {
    // No rule set has anything to say of it.
    let known = known_of(&remote.shared, spends, 0);
    begin(remote, spends, known, spends.iter().map(|_| Terms::OF_A_CALLER))
}

/// Refuses what is known to be refused, and spends from the cells that this node decides itself.
fn begin<'p>(
    remote: &'p Arc<Remote>,
    spends: &'p [Spend<'p>],
    known: KnownCells<'p>,
    terms: impl Iterator<Item = Terms>,
) -> LocalLayer<'p> {
    let now = remote.shared.clock.now();
    if let Some(outcomes) = remote.shared.refusal(known.iter().copied(), (now, Certainty::Known)) {
        remote.shared.observer.deny_cache_hit();
        return LocalLayer::Decided(Answer { outcomes, source: Source::DenyCache });
    }
    Box::new(Asking::new(&remote.shared, spends, known, terms)).reserve(remote, now)
}

/// Where to look for what is known of each cell.
pub(crate) fn known_of<'p>(shared: &Shared, spends: &'p [Spend<'p>], rules: u64) -> KnownCells<'p> {
    let known = |Spend { cell, touch }: &Spend<'p>| Known {
        cell: shared.recall.hash(cell),
        under: Under::new(rules, touch.limit),
        limit: touch.limit,
        hits: touch.ask.hits,
        stance: touch.stance,
    };
    spends.iter().map(known).collect()
}

/// What may be known of each cell of a request.
pub(crate) type KnownCells<'p> = SmallVec<[Known<'p>; 4]>;

/// Asks the store for several requests in one call, and settles each.
pub(crate) async fn settle_together<'p>(remote: &'p Arc<Remote>, layers: Vec<LocalLayer<'p>>) -> Vec<Answer> {
    let asked = || {
        layers.iter().filter_map(|layer| match layer {
            LocalLayer::Ask(asking) => Some(&**asking),
            LocalLayer::Decided(_) => None,
        })
    };
    let lane = asked().next().map(Asking::lane);
    let waiters = lane.map(|lane| remote.ask(lane, asked().map(Asking::owned))).unwrap_or_default();
    let mut waiters = waiters.into_iter();
    let mut answers = Vec::with_capacity(layers.len());
    for layer in layers {
        answers.push(match layer {
            LocalLayer::Decided(answer) => answer,
            LocalLayer::Ask(mut asking) => {
                let stored = waiters.next().expect("one for each that asks").await;
                asking.settle(stored)
            }
        });
    }
    answers
}

impl<'p> Asking<'p> {
    pub(crate) fn new(
        shared: &'p Shared,
        spends: &'p [Spend<'p>],
        known: KnownCells<'p>,
        terms: impl Iterator<Item = Terms>,
    ) -> Self {
        let (ask, reserved, outcomes, source) = (Places::new(), None, Outcomes::new(), Source::None);
        Asking { shared, spends, known, terms: terms.collect(), ask, reserved, outcomes, source }
    }

    /// Spends from the cells that this node decides itself.
    fn reserve(mut self: Box<Self>, remote: &Arc<Remote>, now: Timestamp) -> LocalLayer<'p> {
        let mut own: SmallVec<[Own<'p>; 2]> = SmallVec::new();
        let mut away = Places::new();
        for place in 0..self.spends.len() {
            match self.terms[place].coordination {
                Coordination::Local => own.push(self.own(place, Why::Local)),
                Coordination::Approximate { sync_every }
                    if self.may_decide_here(remote, place, sync_every, now) =>
                {
                    own.push(self.own(place, Why::Approximate));
                }
                Coordination::Approximate { .. } | Coordination::Exact => {
                    let node = remote.node_of(self.spends[place].cell.tag);
                    if remote.lets_pass(node) { self.ask.push(place) } else { away.push(place) }
                }
            }
        }
        if own.is_empty() && away.is_empty() {
            return LocalLayer::Ask(self);
        }
        self.source = own.iter().fold(Source::None, |source, own| source.or_weaker(own.why.source()));
        match self.take(&own, &away, now) {
            Ok(reserved) if self.ask.is_empty() => {
                reserved.keep();
                LocalLayer::Decided(self.answer())
            }
            Ok(reserved) => {
                self.reserved = Some(reserved);
                LocalLayer::Ask(self)
            }
            Err(Refused) => LocalLayer::Decided(self.answer()),
        }
    }

    /// Asks the store; nothing if it does not answer in time.
    pub(crate) fn ask_store(&self, remote: &Arc<Remote>) -> StoreWaiter {
        let mut waiters = remote.ask(self.lane(), std::iter::once(self.owned()));
        waiters.pop().expect("one request, one waiter")
    }

    /// The store has answered, or not.
    pub(crate) fn settle(&mut self, stored: Option<Stored>) -> Answer {
        match stored {
            Some(stored) => self.after(stored),
            None => self.without_store(),
        }
    }

    fn after(&mut self, stored: Stored) -> Answer {
        // It gives leases only to a request that passes, and then nobody is left to refuse it.
        stored.leases.into_iter().for_each(TakenLeases::keep);
        if self.ask.len() == self.spends.len() {
            return Answer { outcomes: stored.outcomes, source: stored.source };
        }
        let mut passes = true;
        for (place, outcome) in self.ask.iter().zip(&stored.outcomes) {
            passes &= outcome.is_admitted() || self.spends[*place].touch.stance == Stance::Advisory;
            self.outcomes[*place] = *outcome;
        }
        let reserved = self.reserved.take();
        if passes {
            self.source = self.source.or_weaker(stored.source);
            reserved.into_iter().for_each(Reserved::keep);
        } else {
            self.source = stored.source;
            self.undo(reserved);
        }
        self.answer()
    }

    /// The request is refused elsewhere: gives back what was `reserved` here, and says what is left then.
    pub(crate) fn undo(&mut self, reserved: Option<Reserved<'p, 'p>>) {
        if let Some(reserved) = reserved {
            reserved.undo(|place, outcome| self.outcomes[place] = outcome);
        }
    }

    /// What the store is asked.
    fn owned(&self) -> OwnedSpends {
        let owned = |place: &usize| {
            let known = &self.known[*place];
            let approximate = matches!(self.terms[*place].coordination, Coordination::Approximate { .. });
            let spend = OwnedSpend::new(&self.spends[*place], known.cell, known.under);
            OwnedSpend { approximate, ..spend }
        };
        self.ask.iter().map(owned).collect()
    }

    fn lane(&self) -> LaneId {
        self.shared.recall.lane(self.ask.iter().map(|place| self.spends[*place].cell.tag))
    }

    /// Whether this node may decide an approximate cell. What it would refuse by old news, the store is asked.
    fn may_decide_here(
        &self,
        remote: &Arc<Remote>,
        place: usize,
        sync_every: Micros,
        now: Timestamp,
    ) -> bool {
        let (own, fleet) = (&self.shared.own, self.shared.fleet.size());
        let (spend, hash) = (&self.spends[place], self.known[place].cell);
        if !own.approximate.is_fresh(hash, now) && !own.look(*spend).is_admitted() {
            return false;
        }
        match own.approximate.take(hash, spend, sync_every, fleet, now) {
            Taken::Yes => true,
            Taken::No(unreported) => {
                unreported.into_iter().for_each(|unreported| remote.report_soon(*unreported));
                false
            }
        }
    }

    pub(crate) fn own(&self, place: usize, why: Why) -> Own<'p> {
        Own { place, spend: self.spends[place], hash: self.known[place].cell, why }
    }

    pub(crate) fn answer(&mut self) -> Answer {
        Answer { outcomes: std::mem::take(&mut self.outcomes), source: self.source }
    }
}

/// A request was refused; its outcomes say why.
pub(crate) struct Refused;
