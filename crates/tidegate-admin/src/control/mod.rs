//! The control plane's state: which rules should run here, which rules run, and who may change them.
//!
//! The admin API acts on [`ControlPlane`]. It compiles a version (or a set of files) together with the key overrides and swaps
//! the result into the limiter. If they do not compile, it keeps the error and the old rules keep running. No data-plane
//! request waits for anything here.

mod autopilot;
mod distribution;
mod events;
mod experiment;
mod fleet;
mod fleet_history;
mod fleet_query;
mod history;
mod local_sessions;
mod merged;
mod published;
mod recent_nodes;
mod running;
mod seconds;
mod shared_answers;
mod slots;
mod watched;
mod worthy;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tidegate_access::{Guesses, SecretDigest, TokenSource};
use tidegate_decisions::DecisionLog;
use tidegate_limiter::{Limiter, Snapshot};
use tidegate_metrics::{Metrics, StoreUsage};
use tidegate_rules::RuleSet;
use tidegate_rulestore::{Role, RuleStore};
use tidegate_store::Clock;
use tidegate_telemetry::alerts::{SharedAlerts, Signals};

pub use events::EventCounts;
pub(crate) use events::Events;
pub use fleet::{
    Alone, CHANGES_BESIDE, ChangesSince, Fleet, FleetAnswer, FleetError, NEWEST_FORMAT, NodeStatus,
    NoteFuture, PublishedSet, WHOLE_SET, heartbeat_of, without_replaced,
};
pub(crate) use fleet_history::FleetHistory;
pub use fleet_query::MOST_ANSWER_BYTES;
pub(crate) use fleet_query::{
    FleetQuestions, JoinedDemand, NodeAnswer, Question, UnansweredNode, why_missing,
};
pub(crate) use history::{History, Latencies, Series, Window};
pub use merged::{HistoryChunk, HistoryRow, Resolution};
pub(crate) use merged::{Unknown, is_others, merged, sides};
pub(crate) use published::PublishedRules;
use recent_nodes::RecentNodes;
pub(crate) use running::{Base, compile, compile_while, runtime};
pub use running::{CompileFailure, RuleSource, RunningRules};
pub use seconds::LastSecond;
pub(crate) use shared_answers::{SHARED_FOR, SharedAnswers};
pub use watched::CallerWatch;
pub(crate) use worthy::{Enforced, worthy};

pub(crate) use local_sessions::LocalSession;
use local_sessions::LocalSessions;

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
    /// Recent decisions, if they are logged.
    pub decisions: Option<Arc<DecisionLog>>,
    /// Counts of event listeners, shared with the registry.
    pub event_counts: Arc<EventCounts>,
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
    /// The region of this node, if it is configured.
    pub region: Option<String>,
    /// Returns the current size of the store.
    pub usage: Arc<dyn Fn() -> StoreUsage + Send + Sync>,
    /// Returns what keeps nodes from counting together, as far as the store and the homes show it.
    pub apart: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Returns how busy the workers are, from 0 to 1.
    pub busy: Arc<dyn Fn() -> f64 + Send + Sync>,
    /// The name of the store's kind.
    pub store_kind: &'static str,
    /// Returns what rules cost this node's store, if that was measured.
    pub store_cost: StoreCosts,
}

/// Returns what rules cost their store, if that was measured.
pub type StoreCosts = Arc<dyn Fn(&RuleSet) -> Option<StoreCost> + Send + Sync>;

/// What rules cost their store, by measurements: a key at its largest, and a request that matches every rule of its domain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreCost {
    /// The memory of a key whose quota is fully used.
    pub bytes_per_key: u64,
    /// Calls per request; requests that wait together share them.
    pub calls_per_request: u64,
    /// The time that a core of the store needs for a request, in microseconds; zero where the number of cores that decide is not
    /// that of its servers.
    pub us_per_request: f64,
}

/// The control plane of one node: its parts, each with state of its own.
pub struct ControlPlane {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) decisions: Option<Arc<DecisionLog>>,
    pub(crate) store: Option<RuleStore>,
    pub(crate) fleet: Arc<dyn Fleet>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) identity: Arc<NodeIdentity>,
    pub(crate) probes: Probes,
    pub(crate) access: Access,
    pub(crate) rules: Arc<RunningRules>,
    pub(crate) published: Arc<PublishedRules>,
    pub(crate) questions: FleetQuestions,
    pub(crate) history: Mutex<History>,
    pub(crate) fleet_history: FleetHistory,
    /// The nodes that were known a moment ago.
    recent_nodes: RecentNodes,
    pub(crate) events: Arc<Events>,
    pub(crate) alerts: AlertState,
    /// Why the autopilot last made no step, by domain and rule; only of rules in use.
    pub(crate) autopilot_waits: Mutex<BTreeMap<(String, String), String>>,
}

