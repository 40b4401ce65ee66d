//! The other nodes: what this node publishes to them, and what it learns from them.
//!
//! A node that publishes rules writes the whole set to the shared store, with a revision that grows. The other nodes learn
//! that revision with the heartbeat they send anyway, and fetch the set when it differs from the one they run.
//!
//! There may be a hundred thousand overrides, of which one changes. So changes are stored beside the set, and a node that
//! already runs the set fetches only the changes.
//!
//! A fleet may mix two releases. Any message here may gain a field, which older releases ignore; a change of meaning is a
//! new *format*. Each node announces the newest format it reads, and a publisher writes one that all nodes read. A node that
//! finds a newer format keeps the rules it runs and reports it.

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;

use serde::{Deserialize, Deserializer, Serialize};
use tidegate_core::Micros;
use tidegate_fleet::{PublishedRevision, StoredQuestion};
use tidegate_limiter::HomeStatus;
use tidegate_rulestore::{Document, KeyOverride, Marks, OverrideChange, Revision};
use tidegate_telemetry::alerts::Signals;
use tokio::sync::watch;

use super::merged::{HistoryChunk, HistoryRow, Resolution};

/// The whole set: every release reads this format.
pub const WHOLE_SET: u32 = 1;
/// The set, and changes beside it.
pub const CHANGES_BESIDE: u32 = 2;
/// The newest format that this release reads.
pub const NEWEST_FORMAT: u32 = CHANGES_BESIDE;

/// Everything that a node runs: the documents of a version, and the key overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedSet {
    /// Which one it is.
    #[serde(flatten)]
    pub revision: Revision,
    /// The documents of the version.
    pub documents: Vec<Document>,
    /// The overrides.
    pub key_overrides: Vec<KeyOverride>,
    /// Its place in the order of publications, if they are signed; otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub serial: u64,
}

/// What a heartbeat returns once this is published. The marks in transit are an opaque string, only compared, and empty if an
/// earlier release published them.
#[must_use]
pub fn heartbeat_of(revision: &Revision) -> PublishedRevision {
    let mark = match revision.marks == Marks::default() {
        true => String::new(),
        false => format!("{:x}.{:x}", revision.marks.version, revision.marks.overrides),
    };
    let (lineage, revision) = (revision.lineage.clone(), revision.number());
    PublishedRevision { lineage, revision, mark, ..PublishedRevision::default() }
}

/// The changes since a set, if only overrides changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesSince {
    /// The set.
    #[serde(flatten)]
    pub since: Revision,
    /// The changes, oldest first, without gaps.
    pub changes: Vec<OverrideChange>,
    /// Their place in the order of publications, if they are signed; otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub serial: u64,
}

impl ChangesSince {
    /// No changes since this set.
    #[must_use]
    pub fn none(set: &PublishedSet) -> Self {
        ChangesSince { since: set.revision.clone(), changes: Vec::new(), serial: set.serial }
    }

    /// The set with these changes: which one it is.
    #[must_use]
    pub fn until(&self) -> Revision {
        let mut until = self.since.clone();
        if let Some(last) = self.changes.last() {
            (until.overrides, until.marks.overrides) = (last.revision, last.mark);
        }
        until
    }

    /// The set with these changes. Unchanged if it is another set, or already has them.
    #[must_use]
    pub fn apply(self, mut set: PublishedSet) -> PublishedSet {
        if self.follow(&set) {
            let have = set.revision.overrides;
            (set.revision, set.serial) = (self.until(), self.serial);
            let all = &mut set.key_overrides;
            self.changes.into_iter().filter(|one| one.revision > have).for_each(|one| one.apply(all));
        }
        set
    }

    /// Whether these changes continue this set, which may already have some of them.
    fn follow(&self, set: &PublishedSet) -> bool {
        let (since, set) = (&self.since, &set.revision);
        let of = |overrides| match overrides == since.overrides {
            true => Some(since.marks.overrides),
            false => self.changes.iter().find(|one| one.revision == overrides).map(|one| one.mark),
        };
        since.lineage == set.lineage
            && (since.version, since.marks.version) == (set.version, set.marks.version)
            && of(set.overrides) == Some(set.marks.overrides)
    }
}

