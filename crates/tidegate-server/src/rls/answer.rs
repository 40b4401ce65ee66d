//! Decisions as Envoy's answers: one status per descriptor, in order.
//!
//! One deliberate difference from envoyproxy/ratelimit: a refused request spends nothing, not even from the descriptors that
//! would have been admitted. Their statuses are OK, with the unspent remainder.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderName;
use tidegate_core::Timestamp;
use tidegate_limiter::{Decision, DescriptorAsk, DescriptorDecision, LimitReport, Report};
use tidegate_rules::{Rule, envoy_unit};

use super::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse, Unit};
use crate::headers::{HeaderSet, HeaderSets, ResetForm, X_LIMIT, X_REMAINING, X_RESET};
use crate::service::{OVERRIDE, RlsHeaderNames, Service, rule_name};

/// The answer to a request that came at `began`: the whole decision and what it is about, and each descriptor's outcome with
/// its index in the decision about it.
pub(super) fn response<'d>(
    service: &Service,
    about: (&Decision, &[DescriptorAsk<'_>]),
    descriptors: impl Iterator<Item = (&'d Decision, usize)>,
    began: Timestamp,
) -> RateLimitResponse {
    let decision = about.0;
    let overall = if decision.allowed { Code::Ok } else { Code::OverLimit };
    let mut response = RateLimitResponse {
        overall_code: overall.into(),
        statuses: descriptors.map(|(decision, place)| status(decision, decision.descriptor(place))).collect(),
        ..RateLimitResponse::default()
    };
    if let Some(set) = service.settings.rls_headers {
        let mut headers = http::HeaderMap::new();
        let of_http = service.settings.headers;
        let sets =
            HeaderSets::from_iter([set]).with_reset(of_http.reset()).with_partitions(of_http.partitions());
        service.write_headers(about, sets, began, &mut headers);
        response.response_headers_to_add = headers.iter().map(header_value).collect();
    }
    if let Some(names) = &service.settings.rls_header_names {
        let headers = named_headers(service, decision, names, began);
        response.response_headers_to_add.extend(headers);
    }
    response.dynamic_metadata = service.settings.rls_metadata.then(|| metadata(decision));
    response
}

/// The three headers of envoyproxy/ratelimit; the last counts seconds from now, as there.
fn named_headers(
    service: &Service,
    decision: &Decision,
    names: &RlsHeaderNames,
    began: Timestamp,
) -> Vec<HeaderValue> {
    let mut headers = http::HeaderMap::new();
    let sets = HeaderSets::from_iter([HeaderSet::XRatelimit]).with_reset(ResetForm::Delta);
    service.write_headers((decision, &[]), sets, began, &mut headers);
    let ours = [X_LIMIT, X_REMAINING, X_RESET];
    let theirs = [&names.limit, &names.remaining, &names.reset];
    let named = |(ours, theirs): (HeaderName, _)| Some(header_value((theirs, headers.get(ours)?)));
    ours.into_iter().zip(theirs).filter_map(named).collect()
}

/// What Envoy's access log can show of the decision: the rule, what decided, and what is left.
fn metadata(decision: &Decision) -> prost_types::Struct {
    let text = |text: &str| prost_types::Value::from(text.to_owned());
    let mut fields = BTreeMap::from([("source".to_owned(), text(decision.source.name()))]);
    if let Some(report) = decision.reported() {
        fields.insert("rule".to_owned(), text(rule_name(decision, report)));
        if let Some(limit) = report.limit() {
            let remaining = prost_types::Value::from(limit.outcome.remaining as f64);
            fields.insert("remaining".to_owned(), remaining);
        }
    }
    prost_types::Struct { fields }
}

/// The answer without rules: every descriptor is admitted, and no limit is reported.
pub(super) fn all_ok(descriptors: usize) -> RateLimitResponse {
    let ok = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![ok; descriptors],
        ..RateLimitResponse::default()
    }
}

fn status(decision: &Decision, descriptor: DescriptorDecision) -> DescriptorStatus {
    let code = if descriptor.over_limit { Code::OverLimit } else { Code::Ok };
    let mut status = DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
    match descriptor.governing.as_ref().and_then(|report| Some((report, report.limit()?))) {
        Some((report, limit)) => {
            // Envoy makes headers of these numbers.
            if decision.rule_of(report).is_none_or(Rule::is_visible) {
                status.current_limit = Some(RateLimit {
                    requests_per_unit: narrow(limit.quota),
                    name: limit_name(decision, report).to_owned(),
                    ..unit_of(limit)
                });
                status.limit_remaining = narrow(limit.outcome.remaining);
            }
            // Envoy derives Retry-After from the longest one of a refusal, so this is when to retry. The time until the full
            // quota is back would make callers of a token bucket wait far too long.
            let refused = limit.outcome.retry_after().filter(|_| descriptor.over_limit);
            let until = refused.unwrap_or(limit.outcome.reset_after);
            status.duration_until_reset = prost_types::Duration::try_from(Duration::from(until)).ok();
        }
        None if descriptor.unlimited => status.limit_remaining = u32::MAX,
        None => {}
    }
    status
}

/// The limit's own name, as envoyproxy/ratelimit reports it; otherwise its rule's.
fn limit_name<'d>(decision: &'d Decision, report: &Report) -> &'d str {
    let rule = decision.rule_of(report);
    rule.map_or(OVERRIDE, |rule| rule.label().unwrap_or_else(|| Rule::name(rule)))
}

/// The limit's window in Envoy's units.
fn unit_of(limit: &LimitReport) -> RateLimit {
    let (name, times) = envoy_unit(limit.window);
    let unit = Unit::from_str_name(name).unwrap_or(Unit::Unknown);
    let unit_multiplier = (times > 1).then_some(narrow(times));
    RateLimit { unit: unit.into(), unit_multiplier, ..RateLimit::default() }
}

fn header_value((name, value): (&HeaderName, &http::HeaderValue)) -> HeaderValue {
    HeaderValue {
        key: name.as_str().to_owned(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
        ..HeaderValue::default()
    }
}

/// Envoy's counts have 32 bits; larger ones saturate.
fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
