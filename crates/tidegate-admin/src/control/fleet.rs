//! The other nodes: what they are told, and what they tell.
//!
//! A node that publishes puts the whole set where the others find it, with a number that grows. The others hear that
//! number with the heartbeat they send anyway, and fetch the set when it is another than the one they run.
//!
//! There may be a hundred thousand overrides, of which one changes. So a change is put beside the set, and who runs the set
//! fetches the changes alone.
//!
//! Nodes of two releases take part. A field may come to any of this, and who does not know it leaves it out; what changes
//! the meaning of what is there is a new *format*. Each node tells which it reads, who publishes writes what all of them do,
//! and one that finds a newer format keeps what it runs and says so.

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;

use serde::{Deserialize, Deserializer, Serialize};
use tidegate_rulestore::{Document, KeyOverride, Marks, OverrideChange};
use tidegate_telemetry::alerts::Signals;
use tokio::sync::watch;

use super::merged::{HistoryChunk, HistoryRow, Resolution};

/// The whole set: what every release reads.
pub const WHOLE_SET: u32 = 1;
/// Changes beside the set.
pub const CHANGES_BESIDE: u32 = 2;
/// The newest format that this release reads.
pub const NEWEST_FORMAT: u32 = CHANGES_BESIDE;

/// Everything that a node runs: the documents of a version, and the overrides of single keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedSet {
    /// The database it is from.
    pub lineage: String,
    /// The version; 0 where rules come from files.
    pub version: u64,
    /// Counts the changes of overrides.
    pub overrides: u64,
    /// Tells both from others of the same numbers.
    #[serde(default)]
    pub marks: Marks,
    /// The documents of the version.
    pub documents: Vec<Document>,
    /// The overrides.
    pub key_overrides: Vec<KeyOverride>,
}

impl PublishedSet {
    /// Grows with every change of either: what travels in the answer to a heartbeat.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.version + self.overrides
    }

    /// What a heartbeat brings of it.
    #[must_use]
    pub fn heard(&self) -> Heard {
        Heard { lineage: self.lineage.clone(), revision: self.revision(), mark: mark_of(self.marks) }
    }
}

/// The marks as they travel: one text, compared and never read. Empty where an earlier release made what is published.
pub(crate) fn mark_of(marks: Marks) -> String {
    match marks == Marks::default() {
        true => String::new(),
        false => format!("{:x}.{:x}", marks.version, marks.overrides),
    }
}

/// What came after a set, where only overrides changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesSince {
    /// The database they are from.
    pub lineage: String,
    /// The version of the set, and theirs.
    pub version: u64,
    /// The overrides of the set, as their changes are counted.
    pub overrides: u64,
    /// Tells both from others of the same numbers.
    #[serde(default)]
    pub marks: Marks,
    /// The changes, oldest first, without a gap.
    pub changes: Vec<OverrideChange>,
}

impl ChangesSince {
    /// None, after this set.
    #[must_use]
    pub fn none(set: &PublishedSet) -> Self {
        let (lineage, version, overrides) = (set.lineage.clone(), set.version, set.overrides);
        ChangesSince { lineage, version, overrides, marks: set.marks, changes: Vec::new() }
    }

    /// Up to which change of overrides they go.
    #[must_use]
    pub fn until(&self) -> u64 {
        self.changes.last().map_or(self.overrides, |last| last.revision)
    }

    /// What the set with these changes is known by.
    #[must_use]
    pub fn marks(&self) -> Marks {
        let overrides = self.changes.last().map_or(self.marks.overrides, |last| last.mark);
        Marks { overrides, ..self.marks }
    }

    /// What a heartbeat brings of them.
    #[must_use]
    pub fn heard(&self) -> Heard {
        let (lineage, revision) = (self.lineage.clone(), self.version + self.until());
        Heard { lineage, revision, mark: mark_of(self.marks()) }
    }

    /// The set with these changes; as it is where it is another, or has them.
    #[must_use]
    pub fn apply(self, mut set: PublishedSet) -> PublishedSet {
        if self.follow(&set) {
            let have = set.overrides;
            (set.overrides, set.marks) = (self.until(), self.marks());
            let all = &mut set.key_overrides;
            self.changes.into_iter().filter(|one| one.revision > have).for_each(|one| one.apply(all));
        }
        set
    }

    /// Whether the set is the one they came after, or has some of them.
    fn follow(&self, set: &PublishedSet) -> bool {
        let of = |revision| match revision == self.overrides {
            true => Some(self.marks.overrides),
            false => self.changes.iter().find(|one| one.revision == revision).map(|one| one.mark),
        };
        self.lineage == set.lineage
            && (self.version, self.marks.version) == (set.version, set.marks.version)
            && of(set.overrides) == Some(set.marks.overrides)
    }
}

