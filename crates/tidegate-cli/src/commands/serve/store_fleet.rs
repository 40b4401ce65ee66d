//! The connection to the other nodes through the store that they share.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_admin::{
    CHANGES_BESIDE, ChangesSince, Fleet, FleetAnswer, FleetError, HistoryChunk, HistoryRow,
    MOST_ANSWER_BYTES, NEWEST_FORMAT, NodeStatus, NoteFuture, PublishedSet, Resolution, WHOLE_SET,
    at_low_priority, heartbeat_of, without_replaced,
};
use tidegate_fleet::{
    Answered, FleetHistory, FleetStore, LONGEST_ANSWER, LimiterNote, Over, Published, PublishedRevision,
    Publishing, StoredQuestion,
};
use tidegate_rulestore::Revision;
use tidegate_store::{Clock, StoreError};
use tokio::sync::watch;

use super::fleet_seal::{Purpose, SIGNATURE_BYTES, Seal};

/// How long after its end a minute or an hour may still be added to, because the nodes' clocks differ.
const SETTLED_S: u64 = 10;
/// The most minutes and hours cached.
const MOST_PAST: u64 = 30;
// The store must accept every answer that a node may give.
const _: () = assert!(MOST_ANSWER_BYTES + SIGNATURE_BYTES <= LONGEST_ANSWER);

pub(super) struct StoreFleet {
    store: Arc<dyn FleetStore>,
    clock: Arc<dyn Clock>,
    /// Signs and checks what nodes tell each other; `None` if no secret is configured.
    seal: Option<Seal>,
    /// The highest serial that this node has published or accepted: nothing older is accepted.
    latest: AtomicU64,
    /// The last heartbeat's revision, and why it cannot be trusted, if so.
    found: Mutex<(PublishedRevision, Option<String>)>,
    /// Minutes and hours that are complete.
    past: Mutex<HashMap<(Resolution, u64), HistoryChunk>>,
    heard: watch::Sender<PublishedRevision>,
    questions: watch::Sender<Vec<StoredQuestion>>,
}

impl StoreFleet {
    pub(super) fn new(store: Arc<dyn FleetStore>, clock: Arc<dyn Clock>, seal: Option<Seal>) -> Arc<Self> {
        let (heard, questions) =
            (watch::Sender::new(PublishedRevision::default()), watch::Sender::new(Vec::new()));
        let (latest, found, past) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Arc::new(StoreFleet { store, clock, seal, latest, found, past, heard, questions })
    }

