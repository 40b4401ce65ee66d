//! What decides each cell of a request: found without side effects, so that there is nothing to undo.

use smallvec::SmallVec;
use tidegate_core::{Micros, Timestamp};
use tidegate_rules::{Coordination, OnStoreFailure, Rule};
use tidegate_store::Spend;

use crate::cell_hash::CellHasher;
use crate::deny_cache::{CachedCell, CachedRefusal, Certainty};
use crate::limiter::Limiter;
use crate::remote::Remote;

/// The cells of one request: what it asks of each, its deny cache key, and its rule's policy.
pub(crate) struct Cells<'p> {
    pub(crate) spends: &'p [Spend<'p>],
    pub(crate) cached: SmallVec<[CachedCell<'p>; 4]>,
    pub(crate) policies: SmallVec<[CellPolicy; 4]>,
    /// Whether a cached refusal of one of them is enough to refuse the request.
    pub(crate) repeats_refusals: bool,
    /// Whether the store must not be asked.
    pub(crate) without_the_store: bool,
}

/// How a rule's cells are coordinated, and its failure policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellPolicy {
    pub(crate) coordination: Coordination,
    pub(crate) on_store_failure: OnStoreFailure,
}

/// Indices into a request's cells.
pub(crate) type Places = SmallVec<[usize; 4]>;

/// What decides each cell.
#[derive(Default)]
pub(crate) struct Classified {
    /// The request is known to be refused. Then nothing else is asked.
    pub(crate) deny: Option<CachedRefusal>,
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
        let deny = limiter.deny_cache.refusal(cells.cached.iter().copied(), (now, Certainty::Known));
        if deny.is_some() {
            return Classified { deny, ..Classified::default() };
        }
    }
    let mut classified = Classified::default();
    let mut nodes = NodesSeen { remote, now, seen: SmallVec::new() };
    for (place, spend) in cells.spends.iter().enumerate() {
        let here = match cells.policies[place].coordination {
            Coordination::Local => true,
            Coordination::Approximate { sync_every } => {
                keeps_up(spend, sync_every) && limiter.local.may_decide(cells.cached[place].hash, spend, now)
            }
            Coordination::Exact => false,
        };
        match here {
            true => classified.local.push(place),
            false if nodes.answers(spend.cell.tag) => classified.store.push(place),
            false => classified.away.push(place),
        }
    }
    classified
}

/// Whether hits reported every `sync_every` still belong to the window in which they were admitted. If not, the store would
/// count them in the next one and refuse callers within their limit: so it is asked instead.
fn keeps_up(spend: &Spend<'_>, sync_every: Micros) -> bool {
    const PARTS: u64 = 8;
    let window = spend.touch.limit.quota_window();
    window.is_none_or(|window| sync_every.get().saturating_mul(PARTS) <= window.get())
}

/// The breaker state of each node, checked once.
struct NodesSeen<'r> {
    remote: &'r Remote,
    now: Timestamp,
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
        let answers = self.remote.breakers.lets_pass(node, self.now);
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
        // A cell that counts refused requests must see each one: the deny cache must not refuse for it.
        let repeats_refusals = !spends.iter().any(|spend| spend.touch.limit.counts_refused());
        let cached = |Spend { cell, touch }: &Spend<'p>| CachedCell {
            hash: hasher.cell(cell),
            version: touch.limit.fingerprint(),
            limit: touch.limit,
            hits: touch.ask.hits,
            stance: touch.stance,
        };
        let (cached, policies) = (spends.iter().map(cached).collect(), policies.collect());
        Cells { spends, cached, policies, repeats_refusals, without_the_store: false }
    }

    /// The cells of limits supplied by the caller, which no rule set covers.
    pub(crate) fn of_a_caller(hasher: &CellHasher, spends: &'p [Spend<'p>]) -> Self {
        Cells::new(hasher, spends, spends.iter().map(|_| CellPolicy::OF_A_CALLER))
    }
}

impl CellPolicy {
    /// The policy of a limit supplied by the caller.
    pub(crate) const OF_A_CALLER: CellPolicy =
        CellPolicy { coordination: Coordination::Exact, on_store_failure: OnStoreFailure::Local };

    pub(crate) fn of(rule: &Rule) -> Self {
        CellPolicy { coordination: rule.coordination(), on_store_failure: rule.on_store_failure() }
    }
}
