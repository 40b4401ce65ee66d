//! The records of named requests: what is still to be written to the store, and the answers that this node repeats itself.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Micros, Timestamp};
use tidegate_store::{Clock, Record, StoreError};

use super::Remote;
use crate::observer::StoreCall;

/// How long a name stands for its first request.
pub(crate) const KEPT: Micros = Micros::from_secs(60);
/// The most records queued for a store that did not answer. Beyond that, names stay claimed until they expire.
const MOST_UNWRITTEN: usize = 4_096;
/// The most memory for answers of the last minute, in bytes: some 30,000 answers. The oldest make room.
const MOST_KEPT_BYTES: usize = 16 << 20;
/// The most named requests that this node decides at once. Beyond that, a named request is refused.
const MOST_IN_FLIGHT: usize = 65_536;
/// What an answer takes beside its own bytes.
const KEPT_OVERHEAD: usize = 160;

/// Distinguishes requests with the same name.
pub(crate) type Fingerprint = [u8; 16];

/// State shared by all named requests of a node.
pub(crate) struct RequestNames {
    random: RandomState,
    next: AtomicU64,
    unwritten: Mutex<VecDeque<Unwritten>>,
    kept_here: Mutex<KeptHere>,
    /// The named requests that this node is deciding.
    in_flight: Mutex<HashSet<[u8; 32]>>,
    /// Records dropped for lack of room.
    lost: AtomicU64,
}

/// Whether a name can be used here now.
pub(crate) enum NameUse {
    /// Yes, until the mark is dropped.
    Begun(NameInFlight),
    /// Another try of it, or another request of this name, is being decided.
    Taken,
    /// As many others as may be are being decided.
    Full,
}

/// A named request that this node is deciding.
pub(crate) struct NameInFlight {
    names: Arc<RequestNames>,
    name: [u8; 32],
}

impl Drop for NameInFlight {
    fn drop(&mut self) {
        self.names.in_flight.lock().remove(&self.name);
    }
}

/// The answers that this node gave within the last minute, by name: it repeats them also while the store does not answer.
#[derive(Default)]
struct KeptHere {
    records: HashMap<[u8; 32], Vec<u8>>,
    /// When each expires, the earliest first.
    ends: VecDeque<(Timestamp, [u8; 32])>,
    bytes: usize,
}

/// A record change, for a name that this node has claimed, not yet written to the store.
#[derive(Clone)]
pub(crate) struct Unwritten {
    pub(crate) name: [u8; 32],
    pub(crate) from: Vec<u8>,
    pub(crate) to: Option<Vec<u8>>,
    pub(crate) until: Timestamp,
}

impl RequestNames {
    pub(crate) fn new() -> Self {
        let (next, lost) = (AtomicU64::new(0), AtomicU64::new(0));
        let (unwritten, kept_here, in_flight) = (Mutex::default(), Mutex::default(), Mutex::default());
        RequestNames { random: RandomState::new(), next, unwritten, kept_here, in_flight, lost }
    }

    /// Marks a name as in use here, until the mark is dropped: while the store does not answer, nothing else keeps two tries of
    /// one request apart.
    pub(crate) fn begin(self: &Arc<Self>, name: [u8; 32]) -> NameUse {
        let mut in_flight = self.in_flight.lock();
        match (in_flight.contains(&name), in_flight.len() < MOST_IN_FLIGHT) {
            (true, _) => NameUse::Taken,
            (false, false) => NameUse::Full,
            (false, true) => {
                in_flight.insert(name);
                NameUse::Begun(NameInFlight { names: Arc::clone(self), name })
            }
        }
    }

    /// The number of named requests being decided.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.lock().len()
    }

    /// A record that no other claim equals.
    pub(crate) fn new_claim(&self, fingerprint: Fingerprint) -> Vec<u8> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let unique = [self.random.hash_one((0, number)), self.random.hash_one((1, number))];
        [&fingerprint[..], &[UNDER_WAY], &unique[0].to_le_bytes(), &unique[1].to_le_bytes()].concat()
    }

    pub(crate) fn remember(&self, change: Unwritten) {
        let mut unwritten = self.unwritten.lock();
        if unwritten.len() < MOST_UNWRITTEN {
            unwritten.push_back(change);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of records still to be written, and of those that never will be.
    pub(crate) fn unwritten(&self) -> (usize, u64) {
        (self.unwritten.lock().len(), self.lost.load(Ordering::Relaxed))
    }

    /// The answer kept here for a name, less than a minute ago.
    pub(crate) fn kept_here(&self, name: &[u8; 32], now: Timestamp) -> Option<Vec<u8>> {
        let mut kept = self.kept_here.lock();
        kept.forget_what_has_ended(now);
        kept.records.get(name).cloned()
    }

    pub(crate) fn keep_here(&self, name: [u8; 32], record: Vec<u8>, now: Timestamp) {
        let mut kept = self.kept_here.lock();
        kept.forget_what_has_ended(now);
        kept.insert(name, record, now + KEPT);
    }

    pub(crate) fn wrote(&self, change: &Unwritten) {
        self.unwritten.lock().retain(|other| other.from != change.from);
    }

    /// Whether `claim` was given up here.
    pub(crate) fn has_given_up(&self, claim: &[u8]) -> bool {
        self.unwritten.lock().iter().any(|change| change.to.is_none() && change.from == claim)
    }

    fn oldest(&self) -> Option<Unwritten> {
        self.unwritten.lock().front().cloned()
    }
}

impl KeptHere {
    fn insert(&mut self, name: [u8; 32], record: Vec<u8>, end: Timestamp) {
        self.bytes += record.len() + KEPT_OVERHEAD;
        match self.records.insert(name, record) {
            Some(before) => self.bytes -= before.len() + KEPT_OVERHEAD,
            None => self.ends.push_back((end, name)),
        }
        while self.bytes > MOST_KEPT_BYTES {
            self.forget_oldest();
        }
    }

    fn forget_what_has_ended(&mut self, now: Timestamp) {
        // An entry that expires more than a minute from now was added before the clock stepped back.
        while self.ends.front().is_some_and(|(end, _)| *end <= now || *end > now + KEPT) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, name)) = self.ends.pop_front() else { return };
        if let Some(record) = self.records.remove(&name) {
            self.bytes -= record.len() + KEPT_OVERHEAD;
        }
    }
}

