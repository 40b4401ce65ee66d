//! Follows the published rules: from the database, or from the other nodes if this one has none or cannot reach it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::json;
use tidegate_fleet::PublishedRevision;
use tidegate_limiter::Limiter;
use tidegate_rules::RuleChanges;
use tidegate_rulestore::{Error, KeyOverride, MOST_OVERRIDES, Revision, RuleStore, Watch, ended_long_ago};
use tidegate_store::Clock;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::distribution::{Distribution, Retry};
use super::events::Events;
use super::fleet::{CHANGES_BESIDE, ChangesSince, Fleet, FleetError, NodeStatus, PublishedSet, heartbeat_of};
use super::running::{Running, RunningRules};
use crate::low_priority::{at_low_priority, polled_at_low_priority};

/// How often the lifetime of the set in the shared store is extended; it expires there otherwise.
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// How long until a heartbeat returns what was just published.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// How often expired entries are deleted.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// The wait before a database that did not answer is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// The wait before an unreadable published set is fetched again: a publisher may rewrite it for this release.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// The most versions and audit entries kept in the database.
const MOST_VERSIONS: u64 = 10_000;
const MOST_AUDIT_ENTRIES: u64 = 100_000;

/// What was last published to the fleet.
struct LastPublished {
    head: Option<Revision>,
    at: Instant,
    kept: Instant,
    retry: Retry,
}

/// Follows the published rules, and publishes those of this node's database.
pub(crate) struct PublishedRules {
    rules: Arc<RunningRules>,
    store: Option<RuleStore>,
    fleet: Arc<dyn Fleet>,
    clock: Arc<dyn Clock>,
    pub(super) node: String,
    events: Arc<Events>,
    /// Held while the published rules are read and taken into use, so that an older read never overwrites a newer one.
    reading: tokio::sync::Mutex<()>,
    /// The lineage of this node's own database, once it has been read.
    lineage: OnceLock<String>,
    /// Whether the warning that the fleet follows another database was already logged.
    warned_of_another: AtomicBool,
    /// What this node last published to the others, or could not.
    pub(super) distribution: watch::Sender<Distribution>,
    /// Wakes the database follower before the database notifies it of a change.
    recheck: Notify,
    /// Why the database does not answer; `None` while it does.
    database_error: watch::Sender<Option<String>>,
}

impl PublishedRules {
    pub(super) fn new(
        rules: Arc<RunningRules>,
        store: Option<RuleStore>,
        (fleet, node): (Arc<dyn Fleet>, String),
        clock: Arc<dyn Clock>,
        events: Arc<Events>,
    ) -> Arc<Self> {
        Arc::new(PublishedRules {
            rules,
            store,
            fleet,
            clock,
            node,
            events,
            reading: tokio::sync::Mutex::default(),
            lineage: OnceLock::new(),
            warned_of_another: AtomicBool::new(false),
            distribution: watch::Sender::new(Distribution::default()),
            recheck: Notify::new(),
            database_error: watch::Sender::new(None),
        })
    }

    /// Whether this node's own database has been read.
    pub(crate) fn knows_its_database(&self) -> bool {
        self.lineage.get().is_some()
    }

    /// Why the database does not answer; `None` while it does.
    pub(crate) fn database_error(&self) -> Option<String> {
        self.database_error.borrow().clone()
    }

    pub(super) fn fleet(&self) -> &dyn Fleet {
        &*self.fleet
    }

    pub(super) fn limiter(&self) -> &Limiter {
        self.rules.limiter()
    }

    /// Takes the current rules into use: from this node's database, or from the other nodes if they follow another database
    /// or this one does not answer. False if there are none anywhere.
    pub(super) async fn start(self: &Arc<Self>) -> bool {
        let fleets = self.fleet.fetch().await.unwrap_or_else(|error| {
            match error {
                // The limiter already logs a store that does not answer, once.
                FleetError::Store(why) => tracing::debug!(%why, "cannot ask which rules the other nodes run"),
                error => tracing::error!("cannot read the rules that the other nodes run: {error}"),
            }
            None
        });
        let own = match &self.store {
            Some(store) => self.read(store).await.map_err(|error| self.database_failed(&error)).ok(),
            None => None,
        };
        let set = match (own, fleets) {
            (Some(own), Some(fleets)) if own.revision.lineage != fleets.revision.lineage => {
                self.follows_another();
                Some(fleets)
            }
            (Some(own), _) => Some(own),
            (None, fleets) => fleets,
        };
        match set {
            Some(set) => self.take_set(set, |_, _| ()).await.is_ok(),
            None => false,
        }
    }