    /// Passes on what heartbeats return, until dropped.
    pub(super) async fn listen(self: Arc<Self>) {
        let heartbeat = self.store.with_heartbeat();
        let (mut revisions, mut questions) = (heartbeat.published(), heartbeat.questions());
        // The highest serial of a heartbeat so far. Not `latest`: a heartbeat may be older than what was published since.
        let mut newest = 0;
        loop {
            let revision = revisions.borrow_and_update().clone();
            let distrust = self.distrust_of(&revision, newest).map(|error| error.to_string());
            let heard = match distrust {
                None => {
                    newest = newest.max(revision.serial);
                    self.latest.fetch_max(newest, Ordering::Relaxed);
                    let PublishedRevision { lineage, revision, mark, .. } = revision.clone();
                    PublishedRevision { lineage, revision, mark, ..PublishedRevision::default() }
                }
                Some(_) => PublishedRevision::default(),
            };
            *self.found.lock().unwrap_or_else(PoisonError::into_inner) = (revision, distrust);
            self.heard.send_replace(heard);
            let mut asked = questions.borrow_and_update().clone();
            asked.retain(|asked| self.has_signed(Purpose::Question { id: asked.id }, &asked.text));
            self.questions.send_replace(asked);
            let changed = tokio::select! {
                changed = revisions.changed() => changed,
                changed = questions.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }
}

impl StoreFleet {
    /// Whether this may be acted upon. Without a secret everything may.
    fn has_signed(&self, purpose: Purpose<'_>, object: &[u8]) -> bool {
        self.seal.as_ref().is_none_or(|seal| seal.has_signed(purpose, object))
    }

    fn signed(&self, purpose: Purpose<'_>, object: Vec<u8>) -> Vec<u8> {
        match &self.seal {
            Some(seal) => seal.sign(purpose, object),
            None => object,
        }
    }

    /// Why a heartbeat's revision cannot be trusted; `None` if it can, or nothing is published.
    fn distrust_of(&self, found: &PublishedRevision, newest: u64) -> Option<FleetError> {
        let seal = self.seal.as_ref()?;
        if found.lineage.is_empty() && found.revision == 0 {
            return None;
        }
        if !seal.is_valid(Purpose::Revision, &[&named(found)], found.seal.as_bytes()) {
            return Some(FleetError::Unsigned { what: "the published set" });
        }
        (found.serial < newest).then_some(FleetError::Outdated)
    }

    /// A set or changes with this serial can be accepted if nothing later was.
    fn accept(&self, serial: u64) -> Result<(), FleetError> {
        if self.seal.is_some() && self.latest.fetch_max(serial, Ordering::Relaxed) > serial {
            return Err(FleetError::Outdated);
        }
        Ok(())
    }

    /// The serial of the next publication: the time, and always more than any that a node has accepted. 0 if nothing is
    /// signed.
    async fn next_serial(&self) -> u64 {
        if self.seal.is_none() {
            return 0;
        }
        // Redis may have lost what was published, and this node may be new: then the others know.
        let notes = self.known_nodes().await.unwrap_or_default();
        let known = notes.iter().map(|note| note.serial).max().unwrap_or_default();
        let known = known.max(self.latest.load(Ordering::Relaxed));
        self.clock.now().as_micros().max(known.saturating_add(1))
    }

    fn sealed(&self, revision: &Revision, serial: u64) -> PublishedRevision {
        let mut sealed = PublishedRevision { serial, ..heartbeat_of(revision) };
        if let Some(seal) = &self.seal {
            sealed.seal = seal.signature(Purpose::Revision, &[&named(&sealed)]);
        }
        sealed
    }

    /// What is in Redis and not this fleet's, if this node may replace it: it is said to be of the same database, or the
    /// fleet's own set was there before, as this node or another knows. Otherwise the fleet may be about to get its secret,
    /// and this node is the first.
    async fn intruder(&self, lineage: &str) -> Option<PublishedRevision> {
        let (found, distrust) = self.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        distrust?;
        if found.lineage == lineage || self.latest.load(Ordering::Relaxed) > 0 {
            return Some(found);
        }
        let notes = self.known_nodes().await.unwrap_or_default();
        let knows = |note: &NodeStatus| note.serial > 0 && note.lineage == lineage;
        notes.iter().any(knows).then_some(found)
    }

    fn read_changes(&self, bytes: &[u8]) -> Result<Option<ChangesSince>, FleetError> {
        // An earlier release writes only a set.
        if bytes.is_empty() {
            return Ok(None);
        }
        if !self.has_signed(Purpose::Changes, bytes) {
            return Err(FleetError::Unsigned { what: "the published list of changes" });
        }
        serde_json::from_slice(bytes).map(Some).map_err(no_json)
    }

    fn changes_bytes(&self, changes: &ChangesSince) -> Result<Vec<u8>, FleetError> {
        Ok(self.signed(Purpose::Changes, serde_json::to_vec(changes).map_err(no_json)?))
    }

    async fn publish_over(&self, set: PublishedSet, over: Over<'_>) -> Result<(), FleetError> {
        let serial = self.next_serial().await;
        let set = PublishedSet { serial, ..set };
        let revision = self.sealed(&set.revision, serial);
        let changes = self.changes_bytes(&ChangesSince::none(&set))?;
        let seal = self.seal.clone();
        let written = at_low_priority(move || {
            let set = serde_json::to_vec(&set).map_err(no_json)?;
            let set = match seal {
                Some(seal) => seal.sign(Purpose::Set, set),
                None => set,
            };
            Ok(Published { set, changes, format: WHOLE_SET })
        });
        let published = written.await?;
        let refused = match self.store.publish(&revision, &published, over).await.map_err(failed)? {
            Publishing::Stored => {
                self.latest.fetch_max(serial, Ordering::Relaxed);
                return Ok(());
            }
            Publishing::OtherDatabase => "nodes with another database publish to this store",
            Publishing::Behind => "another node has published meanwhile",
        };
        Err(FleetError::Refused(refused.to_owned()))
    }

    async fn chunk(&self, of: Resolution, number: u64) -> Result<HistoryChunk, FleetError> {
        if let Some(known) = self.past.lock().unwrap_or_else(PoisonError::into_inner).get(&(of, number)) {
            return Ok(known.clone());
        }
        let (history, span_s) = match of {
            Resolution::Seconds => (FleetHistory::Seconds, 60),
            Resolution::Minutes => (FleetHistory::Minutes, 3_600),
        };
        let rows = self.store.counted(history, number).await.map_err(failed)?;
        let named = rows.into_iter().map(|(name, counts)| (String::from_utf8_lossy(&name).into(), counts));
        let chunk = HistoryChunk { number, rows: named.collect() };
        let now_s = self.clock.now().as_micros() / 1_000_000;
        if (number + 1) * span_s + SETTLED_S < now_s {
            let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
            // Drop what is older than any chart.
            past.retain(|(resolution, old), _| *resolution != of || old + MOST_PAST > number);
            past.insert((of, number), chunk.clone());
        }
        Ok(chunk)
    }
}

impl Fleet for StoreFleet {
    fn publish(&self, set: PublishedSet, set_back: bool) -> NoteFuture<'_, ()> {
        Box::pin(async move {
            let intruder = self.intruder(&set.revision.lineage).await;
            let over = match (&intruder, set_back) {
                (Some(intruder), _) => Over::This(intruder),
                (None, true) => Over::Restored,
                (None, false) => Over::Older,
            };
            self.publish_over(set, over).await
        })
    }

    fn take_over(&self, set: PublishedSet) -> NoteFuture<'_, ()> {
        Box::pin(async move {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
            self.publish_over(set, Over::This(&found)).await
        })
    }

