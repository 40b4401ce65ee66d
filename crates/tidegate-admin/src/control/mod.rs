//! The control plane's own state: which rules should run here, which do, and who changes them.
//!
//! [`Control`] is what the admin API acts on. It compiles what a version (or a set of files) and the key overrides add up
//! to, swaps it into the limiter, and remembers what could not be compiled: then the old rules go on.
//! No request of the data plane waits for anything here.

mod asking;
mod autopilot;
mod experiment;
mod fleet;
mod follow;
mod history;
mod merged;
mod running;
mod telling;
mod watched;

use std::collections::VecDeque;
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
pub(crate) use asking::{JoinedDemand, Missing, Question, Told, unheard};
pub use fleet::{
    Alone, CHANGES_BESIDE, ChangesSince, Fleet, FleetAnswer, FleetError, FleetQuestion, Heard, NEWEST_FORMAT,
    NodeNote, NoteFuture, PublishedSet, WHOLE_SET, without_replaced,
};
pub use follow::LastSecond;
pub(crate) use history::{History, Latencies, Series, Totals, Window};
pub(crate) use merged::merged;
pub use merged::{HistoryChunk, HistoryRow, Resolution};
pub(crate) use running::{Base, Running, compile, runtime};
pub use running::{CompileFailure, RuleSource};
pub use watched::CallerWatch;

/// What happened, for those who listen: the name of a route, and what it would answer now or a part of that.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    pub(crate) data: Arc<str>,
}

/// Events that wait for a listener; one that is slower misses some.
const MOST_WAITING_EVENTS: usize = 64;

/// Listeners to events at once: half of what the admin listener takes.
const MOST_LISTENERS: usize = 64;

/// A token that the configuration gives: it works without a database.
#[derive(Clone, Debug)]
pub struct ConfiguredToken {
    /// Whose it is.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// What is kept of it.
    pub digest: SecretDigest,
}

/// What the control plane is made of.
pub struct ControlConfig {
    /// What decides requests.
    pub limiter: Arc<Limiter>,
    /// What was counted.
    pub metrics: Arc<Metrics>,
    /// Versions, overrides, tokens and audit; none where this node has no database.
    pub store: Option<RuleStore>,
    /// Where rules come from.
    pub source: RuleSource,
    /// The other nodes.
    pub fleet: Arc<dyn Fleet>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Tokens of the configuration.
    pub tokens: Vec<ConfiguredToken>,
    /// Others of the configuration, all of which may do everything.
    pub admin_tokens: Option<Arc<TokenSource>>,
    /// What the dashboard calls this installation.
    pub environment: String,
    /// What this node is called.
    pub node: String,
    /// The layout of keys that it reads and writes in the store.
    pub layout: String,
    /// How much the store holds.
    pub usage: Arc<dyn Fn() -> StoreUsage + Send + Sync>,
    /// Lists of shards that other nodes use, where they differ from this node's.
    pub other_shards: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// How busy the workers are, from 0 to 1.
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
    /// Held while rules are compiled and swapped in: what is compiled second must know of the first.
    pub(crate) taking: Mutex<()>,
    /// Held while what is published is read and taken, so that an older reading never comes after a newer one.
    pub(crate) reading: tokio::sync::Mutex<()>,
    /// The own database's name, once it was read.
    pub(crate) lineage: OnceLock<String>,
    /// Whether it was said that the fleet follows another database.
    pub(crate) follows: AtomicBool,
    /// A reason to look at the database before it tells of a change.
    pub(crate) look_again: Notify,
    /// Why the database does not answer; none while it does.
    pub(crate) database_error: watch::Sender<Option<String>>,
    pub(crate) history: Mutex<History>,
    pub(crate) events: broadcast::Sender<Event>,
    /// Who may still listen to events.
    pub(crate) listeners: Arc<Semaphore>,
    pub(crate) guesses: Guesses,
    /// What is the matter, where anybody watches.
    pub(crate) alerts: OnceLock<Arc<AlertDesk>>,
    /// What the others are told of it.
    pub(crate) signals: Mutex<Option<Signals>>,
    /// Questions of this node to the others, the newest last: it does not answer them itself.
    pub(crate) asked: Mutex<VecDeque<u64>>,
    pub(crate) started_us: u64,
}

impl Control {
    /// Made of these parts. Nothing runs until [`Control::maintain`] does.
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
            taking: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            lineage: OnceLock::new(),
            follows: AtomicBool::new(false),
            look_again: Notify::new(),
            database_error: watch::Sender::new(None),
            history: Mutex::new(History::new()),
            events: broadcast::Sender::new(MOST_WAITING_EVENTS),
            listeners: Arc::new(Semaphore::new(MOST_LISTENERS)),
            guesses: Guesses::default(),
            alerts: OnceLock::new(),
            signals: Mutex::default(),
            asked: Mutex::default(),
            started_us,
        })
    }

    /// Shows the alerts of `desk` from now on; to be called once.
    pub fn show_alerts(&self, desk: Arc<AlertDesk>) {
        let _ = self.alerts.set(desk);
    }

    /// Tells who listens; nobody may.
    pub(crate) fn tell(&self, name: &'static str, data: &serde_json::Value) {
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