    /// Whether changes are made in this node's own database: it has one, and the fleet follows no other.
    pub(crate) fn leads(&self) -> bool {
        let Some(own) = self.lineage.get() else { return false };
        let followed = match self.fleet.heard().borrow().lineage.as_str() {
            // A Redis that lost its data is filled again by the node that led before.
            "" => self.rules.lineage(),
            heard => heard.to_owned(),
        };
        followed.is_empty() || followed == *own
    }

    pub(super) async fn follow_database(self: &Arc<Self>) {
        let Some(store) = &self.store else { return };
        let mut watch: Watch = store.watch();
        let now = Instant::now();
        let mut last = LastPublished { head: None, at: now, kept: now, retry: Retry::default() };
        let mut found = store.head().await;
        loop {
            match found {
                Ok(head) => match self.act_on(store, head, &mut last).await {
                    Ok(()) => self.database_answers(),
                    Err(error) => self.database_failed(&error),
                },
                Err(error) => {
                    self.database_failed(&error);
                    sleep(TRY_AGAIN).await;
                }
            }
            found = tokio::select! {
                head = watch.next() => head,
                () = self.recheck.notified() => store.head().await,
            };
        }
    }

    /// Takes the database's current rules into use, and publishes them to the fleet.
    async fn act_on(
        self: &Arc<Self>,
        store: &RuleStore,
        head: Revision,
        last: &mut LastPublished,
    ) -> Result<(), Error> {
        if self.lineage.get().is_none() {
            store.migrate().await?;
            let _ = self.lineage.set(head.lineage.clone());
        }
        if !self.leads() {
            self.follows_another();
            return Ok(());
        }
        self.take_from(store).await?;
        if !self.fleet.is_shared() {
            return Ok(());
        }
        let heard = self.fleet.heard().borrow().clone();
        let own = heartbeat_of(&head);
        // Heartbeats do not yet return what was published a moment ago.
        let forgotten = heard != own && last.at.elapsed() >= HEARD_WITHIN;
        if last.head.as_ref() != Some(&head) || forgotten || last.retry.has_failed() {
            if !last.retry.is_due(&head, Instant::now()) {
                return Ok(());
            }
            (last.head, last.at, last.kept) = (Some(head.clone()), Instant::now(), Instant::now());
            // The database changes before the fleet learns of it. So a fleet that knows a higher revision has it from before
            // a restore.
            let set_back = forgotten && heard.revision > own.revision;
            let published = match !set_back && self.publish_override_changes(store, &head).await? {
                true => Ok(()),
                false => self.publish_set(store, &head, set_back).await?,
            };
            last.retry.ended(&head, &published, Instant::now());
            self.note_distribution(&head, &published);
        } else if last.kept.elapsed() >= KEEP_EVERY {
            last.kept = Instant::now();
            // Somebody else may have written it, under the revision that is in use.
            let is_ours =
                !matches!(self.fleet.fetch().await, Err(error) if !matches!(error, FleetError::Store(_)));
            let published = match is_ours && self.all_read(CHANGES_BESIDE).await {
                true => self.fleet.keep().await,
                // A node that does not read changes may have joined since they were published.
                false => self.publish_set(store, &head, false).await?,
            };
            last.retry.ended(&head, &published, Instant::now());
            self.note_distribution(&head, &published);
        }
        Ok(())
    }

    /// Publishes the whole set to the fleet.
    async fn publish_set(
        self: &Arc<Self>,
        store: &RuleStore,
        head: &Revision,
        set_back: bool,
    ) -> Result<Result<(), FleetError>, Error> {
        let (own, store, head) = (self.clone(), store.clone(), head.clone());
        let published = async move {
            let set = match own.rules.set_if_running(&head) {
                Some(set) => set,
                None => own.read_here(&store).await?,
            };
            Ok(own.fleet.publish(set, set_back).await)
        };
        polled_at_low_priority(published).await
    }

    /// Whether every node reads this format, and what is published in it: an earlier release would miss what is written in
    /// it, and what is in Redis may be damaged.
    async fn all_read(&self, format: u32) -> bool {
        let reads = |note: &NodeStatus| note.format >= format && !note.cannot_read;
        self.fleet.nodes().await.is_ok_and(|notes| notes.iter().all(reads))
    }

