//! The control plane's state: which rules should run here, which rules run, and who may change them.
//!
//! The admin API acts on [`Control`]. It compiles a version (or a set of files) together with the key overrides and swaps
//! the result into the limiter. If they do not compile, it keeps the error and the old rules keep running. No data-plane
//! request waits for anything here.

mod asking;
mod autopilot;
mod distribution;
mod experiment;
mod fleet;
mod follow;
mod history;
mod merged;
mod running;
mod telling;
mod watched;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tidegate_access::{Guesses, SecretDigest, TokenSource};
use tidegate_limiter::Limiter;
use tidegate_rulestore::{Role, RuleStore};
use tidegate_store::Clock;
use tidegate_telemetry::alerts::Signals;
use tokio::sync::{Notify, Semaphore, broadcast, watch};

use crate::alerts::AlertDesk;
use crate::exposition::StoreUsage;
use crate::metrics::Metrics;

pub use asking::MOST_ANSWER_BYTES;
pub(crate) use asking::{JoinedDemand, Missing, NodeAnswer, Question, why_missing};
pub(crate) use distribution::Distribution;
pub use fleet::{
    Alone, CHANGES_BESIDE, ChangesSince, Fleet, FleetAnswer, FleetError, FleetQuestion, Heard, NEWEST_FORMAT,
    NodeNote, NoteFuture, PublishedSet, WHOLE_SET, without_replaced,
};
pub use follow::LastSecond;
pub(crate) use history::{History, Latencies, Series, Totals, Window};
pub(crate) use merged::merged;
pub use merged::{HistoryChunk, HistoryRow, Resolution};
pub(crate) use running::{Base, Running, compile, compile_while, runtime};
pub use running::{CompileFailure, RuleSource};
pub use watched::CallerWatch;

/// An event for SSE listeners: the name of a route, and the answer of that route now or a part of it.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    pub(crate) data: Arc<str>,
}

/// The most events queued for a listener; a slower listener misses some.
const MOST_WAITING_EVENTS: usize = 64;

/// The most concurrent event listeners: half of the admin listener's connections.
const MOST_LISTENERS: usize = 64;

/// A token from the configuration; it works without a database.
#[derive(Clone, Debug)]
pub struct ConfiguredToken {
    /// The token's name, for the audit log.
    pub name: String,
    /// Its permissions.
    pub role: Role,
    /// The digest of its secret; the secret itself is not kept.
    pub digest: SecretDigest,
}

/// The parts of the control plane.
pub struct ControlConfig {
    /// Decides requests.
    pub limiter: Arc<Limiter>,
    /// Counters of this process.
    pub metrics: Arc<Metrics>,
    /// Versions, overrides, tokens and audit log; `None` if this node has no database.
    pub store: Option<RuleStore>,
    /// Where rules come from.
    pub source: RuleSource,
    /// The other nodes.
    pub fleet: Arc<dyn Fleet>,
    /// The source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Tokens from the configuration.
    pub tokens: Vec<ConfiguredToken>,
    /// Further tokens from the configuration, all with the admin role.
    pub admin_tokens: Option<Arc<TokenSource>>,
    /// The name of this installation in the dashboard.
    pub environment: String,
    /// The name of this node.
    pub node: String,
    /// The layout of the keys that this node reads and writes in the store.
    pub layout: String,
    /// Returns the current size of the store.
    pub usage: Arc<dyn Fn() -> StoreUsage + Send + Sync>,
    /// Returns the shard lists of other nodes that differ from this node's.
    pub other_shards: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Returns how busy the workers are, from 0 to 1.
    pub busy: Arc<dyn Fn() -> f64 + Send + Sync>,
}

