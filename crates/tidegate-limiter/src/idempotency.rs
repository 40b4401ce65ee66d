//! Idempotent requests: a named request repeated within a minute gets the first answer and spends nothing.
//!
//! The first request claims the name in the store, so that no other node decides meanwhile, and leaves its answer there. A
//! refusal made without the store is no answer: the name is freed again. A request that passed without the store has passed.
//! What could not be written to the store is written later, from a bounded queue. A node repeats its own answers without asking
//! the store; where the store does not say whether a name is new, the request is decided without it ([`FirstTime::is_certain`]).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tidegate_core::{Micros, Timestamp, append_part};
use tidegate_store::{Clock, Record, RefundId, StoreError};

use crate::limiter::Limiter;
use crate::observer::StoreCall;
use crate::remote::Remote;

/// How long a name stands for its first request.
const KEPT: Micros = Micros::from_secs(60);
/// The most records queued for a store that did not answer. Beyond that, names stay claimed until they expire.
const MOST_UNWRITTEN: usize = 4_096;
/// The most memory for answers of the last minute, in bytes: some 30,000 answers. The oldest make room.
const MOST_KEPT_BYTES: usize = 16 << 20;
/// What an answer takes beside its own bytes.
const KEPT_OVERHEAD: usize = 160;

/// The name a caller gave its request, and a fingerprint of all it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    name: [u8; 32],
    fingerprint: Fingerprint,
}

/// Distinguishes requests with the same name.
type Fingerprint = [u8; 16];

impl RequestId {
    /// `id` within `domain`, for a request that asks `asked`: the same bytes for the same question, on every node.
    #[must_use]
    pub fn new(domain: &str, id: &str, asked: &[u8]) -> Self {
        let mut name = Vec::new();
        for part in [&b"request_id"[..], domain.as_bytes(), id.as_bytes()] {
            append_part(&mut name, part);
        }
        let mut fingerprint = Fingerprint::default();
        fingerprint.copy_from_slice(&Sha256::digest(asked)[..size_of::<Fingerprint>()]);
        RequestId { name: Sha256::digest(&name).into(), fingerprint }
    }

    /// The ID by which the store knows a refund that this request asks for.
    #[must_use]
    pub fn refund_id(&self) -> RefundId {
        let digest = Sha256::new().chain_update(self.name).chain_update(self.fingerprint).finalize();
        let (bytes, _) = digest.split_first_chunk().expect("SHA-256 has 32 bytes");
        RefundId::new(*bytes)
    }
}

/// The state of a named request.
#[derive(Debug)]
pub enum Claim<'l> {
    /// It must be decided now.
    First(FirstTime<'l>),
    /// Its earlier answer.
    Answered(Vec<u8>),
}

/// Why a named request is not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another request used this name within the last minute.
    UsedForAnother,
    /// The first one is still being decided, or its result is unknown.
    UnderWay,
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimError::UsedForAnother => "request_id was used for another request less than a minute ago",
            ClaimError::UnderWay => {
                "a request with this request_id is still being decided, or its result is unknown"
            }
        })
    }
}

impl std::error::Error for ClaimError {}

/// A named request that must be decided now. Dropping it without an answer frees its name.
#[must_use]
pub struct FirstTime<'l> {
    limiter: &'l Limiter,
    name: [u8; 32],
    /// The record that marks it as in flight.
    claim: Vec<u8>,
    /// Whether the store may hold the claim.
    claimed: bool,
    /// Whether the store confirmed the claim.
    is_certain: bool,
}