/// A home of rules for all regions, as a node sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HomeNote {
    /// Its name.
    pub store: String,
    /// The counters of which the node holds hits, or did lately.
    pub share_keys: u64,
    /// The hits that it holds of them: its shares.
    pub share_hits: u64,
    /// How many nodes count there, of all regions.
    pub fleet: u64,
    /// How long ago it last answered this node, which asks once a second; none: never.
    pub answered_ms_ago: Option<u64>,
    /// How long that answer took.
    pub round_trip_ms: Option<u64>,
    /// Why it is not used, if it is not.
    pub error: Option<String>,
}

impl From<HomeStatus> for HomeNote {
    fn from(home: HomeStatus) -> Self {
        let ms = |span: Micros| span.get() / 1_000;
        HomeNote {
            store: home.store,
            share_keys: home.shares.purses,
            share_hits: home.shares.hits,
            fleet: home.fleet,
            answered_ms_ago: home.answered_ago.map(ms),
            round_trip_ms: home.round_trip.map(ms),
            error: home.failure,
        }
    }
}

/// What a node announces about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its unique id in the fleet.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// The release it runs.
    pub release: String,
    /// The version of the rules it runs.
    pub version: u64,
    /// The revision of the overrides it runs.
    pub overrides: u64,
    /// A digest of the rules it runs, of the same moment as the version; empty from earlier releases.
    pub rules: String,
    /// The database whose rules or overrides it runs.
    pub lineage: String,
    /// Whether it has that database, so that changes are made there.
    pub leads: bool,
    /// Why it does not run the published rules.
    pub error: Option<String>,
    /// When it started, in microseconds since 1970.
    pub started_us: u64,
    /// Admissions per second, in the last second.
    pub allowed_per_s: f64,
    /// Refusals per second, in the last second.
    pub refused_per_s: f64,
    /// How busy its workers are, 0 to 1.
    pub busy: f64,
    /// The name of its store.
    pub store: String,
    /// `healthy`, or why not.
    pub health: String,
    /// The layout of keys that it reads and writes in the store.
    pub layout: String,
    /// Its region, if it is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The stores that count for all regions, as it sees them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub homes: Vec<HomeNote>,
    /// The newest format that it reads; 0 if unknown.
    pub format: u32,
    /// The input for alerts, if it watches; also `None` if another release gives it another meaning.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "if_readable")]
    pub signals: Option<Signals>,
    /// Its clock at the time of this note, in microseconds since 1970; 0 if unknown.
    pub clock_us: u64,
    /// The serial of the last publication that it accepted; 0 if it checks none.
    #[serde(skip_serializing_if = "is_zero")]
    pub serial: u64,
    /// Whether it cannot read what is published: the publisher writes the whole set again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cannot_read: bool,
    /// The age of this note.
    #[serde(skip_deserializing)]
    pub last_seen_ms: u64,
    /// Whether it was not heard for too long to count as alive, and did not shut down cleanly: it was killed, is frozen, or
    /// cannot reach the store.
    #[serde(skip_deserializing)]
    pub lost: bool,
}

impl NodeStatus {
    /// Parses a note. If it is of another release and not readable here, the result says only that the node exists, and why
    /// there is no more.
    #[must_use]
    pub fn read(told: &[u8]) -> NodeStatus {
        let read = serde_json::from_slice(told);
        read.unwrap_or_else(|_| {
            let fields: serde_json::Value = serde_json::from_slice(told).unwrap_or_default();
            let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
            NodeStatus {
                name: text("name"),
                release: text("release"),
                error: Some(
                    "its heartbeat cannot be read: it is in the format of another release".to_owned(),
                ),
                format: fields["format"]
                    .as_u64()
                    .and_then(|format| format.try_into().ok())
                    .unwrap_or_default(),
                ..NodeStatus::default()
            }
        })
    }
}

impl NodeStatus {
    /// The note of a node that does not sign with the fleet's secret: anyone who can write to Redis could have written it,
    /// so it is shown, and nothing is done because of it.
    #[must_use]
    pub fn unsigned(self) -> NodeStatus {
        let why = "its heartbeat is not signed with this fleet's secret (`store.fleet_secret`)".to_owned();
        NodeStatus { signals: None, serial: 0, cannot_read: false, error: Some(why), ..self }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The most lost nodes remembered: a process in a crash loop would fill every list.
const MOST_LOST: usize = 32;

/// Drops lost nodes that a process with the same name has replaced; of the other lost nodes, keeps those heard last.
#[must_use]
pub fn without_replaced(mut notes: Vec<NodeStatus>) -> Vec<NodeStatus> {
    let started: Vec<(String, u64)> =
        notes.iter().filter(|note| !note.lost).map(|note| (note.name.clone(), note.started_us)).collect();
    let is_replaced = |note: &NodeStatus| {
        note.lost && started.iter().any(|(name, since)| *name == note.name && *since >= note.started_us)
    };
    notes.retain(|note| !is_replaced(note));
    notes.sort_by_key(|note| (note.lost, note.last_seen_ms));
    let alive = notes.iter().filter(|note| !note.lost).count();
    notes.truncate(alive + MOST_LOST);
    notes
}

fn if_readable<'de, D: Deserializer<'de>>(told: D) -> Result<Option<Signals>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(told)?).ok())
}