    fn publish_changes<'a>(
        &'a self,
        known: &'a ChangesSince,
        changes: &'a ChangesSince,
    ) -> NoteFuture<'a, bool> {
        Box::pin(async move {
            let serial = self.next_serial().await;
            let changes = ChangesSince { serial, ..changes.clone() };
            let (known, bytes) = (self.changes_bytes(known)?, self.changes_bytes(&changes)?);
            let (revision, told) = (self.sealed(&changes.until(), serial), (&bytes[..], CHANGES_BESIDE));
            let taken = self.store.publish_changes(&revision, &known, told).await.map_err(failed)?;
            if taken {
                self.latest.fetch_max(serial, Ordering::Relaxed);
            }
            Ok(taken)
        })
    }

    fn fetch_changes(&self) -> NoteFuture<'_, Option<ChangesSince>> {
        Box::pin(async {
            let (changes, format) = self.store.published_changes().await.map_err(failed)?;
            readable(format)?;
            let changes = self.read_changes(&changes)?;
            changes.iter().try_for_each(|changes| self.accept(changes.serial))?;
            Ok(changes)
        })
    }

    fn keep(&self) -> NoteFuture<'_, ()> {
        Box::pin(async { self.store.keep_published().await.map_err(failed) })
    }

    fn fetch(&self) -> NoteFuture<'_, Option<PublishedSet>> {
        Box::pin(async {
            let Some(published) = self.store.published().await.map_err(failed)? else { return Ok(None) };
            readable(published.format)?;
            let changes = self.read_changes(&published.changes)?;
            let seal = self.seal.clone();
            // It may be large, and requests are decided on the same core.
            let read = at_low_priority(move || {
                if seal.is_some_and(|seal| !seal.has_signed(Purpose::Set, &published.set)) {
                    return Err(FleetError::Unsigned { what: "the published set" });
                }
                let set: PublishedSet = serde_json::from_slice(&published.set).map_err(no_json)?;
                Ok(match changes {
                    Some(changes) => changes.apply(set),
                    None => set,
                })
            });
            let set = read.await?;
            self.accept(set.serial)?;
            Ok(Some(set))
        })
    }

    fn known_nodes(&self) -> NoteFuture<'_, Vec<NodeStatus>> {
        Box::pin(async {
            let notes = self.store.notes().await.map_err(failed)?;
            let read = |told: LimiterNote| {
                let (id, last_seen_ms) = (format!("{:016x}", told.member), told.age_us / 1_000);
                let note = NodeStatus::read(&told.note);
                let note = match self.has_signed(Purpose::Note, &told.note) {
                    true => note,
                    false => note.unsigned(),
                };
                NodeStatus { id, last_seen_ms, lost: told.lost, ..note }
            };
            Ok(without_replaced(notes.into_iter().map(read).collect()))
        })
    }

    fn announce(&self, note: &NodeStatus) {
        let note = NodeStatus { serial: self.latest.load(Ordering::Relaxed), ..note.clone() };
        self.store
            .with_heartbeat()
            .announce(self.signed(Purpose::Note, serde_json::to_vec(&note).unwrap_or_default()));
    }

    fn count(&self, rows: Vec<HistoryRow>) {
        self.store
            .with_heartbeat()
            .count(rows.into_iter().map(|row| (row.name.into_bytes(), row.counts)).collect());
    }

    fn history(&self, of: Resolution, numbers: RangeInclusive<u64>) -> NoteFuture<'_, Vec<HistoryChunk>> {
        Box::pin(async move {
            let mut chunks = Vec::new();
            for number in numbers {
                chunks.push(self.chunk(of, number).await?);
            }
            Ok(chunks)
        })
    }

    fn ask<'a>(&'a self, question: &'a StoredQuestion) -> NoteFuture<'a, ()> {
        Box::pin(async move {
            let text = self.signed(Purpose::Question { id: question.id }, question.text.clone());
            let question = StoredQuestion { id: question.id, text };
            match self.store.put_question(&question).await.map_err(failed)? {
                true => Ok(()),
                false => Err(FleetError::Refused("too much is asked of them at once".to_owned())),
            }
        })
    }

    fn questions(&self) -> watch::Receiver<Vec<StoredQuestion>> {
        self.questions.subscribe()
    }

    fn answer<'a>(&'a self, id: u64, from: &'a str, answer: &'a [u8]) -> NoteFuture<'a, ()> {
        Box::pin(async move {
            let signed = self.signed(Purpose::Answer { id, from }, answer.to_vec());
            match self.store.answer_question(id, from.as_bytes(), &signed).await.map_err(failed)? {
                Answered::Kept | Answered::NotOpen => Ok(()),
                Answered::TooLong => {
                    let bytes = answer.len();
                    Err(FleetError::Refused(format!("it has {bytes} bytes of at most {LONGEST_ANSWER}")))
                }
            }
        })
    }

    fn answered(&self, id: u64) -> NoteFuture<'_, Vec<String>> {
        Box::pin(async move {
            let senders = self.store.answered(id).await.map_err(failed)?;
            Ok(senders.iter().map(|from| String::from_utf8_lossy(from).into_owned()).collect())
        })
    }

    fn answers(&self, id: u64) -> NoteFuture<'_, Vec<FleetAnswer>> {
        Box::pin(async move {
            let answers = self.store.answers(id).await.map_err(failed)?;
            let named = answers.into_iter().map(|(from, answer)| {
                let from = String::from_utf8_lossy(&from).into_owned();
                let text = answer.map_err(failed).and_then(|answer| {
                    match self.has_signed(Purpose::Answer { id, from: &from }, &answer) {
                        true => Ok(answer),
                        false => Err(FleetError::Unsigned { what: "its answer" }),
                    }
                });
                FleetAnswer { from, text }
            });
            Ok(named.collect())
        })
    }

    fn forget(&self, id: u64) -> NoteFuture<'_, ()> {
        Box::pin(async move { self.store.forget_question(id).await.map_err(failed) })
    }

    fn heard(&self) -> watch::Receiver<PublishedRevision> {
        self.heard.subscribe()
    }

    fn distrust(&self) -> Option<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// What the seal of a revision covers. A database's lineage and a mark contain no zero byte.
fn named(found: &PublishedRevision) -> Vec<u8> {
    let PublishedRevision { lineage, revision, mark, serial, .. } = found;
    format!("{lineage}\0{revision}\0{mark}\0{serial}").into_bytes()
}

fn readable(format: u32) -> Result<(), FleetError> {
    match format <= NEWEST_FORMAT {
        true => Ok(()),
        false => Err(FleetError::Newer { found: format }),
    }
}

fn no_json(error: serde_json::Error) -> FleetError {
    FleetError::Refused(error.to_string())
}

fn failed(error: StoreError) -> FleetError {
    let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
    FleetError::Store(format!("{error}{cause}"))
}