/// State shared by all named requests of a node.
pub(crate) struct RequestNames {
    random: RandomState,
    next: AtomicU64,
    unwritten: Mutex<VecDeque<Unwritten>>,
    kept_here: Mutex<KeptHere>,
    /// Records dropped for lack of room.
    lost: AtomicU64,
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
struct Unwritten {
    name: [u8; 32],
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    until: Timestamp,
}

impl Limiter {
    /// Claims the name of a request that may have been made before.
    ///
    /// If the store does not answer, the request counts as new: its rules' failure policies decide.
    ///
    /// # Errors
    /// When the name stands for another request, or the first one is still being decided.
    pub async fn claim(&self, request: &RequestId) -> Result<Claim<'_>, ClaimError> {
        let name = request.name;
        if let Some(kept) = self.request_names.kept_here(&name, self.clock.now()) {
            return match read(&kept) {
                Some((fingerprint, RecordState::Answered(answer))) if fingerprint == request.fingerprint => {
                    Ok(Claim::Answered(answer.to_vec()))
                }
                _ => Err(ClaimError::UsedForAnother),
            };
        }
        let claim = self.request_names.new_claim(request.fingerprint);
        let put = self.put_record(name, claim.clone()).await;
        let certain = |claim| {
            Ok(Claim::First(FirstTime { limiter: self, name, claim, claimed: true, is_certain: true }))
        };
        let known = match put {
            Ok(None) => return certain(claim),
            Ok(Some(known)) => known,
            Err(error) => {
                let claimed = !error.is_certainly_not_applied();
                return Ok(Claim::First(FirstTime {
                    limiter: self,
                    name,
                    claim,
                    claimed,
                    is_certain: false,
                }));
            }
        };
        match read(&known) {
            Some((fingerprint, _)) if fingerprint != request.fingerprint => Err(ClaimError::UsedForAnother),
            Some((_, RecordState::Answered(answer))) => Ok(Claim::Answered(answer.to_vec())),
            // A claim that this node gave up but could not free. Takes a new claim: the old one may yet be freed.
            _ if self.request_names.has_given_up(&known) => {
                let until = self.clock.now() + KEPT;
                let change = Unwritten { name: request.name, from: known, to: Some(claim.clone()), until };
                match self.replace_record(change).await {
                    Ok(true) => certain(claim),
                    Ok(false) | Err(_) => Err(ClaimError::UnderWay),
                }
            }
            _ => Err(ClaimError::UnderWay),
        }
    }

    /// Changes a record now or, if the store does not answer, later.
    async fn write_now_or_later(&self, change: Unwritten) {
        if self.write(change.clone()).await.is_err() {
            self.request_names.remember(change);
        }
    }

    async fn write(&self, change: Unwritten) -> Result<(), StoreError> {
        match &self.remote {
            // Memory took the claim.
            None => self.replace_record(change).await.map(drop),
            Some(remote) => remote.write(change).await,
        }
    }

    async fn put_record(&self, name: [u8; 32], value: Vec<u8>) -> Result<Option<Vec<u8>>, StoreError> {
        match &self.remote {
            None => self.store.put_record(Record { name: &name, value: &value }, KEPT).answer().await,
            Some(remote) => remote.put_record(name, value, KEPT).await,
        }
    }

    async fn replace_record(&self, change: Unwritten) -> Result<bool, StoreError> {
        match &self.remote {
            None => {
                let record = Record { name: &change.name, value: &change.from };
                self.store.replace_record(record, change.to.as_deref(), KEPT).answer().await
            }
            Some(remote) => remote.replace_record(change).await,
        }
    }
}

impl FirstTime<'_> {
    /// Stores `answer` for repeats: on this node at once, and in the store as soon as it takes it.
    pub async fn answered(mut self, answer: &[u8]) {
        let (limiter, record) = (self.limiter, self.record(answer));
        if limiter.remote.is_some() {
            limiter.request_names.keep_here(self.name, record.clone(), limiter.clock.now());
        }
        self.write(Some(record)).await;
    }

    /// The record of an answer, as stored.
    fn record(&self, answer: &[u8]) -> Vec<u8> {
        [&self.claim[..size_of::<Fingerprint>()], &[ANSWERED], answer].concat()
    }

    /// Frees the name: the decision is not an answer.
    pub async fn withdrawn(mut self) {
        if self.claimed {
            self.write(None).await;
        }
    }

    /// Whether the store confirmed the claim as the first. If not, it did not answer in time and may have an answer.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// Replaces the claim with `to`.
    async fn write(&mut self, to: Option<Vec<u8>>) {
        self.claimed = false;
        let (limiter, from) = (self.limiter, std::mem::take(&mut self.claim));
        let change = Unwritten { name: self.name, from, to, until: limiter.clock.now() + KEPT };
        limiter.write_now_or_later(change).await;
    }
}