/// The control plane of one node.
pub struct Control {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) store: Option<RuleStore>,
    pub(crate) source: RuleSource,
    pub(crate) fleet: Arc<dyn Fleet>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tokens: Vec<ConfiguredToken>,
    pub(crate) admin_tokens: Option<Arc<TokenSource>>,
    pub(crate) environment: String,
    pub(crate) node: String,
    pub(crate) layout: String,
    pub(crate) usage: Arc<dyn Fn() -> StoreUsage + Send + Sync>,
    pub(crate) other_shards: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    pub(crate) busy: Arc<dyn Fn() -> f64 + Send + Sync>,
    pub(crate) running: Mutex<Running>,
    /// Held while rules are compiled and swapped in, so that the second of two changes builds on the first.
    pub(crate) compiling: Mutex<()>,
    /// Held while the published rules are read and taken into use, so that an older read never overwrites a newer one.
    pub(crate) reading_published: tokio::sync::Mutex<()>,
    /// The lineage of this node's own database, once it has been read.
    pub(crate) lineage: OnceLock<String>,
    /// Whether the warning that the fleet follows another database was already logged.
    pub(crate) follows: AtomicBool,
    /// What this node last published to the others, or could not.
    pub(crate) distribution: watch::Sender<Distribution>,
    /// Wakes the database follower before the database notifies it of a change.
    pub(crate) recheck: Notify,
    /// Why the database does not answer; `None` while it does.
    pub(crate) database_error: watch::Sender<Option<String>>,
    pub(crate) history: Mutex<History>,
    pub(crate) events: broadcast::Sender<Event>,
    /// One permit per event listener.
    pub(crate) listeners: Arc<Semaphore>,
    /// Wrong tokens and log-in codes, by address, whichever way they were given.
    pub(crate) guesses: Arc<Guesses>,
    /// The alerts; set only if this node watches for them.
    pub(crate) alerts: OnceLock<Arc<AlertDesk>>,
    /// The signals for alerts that this node announces to the others.
    pub(crate) signals: Mutex<Option<Signals>>,
    /// The ids of this node's own questions to the fleet, newest last: it must not answer them itself.
    pub(crate) own_questions: Mutex<VecDeque<u64>>,
    /// Why the autopilot last made no step, by domain and rule; only of rules in use.
    pub(crate) autopilot_waits: Mutex<BTreeMap<(String, String), String>>,
    pub(crate) started_us: u64,
    /// The nodes that were last heard of: while the shared store does not answer, they are unknown, not gone.
    pub(crate) last_nodes: Mutex<Vec<NodeNote>>,
    /// Where this node answers requests, by protocol; set once its listeners are open.
    pub(crate) addresses: OnceLock<Vec<(&'static str, SocketAddr)>>,
}

impl Control {
    /// Builds the control plane. Nothing runs until [`Control::maintain`] does.
    #[must_use]
    pub fn new(config: ControlConfig) -> Arc<Self> {
        let started_us = config.clock.now().as_micros();
        Arc::new(Control {
            limiter: config.limiter,
            metrics: config.metrics,
            store: config.store,
            source: config.source,
            fleet: config.fleet,
            clock: config.clock,
            tokens: config.tokens,
            admin_tokens: config.admin_tokens,
            environment: config.environment,
            node: config.node,
            layout: config.layout,
            usage: config.usage,
            other_shards: config.other_shards,
            busy: config.busy,
            running: Mutex::default(),
            compiling: Mutex::default(),
            reading_published: tokio::sync::Mutex::default(),
            lineage: OnceLock::new(),
            follows: AtomicBool::new(false),
            distribution: watch::Sender::new(Distribution::default()),
            recheck: Notify::new(),
            database_error: watch::Sender::new(None),
            history: Mutex::new(History::new()),
            events: broadcast::Sender::new(MOST_WAITING_EVENTS),
            listeners: Arc::new(Semaphore::new(MOST_LISTENERS)),
            guesses: Arc::default(),
            alerts: OnceLock::new(),
            signals: Mutex::default(),
            own_questions: Mutex::default(),
            autopilot_waits: Mutex::default(),
            started_us,
            last_nodes: Mutex::default(),
            addresses: OnceLock::new(),
        })
    }

    /// Shows the alerts of `desk` from now on; call it once.
    pub fn show_alerts(&self, desk: Arc<AlertDesk>) {
        let _ = self.alerts.set(desk);
    }

    /// Shows where this node answers requests; call it once.
    pub fn show_addresses(&self, addresses: Vec<(&'static str, SocketAddr)>) {
        let _ = self.addresses.set(addresses);
    }

    /// Sends an event to the listeners, if there are any.
    pub(crate) fn emit(&self, name: &'static str, data: &serde_json::Value) {
        if self.events.receiver_count() > 0 {
            let _ = self.events.send(Event { name, data: data.to_string().into() });
        }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("node", &self.node)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
