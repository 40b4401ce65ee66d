//! Envoy's questions as the limiter's, and its decisions as Envoy's answers.
//!
//! The rules are envoyproxy/ratelimit's: one status per descriptor, in order; a descriptor's hits before the request's;
//! a limit that a descriptor brings along before the rules. One difference is meant: a request that is refused spends
//! nothing, not even from the descriptors that would have passed.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, DescriptorDecision, LimitOverride, LimitReport, Patience,
    Transport,
};
use tidegate_rules::Descriptor;
use tonic::Status;

use super::RateLimits;
use crate::headers::HeaderSets;
use crate::json::{MAX_ATTRIBUTES, MAX_DOMAIN_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
use crate::rls::{
    Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    RateLimitUnit, Unit,
};
use crate::service::{Service, rule_name, span};

/// Descriptors of one request.
const MAX_DESCRIPTORS: usize = 100;

type Entries<'a> = SmallVec<[(&'a str, &'a [u8]); 4]>;

impl RateLimits for Arc<Service> {
    async fn should_rate_limit(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let began = self.clock.now();
        check_bounds(&request)?;
        let overrides = overrides(&request)?;
        let entries: SmallVec<[Entries<'_>; 2]> = request.descriptors.iter().map(entries).collect();
        let mut asks: SmallVec<[DescriptorAsk<'_>; 2]> = SmallVec::new();
        for (number, descriptor) in request.descriptors.iter().enumerate() {
            asks.push(DescriptorAsk {
                descriptor: Descriptor { entries: &entries[number] },
                cost: cost(&request, descriptor),
                limit: overrides.get(number).and_then(Option::as_ref),
            });
        }
        self.refund_negative_hits(&request, &asks).await;
        // A gateway cannot hold a request back.
        let patience = Patience::MustGoNow;
        let question = CheckRequest { domain: &request.domain, descriptors: &asks, patience };
        // An unknown domain passes, as Envoy's users expect; the limiter has told the observer.
        let answer = match self.limiter.check(&question).await {
            Ok(decision) => self.response(&decision, asks.len(), began),
            Err(_) => all_ok(asks.len()),
        };
        self.answered(Transport::Grpc, began);
        Ok(answer)
    }
}

impl Service {
    /// Gives back what descriptors with negative hits ask to give back. They then look, and so tell what is left.
    async fn refund_negative_hits(&self, request: &RateLimitRequest, asks: &[DescriptorAsk<'_>]) {
        for (descriptor, ask) in request.descriptors.iter().zip(asks) {
            if descriptor.is_negative_hits {
                let question = CheckRequest {
                    domain: &request.domain,
                    descriptors: std::slice::from_ref(ask),
                    patience: Patience::MustGoNow,
                };
                let amount = Hits::new(hits(request, descriptor));
                if let Err(error) = self.limiter.refund(&question, amount).await {
                    tracing::debug!(domain = request.domain, %error, "negative hits were not given back");
                }
            }
        }
    }

    fn response(&self, decision: &Decision, descriptors: usize, began: Timestamp) -> RateLimitResponse {
        let overall = if decision.allowed { Code::Ok } else { Code::OverLimit };
        let mut response = RateLimitResponse {
            overall_code: overall.into(),
            statuses: (0..descriptors).map(|number| status(decision, decision.descriptor(number))).collect(),
            ..RateLimitResponse::default()
        };
        if let Some(set) = self.settings.rls_headers {
            let mut headers = http::HeaderMap::new();
            self.write_headers(decision, HeaderSets::from_iter([set]), began, &mut headers);
            response.response_headers_to_add = headers.iter().map(header_value).collect();
        }
        response
    }
}

fn status(decision: &Decision, descriptor: DescriptorDecision) -> DescriptorStatus {
    let limit = descriptor.governing.as_ref().and_then(|report| Some((report, report.limit()?)));
    let code = if descriptor.over_limit { Code::OverLimit } else { Code::Ok };
    let mut status = DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
    match limit {
        Some((report, limit)) => {
            status.current_limit = Some(RateLimit {
                requests_per_unit: narrow(limit.quota),
                name: rule_name(decision, report).to_owned(),
                ..unit_of(limit)
            });
            status.limit_remaining = narrow(limit.outcome.remaining);
            status.duration_until_reset =
                prost_types::Duration::try_from(span(limit.outcome.reset_after)).ok();
        }
        None if descriptor.unlimited => status.limit_remaining = u32::MAX,
        None => {}
    }
    status
}

/// The limit's window in Envoy's units: the largest that divides it.
fn unit_of(limit: &LimitReport) -> RateLimit {
    const UNITS: [(u64, Unit); 7] = [
        (365 * DAY, Unit::Year),
        (30 * DAY, Unit::Month),
        (7 * DAY, Unit::Week),
        (DAY, Unit::Day),
        (3_600, Unit::Hour),
        (60, Unit::Minute),
        (1, Unit::Second),
    ];
    let window = limit.window.map_or(0, Micros::get);
    let fits = |(seconds, _): &&(u64, Unit)| window > 0 && window.is_multiple_of(seconds * 1_000_000);
    let Some((seconds, unit)) = UNITS.iter().find(fits) else { return RateLimit::default() };
    let times = narrow(window / (seconds * 1_000_000));
    RateLimit { unit: (*unit).into(), unit_multiplier: (times > 1).then_some(times), ..RateLimit::default() }
}

const DAY: u64 = 86_400;

/// Hits that a descriptor asks for: its own before the request's, and one where neither says anything.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)))
}

fn cost(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    if descriptor.is_negative_hits { Hits::ZERO } else { Hits::new(hits(request, descriptor)) }
}

fn entries(descriptor: &RateLimitDescriptor) -> Entries<'_> {
    descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_bytes())).collect()
}