impl Drop for FirstTime<'_> {
    fn drop(&mut self) {
        if !std::mem::take(&mut self.claimed) {
            return;
        }
        let (limiter, from) = (self.limiter, std::mem::take(&mut self.claim));
        match &limiter.remote {
            None => {
                let record = Record { name: &self.name, value: &from };
                // Memory is done by the time it answers.
                drop(limiter.store.replace_record(record, None, KEPT));
            }
            Some(remote) => {
                let until = limiter.clock.now() + KEPT;
                let change = Unwritten { name: self.name, from, to: None, until };
                limiter.request_names.remember(change.clone());
                let (remote, names) = (remote.clone(), limiter.request_names.clone());
                // Only its own: many may be dropped at once. The background retries what fails.
                remote.clone().spawn(Box::pin(async move {
                    if remote.write(change.clone()).await.is_ok() {
                        names.wrote(&change);
                    }
                }));
            }
        }
    }
}

impl fmt::Debug for FirstTime<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstTime").field("claimed", &self.claimed).finish_non_exhaustive()
    }
}

impl RequestNames {
    pub(crate) fn new() -> Self {
        let (next, lost) = (AtomicU64::new(0), AtomicU64::new(0));
        let (unwritten, kept_here) = (Mutex::default(), Mutex::default());
        RequestNames { random: RandomState::new(), next, unwritten, kept_here, lost }
    }

    /// A record that no other claim equals.
    fn new_claim(&self, fingerprint: Fingerprint) -> Vec<u8> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let unique = [self.random.hash_one((0, number)), self.random.hash_one((1, number))];
        [&fingerprint[..], &[UNDER_WAY], &unique[0].to_le_bytes(), &unique[1].to_le_bytes()].concat()
    }

    fn remember(&self, change: Unwritten) {
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
    fn kept_here(&self, name: &[u8; 32], now: Timestamp) -> Option<Vec<u8>> {
        let mut kept = self.kept_here.lock();
        kept.forget_what_has_ended(now);
        kept.records.get(name).cloned()
    }

    fn keep_here(&self, name: [u8; 32], record: Vec<u8>, now: Timestamp) {
        let mut kept = self.kept_here.lock();
        kept.forget_what_has_ended(now);
        kept.insert(name, record, now + KEPT);
    }

    fn wrote(&self, change: &Unwritten) {
        self.unwritten.lock().retain(|other| other.from != change.from);
    }

    /// Whether `claim` was given up here.
    fn has_given_up(&self, claim: &[u8]) -> bool {
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
    async fn put_record(
        self: &Arc<Self>,
        name: [u8; 32],
        value: Vec<u8>,
        ttl: Micros,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([&name[..]].into_iter()));
        let work = async move { store.put_record(Record { name: &name, value: &value }, ttl).answer().await };
        self.run(StoreCall::Record, nodes, work).await
    }

    async fn replace_record(self: &Arc<Self>, change: Unwritten) -> Result<bool, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([&change.name[..]].into_iter()));
        let ttl = self.time_left_of(&change);
        let work = async move {
            let record = Record { name: &change.name, value: &change.from };
            store.replace_record(record, change.to.as_deref(), ttl).answer().await
        };
        self.run(StoreCall::Record, nodes, work).await
    }

    /// Changes a record, or adds the answer if its claim is not found: the store did not take the claim either.
    async fn write(self: &Arc<Self>, change: Unwritten) -> Result<(), StoreError> {
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
const ANSWERED: u8 = 1;

enum RecordState<'r> {
    UnderWay,
    Answered(&'r [u8]),
}

/// Parses a record; `None` if it is not one of ours.
fn read(record: &[u8]) -> Option<(Fingerprint, RecordState<'_>)> {
    let (fingerprint, rest) = record.split_first_chunk()?;
    match rest.split_first()? {
        (&ANSWERED, answer) => Some((*fingerprint, RecordState::Answered(answer))),
        _ => Some((*fingerprint, RecordState::UnderWay)),
    }
}
