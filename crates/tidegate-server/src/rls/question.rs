//! Converts Envoy's requests to limiter requests: bounds, hits, and the limits that descriptors bring along.
//!
//! A descriptor's hits take precedence over the request's, and a limit in a descriptor over the rules.

use smallvec::SmallVec;
use tidegate_core::{Hits, Micros};
use tidegate_limiter::{DescriptorAsk, Incurred, LimitOverride};

use super::{RateLimitDescriptor, RateLimitRequest, RateLimitUnit};
use crate::json::{MAX_ATTRIBUTES, MAX_DOMAIN_BYTES, MAX_NAME_BYTES};

/// The most descriptors of a request.
const MAX_DESCRIPTORS: usize = 100;

const DAY: u64 = 86_400;

/// What is wrong with a request, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub(crate) struct Mistake {
    /// The field, as a path: `descriptors[0].limit.unit`.
    pub(crate) field: String,
    pub(crate) problem: String,
}

/// One descriptor's attributes.
pub(super) type DescriptorEntries<'a> = SmallVec<[(&'a str, &'a [u8]); 4]>;

/// The limits in descriptors, by the descriptor's index; empty if there are none.
pub(super) type Overrides = Vec<Option<LimitOverride>>;

/// The attributes of every descriptor.
pub(super) fn entries(request: &RateLimitRequest) -> SmallVec<[DescriptorEntries<'_>; 2]> {
    request.descriptors.iter().map(entries_of).collect()
}

fn entries_of(descriptor: &RateLimitDescriptor) -> DescriptorEntries<'_> {
    descriptor.entries.iter().map(|entry| (entry.key.as_str(), &entry.value[..])).collect()
}

/// The asks of all descriptors.
pub(super) fn asks<'a>(
    request: &RateLimitRequest,
    entries: &'a [DescriptorEntries<'_>],
    overrides: &'a [Option<LimitOverride>],
) -> SmallVec<[DescriptorAsk<'a>; 2]> {
    let descriptors = request.descriptors.iter().zip(entries).enumerate();
    descriptors
        .map(|(number, (descriptor, entries))| {
            let cost = if descriptor.is_negative_hits { Hits::ZERO } else { hits(request, descriptor) };
            let own = overrides.get(number).and_then(Option::as_ref);
            DescriptorAsk::one(entries).cost(cost).limit(own).incurred(incurred(descriptor))
        })
        .collect()
}

/// Whether a descriptor's cost was incurred before the request. The protocol does not say: Envoy's call at the end of a stream
/// (`apply_on_stream_done`) looks like any other. But only a cost that is computed stands in the descriptor, and a check
/// before the fact has none or 0; so such a cost counts as incurred, as envoyproxy/ratelimit counts every cost.
fn incurred(descriptor: &RateLimitDescriptor) -> Incurred {
    match descriptor.hits_addend {
        Some(hits) if hits > 0 && !descriptor.is_negative_hits => Incurred::Already,
        _ => Incurred::IfAdmitted,
    }
}

/// The hits that a descriptor spends or refunds: its own, otherwise the request's, otherwise one.
pub(super) fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    Hits::new(descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1))))
}

/// The limits in descriptors.
pub(super) fn overrides(request: &RateLimitRequest) -> Result<Overrides, Mistake> {
    if request.descriptors.iter().all(|descriptor| descriptor.limit.is_none()) {
        return Ok(Overrides::new());
    }
    let descriptors = request.descriptors.iter().enumerate();
    descriptors.map(|(number, descriptor)| limit_override(&request.domain, number, descriptor)).collect()
}

fn limit_override(
    domain: &str,
    number: usize,
    descriptor: &RateLimitDescriptor,
) -> Result<Option<LimitOverride>, Mistake> {
    let Some(limit) = &descriptor.limit else { return Ok(None) };
    let wrong = |field: &str, problem: String| {
        let field = format!("descriptors[{number}].limit.{field}");
        Mistake { field, problem }
    };
    let seconds = match limit.unit() {
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => 60,
        RateLimitUnit::Hour => 3_600,
        RateLimitUnit::Day => DAY,
        RateLimitUnit::Month => 30 * DAY,
        RateLimitUnit::Year => 365 * DAY,
        RateLimitUnit::Unknown => {
            let problem = format!("expected a unit from SECOND to YEAR, found {}", limit.unit);
            return Err(wrong("unit", problem));
        }
    };
    let times = u64::from(limit.unit_multiplier.unwrap_or(1));
    if times == 0 {
        return Err(wrong("unit_multiplier", "expected at least 1, found 0".to_owned()));
    }
    LimitOverride::new(domain, u64::from(limit.requests_per_unit), Micros::from_secs(seconds * times))
        .map(Some)
        .map_err(|error| wrong("unit_multiplier", format!("{}; {}", error.problem, error.hint)))
}

/// Rejects empty required fields and values that are too large.
///
/// These fields come from a gateway's configuration. Values come from its clients, and only the message size bounds them: on
/// an error Envoy admits the request, so a client must not be able to cause one.
pub(super) fn check_bounds(request: &RateLimitRequest) -> Result<(), Mistake> {
    check_not_empty(request.domain.len(), || "domain".to_owned())?;
    check_at_most(request.domain.len(), MAX_DOMAIN_BYTES, "bytes", || "domain".to_owned())?;
    check_not_empty(request.descriptors.len(), || "descriptors".to_owned())?;
    check_at_most(request.descriptors.len(), MAX_DESCRIPTORS, "descriptors", || "descriptors".to_owned())?;
    for (number, descriptor) in request.descriptors.iter().enumerate() {
        let at = || format!("descriptors[{number}].entries");
        check_at_most(descriptor.entries.len(), MAX_ATTRIBUTES, "entries", at)?;
        for (place, entry) in descriptor.entries.iter().enumerate() {
            check_at_most(entry.key.len(), MAX_NAME_BYTES, "bytes", || format!("{}[{place}].key", at()))?;
        }
    }
    Ok(())
}

fn check_not_empty(length: usize, field: impl Fn() -> String) -> Result<(), Mistake> {
    if length > 0 {
        return Ok(());
    }
    Err(Mistake { field: field(), problem: "must not be empty".to_owned() })
}

fn check_at_most(found: usize, most: usize, of: &str, field: impl Fn() -> String) -> Result<(), Mistake> {
    if found <= most {
        return Ok(());
    }
    Err(Mistake { field: field(), problem: format!("expected at most {most} {of}, found {found}") })
}