impl Remote {
    pub(crate) async fn put_record(
        self: &Arc<Self>,
        name: [u8; 32],
        value: Vec<u8>,
        ttl: Micros,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([&name[..]].into_iter()));
        let work = async move { store.put_record(Record { name: &name, value: &value }, ttl).answer().await };
        self.run(StoreCall::Record, nodes, work).await
    }

    pub(crate) async fn replace_record(self: &Arc<Self>, change: Unwritten) -> Result<bool, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([&change.name[..]].into_iter()));
        let ttl = self.time_left_of(&change);
        let work = async move {
            let record = Record { name: &change.name, value: &change.from };
            store.replace_record(record, change.to.as_deref(), ttl).answer().await
        };
        self.run(StoreCall::Record, nodes, work).await
    }

    /// Changes a record, or adds the answer if its claim is not found: the store did not take the claim either.
    pub(crate) async fn write(self: &Arc<Self>, change: Unwritten) -> Result<(), StoreError> {
        let (name, to, ttl) = (change.name, change.to.clone(), self.time_left_of(&change));
        let is_changed = self.replace_record(change).await?;
        match to.filter(|_| !is_changed) {
            Some(to) => self.put_record(name, to, ttl).await.map(drop),
            None => Ok(()),
        }
    }

    /// What is left of the minute that began with the answer, however late it is written.
    fn time_left_of(&self, change: &Unwritten) -> Micros {
        change.until.since(self.clock.now()).max(Micros::from_millis(1))
    }

    /// Writes queued record changes to the store, for names that this node has claimed. Doing so twice is harmless.
    pub(crate) async fn write_what_is_unwritten(self: &Arc<Self>, names: &RequestNames) {
        while let Some(change) = names.oldest() {
            let is_over = self.clock.now() >= change.until;
            if !is_over && self.write(change.clone()).await.is_err() {
                return;
            }
            names.wrote(&change);
        }
    }
}

const UNDER_WAY: u8 = 0;
pub(crate) const ANSWERED: u8 = 1;

pub(crate) enum RecordState<'r> {
    UnderWay,
    Answered(&'r [u8]),
}

/// Parses a record; `None` if it is not one of ours.
pub(crate) fn read_record(record: &[u8]) -> Option<(Fingerprint, RecordState<'_>)> {
    let (fingerprint, rest) = record.split_first_chunk()?;
    match rest.split_first()? {
        (&ANSWERED, answer) => Some((*fingerprint, RecordState::Answered(answer))),
        _ => Some((*fingerprint, RecordState::UnderWay)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> [u8; 32] {
        let mut name = [0; 32];
        name[..8].copy_from_slice(&number.to_le_bytes());
        name
    }

    #[test]
    fn unwritten_records_and_kept_answers_are_bounded() {
        let names = RequestNames::new();
        let now = Timestamp::from_micros(1_000_000);
        for number in 0..=MOST_UNWRITTEN {
            let (from, to) = (number.to_le_bytes().to_vec(), Some(Vec::new()));
            names.remember(Unwritten { name: name(number), from, to, until: now + KEPT });
        }
        assert_eq!(names.unwritten(), (MOST_UNWRITTEN, 1));
        let (answer, most) = (vec![0; 1 << 20], MOST_KEPT_BYTES >> 20);
        (0..2 * most).for_each(|number| names.keep_here(name(number), answer.clone(), now));
        let is_kept = |number| names.kept_here(&name(number), now).is_some();
        assert!(names.kept_here.lock().bytes <= MOST_KEPT_BYTES);
        assert!(!is_kept(0) && is_kept(2 * most - 1), "the oldest make room");
    }

    #[test]
    fn names_in_flight_are_bounded() {
        let names = Arc::new(RequestNames::new());
        let mut marks: Vec<NameUse> = (0..MOST_IN_FLIGHT).map(|number| names.begin(name(number))).collect();
        assert!(marks.iter().all(|mark| matches!(mark, NameUse::Begun(_))));
        assert!(matches!(names.begin(name(MOST_IN_FLIGHT)), NameUse::Full));
        assert!(matches!(names.begin(name(0)), NameUse::Taken));
        marks.pop();
        assert!(matches!(names.begin(name(MOST_IN_FLIGHT)), NameUse::Begun(_)));
    }
}
