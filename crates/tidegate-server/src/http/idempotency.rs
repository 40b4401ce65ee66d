//! Requests with a `request_id`: retried within a minute, on any node, they get the first answer and spend nothing.
//!
//! They are decided in a separate task: a client that gives up does not cancel its request, and finds the answer when it
//! retries.

use std::future::Future;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use tidegate_core::{append_part, take_part};
use tidegate_limiter::{CheckRequest, Claim, ClaimError, FirstTime, RequestId};

use super::{Answer, HttpState};
use crate::json::{Attributes, Check, Refund};
use crate::problem::{Kind, Problem};

/// The answer to a check or a refund.
#[derive(Clone, Debug)]
pub(crate) struct KeptAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) keep: Keep,
}

/// What to do with a request id once its request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Keep the answer.
    Answer,
    /// It was refused without the store, which is not an answer: free the id.
    Nothing,
}

impl KeptAnswer {
    /// Stores this answer for retries, or frees the id if it is not an answer.
    pub(super) async fn settle(&self, first: FirstTime<'_>) {
        match self.keep {
            Keep::Answer => first.answered(&self.to_record()).await,
            Keep::Nothing => first.withdrawn().await,
        }
    }

    /// Serializes it for the store: status, headers, body, each with its length first.
    fn to_record(&self) -> Vec<u8> {
        let mut record = self.status.as_u16().to_be_bytes().to_vec();
        append_part(&mut record, &self.body);
        for (name, value) in &self.headers {
            append_part(&mut record, name.as_ref());
            append_part(&mut record, value.as_ref());
        }
        record
    }

    /// The counterpart of [`KeptAnswer::to_record`]; `None` if a later version wrote it.
    pub(super) fn from_record(record: &[u8]) -> Option<Self> {
        let (status, rest) = record.split_first_chunk()?;
        let (body, mut rest) = take_part(rest)?;
        let mut headers = HeaderMap::new();
        while !rest.is_empty() {
            let (name, after) = take_part(rest)?;
            let (value, after) = take_part(after)?;
            headers.append(HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
            rest = after;
        }
        let status = StatusCode::from_u16(u16::from_be_bytes(*status)).ok()?;
        Some(KeptAnswer { status, headers, body: Bytes::copy_from_slice(body), keep: Keep::Answer })
    }
}

impl From<KeptAnswer> for Answer {
    fn from(told: KeptAnswer) -> Self {
        let mut answer = Response::new(Full::new(told.body));
        *answer.status_mut() = told.status;
        *answer.headers_mut() = told.headers;
        answer
    }
}

pub(super) fn check_id(check: &Check<'_>, id: &str) -> RequestId {
    RequestId::new(check.domain.as_str(), &caller(&check.attributes), id, &asked(b"check", check.cost.0))
}

pub(super) fn refund_id(refund: &Refund<'_>, id: &str) -> RequestId {
    // The age differs in every retry, so it is not part of the fingerprint.
    RequestId::new(
        refund.domain.as_str(),
        &caller(&refund.attributes),
        id,
        &asked(b"refund", refund.amount.0),
    )
}

/// The same bytes for the same attributes, whatever their order: who can send them all can spend in their name anyway.
pub(super) fn caller(attributes: &Attributes<'_>) -> Vec<u8> {
    let mut pairs: Vec<(&str, &str)> = attributes.iter().collect();
    pairs.sort_unstable();
    let mut caller = Vec::new();
    for (name, value) in pairs {
        append_part(&mut caller, name.as_bytes());
        append_part(&mut caller, value.as_bytes());
    }
    caller
}

fn asked(what: &[u8], hits: u64) -> Vec<u8> {
    let mut asked = Vec::new();
    append_part(&mut asked, what);
    append_part(&mut asked, &hits.to_be_bytes());
    asked
}

/// The result of claiming a request id.
pub(super) enum NamedTurn<'l> {
    /// This is the first request: decide it.
    Ours(FirstTime<'l>),
    /// It was already answered.
    Answered(KeptAnswer),
}

/// How to decide a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecideBy {
    Store,
    /// The store did not say in time whether the id is new. The request may already have been decided there: asking the
    /// store again could charge it twice.
    FailurePolicy,
}

impl DecideBy {
    pub(super) fn under(turn: Option<&NamedTurn<'_>>) -> Self {
        match turn {
            Some(NamedTurn::Ours(first)) if !first.is_certain() => DecideBy::FailurePolicy,
            _ => DecideBy::Store,
        }
    }

    pub(super) fn question(self, request: CheckRequest<'_>) -> CheckRequest<'_> {
        match self {
            DecideBy::Store => request,
            DecideBy::FailurePolicy => request.without_the_store(),
        }
    }
}

impl HttpState {
    /// Claims the id of a request, at most once a minute.
    pub(super) async fn turn(&self, request: &RequestId) -> Result<NamedTurn<'_>, Problem> {
        match self.service.limiter.claim(request).await {
            Ok(Claim::First(first)) => Ok(NamedTurn::Ours(first)),
            Ok(Claim::Answered(record)) => {
                KeptAnswer::from_record(&record).map(NamedTurn::Answered).ok_or_else(unreadable)
            }
            Err(error) => Err(conflict(error)),
        }
    }
}

/// Stores the decision for retries. A problem is not an answer: it frees the id.
pub(super) async fn settled(
    first: FirstTime<'_>,
    decided: Result<KeptAnswer, Problem>,
) -> Result<KeptAnswer, Problem> {
    match &decided {
        Ok(kept) => kept.settle(first).await,
        Err(_) => first.withdrawn().await,
    }
    decided
}

/// Runs `work` to its end, even if its caller is gone.
pub(super) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::spawn(work).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => {
            Err(Problem::new(Kind::StoreUnavailable, "the server is stopping").hint("ask another node"))
        }
    }
}

fn conflict(error: ClaimError) -> Problem {
    let (kind, hint) = match error {
        ClaimError::UsedForAnother => (Kind::Conflict, "use a new request_id for a new request"),
        ClaimError::UnderWay => (Kind::Conflict, "wait for the first answer, then ask again"),
        ClaimError::NoRoom => {
            (Kind::Overloaded, "nothing was spent: try again later, or leave request_id out")
        }
        _ => (Kind::Conflict, "ask again with a new request_id"),
    };
    Problem::new(kind, error.to_string()).at("request_id").hint(hint)
}

/// Nodes of two versions may run at once.
fn unreadable() -> Problem {
    let detail = "the first answer was written by another version of tidegate";
    Problem::new(Kind::Conflict, detail).hint("use a new request_id").at("request_id")
}
