//! The connection to the other nodes through the Redis that they share.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_admin::{
    CHANGES_BESIDE, ChangesSince, Fleet, FleetAnswer, FleetError, FleetQuestion, Heard, HistoryChunk,
    HistoryRow, MOST_ANSWER_BYTES, NEWEST_FORMAT, NodeNote, NoteFuture, PublishedSet, Resolution, WHOLE_SET,
    at_low_priority, without_replaced,
};
use tidegate_store::{Clock, StoreError};
use tidegate_store_redis::{
    Answered, FleetHistory, FleetQuestion as StoreQuestion, LONGEST_ANSWER, LimiterNote, Published,
    PublishedRevision, RedisStore,
};
use tokio::sync::watch;

/// How long after its end a minute or an hour may still be added to, because the nodes' clocks differ.
const SETTLED_S: u64 = 10;
/// The most minutes and hours cached.
const MOST_PAST: u64 = 30;
// The store must accept every answer that a node may give.
const _: () = assert!(MOST_ANSWER_BYTES == LONGEST_ANSWER);

pub(super) struct RedisFleet {
    store: Arc<RedisStore>,
    clock: Arc<dyn Clock>,
    /// Minutes and hours that are complete.
    past: Mutex<HashMap<(Resolution, u64), HistoryChunk>>,
    heard: watch::Sender<Heard>,
    questions: watch::Sender<Vec<FleetQuestion>>,
}

impl RedisFleet {
    pub(super) fn new(store: Arc<RedisStore>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (heard, questions) = (watch::Sender::new(Heard::default()), watch::Sender::new(Vec::new()));
        Arc::new(RedisFleet { store, clock, past: Mutex::default(), heard, questions })
    }

    /// Passes on what heartbeats return, until dropped.
    pub(super) async fn listen(self: Arc<Self>) {
        let (mut revisions, mut questions) = (self.store.published_revision(), self.store.questions());
        loop {
            let PublishedRevision { lineage, revision, mark } = revisions.borrow_and_update().clone();
            self.heard.send_replace(Heard { lineage, revision, mark });
            let asked: Vec<FleetQuestion> = questions
                .borrow_and_update()
                .iter()
                .map(|question| FleetQuestion { id: question.id, text: question.text.clone() })
                .collect();
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

impl RedisFleet {
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

impl Fleet for RedisFleet {
    fn publish(&self, set: PublishedSet, set_back: bool) -> NoteFuture<'_, ()> {
        Box::pin(async move {
            let revision = revision_of(set.heard());
            let written = at_low_priority(move || {
                let changes = serde_json::to_vec(&ChangesSince::none(&set)).map_err(no_json)?;
                Ok(Published { set: serde_json::to_vec(&set).map_err(no_json)?, changes, format: WHOLE_SET })
            });
            let published = written.await?;
            match self.store.publish(&revision, &published, set_back).await.map_err(failed)? {
                true => Ok(()),
                false => {
                    Err(FleetError::Refused("nodes with another database publish to this Redis".to_owned()))
                }
            }
        })
    }

    fn publish_changes<'a>(
        &'a self,
        known: &'a ChangesSince,
        changes: &'a ChangesSince,
    ) -> NoteFuture<'a, bool> {
        Box::pin(async move {
            let [known, bytes] = [known, changes].map(serde_json::to_vec);
            let (known, bytes) = (known.map_err(no_json)?, bytes.map_err(no_json)?);
            let (revision, told) = (revision_of(changes.heard()), (&bytes[..], CHANGES_BESIDE));
            self.store.publish_changes(&revision, &known, told).await.map_err(failed)
        })
    }

    fn fetch_changes(&self) -> NoteFuture<'_, Option<ChangesSince>> {
        Box::pin(async {
            let (changes, format) = self.store.published_changes().await.map_err(failed)?;
            readable(format)?;
            read_changes(&changes)
        })
    }

    fn keep(&self) -> NoteFuture<'_, ()> {
        Box::pin(async { self.store.keep_published().await.map_err(failed) })
    }

    fn fetch(&self) -> NoteFuture<'_, Option<PublishedSet>> {
        Box::pin(async {
            let Some(published) = self.store.published().await.map_err(failed)? else { return Ok(None) };
            readable(published.format)?;
            // It may be large, and requests are decided on the same core.
            let read = at_low_priority(move || {
                let set: PublishedSet = serde_json::from_slice(&published.set).map_err(no_json)?;
                Ok(Some(match read_changes(&published.changes)? {
                    Some(changes) => changes.apply(set),
                    None => set,
                }))
            });
            read.await
        })
    }

    fn known_nodes(&self) -> NoteFuture<'_, Vec<NodeNote>> {
        Box::pin(async {
            let notes = self.store.notes().await.map_err(failed)?;
            let read = |told: LimiterNote| {
                let (id, last_seen_ms) = (format!("{:016x}", told.member), told.age_us / 1_000);
                NodeNote { id, last_seen_ms, lost: told.lost, ..NodeNote::read(&told.note) }
            };
            Ok(without_replaced(notes.into_iter().map(read).collect()))
        })
    }

    fn announce(&self, note: &NodeNote) {
        self.store.announce(serde_json::to_vec(note).unwrap_or_default());
    }

    fn count(&self, rows: Vec<HistoryRow>) {
        self.store.count(rows.into_iter().map(|row| (row.name.into_bytes(), row.counts)).collect());
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

    fn ask<'a>(&'a self, question: &'a FleetQuestion) -> NoteFuture<'a, ()> {
        Box::pin(async move {
            let question = StoreQuestion { id: question.id, text: question.text.clone() };
            match self.store.put_question(&question).await.map_err(failed)? {
                true => Ok(()),
                false => Err(FleetError::Refused("too much is asked of them at once".to_owned())),
            }
        })
    }

    fn questions(&self) -> watch::Receiver<Vec<FleetQuestion>> {
        self.questions.subscribe()
    }

    fn answer<'a>(&'a self, id: u64, from: &'a str, answer: &'a [u8]) -> NoteFuture<'a, ()> {
        Box::pin(async move {
            match self.store.answer_question(id, from.as_bytes(), answer).await.map_err(failed)? {
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
            let named = answers.into_iter().map(|(from, answer)| FleetAnswer {
                from: String::from_utf8_lossy(&from).into_owned(),
                text: answer.map_err(failed),
            });
            Ok(named.collect())
        })
    }

    fn forget(&self, id: u64) -> NoteFuture<'_, ()> {
        Box::pin(async move { self.store.forget_question(id).await.map_err(failed) })
    }

    fn heard(&self) -> watch::Receiver<Heard> {
        self.heard.subscribe()
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn revision_of(heard: Heard) -> PublishedRevision {
    let Heard { lineage, revision, mark } = heard;
    PublishedRevision { lineage, revision, mark }
}

fn readable(format: u32) -> Result<(), FleetError> {
    match format <= NEWEST_FORMAT {
        true => Ok(()),
        false => Err(FleetError::Newer { found: format }),
    }
}

/// `None` if there are no changes; an earlier release writes only a set.
fn read_changes(bytes: &[u8]) -> Result<Option<ChangesSince>, FleetError> {
    match bytes {
        [] => Ok(None),
        bytes => serde_json::from_slice(bytes).map(Some).map_err(no_json),
    }
}

fn no_json(error: serde_json::Error) -> FleetError {
    FleetError::Refused(error.to_string())
}

fn failed(error: StoreError) -> FleetError {
    let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
    FleetError::Store(format!("{error}{cause}"))
}
