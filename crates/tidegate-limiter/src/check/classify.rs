//! What decides each cell of a request: found without side effects, so that there is nothing to undo.

use smallvec::SmallVec;
use tidegate_core::{Micros, Over, Timestamp};
use tidegate_rules::Coordination;
use tidegate_store::{Clock, Spend};

use crate::answer::Answer;
use crate::cell::{CellAsk, CellPolicy};
use crate::cell_hash::CellHasher;
use crate::deny_cache::Certainty;
use crate::limiter::Limiter;
use crate::local::purses::Funds;
use crate::remote::Remote;

/// The cells of one request.
pub(crate) struct Cells<'p> {
    pub(crate) asks: SmallVec<[CellAsk<'p>; 2]>,
    /// Whether a cached refusal of one of them is enough to refuse the request.
    pub(crate) repeats_refusals: bool,
    /// Whether the store must not be asked.
    pub(crate) without_the_store: bool,
    /// Whether nothing is asked at all: it is refused whatever its limits say, or has none.
    pub(crate) is_only_shown: bool,
}

/// Indices into a request's cells.
pub(crate) type Places = SmallVec<[usize; 4]>;

/// What decides each cell.
#[derive(Default)]
pub(crate) struct Classified {
    /// The request is known to be refused. Then nothing else is asked.
    pub(crate) deny: Option<Answer>,
    /// This node: cells of local rules, and of approximate ones whose share has room.
    pub(crate) local: Places,
    /// The store.
    pub(crate) store: Places,
    /// The failure policy of the cell's rule: its store node does not answer.
    pub(crate) away: Places,
}

/// Finds what decides each of `cells`. Each store node is checked once.
pub(crate) fn classify(limiter: &Limiter, remote: &Remote, cells: &Cells<'_>, now: Timestamp) -> Classified {
    if cells.repeats_refusals {
        let deny = limiter.deny_cache.refusal(cells.asks.iter().copied(), (now, Certainty::Known));
        if deny.is_some() {
            return Classified { deny, ..Classified::default() };
        }
    }
    let mut classified = Classified::default();
    let mut nodes = NodesSeen { remote, seen: SmallVec::new() };
    let is_here = |ask: &CellAsk<'_>| match limiter.local.coordination(ask) {
        Coordination::Local => true,
        // A share is counted hit by hit: what may go over it is the store's.
        Coordination::Approximate { .. } if ask.spend.touch.over() != Over::Refuse => false,
        Coordination::Approximate { sync_every } => {
            keeps_up(ask, sync_every) && limiter.local.may_decide(ask, now)
        }
        Coordination::Exact => false,
        Coordination::Eventual { .. } => true,
        // What home has refused is refused here, too.
        Coordination::Escrow => limiter.local.funds(ask).is_some_and(|funds| funds != Funds::Unknown),
    };
    let here: SmallVec<[bool; 4]> = cells.asks.iter().map(is_here).collect();
    // A rule is decided in one place: one limit that must be asked takes the others along.
    let is_whole = |number: u16| {
        cells.asks.iter().zip(&here).all(|(other, here)| *here || other.group().number != number)
    };
    for (place, ask) in cells.asks.iter().enumerate() {
        match here[place] && is_whole(ask.group().number) {
            true => classified.local.push(place),
            // A purse is what this node has of its home.
            false if limiter.local.home(ask).is_some() => classified.away.push(place),
            false if nodes.answers(ask.spend.cell.tag) => classified.store.push(place),
            false => classified.away.push(place),
        }
    }
    classified
}

/// Whether hits reported every `sync_every` still belong to the window in which they were admitted. If not, the store would
/// count them in the next one and refuse callers within their limit: so it is asked instead.
fn keeps_up(ask: &CellAsk<'_>, sync_every: Micros) -> bool {
    const PARTS: u64 = 8;
    let window = ask.limit().quota_window();
    window.is_none_or(|window| sync_every.get().saturating_mul(PARTS) <= window.get())
}

/// The breaker state of each node, checked once.
struct NodesSeen<'r> {
    remote: &'r Remote,
    seen: SmallVec<[(usize, bool); 2]>,
}

impl NodesSeen<'_> {
    /// Whether the node that holds cells with this tag may be called.
    fn answers(&mut self, tag: &[u8]) -> bool {
        if self.remote.breakers.all_closed() {
            return true;
        }
        let node = self.remote.node_of(tag);
        if let Some((_, answers)) = self.seen.iter().find(|(seen, _)| *seen == node) {
            return *answers;
        }
        let answers = self.remote.breakers.lets_pass(node, self.remote.clock.uptime());
        self.seen.push((node, answers));
        answers
    }
}

