//! Whether decisions are made as the rules want them, and how much waits behind them.

use std::fmt;

use tidegate_store::MemoryStats;

use crate::idempotency::RequestNames;
use crate::remote::Remote;
use crate::remote::breaker::BreakerState;

/// Whether decisions are made as the rules want them, or as best as can be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The store answers.
    Healthy,
    /// Some of the store does not answer: rules whose cells are there decide by their failure policy.
    Degraded {
        /// What is wrong, for an operator.
        reason: String,
    },
}

impl Health {
    /// Of a limiter whose calls run on a runtime that is gone, whatever the store would say.
    pub(crate) fn without_background() -> Self {
        let reason = "the limiter's background was stopped: the runtime that it was made on has ended";
        Health::Degraded { reason: reason.to_owned() }
    }

    pub(crate) fn of(remote: &Remote) -> Self {
        let away: Vec<String> = remote.breakers.not_closed().map(|node| remote.endpoint(node)).collect();
        if !away.is_empty() {
            let reason = format!("the store does not answer at {}", away.join(", "));
            return Health::Degraded { reason };
        }
        match remote.local.fleet.why_unheard() {
            Some(reason) => Health::Degraded { reason },
            None => Health::Healthy,
        }
    }
}

impl fmt::Display for Health {
    /// `healthy`, or what is wrong.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Healthy => f.write_str("healthy"),
            Health::Degraded { reason } => f.write_str(reason),
        }
    }
}

/// A node of a remote store, as this limiter sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Its name, as an operator knows it.
    pub endpoint: String,
    /// What its breaker lets through: all while it answers.
    pub breaker: BreakerState,
}

impl NodeHealth {
    pub(crate) fn of_all(remote: &Remote) -> Vec<Self> {
        let node =
            |node| NodeHealth { endpoint: remote.endpoint(node), breaker: remote.breakers.state(node) };
        // A node that holds nothing has no name.
        (0..remote.nodes()).map(node).filter(|node| !node.endpoint.is_empty()).collect()
    }
}

/// What a limiter on a remote store holds now, and what its bounds have cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Calls of this core that are under way.
    pub calls: usize,
    /// Calls of this core that are under way though nobody waits for them any more.
    pub late_calls: usize,
    /// Requests of this core that wait for the next call.
    pub waiting: usize,
    /// How many limiters share the store, this one included, as far as is known.
    pub fleet: u64,
    /// The cells that this node decides itself.
    pub own: MemoryStats,
    /// Cells with hits that were spent here and not yet charged to the store.
    pub debts: usize,
    /// Leases that were given here while the store was unavailable, and that it has not yet been told of.
    pub lent_leases: usize,
    /// Leases that nobody holds and that are not yet given back.
    pub orphans: usize,
    /// Names of requests of which the store must still be told, because it did not answer.
    pub unwritten_names: usize,
    /// Refusals that could not be repeated for as long as they might, for want of room.
    pub refusals_evicted: u64,
    /// Hits that will not be charged to the store, for want of room.
    pub hits_forgiven: u64,
    /// Leases that must end by themselves, or that the store is never told of, for want of room.
    pub leases_lost: u64,
    /// Names of requests that stay claimed for their minute, for want of room.
    pub names_lost: u64,
}

impl RemoteStats {
    pub(crate) fn of(remote: &Remote, names: &RequestNames) -> Self {
        let (unwritten_names, names_lost) = names.unwritten();
        let (calls, waiting) = remote.load();
        let local = &remote.local;
        RemoteStats {
            calls,
            late_calls: remote.late_calls(),
            waiting,
            fleet: local.fleet.size(),
            own: local.memory.stats(),
            debts: local.ledger.len(),
            lent_leases: local.lent.unknown(),
            orphans: remote.orphans.len(),
            unwritten_names,
            refusals_evicted: remote.deny_cache.evicted(),
            hits_forgiven: local.ledger.forgiven(),
            leases_lost: remote.orphans.lost() + local.lent.forgotten(),
            names_lost,
        }
    }
}
