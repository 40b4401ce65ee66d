//! Idempotent requests: a named request repeated within a minute gets the first answer and spends nothing.
//!
//! The first request claims the name in the store, so that no other node decides meanwhile, and leaves its answer there. A
//! refusal made without the store is no answer: the name is freed again. A request that passed without the store has passed.
//! What could not be written to the store is written later, from a bounded queue. A node repeats its own answers without asking
//! the store; where the store does not say whether a name is new, the request is decided without it ([`FirstTime::is_certain`]).

use std::fmt;

use sha2::{Digest, Sha256};
use tidegate_core::append_part;
use tidegate_store::{Clock, Record, RefundId, StoreError};

use crate::limiter::Limiter;
use crate::remote::{
    ANSWERED, Fingerprint, KEPT, NameInFlight, NameUse, RecordState, Unwritten, read_record,
};

/// The name a caller gave its request, and a fingerprint of all it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    name: [u8; 32],
    fingerprint: Fingerprint,
}

impl RequestId {
    /// `id` of `caller` within `domain`, for a request that asks `asked`: the same bytes for the same caller and question, on
    /// every node. Ids of different callers are different names, so that none can use another's.
    #[must_use]
    pub fn new(domain: &str, caller: &[u8], id: &str, asked: &[u8]) -> Self {
        let mut name = Vec::new();
        for part in [&b"request_id"[..], domain.as_bytes(), caller, id.as_bytes()] {
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
    /// As many names as can be remembered are in use. Nothing was spent.
    NoRoom,
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimError::UsedForAnother => "request_id was used for another request less than a minute ago",
            ClaimError::UnderWay => {
                "a request with this request_id is still being decided, or its result is unknown"
            }
            ClaimError::NoRoom => {
                "no room to remember another request_id: too many were used within the last minute"
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
    _in_flight: NameInFlight,
}

impl Limiter {
    /// Claims the name of a request that may have been made before.
    ///
    /// If the store does not answer, the request counts as new: its rules' failure policies decide.
    ///
    /// # Errors
    /// When the name stands for another request, the first one is still being decided, or there is no room for its answer.
    pub async fn claim(&self, request: &RequestId) -> Result<Claim<'_>, ClaimError> {
        let name = request.name;
        // The mark comes first: who ends a try keeps its answer before it drops the mark.
        let in_flight = self.request_names.begin(name);
        if let Some(kept) = self.request_names.kept_here(&name, self.clock.now()) {
            return match read_record(&kept) {
                Some((fingerprint, RecordState::Answered(answer))) if fingerprint == request.fingerprint => {
                    Ok(Claim::Answered(answer.to_vec()))
                }
                _ => Err(ClaimError::UsedForAnother),
            };
        }
        let in_flight = match in_flight {
            NameUse::Begun(in_flight) => in_flight,
            // The store is not asked, or its claim might outlive the other's.
            NameUse::Taken => return Err(ClaimError::UnderWay),
            NameUse::Full => return Err(ClaimError::NoRoom),
        };
        let claim = self.request_names.new_claim(request.fingerprint);
        let put = self.put_record(name, claim.clone()).await;
        let first = |claim, claimed, is_certain| {
            let limiter = self;
            Ok(Claim::First(FirstTime { limiter, name, claim, claimed, is_certain, _in_flight: in_flight }))
        };
        let known = match put {
            Ok(None) => return first(claim, true, true),
            Ok(Some(known)) => known,
            Err(StoreError::NoRoom { .. }) => return Err(ClaimError::NoRoom),
            Err(error) => return first(claim, !error.is_certainly_not_applied(), false),
        };
        match read_record(&known) {
            Some((fingerprint, _)) if fingerprint != request.fingerprint => Err(ClaimError::UsedForAnother),
            Some((_, RecordState::Answered(answer))) => Ok(Claim::Answered(answer.to_vec())),
            // A claim that this node gave up but could not free. Takes a new claim: the old one may yet be freed.
            _ if self.request_names.has_given_up(&known) => {
                let until = self.clock.now() + KEPT;
                let change = Unwritten { name: request.name, from: known, to: Some(claim.clone()), until };
                match self.replace_record(change).await {
                    Ok(true) => first(claim, true, true),
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
