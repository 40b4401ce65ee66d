//! Follows what is published: from the database, or from the other nodes where this one has none or cannot reach it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_rulestore::{DocumentSet, Head, RuleStore, Watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::fleet::{NodeNote, PublishedSet};
use super::running::{Base, RuleSource, Running};
use super::{Control, Latencies};

/// How often the set is put where the other nodes find it, though nothing changed: it lives there for a while only.
const REFRESH_EVERY: Duration = Duration::from_secs(60);
/// How often what has ended is deleted.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// How long to wait before a database that did not answer is asked again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// What is kept.
const MOST_VERSIONS: u64 = 10_000;
const MOST_AUDIT_ENTRIES: u64 = 100_000;

impl Control {
    /// Does what must be done for as long as the node runs: follows what is published, keeps history, tells of this node.
    pub async fn maintain(self: Arc<Self>) {
        tokio::join!(self.follow_database(), self.follow_fleet(), self.keep_history(), self.tidy());
    }

    /// Brings the schema up to date and takes what is in force into use; from the other nodes where the database does
    /// not answer. False where neither has anything.
    pub async fn start(&self) -> bool {
        if let Some(store) = &self.store {
            match self.read(store).await {
                Ok(set) => return self.take_set(set).await,
                Err(error) => self.database_failed(&error),
            }
        }
        match self.fleet.fetch().await {
            Ok(Some(set)) => self.take_set(set).await,
            _ => false,
        }
    }

