//! Requests that name themselves (`request_id`): asked again within a minute, they get the first answer and spend nothing.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use tidegate_limiter::{FirstTime, ReplayError, RequestId};

use super::{Answer, Shared};
use crate::json::{Attributes, Check, Refund};
use crate::problem::{Kind, Problem};

/// What is answered to a check or a refund.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Told {
    pub(super) fn remembered_by(self, first_time: FirstTime<'_, Told>) -> Arc<Told> {
        // A header's name, its value and both their places in the map; the request's own name and what keeps it all.
        const EACH_HEADER: usize = 120;
        const EACH_REQUEST: usize = 600;
        let bytes = self.body.len() + self.headers.len() * EACH_HEADER + EACH_REQUEST;
        first_time.answered(self, bytes)
    }
}

impl From<Told> for Answer {
    fn from(told: Told) -> Self {
        let mut answer = Response::new(Full::new(told.body));
        *answer.status_mut() = told.status;
        *answer.headers_mut() = told.headers;
        answer
    }
}

/// What a request asks, so that a name used for two things is noticed.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    domain: &'a str,
    fingerprint: u64,
}

impl<'a> Asked<'a> {
    pub(super) fn check(check: &'a Check<'_>) -> Self {
        let asked = ("check", check.cost.0, fingerprint(&check.attributes));
        Self { domain: check.domain.as_str(), fingerprint: hash_of(&asked) }
    }

    pub(super) fn refund(refund: &'a Refund<'_>) -> Self {
        let asked = ("refund", refund.amount.0, fingerprint(&refund.attributes));
        Self { domain: refund.domain.as_str(), fingerprint: hash_of(&asked) }
    }
}

impl Shared {
    /// Answers a named request: at most once a minute by `decide`, a repeat with the first answer.
    pub(super) async fn once(
        &self,
        id: &str,
        asked: &Asked<'_>,
        decide: impl Future<Output = Result<Told, Problem>>,
    ) -> Result<Told, Problem> {
        match self.look_up(id, asked) {
            Ok(Ok(told)) => Ok(Told::clone(&told)),
            Ok(Err(first_time)) => Ok(Told::clone(&*decide.await?.remembered_by(first_time))),
            Err(error) => Err(conflict(error).at("request_id")),
        }
    }

    pub(super) fn look_up(
        &self,
        id: &str,
        asked: &Asked<'_>,
    ) -> Result<Result<Arc<Told>, FirstTime<'_, Told>>, ReplayError> {
        let request =
            RequestId { id: id.to_owned(), domain: asked.domain.to_owned(), fingerprint: asked.fingerprint };
        self.replays.look_up(&request, self.service.clock.now())
    }
}

pub(super) fn conflict(error: ReplayError) -> Problem {
    Problem::new(Kind::Conflict, error.to_string()).hint(match error {
        ReplayError::UsedForAnother => "use a new request_id for a new request",
        ReplayError::UnderWay => "wait for the first answer, then ask again",
    })
}

/// The same for the same attributes, whatever their order.
fn fingerprint(attributes: &Attributes<'_>) -> u64 {
    attributes.iter().map(|pair| hash_of(&pair)).fold(0, u64::wrapping_add)
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
