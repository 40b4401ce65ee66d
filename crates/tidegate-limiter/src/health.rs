//! Whether the store decides as the rules ask, and how much work is queued behind the decisions.

use std::fmt;
use std::sync::Arc;

use tidegate_store::MemoryStats;

use crate::observer::BreakerState;
use crate::remote::{Remote, RequestNames};

/// Whether the store decides as the rules ask, or failure policies do in part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The store answers.
    Healthy,
    /// Part of the store does not answer: rules with cells there decide by their failure policy.
    Degraded {
        /// The cause, for an operator.
        reason: String,
    },
}

impl Health {
    /// For a limiter whose runtime has ended, whatever the state of the store.
    pub(crate) fn without_background() -> Self {
        let reason = "the limiter's background was stopped: the runtime that it was made on has ended";
        Health::Degraded { reason: reason.to_owned() }
    }

    /// Of the region's store, and of the homes of rules for all regions.
    pub(crate) fn of<'r>(remotes: impl Iterator<Item = &'r Arc<Remote>>) -> Self {
        let mut unheard = None;
        for remote in remotes {
            let away: Vec<String> = remote.breakers.not_closed().map(|node| remote.endpoint(node)).collect();
            if !away.is_empty() {
                let reason = format!("the store does not answer at {}", away.join(", "));
                return Health::Degraded { reason };
            }
            unheard = unheard.or_else(|| remote.local.fleet.why_unheard());
        }
        unheard.map_or(Health::Healthy, |reason| Health::Degraded { reason })
    }
}

impl fmt::Display for Health {
    /// `healthy`, or the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Healthy => f.write_str("healthy"),
            Health::Degraded { reason } => f.write_str(reason),
        }
    }
}

/// A store node, as this limiter sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Its endpoint, as an operator knows it.
    pub endpoint: String,
    /// The state of its breaker: closed while the node answers.
    pub breaker: BreakerState,
}

impl NodeHealth {
    pub(crate) fn of_all(remote: &Remote) -> Vec<Self> {
        let node =
            |node| NodeHealth { endpoint: remote.endpoint(node), breaker: remote.breakers.state(node) };
        // A node without an endpoint holds no cells.
        (0..remote.nodes()).map(node).filter(|node| !node.endpoint.is_empty()).collect()
    }
}

/// What a limiter on a remote store holds now, and what its bounds have cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Calls of this core in flight.
    pub calls: usize,
    /// Calls of this core in flight that no request waits for any more.
    pub late_calls: usize,
    /// Requests of this core waiting for the next call.
    pub waiting: usize,
    /// The number of limiters that share the store, this one included, as far as is known.
    pub fleet: u64,
    /// The cells that this node decides itself.
    pub own: MemoryStats,
    /// Cells with hits spent here and not yet charged to the store.
    pub debts: usize,
    /// Leases issued here while the store was unavailable, and not yet handed over to it.
    pub lent_leases: usize,
    /// Orphaned leases that are not yet released.
    pub orphans: usize,
    /// Request names not yet written to the store because it did not answer.
    pub unwritten_names: usize,
    /// Named requests that this limiter is deciding.
    pub names_in_flight: usize,
    /// Refusals evicted from the deny cache before they expired.
    pub refusals_evicted: u64,
    /// Hits that will never be charged to the store, for lack of room.
    pub hits_forgiven: u64,
    /// Leases that only their time to live can end, or that the store never learns of, for lack of room.
    pub leases_lost: u64,
    /// Request names that stay claimed for their full minute, for lack of room.
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
            names_in_flight: names.in_flight(),
            refusals_evicted: remote.deny_cache.evicted(),
            hits_forgiven: local.ledger.forgiven(),
            leases_lost: remote.orphans.lost() + local.lent.forgotten(),
            names_lost,
        }
    }
}
