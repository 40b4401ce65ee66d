//! `/v1/check`, `/v1/check/batch` and `/v1/refund`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, FirstTime, Patience, RefundError, ReplayError, RequestId,
    Transport,
};
use tidegate_rules::{Descriptor, UnknownDomain};

use super::{Answer, JSON, Shared, answer};
use crate::json::{self, Attributes, Check, RATE_LIMIT_EXCEEDED};
use crate::problem::{Kind, Problem};
use crate::service::{governing_limit, is_unavailable, rule_name};

/// What was answered to a request that named itself.
#[derive(Clone, Debug)]
pub(crate) struct Replayable {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

type Entries<'a> = SmallVec<[(&'a str, &'a [u8]); 8]>;

impl Shared {
    pub(super) async fn check(&self, body: &[u8]) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let check: Check<'_> = json::parse(body)?;
        let answer = match &check.request_id {
            None => self.decide(&check, began).await?.into_answer(),
            Some(id) => {
                let asked = ("check", check.cost.0, fingerprint(&check.attributes));
                self.once(&named(id.as_str(), check.domain.as_str(), &asked), self.decide(&check, began))
                    .await?
            }
        };
        self.service.answered(Transport::Http, began);
        Ok(answer)
    }

    /// Decides the checks of a batch in one go. What is wrong with any of them refuses the batch before anything is spent.
    pub(super) async fn check_batch(&self, body: &[u8]) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let batch: json::Batch<'_> = json::parse(body)?;
        self.refuse_unknown_domains(&batch)?;
        let mut bodies: Vec<Option<Bytes>> = Vec::with_capacity(batch.checks.len());
        let mut first_times = Vec::with_capacity(batch.checks.len());
        for (number, check) in batch.checks.iter().enumerate() {
            let known = check.request_id.as_ref().map(|id| self.look_up(id.as_str(), check));
            match known.transpose().map_err(|problem| problem.at(format!("checks[{number}].request_id")))? {
                Some(Ok(answer)) => bodies.push(Some(answer.body.clone())),
                first_time => {
                    first_times.push(first_time.and_then(Result::err));
                    bodies.push(None);
                }
            }
        }
        let open: Vec<&Check<'_>> = batch
            .checks
            .iter()
            .zip(&bodies)
            .filter(|(_, body)| body.is_none())
            .map(|(check, _)| check)
            .collect();
        let decided = self.decide_all(&open, began).await?;
        let open_bodies = bodies.iter_mut().filter(|body| body.is_none());
        for ((body, answer), first_time) in open_bodies.zip(decided).zip(first_times) {
            *body = Some(answer.body.clone());
            if let Some(first_time) = first_time {
                first_time.answered(Arc::new(answer));
            }
        }
        let answer = answer(StatusCode::OK, JSON, joined(bodies.into_iter().flatten()));
        self.service.answered(Transport::Http, began);
        Ok(answer)
    }

    async fn decide_all(&self, checks: &[&Check<'_>], began: Timestamp) -> Result<Vec<Replayable>, Problem> {
        let entries: Vec<Entries<'_>> = checks.iter().map(|check| entries(&check.attributes)).collect();
        let asks: Vec<DescriptorAsk<'_>> =
            checks.iter().zip(&entries).map(|(check, entries)| ask(entries, check.cost.0)).collect();
        let requests: Vec<CheckRequest<'_>> = checks
            .iter()
            .zip(&asks)
            .map(|(check, ask)| CheckRequest {
                domain: check.domain.as_str(),
                descriptors: std::slice::from_ref(ask),
                patience: Patience::Waits,
            })
            .collect();
        let decisions = self.service.limiter.check_batch(&requests).await;
        let told =
            decisions.into_iter().map(|decision| decision.map(|decision| self.replayable(&decision, began)));
        told.collect::<Result<_, _>>().map_err(|error| self.unknown_domain(&error, "checks"))
    }

    pub(super) async fn refund(&self, body: &[u8]) -> Result<Answer, Problem> {
        let refund: json::Refund<'_> = json::parse(body)?;
        let give_back = async {
            let entries = entries(&refund.attributes);
            let asks = [ask(&entries, 0)];
            let request = CheckRequest {
                domain: refund.domain.as_str(),
                descriptors: &asks,
                patience: Patience::Waits,
            };
            self.service.limiter.refund(&request, Hits::new(refund.amount.0)).await.map_err(|error| {
                match error {
                    RefundError::UnknownDomain(error) => self.unknown_domain(&error, "domain"),
                    RefundError::Store(error) => Problem::new(Kind::StoreUnavailable, error.to_string())
                        .hint("nothing was given back; try again"),
                }
            })?;
            let body = serde_json::json!({ "refunded": refund.amount.0 }).to_string();
            Ok(Replayable { status: StatusCode::OK, headers: HeaderMap::new(), body: body.into() })
        };
        match &refund.request_id {
            None => Ok(give_back.await?.into_answer()),
            Some(id) => {
                let asked = ("refund", refund.amount.0, fingerprint(&refund.attributes));
                self.once(&named(id.as_str(), refund.domain.as_str(), &asked), give_back).await
            }
        }
    }

    async fn decide(&self, check: &Check<'_>, began: Timestamp) -> Result<Replayable, Problem> {
        let entries = entries(&check.attributes);
        let asks = [ask(&entries, check.cost.0)];
        let request =
            CheckRequest { domain: check.domain.as_str(), descriptors: &asks, patience: Patience::Waits };
        let decision = self
            .service
            .limiter
            .check(&request)
            .await
            .map_err(|error| self.unknown_domain(&error, "domain"))?;
        Ok(self.replayable(&decision, began))
    }

    fn replayable(&self, decision: &Decision, began: Timestamp) -> Replayable {
        let mut headers = HeaderMap::new();
        self.service.write_headers(decision, self.service.settings.headers, began, &mut headers);
        let lease = decision.lease.as_ref().map(ToString::to_string);
        let body =
            serde_json::to_vec(&told(decision, lease.as_deref())).expect("a decision always serialises");
        Replayable { status: status_of(decision), headers, body: body.into() }
    }

    /// Answers a request that named itself: at most once a minute by `decide`, a repeat with the first answer.
    async fn once(
        &self,
        request: &RequestId,
        decide: impl Future<Output = Result<Replayable, Problem>>,
    ) -> Result<Answer, Problem> {
        match self.known(request).map_err(|problem| problem.at("request_id"))? {
            Ok(answer) => Ok(Replayable::clone(&answer).into_answer()),
            Err(first_time) => {
                let answer = Arc::new(decide.await?);
                first_time.answered(Arc::clone(&answer));
                Ok(Replayable::clone(&answer).into_answer())
            }
        }
    }

    fn look_up(&self, id: &str, check: &Check<'_>) -> Result<Known<'_>, Problem> {
        self.known(&named(
            id,
            check.domain.as_str(),
            &("check", check.cost.0, fingerprint(&check.attributes)),
        ))
    }

    fn known(&self, request: &RequestId) -> Result<Known<'_>, Problem> {
        self.replays.look_up(request, self.service.clock.now()).map_err(|error| {
            Problem::new(Kind::Conflict, error.to_string()).hint(match error {
                ReplayError::UsedForAnother => "use a new request_id for a new request",
                ReplayError::UnderWay => "wait for the first answer, then ask again",
            })
        })
    }

    /// A batch is taken whole or not at all, so that a typing error in one check does not spend the others.
    fn refuse_unknown_domains(&self, batch: &json::Batch<'_>) -> Result<(), Problem> {
        let snapshot = self.service.limiter.snapshot();
        for (number, check) in batch.checks.iter().enumerate() {
            if !snapshot.rules().has_domain(check.domain.as_str()) {
                let error = UnknownDomain { domain: check.domain.as_str().to_owned() };
                return Err(self.unknown_domain(&error, &format!("checks[{number}].domain")));
            }
        }
        Ok(())
    }

    fn unknown_domain(&self, error: &UnknownDomain, field: &str) -> Problem {
        const MOST_NAMED: usize = 20;
        let snapshot = self.service.limiter.snapshot();
        let mut known: Vec<&str> = snapshot.rules().domains().collect();
        known.sort_unstable();
        let more = known.len().saturating_sub(MOST_NAMED);
        known.truncate(MOST_NAMED);
        let list = if known.is_empty() { "none: no rules are loaded".to_owned() } else { known.join(", ") };
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        Problem::new(Kind::InvalidField, error.to_string())
            .at(field)
            .hint(format!("known domains: {list}{rest}"))
    }
}

