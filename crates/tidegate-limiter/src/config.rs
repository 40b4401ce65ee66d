//! What a limiter is made of.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;

use tidegate_core::Micros;
use tidegate_rules::RuleSet;
use tidegate_store::{Clock, MemoryConfig, Store, SystemClock};

use crate::observer::Observer;
use crate::remote::QueueBounds;
use crate::remote::breaker::BreakerConfig;
use crate::runtime::Runtime;

/// What a limiter is made of.
#[non_exhaustive]
pub struct LimiterConfig {
    /// The rules to begin with.
    pub rules: RuleSet,
    /// Where cells live.
    pub store: Arc<dyn Store>,
    /// How a store over a network is asked. None for one in this process's memory, which answers at once and never fails:
    /// then nothing is put before it.
    pub remote: Option<RemoteConfig>,
    /// Who hears of decisions.
    pub observer: Arc<dyn Observer>,
    /// This node's clock. It tells whether a rule's `until` has passed and how old an answer is; cells go by the store's.
    pub clock: Arc<dyn Clock>,
    /// Bounds of the memory in which this node decides itself: local and approximate rules, and those whose store is
    /// away.
    pub fallback: MemoryConfig,
    /// What leases are signed with, the same on all nodes of a fleet. None: a secret that the fleet makes itself and keeps in
    /// the store, where whoever reads the store can read it.
    pub lease_secret: Option<Box<[u8]>>,
}

impl LimiterConfig {
    /// `rules` on `store`, heard by `observer`, with the machine's clock.
    #[must_use]
    pub fn new(rules: RuleSet, store: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Self {
        let fallback = MemoryConfig::new().max_cells(1_000_000).max_log_bytes(64 << 20);
        let clock = Arc::new(SystemClock::new());
        LimiterConfig { rules, store, remote: None, observer, clock, fallback, lease_secret: None }
    }

    /// The same on a store over a network. [`Limiter::maintain`](crate::Limiter::maintain) must run beside the limiter then: it counts
    /// the fleet, probes a store that failed, and pays what is owed to it.
    #[must_use]
    pub fn over_a_network(self, remote: RemoteConfig) -> Self {
        LimiterConfig { remote: Some(remote), ..self }
    }
}

/// How a store over a network is asked.
#[non_exhaustive]
pub struct RemoteConfig {
    /// Where the limiter's own tasks run.
    pub runtime: Arc<dyn Runtime>,
    /// How long a request waits for the store at most, queueing included.
    pub timeout: Micros,
    /// When a node of the store counts as gone.
    pub breaker: BreakerConfig,
    /// How much may be under way and wait, per core.
    pub queue: QueueBounds,
    /// Of how many cells it is remembered what the store last said: refusals to repeat, and where to go on without the
    /// store. About 150 bytes each, taken as they come.
    pub remembered_cells: usize,
    /// For how many cells books are kept of what the store must still be told.
    pub booked_cells: usize,
    /// How many limiters share the store, as far as the operator knows: by what a limit is divided until the store was heard
    /// for a while, and on a node that starts without it. None: this one alone.
    pub expected_nodes: Option<NonZeroU64>,
    /// Makes hashes unforeseeable to callers, and names this limiter among others. A test may fix it.
    pub secret: [u64; 2],
}

impl RemoteConfig {
    /// The defaults, on `runtime`.
    #[must_use]
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        let random = RandomState::new();
        RemoteConfig {
            runtime,
            timeout: Micros::from_millis(10),
            breaker: BreakerConfig::default(),
            queue: QueueBounds::default(),
            remembered_cells: 1 << 17,
            booked_cells: 1 << 17,
            expected_nodes: None,
            secret: [random.hash_one(0), random.hash_one(1)],
        }
    }
}