    /// Publishes the override changes since the set that the fleet has; false if the fleet needs a new set.
    async fn publish_override_changes(&self, store: &RuleStore, head: &Revision) -> Result<bool, Error> {
        let known = match self.fleet.fetch_changes().await {
            Ok(Some(known))
                if known.since.lineage == head.lineage
                    && (known.since.version, known.since.marks.version)
                        == (head.version, head.marks.version) =>
            {
                known
            }
            _ => return Ok(false),
        };
        if known.until() == *head {
            // Another node with this database has already published them.
            return Ok(true);
        }
        let since = (known.since.overrides, known.since.marks.overrides);
        let Some(changes) = store.override_changes(since, head.overrides).await? else {
            return Ok(false);
        };
        if !self.all_read(CHANGES_BESIDE).await {
            return Ok(false);
        }
        let published = self.fleet.publish_changes(&known, &ChangesSince { changes, ..known.clone() }).await;
        Ok(published.unwrap_or_default())
    }

    /// Makes this node's database the fleet's: its rules and overrides replace those that the other nodes run.
    pub(crate) async fn take_over(
        self: &Arc<Self>,
        store: &RuleStore,
    ) -> Result<Result<(), FleetError>, Error> {
        let set = self.read(store).await?;
        let _reading = self.reading.lock().await;
        if let Err(error) = self.fleet.take_over(set.clone()).await {
            return Ok(Err(error));
        }
        self.follow(set).await;
        self.warned_of_another.store(false, Ordering::Relaxed);
        Ok(Ok(()))
    }