impl Replayable {
    fn into_answer(self) -> Answer {
        let mut answer = answer(self.status, JSON, self.body);
        answer.headers_mut().extend(self.headers);
        answer
    }
}

fn status_of(decision: &Decision) -> StatusCode {
    match decision.allowed {
        true => StatusCode::OK,
        false if is_unavailable(decision) => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// A decision as a client reads it.
fn told<'d>(decision: &'d Decision, lease: Option<&'d str>) -> json::Decision<'d> {
    let governing = decision.governing();
    let limit = governing_limit(decision).map(|(_, limit)| limit);
    json::Decision {
        allowed: decision.allowed,
        error: (!decision.allowed).then_some(RATE_LIMIT_EXCEEDED),
        rule: governing.map(|report| rule_name(decision, report)),
        limit: limit.map(|limit| limit.quota),
        remaining: limit.map(|limit| limit.outcome.remaining),
        reset_after_ms: limit.map(|limit| limit.outcome.reset_after.as_millis_ceil()),
        retry_after_ms: limit.and_then(|limit| limit.outcome.retry_after()).map(Micros::as_millis_ceil),
        source: decision.source.name(),
        lease,
        delay_ms: decision.delay.as_millis_ceil(),
    }
}

/// The answer that was given before, or leave to decide.
type Known<'c> = Result<Arc<Replayable>, FirstTime<'c, Replayable>>;

fn named(id: &str, domain: &str, asked: &impl Hash) -> RequestId {
    RequestId { id: id.to_owned(), domain: domain.to_owned(), fingerprint: hash_of(asked) }
}

/// `{"decisions":[…]}` of decisions that are JSON already.
fn joined(bodies: impl Iterator<Item = Bytes>) -> BytesMut {
    let mut whole = BytesMut::from(&b"{\"decisions\":["[..]);
    for (number, body) in bodies.enumerate() {
        if number > 0 {
            whole.extend_from_slice(b",");
        }
        whole.extend_from_slice(&body);
    }
    whole.extend_from_slice(b"]}");
    whole
}

fn entries<'a>(attributes: &'a Attributes<'_>) -> Entries<'a> {
    attributes.iter().map(|(name, value)| (name, value.as_bytes())).collect()
}

fn ask<'a>(entries: &'a [(&'a str, &'a [u8])], cost: u64) -> DescriptorAsk<'a> {
    DescriptorAsk { descriptor: Descriptor { entries }, cost: Hits::new(cost), limit: None }
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
