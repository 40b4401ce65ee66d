//! The configuration of a limiter.

use std::num::NonZeroU64;
use std::sync::Arc;

use tidegate_core::Micros;
use tidegate_rules::RuleSet;
use tidegate_store::{Clock, MemoryConfig, Store, SystemClock};

use crate::observer::Observer;
use crate::remote::QueueBounds;
use crate::remote::breaker::BreakerConfig;
use crate::runtime::Runtime;

/// The configuration of a limiter.
#[non_exhaustive]
pub struct LimiterConfig {
    /// The initial rules.
    pub rules: RuleSet,
    /// Where cells live.
    pub store: Arc<dyn Store>,
    /// How to call a store over a network. `None` for one in this process's memory, which answers immediately and never
    /// fails, and so needs no queue, deny cache or breaker.
    pub remote: Option<RemoteConfig>,
    /// The receiver of decisions and other events.
    pub observer: Arc<dyn Observer>,
    /// This node's clock. It decides whether a rule's `until` has passed and how old an answer is; cells use the store's.
    pub clock: Arc<dyn Clock>,
    /// Bounds of the memory in which this node decides itself: local and approximate rules, and those whose store is
    /// unavailable.
    pub fallback: MemoryConfig,
    /// The lease signing secret, the same on all nodes of a fleet. `None`: a secret that the fleet creates itself and keeps
    /// in the store, where anyone with access to the store can read it.
    pub lease_secret: Option<Box<[u8]>>,
    /// The stores that count for all regions; none by default, and then each region counts for itself. Only beside a store over a
    /// network.
    pub homes: Vec<HomeConfig>,
}

/// A store that counts for all regions.
#[non_exhaustive]
pub struct HomeConfig {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The domains whose rules for all regions it counts; all others, if empty.
    pub domains: Vec<String>,
    /// The longest that a request waits for hits from there.
    pub ask_within: Micros,
    /// When a node of it counts as failed.
    pub breaker: BreakerConfig,
}

impl HomeConfig {
    /// `store` as the home of these domains; of all others, if there are none. Long enough for two round trips of 80 ms.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, domains: Vec<String>) -> Self {
        HomeConfig { store, domains, ask_within: Micros::from_millis(250), breaker: BreakerConfig::default() }
    }
}

impl LimiterConfig {
    /// `rules` on `store`, observed by `observer`, with the system clock.
    #[must_use]
    pub fn new(rules: RuleSet, store: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Self {
        let fallback = MemoryConfig::new().max_cells(1_000_000).max_log_bytes(64 << 20);
        let clock = Arc::new(SystemClock::new());
        LimiterConfig {
            rules,
            store,
            remote: None,
            observer,
            clock,
            fallback,
            lease_secret: None,
            homes: Vec::new(),
        }
    }

    /// Uses a store over a network. [`Limiter::maintain`](crate::Limiter::maintain) must then run beside the limiter: it
    /// counts the fleet, probes a store that failed, and settles debts.
    #[must_use]
    pub fn over_a_network(self, remote: RemoteConfig) -> Self {
        LimiterConfig { remote: Some(remote), ..self }
    }
}

/// How to call a store over a network.
#[non_exhaustive]
pub struct RemoteConfig {
    /// Where the limiter's own tasks run.
    pub runtime: Arc<dyn Runtime>,
    /// Where the prober runs, which finds out whether the store is alive: best a thread without other work (`prober_thread`).
    pub prober: Arc<dyn Runtime>,
    /// The longest a request waits for the store, queueing included.
    pub timeout: Micros,
    /// When a store node counts as failed.
    pub breaker: BreakerConfig,
    /// How much may be in flight and wait, per core.
    pub queue: QueueBounds,
    /// The most cells whose last store answer is kept: refusals to repeat, and numbers to continue from without the store.
    /// About 150 bytes each, allocated as needed.
    pub remembered_cells: usize,
    /// The most cells for which unreported spends are kept.
    pub booked_cells: usize,
    /// The number of limiters that share the store, as far as the operator knows: divides limits until the store has answered
    /// for a while, and on a node that starts without it. `None`: this one alone.
    pub expected_nodes: Option<NonZeroU64>,
    /// Makes hashes unpredictable to callers, and identifies this limiter among others. A test may fix it.
    pub secret: [u64; 2],
}

impl RemoteConfig {
    /// The defaults, on `runtime`.
    #[must_use]
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        RemoteConfig {
            prober: runtime.clone(),
            runtime,
            timeout: Micros::from_millis(10),
            breaker: BreakerConfig::default(),
            queue: QueueBounds::default(),
            remembered_cells: 1 << 17,
            booked_cells: 1 << 17,
            expected_nodes: None,
            secret: tidegate_store::random_hash_keys(),
        }
    }
}