    /// Follows the other nodes if this one does not lead or cannot reach its database.
    pub(super) async fn follow_fleet(self: &Arc<Self>) {
        let mut heard = self.fleet.heard();
        loop {
            let published = heard.borrow_and_update().clone();
            let news = !self.rules.runs(&published);
            let mut unreadable = self.fleet.distrust();
            if self.leads() && self.database_error.borrow().is_none() {
                if news {
                    self.recheck.notify_one();
                }
            } else if news && published.revision > 0 {
                let _reading = self.reading.lock().await;
                match self.fetch(&published).await {
                    Ok(Some(set)) => self.follow(set).await,
                    Ok(None) => {}
                    Err(FleetError::Store(why)) => tracing::warn!(%why, "cannot fetch the published rules"),
                    // Without the revision: the set may be newer than the heartbeat said, and the cause is the same.
                    Err(error) => unreadable = Some(error.to_string()),
                }
            }
            self.note_unreadable(&unreadable);
            let changed = match unreadable {
                None => heard.changed().await,
                Some(_) => timeout(READ_AGAIN, heard.changed()).await.unwrap_or(Ok(())),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Logs once why this node does not run the published rules; it keeps those that it has.
    fn note_unreadable(&self, why: &Option<String>) {
        let before = self.rules.note_unreadable(why);
        if let Some(why) = why
            && before.as_ref() != Some(why)
        {
            tracing::error!("cannot read the published rules, the old ones keep running: {why}");
            self.events.emit("nodes", &json!({ "refused": why }));
        }
    }

    /// The rules that the other nodes run. Fetches only the changes if this node runs the set before them.
    async fn fetch(
        self: &Arc<Self>,
        published: &PublishedRevision,
    ) -> Result<Option<PublishedSet>, FleetError> {
        let changes = self.fleet.fetch_changes().await?;
        if let Some(changes) = changes.filter(|changes| heartbeat_of(&changes.until()) == *published) {
            let rules = self.rules.clone();
            let set = at_low_priority(move || changes.apply(rules.set_in_use())).await;
            if heartbeat_of(&set.revision) == *published && !self.rules.runs(published) {
                return Ok(Some(set));
            }
        }
        self.fleet.fetch().await
    }

    /// Reads the current rules from the database and takes them into use if they differ from the running ones.
    async fn take_from(self: &Arc<Self>, store: &RuleStore) -> Result<(), Error> {
        // A caller that had to wait here finds what the previous one has read.
        let _reading = self.reading.lock().await;
        if !self.rules.runs(&heartbeat_of(&store.head().await?)) {
            let set = self.read(store).await?;
            self.follow(set).await;
        }
        Ok(())
    }

    /// Takes a change made on this node into use. A failure is recorded and tried again.
    pub(crate) async fn take_own(self: &Arc<Self>, store: &RuleStore) {
        if let Err(error) = self.take_from(store).await {
            self.database_failed(&error);
        }
    }

    /// The database's current rules and overrides.
    async fn read(self: &Arc<Self>, store: &RuleStore) -> Result<PublishedSet, Error> {
        let (own, store) = (self.clone(), store.clone());
        polled_at_low_priority(async move { own.read_here(&store).await }).await
    }

    async fn read_here(&self, store: &RuleStore) -> Result<PublishedSet, Error> {
        store.migrate().await?;
        let head = store.head().await?;
        let _ = self.lineage.set(head.lineage.clone());
        let documents = store.documents(head.version).await?.to_documents();
        let in_use = self.rules.now();
        let caught_up = match in_use.revision.lineage == head.lineage {
            true => self.caught_up(store, in_use, head.overrides).await?,
            false => None,
        };
        let key_overrides = match caught_up {
            Some(overrides) => overrides,
            None => store.all_overrides(self.clock.now()).await?,
        };
        Ok(PublishedSet { revision: head, documents, key_overrides, serial: 0 })
    }

    /// The overrides at revision `until`, derived from those in use; `None` if some change since is unknown.
    async fn caught_up(
        &self,
        store: &RuleStore,
        in_use: Running,
        until: u64,
    ) -> Result<Option<Vec<KeyOverride>>, Error> {
        let since = (in_use.revision.overrides, in_use.revision.marks.overrides);
        let changes = store.override_changes(since, until).await?;
        let Some(changes) = changes else { return Ok(None) };
        let overrides = in_use.overrides;
        // Over the bound: read all of them instead, because that leaves out those that have expired.
        if overrides.len() + changes.len() > MOST_OVERRIDES {
            return Ok(None);
        }
        let long_ago_us = ended_long_ago(self.clock.now()).as_micros();
        let has_ended = |one: &KeyOverride| one.what.until_us.is_some_and(|until| until <= long_ago_us);
        let mut all: Vec<KeyOverride> = overrides.iter().filter(|one| !has_ended(one)).cloned().collect();
        changes.into_iter().for_each(|change| change.apply(&mut all));
        Ok(Some(all))
    }

    /// Takes a set into use that was published while this node runs, and logs the changes.
    async fn follow(self: &Arc<Self>, set: PublishedSet) {
        let (version, overrides) = (set.revision.version, set.key_overrides.len());
        let log = move |rules: &RunningRules, changes: Option<RuleChanges>| match changes {
            Some(changes) => {
                for lost in &changes.lost {
                    tracing::warn!(hint = lost.hint, "{}", lost.message);
                }
                let rules = rules.limiter().snapshot().rules().rules().len();
                tracing::info!(version, rules, "rules reloaded: {changes}");
            }
            None => tracing::info!(version, overrides, "key overrides reloaded"),
        };
        // A failure is already logged.
        let _ = self.take_set(set, log).await;
    }

    /// Takes a set into use on a background thread, and has `log` say there what changed. Returns why it does not compile.
    async fn take_set(
        self: &Arc<Self>,
        set: PublishedSet,
        log: impl FnOnce(&RunningRules, Option<RuleChanges>) + Send + 'static,
    ) -> Result<(), String> {
        let (version, overrides) = (set.revision.version, set.revision.overrides);
        let rules = self.rules.clone();
        let taken =
            at_low_priority(move || rules.take_published(set).map(|changes| log(&rules, changes))).await;
        match &taken {
            Ok(()) => self.events.emit("version", &json!({ "version": version, "overrides": overrides })),
            Err(failure) => {
                tracing::error!(
                    version,
                    "the published rules do not compile, the old ones keep running: {failure}"
                );
                self.events.emit("nodes", &json!({ "refused": version }));
            }
        }
        taken
    }

    /// Logs once that the fleet follows another database than this node's.
    fn follows_another(&self) {
        if !self.warned_of_another.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the other nodes use another database: this node follows them, and changes are made there. If this node's \
                 database should be the fleet's instead: POST /admin/v1/nodes/lead (admin). To follow without this warning: \
                 `admin.database: none`"
            );
        }
    }

    fn database_failed(&self, error: &Error) {
        let why = std::error::Error::source(error).map_or_else(String::new, |source| format!(": {source}"));
        let before = self.database_error.send_replace(Some(format!("{error}{why}")));
        if before.is_none() {
            tracing::warn!("{error}{why}; limits keep working, rules and keys cannot be changed");
            self.events.emit("store", &json!({ "database": { "healthy": false } }));
        }
    }

    fn database_answers(&self) {
        if self.database_error.send_replace(None).is_some() {
            tracing::info!("the database answers again");
            self.events.emit("store", &json!({ "database": { "healthy": true } }));
        }
    }

    /// Deletes expired entries, and versions and audit entries beyond their bounds.
    pub(super) async fn tidy(&self) {
        let Some(store) = &self.store else { return };
        let mut ticks = interval(TIDY_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let ended = store.delete_ended_overrides(self.clock.now()).await;
            let old = store.forget_old(MOST_VERSIONS, MOST_AUDIT_ENTRIES).await;
            if let Err(error) = ended.map(drop).and(old) {
                tracing::debug!(%error, "cannot delete expired entries");
            }
        }
    }
}