/// The limits that descriptors bring along, each at its descriptor's place; empty where none does.
fn overrides(request: &RateLimitRequest) -> Result<Vec<Option<LimitOverride>>, Status> {
    if request.descriptors.iter().all(|descriptor| descriptor.limit.is_none()) {
        return Ok(Vec::new());
    }
    request
        .descriptors
        .iter()
        .enumerate()
        .map(|(number, descriptor)| limit_override(request, number, descriptor))
        .collect()
}

fn limit_override(
    request: &RateLimitRequest,
    number: usize,
    descriptor: &RateLimitDescriptor,
) -> Result<Option<LimitOverride>, Status> {
    let Some(limit) = &descriptor.limit else { return Ok(None) };
    let wrong = |what: &str| Status::invalid_argument(format!("descriptors[{number}].limit.{what}"));
    let seconds = match limit.unit() {
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => 60,
        RateLimitUnit::Hour => 3_600,
        RateLimitUnit::Day => DAY,
        RateLimitUnit::Month => 30 * DAY,
        RateLimitUnit::Year => 365 * DAY,
        RateLimitUnit::Unknown => return Err(wrong("unit: expected SECOND to YEAR")),
    };
    let times = u64::from(limit.unit_multiplier.unwrap_or(1));
    if times == 0 {
        return Err(wrong("unit_multiplier: expected at least 1"));
    }
    LimitOverride::new(
        &request.domain,
        u64::from(limit.requests_per_unit),
        Micros::from_secs(seconds * times),
    )
    .map(Some)
    .map_err(|error| wrong(&format!("{error}; {}", error.hint)))
}

fn check_bounds(request: &RateLimitRequest) -> Result<(), Status> {
    if request.domain.is_empty() {
        return Err(Status::invalid_argument("domain: must not be empty"));
    }
    if request.domain.len() > MAX_DOMAIN_BYTES {
        return Err(Status::invalid_argument(format!("domain: at most {MAX_DOMAIN_BYTES} bytes")));
    }
    if request.descriptors.is_empty() {
        return Err(Status::invalid_argument("descriptors: at least one is needed"));
    }
    if request.descriptors.len() > MAX_DESCRIPTORS {
        return Err(Status::invalid_argument(format!("descriptors: at most {MAX_DESCRIPTORS}")));
    }
    for (number, descriptor) in request.descriptors.iter().enumerate() {
        if descriptor.entries.len() > MAX_ATTRIBUTES {
            let text = format!("descriptors[{number}].entries: at most {MAX_ATTRIBUTES}");
            return Err(Status::invalid_argument(text));
        }
        for (place, entry) in descriptor.entries.iter().enumerate() {
            let at = || format!("descriptors[{number}].entries[{place}]");
            if entry.key.len() > MAX_NAME_BYTES {
                return Err(Status::invalid_argument(format!(
                    "{}.key: at most {MAX_NAME_BYTES} bytes",
                    at()
                )));
            }
            if entry.value.len() > MAX_VALUE_BYTES {
                return Err(Status::invalid_argument(format!(
                    "{}.value: at most {MAX_VALUE_BYTES} bytes",
                    at()
                )));
            }
        }
    }
    Ok(())
}

fn all_ok(descriptors: usize) -> RateLimitResponse {
    let ok = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![ok; descriptors],
        ..RateLimitResponse::default()
    }
}

fn header_value((name, value): (&http::HeaderName, &http::HeaderValue)) -> HeaderValue {
    HeaderValue {
        key: name.as_str().to_owned(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
        ..HeaderValue::default()
    }
}

/// Envoy's counts are 32 bits wide; more than that is told as the most there is.
fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