impl<'p> Cells<'p> {
    /// The cells of these spends.
    pub(crate) fn new(
        hasher: &CellHasher,
        spends: &'p [Spend<'p>],
        policies: impl Iterator<Item = CellPolicy>,
    ) -> Self {
        // A cell that counts refused requests must see each one, and a charge counts whatever is left: the deny cache must not
        // refuse for them.
        let is_heard =
            |spend: &Spend<'_>| spend.touch.limit.counts_refused() || spend.touch.over() == Over::Charge;
        let repeats_refusals = !spends.iter().any(is_heard);
        let asks = spends.iter().zip(policies).map(|(spend, policy)| CellAsk::new(hasher, *spend, policy));
        let asks: SmallVec<[CellAsk<'p>; 2]> = asks.collect();
        Cells { is_only_shown: asks.is_empty(), asks, repeats_refusals, without_the_store: false }
    }

    /// The cells of limits supplied by the caller, which no rule set covers.
    pub(crate) fn of_a_caller(hasher: &CellHasher, spends: &'p [Spend<'p>]) -> Self {
        Cells::new(hasher, spends, spends.iter().map(|_| CellPolicy::CALLER_LIMIT))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;

    use tidegate_core::{Ask, FixedWindow, Group, Limit, Scope, Touch};
    use tidegate_rules::{Format, OnStoreFailure, RuleSet, Source};
    use tidegate_store::{CellKey, ManualClock, MemoryConfig, MemoryStore};

    use super::*;
    use crate::config::{LimiterConfig, RemoteConfig};
    use crate::observer::{BreakerState, NoObserver};
    use crate::runtime::{Runtime, Task};

    /// Runs nothing: whoever classifies starts nothing.
    struct NoRuntime;

    impl Runtime for NoRuntime {
        fn spawn(&self, _task: Task) {
            panic!("a task was started");
        }

        fn sleep(&self, _span: Micros) -> Task {
            panic!("somebody waits");
        }
    }

    fn limiter(clock: &Arc<ManualClock>) -> Limiter {
        let rules = Source::new("rules.yaml", "{ domain: api, rules: [{ name: r, limits: [1/h] }] }");
        let rules = RuleSet::compile(&[rules], Format::Native).expect("they compile");
        let store = MemoryStore::new(MemoryConfig::new().max_cells(100).max_log_bytes(1 << 16));
        let mut remote = RemoteConfig::new(Arc::new(NoRuntime));
        // A share of an approximate limit needs a fleet of a known size.
        remote.expected_nodes = NonZeroU64::new(1);
        let mut config =
            LimiterConfig::new(rules, Arc::new(store), Arc::new(NoObserver)).over_a_network(remote);
        config.clock = clock.clone();
        Limiter::new(config)
    }

    #[test]
    fn classifying_a_request_again_and_again_says_the_same_and_changes_nothing() {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_000_000_000)));
        let limiter = limiter(&clock);
        let remote = limiter.remote.as_ref().expect("its store is over a network");
        let limit = Limit::FixedWindow(FixedWindow::new(1, Micros::from_secs(3_600)).expect("a fine limit"));
        let scope = Scope::new(&[b"api", b"r"]);
        // Three rules: one is decided in one place.
        let spends = [(0, &b"here"[..]), (1, b"share"), (2, b"store")].map(|(number, key)| {
            let group = Group { number, ..Group::ENFORCED };
            let touch = Touch { limit: &limit, ask: Ask::hits(1), group };
            Spend { cell: CellKey { scope: &scope, key, tag: key }, touch }
        });
        let approximate = Coordination::Approximate { sync_every: Micros::from_secs(1) };
        let policies = [Coordination::Local, approximate, Coordination::Exact]
            .map(|coordination| CellPolicy { coordination, on_store_failure: OnStoreFailure::Closed });
        let cells = Cells::new(&limiter.hasher, &spends, policies.into_iter());
        let classified = || {
            let Classified { deny, local, store, away } = classify(&limiter, remote, &cells, clock.now());
            (deny.is_some(), local.to_vec(), store.to_vec(), away.to_vec())
        };
        let by_the_store = (false, vec![0, 1], vec![2], vec![]);
        let by_its_policy = (false, vec![0, 1], vec![], vec![2]);
        let is_settled_as = |expected: &_, state| {
            for _ in 0..10 {
                assert_eq!(&classified(), expected);
                assert_eq!(remote.breakers.state(0), state);
            }
        };
        is_settled_as(&by_the_store, BreakerState::Closed);
        for _ in 0..3 {
            remote.breakers.failed(0, clock.uptime(), clock.uptime());
        }
        is_settled_as(&by_its_policy, BreakerState::Open);
        // Its time is up: one request may go to see, and nobody has.
        clock.advance(Micros::from_secs(30));
        is_settled_as(&by_the_store, BreakerState::Open);
        assert!(remote.breakers.claim(0, clock.uptime()).0, "the trial is still to be had");
        assert_eq!(spends.map(|spend| limiter.local.look(spend).remaining), [1; 3], "nothing is spent");
    }
}