/// What tells this node from others.
pub(crate) struct NodeIdentity {
    pub(crate) environment: String,
    pub(crate) node: String,
    pub(crate) layout: String,
    pub(crate) region: Option<String>,
    pub(crate) started_us: u64,
    /// The nodes that were last heard of: while the shared store does not answer, they are unknown, not gone.
    pub(crate) last_nodes: Mutex<Vec<NodeStatus>>,
    /// Where this node answers requests, by protocol; set once its listeners are open.
    pub(crate) addresses: OnceLock<Vec<(&'static str, SocketAddr)>>,
}

/// What is asked of other parts of the process.
pub(crate) struct Probes {
    pub(crate) usage: Arc<dyn Fn() -> StoreUsage + Send + Sync>,
    pub(crate) apart: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    pub(crate) busy: Arc<dyn Fn() -> f64 + Send + Sync>,
    pub(crate) store_kind: &'static str,
    pub(crate) store_cost: StoreCosts,
    /// That of these rules: computed once for each set.
    pub(crate) last_cost: Mutex<(Weak<Snapshot>, Option<StoreCost>)>,
}

/// Who may use the admin API without the database.
pub(crate) struct Access {
    pub(crate) tokens: Vec<ConfiguredToken>,
    pub(crate) admin_tokens: Option<Arc<TokenSource>>,
    /// Wrong tokens and sign-in codes, by address, whichever way they were given.
    pub(crate) guesses: Arc<Guesses>,
    /// Sessions that no database keeps.
    pub(crate) sessions: LocalSessions,
}

/// The alerts of this node, if it watches for them, and the signals that it announces to the others.
#[derive(Default)]
pub(crate) struct AlertState {
    pub(crate) desk: OnceLock<Arc<SharedAlerts>>,
    signals: Mutex<Option<Signals>>,
    /// The nodes that were missing when the others were last read.
    missed: Mutex<merged::Missed>,
}

impl ControlPlane {
    /// Builds the control plane. Nothing runs until [`ControlPlane::maintain`] does.
    #[must_use]
    pub fn new(config: ControlConfig) -> Arc<Self> {
        let ControlConfig { limiter, metrics, decisions, store, fleet, clock, .. } = config;
        let started_us = clock.now().as_micros();
        let ControlConfig { environment, node, layout, region, .. } = config;
        let identity = Arc::new(NodeIdentity {
            environment,
            node: node.clone(),
            layout,
            region,
            started_us,
            last_nodes: Mutex::default(),
            addresses: OnceLock::new(),
        });
        let events = Arc::new(Events::new(config.event_counts));
        let rules =
            Arc::new(RunningRules::new(limiter.clone(), metrics.clone(), clock.clone(), config.source));
        let published = PublishedRules::new(
            rules.clone(),
            store.clone(),
            (fleet.clone(), node),
            clock.clone(),
            events.clone(),
        );
        Arc::new(ControlPlane {
            questions: FleetQuestions::new(fleet.clone(), decisions.clone(), identity.clone()),
            limiter,
            metrics,
            decisions,
            store,
            fleet,
            clock,
            identity,
            probes: Probes {
                usage: config.usage,
                apart: config.apart,
                busy: config.busy,
                store_kind: config.store_kind,
                store_cost: config.store_cost,
                last_cost: Mutex::default(),
            },
            access: Access {
                tokens: config.tokens,
                admin_tokens: config.admin_tokens,
                guesses: Arc::default(),
                sessions: LocalSessions::default(),
            },
            rules,
            published,
            history: Mutex::new(History::new()),
            fleet_history: FleetHistory::default(),
            recent_nodes: RecentNodes::default(),
            events,
            alerts: AlertState::default(),
            autopilot_waits: Mutex::default(),
        })
    }

    /// Background work for as long as the node runs: follows the published rules, keeps history, announces this node.
    pub async fn maintain(self: Arc<Self>) {
        tokio::join!(
            self.published.follow_database(),
            self.published.follow_fleet(),
            self.keep_history(),
            self.questions.answer_all(),
            self.autopilot(),
            self.published.tidy()
        );
    }

    /// Takes the current rules into use: from this node's database, or from the other nodes. False if there are none anywhere.
    pub async fn start(&self) -> bool {
        self.published.start().await
    }

    /// What the rules in use cost the store.
    pub(crate) fn store_cost(&self) -> Option<StoreCost> {
        let snapshot = self.limiter.snapshot();
        let mut last = self.probes.last_cost.lock();
        if !std::ptr::eq(last.0.as_ptr(), Arc::as_ptr(&snapshot)) {
            *last = (Arc::downgrade(&snapshot), (self.probes.store_cost)(snapshot.rules()));
        }
        last.1
    }

    /// The rules that this node runs.
    #[must_use]
    pub fn rules(&self) -> &RunningRules {
        &self.rules
    }

    /// Why the newest change could not be published to the other nodes, if so.
    #[must_use]
    pub fn not_distributed(&self) -> Option<String> {
        self.published.not_distributed()
    }

    /// Shows the alerts of `desk` from now on; call it once.
    pub fn show_alerts(&self, desk: Arc<SharedAlerts>) {
        let _ = self.alerts.desk.set(desk);
    }

    /// Shows where this node answers requests; call it once.
    pub fn show_addresses(&self, addresses: Vec<(&'static str, SocketAddr)>) {
        let _ = self.identity.addresses.set(addresses);
    }
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlPlane").field("node", &self.identity.node).finish_non_exhaustive()
    }
}