    async fn follow_database(&self) {
        let Some(store) = &self.store else { return };
        let mut watch: Watch = store.watch();
        let mut published = Instant::now();
        let mut first = true;
        loop {
            let head = if first { store.head().await } else { watch.next().await };
            match head {
                Ok(head) => {
                    self.database_answers();
                    let changed = self.differs(head);
                    if changed {
                        self.take_from(store).await;
                    }
                    if self.fleet.is_shared() && (changed || first || published.elapsed() >= REFRESH_EVERY) {
                        published = Instant::now();
                        self.publish_to_fleet(store).await;
                    }
                    first = false;
                }
                Err(error) => {
                    self.database_failed(&error);
                    sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    /// Follows the other nodes, where this one has no database or cannot reach it.
    async fn follow_fleet(&self) {
        let mut heard = self.fleet.heard();
        loop {
            let revision = heard.borrow_and_update().revision;
            let alone = self.store.is_none() || self.database_error.borrow().is_some();
            if alone && revision > 0 && revision != self.revision() {
                match self.fleet.fetch().await {
                    Ok(Some(set)) => drop(self.take_set(set).await),
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%error, "cannot fetch the published rules"),
                }
            }
            if heard.changed().await.is_err() {
                return;
            }
        }
    }

    fn differs(&self, head: Head) -> bool {
        let running = self.running.lock();
        let version = match self.source {
            RuleSource::Database => running.version != head.version,
            RuleSource::Files(_) => false,
        };
        version || running.overrides_revision != head.overrides
    }

    pub(crate) fn revision(&self) -> u64 {
        let running = self.running.lock();
        running.version + running.overrides_revision
    }

    /// Reads what is in force and takes it into use; a failure is noted.
    pub(crate) async fn take_from(&self, store: &RuleStore) {
        match self.read(store).await {
            Ok(set) => drop(self.take_set(set).await),
            Err(error) => self.database_failed(&error),
        }
    }

    async fn publish_to_fleet(&self, store: &RuleStore) {
        match self.read(store).await {
            Ok(set) => {
                if let Err(error) = self.fleet.publish(&set).await {
                    tracing::warn!(%error, "the other nodes do not hear of the published rules");
                }
            }
            Err(error) => self.database_failed(&error),
        }
    }

    /// Everything that is in force.
    async fn read(&self, store: &RuleStore) -> Result<PublishedSet, tidegate_rulestore::Error> {
        store.migrate().await?;
        let head = store.head().await?;
        let documents = match self.source {
            RuleSource::Database => store.documents(head.version).await?.to_documents(),
            RuleSource::Files(_) => Vec::new(),
        };
        Ok(PublishedSet {
            lineage: store.lineage().await?,
            version: head.version,
            overrides: head.overrides,
            documents,
            key_overrides: store.all_overrides(self.clock.now()).await?,
        })
    }

    /// Compiles a set on a thread where nobody waits, and takes it into use. False if it has mistakes.
    pub(crate) async fn take_set(&self, set: PublishedSet) -> bool {
        let running = self.running.lock().clone();
        let (base, version) = match self.source {
            RuleSource::Database => (Arc::new(Base::Documents(DocumentSet::new(set.documents))), set.version),
            RuleSource::Files(_) => (running.base, 0),
        };
        let wanted = Running {
            base,
            version,
            overrides: Arc::new(set.key_overrides),
            overrides_revision: set.overrides,
            ..running
        };
        match self.take(wanted) {
            Ok(()) => {
                tracing::info!(version, overrides = set.overrides, "published rules are in use");
                let told = serde_json::json!({ "version": version, "overrides": set.overrides });
                self.tell("version", &told);
                true
            }
            Err(failure) => {
                tracing::error!(version, "published rules are not in use, the old ones go on: {}", failure.0);
                false
            }
        }
    }

    fn database_failed(&self, error: &tidegate_rulestore::Error) {
        let why = std::error::Error::source(error).map_or_else(String::new, |source| format!(": {source}"));
        let told = self.database_error.send_replace(Some(format!("{error}{why}")));
        if told.is_none() {
            tracing::warn!("{error}{why}; limits keep working, rules and keys cannot be changed");
            self.tell("store", &serde_json::json!({ "database": { "healthy": false } }));
        }
    }

    fn database_answers(&self) {
        if self.database_error.send_replace(None).is_some() {
            tracing::info!("the database answers again");
            self.tell("store", &serde_json::json!({ "database": { "healthy": true } }));
        }
    }

    /// Deletes what has ended, and what is older than anybody looks.
    async fn tidy(&self) {
        let Some(store) = &self.store else { return };
        let mut ticks = interval(TIDY_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let ended = store.delete_ended_overrides(self.clock.now()).await;
            let old = store.forget_old(MOST_VERSIONS, MOST_AUDIT_ENTRIES).await;
            if let Err(error) = ended.map(drop).and(old) {
                tracing::debug!(%error, "cannot delete what has ended");
            }
        }
    }

    /// What this node tells of itself.
    pub(crate) fn note(&self) -> NodeNote {
        let running = self.running.lock();
        let health = match self.limiter.health() {
            tidegate_limiter::Health::Healthy => "healthy".to_owned(),
            tidegate_limiter::Health::Degraded { reason } => reason,
        };
        let (allowed_per_s, refused_per_s) = self.history.lock().last_rates();
        let store: Vec<String> = self.limiter.nodes().into_iter().map(|node| node.endpoint).collect();
        NodeNote {
            id: String::new(),
            name: self.node.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            version: running.version,
            overrides: running.overrides_revision,
            error: running.error.clone(),
            started_us: self.started_us,
            allowed_per_s,
            refused_per_s,
            busy: (self.busy)(),
            store: if store.is_empty() { "memory".to_owned() } else { store.join(",") },
            health,
            layout: String::new(),
        }
    }
}

impl Control {
    /// Reads the counters once a second, tells of this node, and tells those who listen.
    async fn keep_history(&self) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut decisions, mut calls) = (self.metrics.decision_times(), self.metrics.store_times());
        loop {
            ticks.tick().await;
            let (decisions_now, calls_now) = (self.metrics.decision_times(), self.metrics.store_times());
            let latencies = Latencies {
                decision_p50_us: decisions_now.quantile_us(&decisions, 0.5),
                decision_p99_us: decisions_now.quantile_us(&decisions, 0.99),
                store_p50_us: calls_now.quantile_us(&calls, 0.5),
                store_p99_us: calls_now.quantile_us(&calls, 0.99),
            };
            (decisions, calls) = (decisions_now, calls_now);
            let now_s = self.clock.now().as_micros() / 1_000_000;
            self.history.lock().record(now_s, self.metrics.rule_totals(), latencies);
            let note = self.note();
            self.fleet.announce(&note);
            self.tell(
                "stats",
                &serde_json::json!({
                    "at_s": now_s,
                    "allowed_per_s": note.allowed_per_s,
                    "refused_per_s": note.refused_per_s,
                    "busy": note.busy,
                    "health": note.health,
                    "version": note.version,
                }),
            );
        }
    }
}