/// One node's answer to a question.
#[derive(Debug)]
pub struct FleetAnswer {
    /// Who answered.
    pub from: String,
    /// The answer, or why it cannot be read.
    pub text: Result<Vec<u8>, FleetError>,
}

/// Why the fleet could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The shared store does not answer; the limiter logs that.
    #[error("{0}")]
    Store(String),
    /// The store answers, but refuses the call.
    #[error("{0}")]
    Refused(String),
    /// The published set is in a format that only newer releases read.
    #[error("the published set has format {found}, and this release reads formats up to {NEWEST_FORMAT}")]
    Newer {
        /// Its format.
        found: u32,
    },
    /// It is not signed, or not with this fleet's secret.
    #[error(
        "{what} in the store is not signed with this fleet's secret: a node without `store.fleet_secret` wrote it, or \
         somebody else who can write to the store"
    )]
    Unsigned {
        /// What was read.
        what: &'static str,
    },
    /// It is signed, and older than what this node accepted before.
    #[error(
        "the published set in the store is older than one that this node had before: the store lost writes, or somebody put \
         it back"
    )]
    Outdated,
}

/// The result of a call to the fleet.
pub type NoteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FleetError>> + Send + 'a>>;

/// The connection to the other nodes.
pub trait Fleet: Send + Sync + 'static {
    /// Writes a set where every node finds it. A set of another database is never replaced; an older set of the same
    /// database is, and so is a newer one if `set_back` says that the database was restored.
    fn publish(&self, set: PublishedSet, set_back: bool) -> NoteFuture<'_, ()>;

    /// Writes these changes beside the current set, replacing the `known` ones; false if others are stored there.
    fn publish_changes<'a>(
        &'a self,
        known: &'a ChangesSince,
        changes: &'a ChangesSince,
    ) -> NoteFuture<'a, bool>;

    /// The changes since the stored set, if there is a set.
    fn fetch_changes(&self) -> NoteFuture<'_, Option<ChangesSince>>;

    /// Writes a set over the one of whatever database is there, because a person wants it.
    fn take_over(&self, set: PublishedSet) -> NoteFuture<'_, ()>;

    /// Extends the lifetime of the stored set.
    fn keep(&self) -> NoteFuture<'_, ()>;

    /// The stored set with its changes, if any.
    fn fetch(&self) -> NoteFuture<'_, Option<PublishedSet>>;

    /// Every live node by its last announcement, and for some minutes the lost ones.
    fn known_nodes(&self) -> NoteFuture<'_, Vec<NodeStatus>>;

    /// Every live node by its last announcement.
    fn nodes(&self) -> NoteFuture<'_, Vec<NodeStatus>> {
        Box::pin(async { Ok(self.known_nodes().await?.into_iter().filter(|note| !note.lost).collect()) })
    }

    /// Sets what the next heartbeat announces about this node.
    fn announce(&self, note: &NodeStatus);

    /// Adds to the fleet's history.
    fn count(&self, rows: Vec<HistoryRow>);

    /// The history of the fleet in these minutes or hours since 1970.
    fn history(&self, of: Resolution, numbers: RangeInclusive<u64>) -> NoteFuture<'_, Vec<HistoryChunk>>;

    /// Sends a question to every node; they receive it with their next heartbeat.
    fn ask<'a>(&'a self, question: &'a StoredQuestion) -> NoteFuture<'a, ()>;

    /// The questions to all nodes, this one included.
    fn questions(&self) -> watch::Receiver<Vec<StoredQuestion>>;

    /// Answers a question, in at most [`MOST_ANSWER_BYTES`](super::MOST_ANSWER_BYTES).
    fn answer<'a>(&'a self, id: u64, from: &'a str, answer: &'a [u8]) -> NoteFuture<'a, ()>;

    /// Who has answered so far.
    fn answered(&self, id: u64) -> NoteFuture<'_, Vec<String>>;

    /// The answers so far.
    fn answers(&self, id: u64) -> NoteFuture<'_, Vec<FleetAnswer>>;

    /// Forgets a question and its answers.
    fn forget(&self, id: u64) -> NoteFuture<'_, ()>;

    /// What heartbeats return, without its signature, if it can be trusted; otherwise as if nothing were published.
    fn heard(&self) -> watch::Receiver<PublishedRevision>;

    /// Why what the last heartbeat returned cannot be trusted, if so.
    fn distrust(&self) -> Option<String> {
        None
    }

    /// Whether other nodes can exist.
    fn is_shared(&self) -> bool;
}