/// What a node tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeNote {
    /// Its name among the nodes.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// The release it runs.
    pub release: String,
    /// The version of the rules it runs.
    pub version: u64,
    /// The revision of the overrides it runs.
    pub overrides: u64,
    /// The database that it runs the rules or overrides of.
    pub lineage: String,
    /// Whether it has that database, so that changes are made there.
    pub leads: bool,
    /// Why it does not run what is published.
    pub error: Option<String>,
    /// When it started, in microseconds since 1970.
    pub started_us: u64,
    /// Decisions a second, in the last second.
    pub allowed_per_s: f64,
    /// Refusals a second, in the last second.
    pub refused_per_s: f64,
    /// How busy its workers are, 0 to 1.
    pub busy: f64,
    /// What its store is called.
    pub store: String,
    /// `healthy`, or why not.
    pub health: String,
    /// The layout of keys that it reads and writes in the store.
    pub layout: String,
    /// The newest format that it reads of what nodes tell each other; 0 where it did not say.
    pub format: u32,
    /// What alerts are made of, where it watches; none, too, where another release means something else by it.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "if_readable")]
    pub signals: Option<Signals>,
    /// What its clock said when it told all this, in microseconds since 1970; 0 where it did not say.
    pub clock_us: u64,
    /// How long ago it told all this.
    #[serde(skip_deserializing)]
    pub last_seen_ms: u64,
    /// Whether it was not heard for too long to count as alive, and did not take leave: it was killed, is frozen, or cannot reach
    /// the store.
    #[serde(skip_deserializing)]
    pub lost: bool,
}

impl NodeNote {
    /// What a node told. One of another release may tell what this one cannot read: then that it is there, and why no more.
    #[must_use]
    pub fn read(told: &[u8]) -> NodeNote {
        let read = serde_json::from_slice(told);
        read.unwrap_or_else(|_| {
            let fields: serde_json::Value = serde_json::from_slice(told).unwrap_or_default();
            let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
            NodeNote {
                name: text("name"),
                release: text("release"),
                error: Some("it tells of itself what this release cannot read".to_owned()),
                format: fields["format"]
                    .as_u64()
                    .and_then(|format| format.try_into().ok())
                    .unwrap_or_default(),
                ..NodeNote::default()
            }
        })
    }
}

/// The most lost nodes that are remembered: processes that die again and again would fill every list.
const MOST_LOST: usize = 32;

/// Without lost ones that another process of their name, or a newer one, has taken the place of; of the others, those that were
/// heard last.
#[must_use]
pub fn without_replaced(mut notes: Vec<NodeNote>) -> Vec<NodeNote> {
    let started: Vec<(String, u64)> =
        notes.iter().filter(|note| !note.lost).map(|note| (note.name.clone(), note.started_us)).collect();
    let is_replaced = |note: &NodeNote| {
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

/// What the last heartbeat brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The database it is from; empty where nothing is published.
    pub lineage: String,
    /// The revision that is published; 0 where none is.
    pub revision: u64,
    /// Tells it from another of the same number, in a database that was set back since.
    pub mark: String,
}

/// A question to every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetQuestion {
    /// Its name.
    pub id: u64,
    /// What is asked.
    pub text: Vec<u8>,
}

/// One node's answer to a question.
#[derive(Debug)]
pub struct FleetAnswer {
    /// Who answered.
    pub from: String,
    /// The answer, or why it cannot be read.
    pub text: Result<Vec<u8>, FleetError>,
}

/// Why the other nodes could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The store they share does not answer: the limiter's own line in the log says so.
    #[error("{0}")]
    Store(String),
    /// It answers, and does not take what was asked of it.
    #[error("{0}")]
    Refused(String),
    /// What is published there was written for releases that read more.
    #[error("what is published has format {found}, and this release reads formats up to {NEWEST_FORMAT}")]
    Newer {
        /// The format that it has.
        found: u32,
    },
}

/// An answer that will come.
pub type NoteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FleetError>> + Send + 'a>>;

