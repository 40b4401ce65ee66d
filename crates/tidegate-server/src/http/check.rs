//! `/v1/check` and `/v1/refund`.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_http::answer;
use tidegate_http::headers::MOST_HEADERS;
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, RefundError, Report, SpentAt, TraceContext, Transport,
};
use tidegate_rules::{Rule, UnknownDomain};
use tidegate_store::RefundId;

use super::idempotency::{DecideBy, Keep, KeptAnswer, NamedTurn, check_id, detached, refund_id, settled};
use super::{Answer, HttpState, JSON};
use crate::json::{self, Attributes, Check, Count, SkippedRule};
use crate::problem::{Kind, Problem};
use crate::service::rule_name;

pub(super) type Entries<'a> = SmallVec<[(&'a str, &'a [u8]); 8]>;

impl HttpState {
    pub(super) async fn check(
        self: &Arc<Self>,
        body: Bytes,
        trace: Option<TraceContext>,
    ) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let check: Check<'_> = json::parse(&body)?;
        let told = match check.request_id {
            None => self.decide(&check, DecideBy::Store, began, trace).await?,
            Some(_) => {
                let (shared, body) = (self.clone(), body.clone());
                detached(async move { shared.check_once(&body, began, trace).await }).await?
            }
        };
        self.service.answered(Transport::Http, began);
        Ok(told.into())
    }

    pub(super) async fn refund(self: &Arc<Self>, body: Bytes) -> Result<Answer, Problem> {
        let refund: json::Refund<'_> = json::parse(&body)?;
        let told = match refund.request_id {
            None => self.give_back(&refund, None).await?,
            Some(_) => {
                let (shared, body) = (self.clone(), body.clone());
                detached(async move { shared.refund_once(&body).await }).await?
            }
        };
        Ok(told.into())
    }

    async fn check_once(
        &self,
        body: &[u8],
        began: Timestamp,
        trace: Option<TraceContext>,
    ) -> Result<KeptAnswer, Problem> {
        let check: Check<'_> = json::parse(body)?;
        let id = check.request_id.as_ref().map_or("", |id| id.as_str());
        let turn = self.turn(&check_id(&check, id)).await?;
        let by = DecideBy::under(Some(&turn));
        match turn {
            NamedTurn::Answered(kept) => Ok(kept),
            NamedTurn::Ours(first) => settled(first, self.decide(&check, by, began, trace).await).await,
        }
    }

    async fn refund_once(&self, body: &[u8]) -> Result<KeptAnswer, Problem> {
        let refund: json::Refund<'_> = json::parse(body)?;
        let id = refund.request_id.as_ref().map_or("", |id| id.as_str());
        let request = refund_id(&refund, id);
        match self.turn(&request).await? {
            NamedTurn::Answered(kept) => Ok(kept),
            // It may already have been refunded, also on this node's local count, which does not record request ids.
            NamedTurn::Ours(first) if !first.is_certain() => {
                first.withdrawn().await;
                let detail = "the store did not say whether this request_id is new: nothing was given back";
                Err(Problem::new(Kind::StoreUnavailable, detail).hint("try again with the same request_id"))
            }
            NamedTurn::Ours(first) => {
                settled(first, self.give_back(&refund, Some(request.refund_id())).await).await
            }
        }
    }

    async fn decide(
        &self,
        check: &Check<'_>,
        by: DecideBy,
        began: Timestamp,
        trace: Option<TraceContext>,
    ) -> Result<KeptAnswer, Problem> {
        let entries = entries(&check.attributes);
        let descriptors = [ask(&entries, check.cost.0)];
        let request = by.question(question(check.domain.as_str(), &descriptors));
        let decided = self.service.limiter.check(&request).await;
        let decision = decided.map_err(|error| self.unknown_domain(&error, "domain"))?;
        self.service.traced(trace, Transport::Http, began, check.domain.as_str(), &decision);
        Ok(self.checked(&decision, &entries, began))
    }

    async fn give_back(
        &self,
        refund: &json::Refund<'_>,
        id: Option<RefundId>,
    ) -> Result<KeptAnswer, Problem> {
        let entries = entries(&refund.attributes);
        let asks = [ask(&entries, 0)];
        let request = question(refund.domain.as_str(), &asks);
        let (limiter, amount, spent) =
            (&self.service.limiter, Hits::new(refund.amount.0), self.spent_at(refund)?);
        let refunded = match id {
            None => limiter.refund(&request, amount, spent).await,
            Some(id) => limiter.refund_once(&request, amount, spent, id).await,
        };
        refunded.map_err(|error| match error {
            RefundError::UnknownDomain(error) => self.unknown_domain(&error, "domain"),
            RefundError::Store(error) if error.is_certainly_not_applied() || id.is_some() => {
                super::store_unavailable(&error)
            }
            error => Problem::new(Kind::StoreUnavailable, error.to_string()).hint(
                "it may have been given back, in part or whole; with a request_id it can be tried again safely",
            ),
        })?;
        let body = serde_json::json!({ "refunded": refund.amount.0 }).to_string();
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, JSON)]);
        Ok(KeptAnswer { status: StatusCode::OK, headers, body: body.into(), keep: Keep::Answer })
    }

    /// When the refunded hits were spent.
    fn spent_at(&self, refund: &json::Refund<'_>) -> Result<SpentAt<'static>, Problem> {
        let wrong = |why: &str| Problem::new(Kind::InvalidField, format!("spent: {why}")).at("spent");
        match (&refund.spent, refund.age_ms) {
            (None, None) => Ok(SpentAt::Unknown),
            (None, Some(Count(ms))) => Ok(SpentAt::Ago(Micros::from_millis(ms))),
            (Some(_), Some(_)) => Err(wrong("cannot be given together with age_ms").hint("leave age_ms out")),
            (Some(spent), None) => match self.service.limiter.read_spent(spent.as_str().as_bytes()) {
                Ok(token) => Ok(SpentAt::Token(token)),
                Err(error) => Err(wrong(&error.to_string())),
            },
        }
    }

    /// The answer to a check of these attributes.
    pub(super) fn checked(
        &self,
        decision: &Decision,
        entries: &[(&str, &[u8])],
        began: Timestamp,
    ) -> KeptAnswer {
        let mut headers = HeaderMap::with_capacity(MOST_HEADERS + 1);
        headers.insert(CONTENT_TYPE, JSON);
        let about = (decision, &[DescriptorAsk::one(entries)][..]);
        self.service.write_headers(about, self.service.settings.headers, began, &mut headers);
        self.answered(decision, Some(entries), headers)
    }

    /// The answer with these headers; `entries` is `None` if the client did not name its attributes.
    pub(super) fn answered(
        &self,
        decision: &Decision,
        entries: Option<&[(&str, &[u8])]>,
        headers: HeaderMap,
    ) -> KeptAnswer {
        let lease = decision.lease.as_ref().map(ToString::to_string);
        let mut body = Vec::with_capacity(USUAL_BODY_BYTES);
        serde_json::to_writer(&mut body, &as_json(decision, entries, lease.as_deref()))
            .expect("a decision always serialises");
        // An admission without the store is final.
        let is_none = decision.source.is_without_the_store() && !decision.allowed;
        let keep = if is_none { Keep::Nothing } else { Keep::Answer };
        let status = answer::status(decision, self.service.settings.closed_status);
        KeptAnswer { status, headers, body: body.into(), keep }
    }

    pub(super) fn unknown_domain(&self, error: &UnknownDomain, field: &str) -> Problem {
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

/// Enough for a decision without a lease, so that the buffer does not move.
const USUAL_BODY_BYTES: usize = 256;

/// A decision as the client reads it.
fn as_json<'d>(
    decision: &'d Decision,
    entries: Option<&[(&str, &[u8])]>,
    lease: Option<&'d str>,
) -> json::Decision<'d> {
    let shown = answer::shown(decision);
    let limit = shown.and_then(Report::limit);
    json::Decision {
        allowed: decision.allowed,
        error: answer::refusal_kind(decision).map(Kind::code),
        message: (!decision.allowed).then(|| answer::message(decision)),
        rule: shown.map(|report| rule_name(decision, report)),
        limit: limit.map(|limit| limit.quota),
        remaining: limit.map(|limit| limit.outcome.remaining),
        reset_after_ms: limit.map(|limit| limit.outcome.reset_after.as_millis_ceil()),
        retry_after_ms: answer::retry_after(decision).map(Micros::as_millis_ceil),
        source: decision.source.name(),
        lease,
        delay_ms: decision.delay.as_millis_ceil(),
        skipped: entries
            .map(|entries| {
                let visible = decision.skipped().filter(|rule| rule.is_visible());
                visible.map(|rule| skipped(rule, entries)).collect()
            })
            .unwrap_or_default(),
        spent: decision.spent(),
    }
}

/// A rule that did not count a request, and what the request lacks.
fn skipped<'d>(rule: &'d Rule, entries: &[(&str, &[u8])]) -> SkippedRule<'d> {
    let is_missing = |name: &&String| !entries.iter().any(|(sent, _)| sent == *name);
    SkippedRule {
        rule: rule.name(),
        missing: rule.key().iter().filter(is_missing).map(String::as_str).collect(),
    }
}

/// A client of this transport reads `delay_ms` and waits.
pub(super) fn question<'a>(domain: &'a str, descriptors: &'a [DescriptorAsk<'a>]) -> CheckRequest<'a> {
    CheckRequest::new(domain, descriptors)
}

pub(super) fn entries<'a>(attributes: &'a Attributes<'_>) -> Entries<'a> {
    attributes.iter().map(|(name, value)| (name, value.as_bytes())).collect()
}

pub(super) fn ask<'a>(entries: &'a [(&'a str, &'a [u8])], cost: u64) -> DescriptorAsk<'a> {
    DescriptorAsk::one(entries).cost(Hits::new(cost))
}