/// A node without others: its store is its own memory.
#[derive(Debug)]
pub struct Alone {
    note: parking_lot::Mutex<Option<NodeStatus>>,
    heard: watch::Sender<PublishedRevision>,
    questions: watch::Sender<Vec<StoredQuestion>>,
}

impl Default for Alone {
    fn default() -> Self {
        Alone {
            note: parking_lot::Mutex::default(),
            heard: watch::Sender::new(PublishedRevision::default()),
            questions: watch::Sender::new(Vec::new()),
        }
    }
}

impl Fleet for Alone {
    fn publish(&self, _: PublishedSet, _: bool) -> NoteFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn publish_changes<'a>(&'a self, _: &'a ChangesSince, _: &'a ChangesSince) -> NoteFuture<'a, bool> {
        Box::pin(async { Ok(true) })
    }

    fn take_over(&self, _: PublishedSet) -> NoteFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn fetch_changes(&self) -> NoteFuture<'_, Option<ChangesSince>> {
        Box::pin(async { Ok(None) })
    }

    fn keep(&self) -> NoteFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn fetch(&self) -> NoteFuture<'_, Option<PublishedSet>> {
        Box::pin(async { Ok(None) })
    }

    fn known_nodes(&self) -> NoteFuture<'_, Vec<NodeStatus>> {
        Box::pin(async { Ok(self.note.lock().iter().cloned().collect()) })
    }

    fn announce(&self, note: &NodeStatus) {
        *self.note.lock() = Some(note.clone());
    }

    fn count(&self, _: Vec<HistoryRow>) {}

    fn history(&self, _: Resolution, _: RangeInclusive<u64>) -> NoteFuture<'_, Vec<HistoryChunk>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn ask<'a>(&'a self, _: &'a StoredQuestion) -> NoteFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn questions(&self) -> watch::Receiver<Vec<StoredQuestion>> {
        self.questions.subscribe()
    }

    fn answer<'a>(&'a self, _: u64, _: &'a str, _: &'a [u8]) -> NoteFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn answered(&self, _: u64) -> NoteFuture<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn answers(&self, _: u64) -> NoteFuture<'_, Vec<FleetAnswer>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn forget(&self, _: u64) -> NoteFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn heard(&self) -> watch::Receiver<PublishedRevision> {
        self.heard.subscribe()
    }

    fn is_shared(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifted(revision: u64) -> OverrideChange {
        OverrideChange { revision, id: revision.to_string(), made: None, mark: 10 * revision }
    }

    #[test]
    fn changes_are_laid_over_a_set_that_they_follow_and_over_no_other() {
        let set = |version, overrides| {
            let marks = Marks { version: 1, overrides: 10 * overrides };
            let revision = Revision { lineage: String::new(), version, overrides, marks };
            PublishedSet { revision, ..PublishedSet::default() }
        };
        let changes = ChangesSince { changes: vec![lifted(6), lifted(7)], ..ChangesSince::none(&set(3, 5)) };
        assert_eq!(changes.until().overrides, 7);
        for overrides in [5, 6, 7] {
            assert_eq!(changes.clone().apply(set(3, overrides)), set(3, 7), "from {overrides}");
        }
        let other = |change: fn(&mut Revision)| {
            let mut other = set(3, 6);
            change(&mut other.revision);
            other
        };
        let others = [
            set(3, 4),
            set(3, 8),
            set(2, 6),
            other(|revision| revision.lineage = "other".into()),
            // Before a restore.
            other(|revision| revision.marks.version = 2),
            other(|revision| revision.marks.overrides = 61),
        ];
        for other in others {
            assert_eq!(changes.clone().apply(other.clone()), other);
        }
    }
}