/// The way to the other nodes.
pub trait Fleet: Send + Sync + 'static {
    /// Puts a set where every node finds it. Where there is one of another database, that stays; an older one of the same
    /// database is replaced, and so is a newer one if this is `set_back` to it.
    fn publish(&self, set: PublishedSet, set_back: bool) -> NoteFuture<'_, ()>;

    /// Puts these changes beside the set that is there, in place of the `known` ones; false where there are others.
    fn publish_changes<'a>(
        &'a self,
        known: &'a ChangesSince,
        changes: &'a ChangesSince,
    ) -> NoteFuture<'a, bool>;

    /// What came after the set that is there, if there is one.
    fn fetch_changes(&self) -> NoteFuture<'_, Option<ChangesSince>>;

    /// Keeps the set that is there from being forgotten.
    fn keep(&self) -> NoteFuture<'_, ()>;

    /// The set that was put there last, if any, with what came after it.
    fn fetch(&self) -> NoteFuture<'_, Option<PublishedSet>>;

    /// Every node that is alive, as it last told of itself, and for some minutes those that were lost.
    fn known_nodes(&self) -> NoteFuture<'_, Vec<NodeNote>>;

    /// Every node that is alive, as it last told of itself.
    fn nodes(&self) -> NoteFuture<'_, Vec<NodeNote>> {
        Box::pin(async { Ok(self.known_nodes().await?.into_iter().filter(|note| !note.lost).collect()) })
    }

    /// What the next heartbeat tells of this node.
    fn announce(&self, note: &NodeNote);

    /// Adds to the history of the fleet.
    fn count(&self, rows: Vec<HistoryRow>);

    /// The history of the fleet in these minutes or hours since 1970.
    fn history(&self, of: Resolution, numbers: RangeInclusive<u64>) -> NoteFuture<'_, Vec<HistoryChunk>>;

    /// Asks every node; they hear it with their next heartbeat.
    fn ask<'a>(&'a self, question: &'a FleetQuestion) -> NoteFuture<'a, ()>;

    /// What nodes are asked, this one included.
    fn questions(&self) -> watch::Receiver<Vec<FleetQuestion>>;

    /// Answers a question, in at most [`MOST_ANSWER_BYTES`](super::MOST_ANSWER_BYTES).
    fn answer<'a>(&'a self, id: u64, from: &'a str, answer: &'a [u8]) -> NoteFuture<'a, ()>;

    /// How many have answered.
    fn answered(&self, id: u64) -> NoteFuture<'_, usize>;

    /// The answers so far.
    fn answers(&self, id: u64) -> NoteFuture<'_, Vec<FleetAnswer>>;

    /// Forgets a question and its answers.
    fn forget(&self, id: u64) -> NoteFuture<'_, ()>;

    /// What heartbeats bring.
    fn heard(&self) -> watch::Receiver<Heard>;

    /// Whether there can be others.
    fn is_shared(&self) -> bool;
}

/// A node that has no others: its store is its own memory.
#[derive(Debug)]
pub struct Alone {
    note: parking_lot::Mutex<Option<NodeNote>>,
    heard: watch::Sender<Heard>,
    questions: watch::Sender<Vec<FleetQuestion>>,
}

impl Default for Alone {
    fn default() -> Self {
        Alone {
            note: parking_lot::Mutex::default(),
            heard: watch::Sender::new(Heard::default()),
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

    fn fetch_changes(&self) -> NoteFuture<'_, Option<ChangesSince>> {
        Box::pin(async { Ok(None) })
    }

    fn keep(&self) -> NoteFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn fetch(&self) -> NoteFuture<'_, Option<PublishedSet>> {
        Box::pin(async { Ok(None) })
    }

    fn known_nodes(&self) -> NoteFuture<'_, Vec<NodeNote>> {
        Box::pin(async { Ok(self.note.lock().iter().cloned().collect()) })
    }

    fn announce(&self, note: &NodeNote) {
        *self.note.lock() = Some(note.clone());
    }

    fn count(&self, _: Vec<HistoryRow>) {}

    fn history(&self, _: Resolution, _: RangeInclusive<u64>) -> NoteFuture<'_, Vec<HistoryChunk>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn ask<'a>(&'a self, _: &'a FleetQuestion) -> NoteFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn questions(&self) -> watch::Receiver<Vec<FleetQuestion>> {
        self.questions.subscribe()
    }

    fn answer<'a>(&'a self, _: u64, _: &'a str, _: &'a [u8]) -> NoteFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn answered(&self, _: u64) -> NoteFuture<'_, usize> {
        Box::pin(async { Ok(0) })
    }

    fn answers(&self, _: u64) -> NoteFuture<'_, Vec<FleetAnswer>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn forget(&self, _: u64) -> NoteFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn heard(&self) -> watch::Receiver<Heard> {
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
            PublishedSet { version, overrides, marks, ..PublishedSet::default() }
        };
        let changes = ChangesSince { changes: vec![lifted(6), lifted(7)], ..ChangesSince::none(&set(3, 5)) };
        assert_eq!(changes.until(), 7);
        for overrides in [5, 6, 7] {
            assert_eq!(changes.clone().apply(set(3, overrides)), set(3, 7), "from {overrides}");
        }
        let before_a_restore =
            |version, overrides| PublishedSet { marks: Marks { version, overrides }, ..set(3, 6) };
        let others = [
            set(3, 4),
            set(3, 8),
            set(2, 6),
            PublishedSet { lineage: "other".into(), ..set(3, 6) },
            before_a_restore(2, 60),
            before_a_restore(1, 61),
        ];
        for other in others {
            assert_eq!(changes.clone().apply(other.clone()), other);
        }
    }
}
