//! A fleet over any store of small values.
//!
//! A list that all nodes change (who is alive, which questions are open) is one value, changed by compare and swap. What one node
//! says (its note, its counts) is a value that only this node writes, so a lost answer is repeated without harm. What is longer
//! than a value is kept in pieces under a new name each time, and the value that names them is swapped in at the end.

mod bytes;
mod counted;
mod members;
mod published;
mod questions;

use parking_lot::Mutex;
use tidegate_core::Micros;
use tidegate_store::StoreError;

use crate::published::{Over, Published, PublishedRevision, Publishing};
use crate::sent::WithHeartbeat;
use crate::store::{
    Answered, FleetHistory, FleetReply, FleetStore, LimiterNote, Row, StoredAnswer, StoredQuestion,
};
use crate::values::{LONGEST_VALUE, ValueStore};
use counted::OwnCounts;

/// How often a change of a list is tried that others change at the same time.
const MOST_TRIES: usize = 64;

/// The part of a fleet that a store of values keeps in memory. Each store has one.
#[derive(Debug, Default)]
pub struct ValueFleet {
    with_heartbeat: WithHeartbeat,
    own: Mutex<OwnCounts>,
}

impl ValueFleet {
    /// What the next heartbeat takes along, and what the last one brought.
    #[must_use]
    pub fn with_heartbeat(&self) -> &WithHeartbeat {
        &self.with_heartbeat
    }

    /// The heartbeat of the limiter `member`, as [`Store::heartbeat`](tidegate_store::Store::heartbeat) promises it.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn heartbeat(
        &self,
        store: &dyn ValueStore,
        member: u64,
        ttl: Micros,
    ) -> Result<usize, StoreError> {
        let alive = members::register(store, member, ttl).await?;
        let note = self.with_heartbeat.note();
        if !note.is_empty() {
            members::put_note(store, member, &note, ttl).await?;
        }
        let counts = {
            let mut own = self.own.lock();
            own.add(self.with_heartbeat.take_counts(), alive.now);
            own.unwritten()
        };
        counted::put(store, member, &counts).await?;
        self.own.lock().written(&counts);
        let names = [published::HEAD.to_vec(), questions::OPEN.to_vec()];
        let (now, values) = store.values(&names).await?;
        let mut values = values.into_iter();
        let head = values.next().flatten();
        self.with_heartbeat.hear(head.and_then(|head| published::revision(&head)).unwrap_or_default());
        let open = values.next().flatten().unwrap_or_default();
        self.with_heartbeat.hear_questions(questions::open(&open, now));
        Ok(alive.count)
    }

    /// Removes the limiter `member`, as [`Store::leave`](tidegate_store::Store::leave) promises it.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn leave(&self, store: &dyn ValueStore, member: u64) -> Result<(), StoreError> {
        members::leave(store, member).await
    }
}

/// A store of values with a [`ValueFleet`] is a [`FleetStore`].
pub trait HasValueFleet: ValueStore {
    /// Its fleet.
    fn value_fleet(&self) -> &ValueFleet;
}

impl<S: HasValueFleet> FleetStore for S {
    fn with_heartbeat(&self) -> &WithHeartbeat {
        self.value_fleet().with_heartbeat()
    }

    fn notes(&self) -> FleetReply<'_, Vec<LimiterNote>> {
        Box::pin(members::notes(self))
    }

    fn counted(&self, history: FleetHistory, number: u64) -> FleetReply<'_, Vec<Row>> {
        Box::pin(counted::counted(self, history, number))
    }

    fn publish<'a>(
        &'a self,
        revision: &'a PublishedRevision,
        published: &'a Published,
        over: Over<'a>,
    ) -> FleetReply<'a, Publishing> {
        Box::pin(published::publish(self, revision, published, over))
    }

    fn publish_changes<'a>(
        &'a self,
        revision: &'a PublishedRevision,
        known: &'a [u8],
        changes: (&'a [u8], u32),
    ) -> FleetReply<'a, bool> {
        Box::pin(published::publish_changes(self, revision, known, changes))
    }

    fn keep_published(&self) -> FleetReply<'_, ()> {
        Box::pin(published::keep(self))
    }

    fn published(&self) -> FleetReply<'_, Option<Published>> {
        Box::pin(published::published(self))
    }

    fn published_changes(&self) -> FleetReply<'_, (Vec<u8>, u32)> {
        Box::pin(published::changes(self))
    }

    fn put_question<'a>(&'a self, question: &'a StoredQuestion) -> FleetReply<'a, bool> {
        Box::pin(questions::put(self, question))
    }

    fn answer_question<'a>(&'a self, id: u64, from: &'a [u8], answer: &'a [u8]) -> FleetReply<'a, Answered> {
        Box::pin(questions::answer(self, id, from, answer))
    }

    fn answered(&self, id: u64) -> FleetReply<'_, Vec<Vec<u8>>> {
        Box::pin(questions::answered(self, id))
    }

    fn answers(&self, id: u64) -> FleetReply<'_, Vec<StoredAnswer>> {
        Box::pin(questions::answers(self, id))
    }

    fn forget_question(&self, id: u64) -> FleetReply<'_, ()> {
        Box::pin(questions::forget(self, id))
    }
}

/// One value.
async fn value(
    store: &dyn ValueStore,
    name: &[u8],
) -> Result<(tidegate_core::Timestamp, Option<Vec<u8>>), StoreError> {
    let names = [name.to_vec()];
    let (now, values) = store.values(&names).await?;
    Ok((now, values.into_iter().next().flatten()))
}

/// Keeps `bytes` in pieces named after `name`.
async fn put_pieces(
    store: &dyn ValueStore,
    name: &[u8],
    bytes: &[u8],
    ttl: Micros,
) -> Result<(), StoreError> {
    for (number, piece) in bytes.chunks(LONGEST_VALUE).enumerate() {
        store.put(&piece_name(name, number), Some(piece), ttl).await?;
    }
    Ok(())
}

/// What is kept in pieces, `length` bytes; none if some are gone.
async fn pieces(store: &dyn ValueStore, name: &[u8], length: usize) -> Result<Option<Vec<u8>>, StoreError> {
    let mut all = Vec::with_capacity(length.min(LONGEST_VALUE));
    for number in 0..length.div_ceil(LONGEST_VALUE) {
        let Some(piece) = value(store, &piece_name(name, number)).await?.1 else { return Ok(None) };
        all.extend(piece);
    }
    Ok((all.len() == length).then_some(all))
}

async fn forget_pieces(store: &dyn ValueStore, name: &[u8], length: usize) -> Result<(), StoreError> {
    for number in 0..length.div_ceil(LONGEST_VALUE) {
        store.put(&piece_name(name, number), None, Micros::ONE).await?;
    }
    Ok(())
}

fn piece_name(name: &[u8], number: usize) -> Vec<u8> {
    [name, b"/", number.to_string().as_bytes()].concat()
}

/// What others changed at each of many tries.
fn contended() -> StoreError {
    StoreError::NotApplied {
        endpoint: "store".to_owned(),
        source: "too many nodes change this at the same time".into(),
    }
}
