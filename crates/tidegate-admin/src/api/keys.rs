//! Keys: what a caller has left, and resets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::{Hits, Micros};
use tidegate_decisions::is_hash;
use tidegate_limiter::{CellUsage, CheckRequest, Decision, DescriptorAsk, Limiter, RefundError, Usage};
use tidegate_rules::{Descriptor, RuleOutcome, UnknownDomain};

use super::body::Body;
use super::caller::Caller;
use super::overrides;
use super::pieces::in_pieces;
use super::problem::{Answer, Problem};
use super::publish::check_reason;
use crate::control::ControlPlane;
use crate::jobs::{self, Job};

/// The most attributes of a key, and the longest of their names and values.
const MOST_ATTRIBUTES: usize = 64;
const LONGEST: usize = 4_096;

/// Attempts of a reset, and the pause between them.
const RESET_TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    pub(crate) domain: String,
    #[serde(default)]
    pub(crate) attributes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyReset {
    domain: String,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
    #[serde(default)]
    reason: String,
}

impl Key {
    pub(crate) fn entries(&self) -> Answer<Vec<(&str, &[u8])>> {
        entries(&self.attributes)
    }
}

fn entries(attributes: &BTreeMap<String, String>) -> Answer<Vec<(&str, &[u8])>> {
    if attributes.len() > MOST_ATTRIBUTES {
        return Err(Problem::field("attributes", format!("there are more than {MOST_ATTRIBUTES}")));
    }
    if let Some((name, _)) = attributes.iter().find(|(name, value)| name.len().max(value.len()) > LONGEST) {
        let field = format!("attributes.{}", &name[..name.floor_char_boundary(64)]);
        return Err(Problem::field(&field, format!("it is longer than {LONGEST} bytes")));
    }
    Ok(attributes.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect())
}

/// Refuses values that this node's log shows as hashes: limits count the values that callers send, so a hash would name
/// nobody.
pub(crate) fn refuse_hashes(
    control: &ControlPlane,
    attributes: &BTreeMap<String, String>,
    field: &str,
) -> Answer<()> {
    let Some(log) = &control.decisions else { return Ok(()) };
    let hashed = attributes.iter().find(|(name, value)| is_hash(value) && !log.names().is_clear(name));
    let Some((name, _)) = hashed else { return Ok(()) };
    let field = format!("{field}.{}", &name[..name.floor_char_boundary(64)]);
    Err(Problem::field(
        &field,
        "it is a hash from the decision log, and limits count the values that callers send",
    )
    .hint("give the value itself; `decision_log.clear` lists the attributes whose values the log keeps"))
}

pub(crate) async fn look_up(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(key): Body<Key>,
) -> Answer<Response> {
    let entries = key.entries()?;
    refuse_hashes(&control, &key.attributes, "attributes")?;
    let looked = control.limiter.look(&key.domain, Descriptor { entries: &entries }).await;
    let looked = looked.map_err(|error| unknown_domain(&control, &error))?;
    let lane = caller.lane.clone();
    // Every rule of the domain has its say, and every override.
    jobs::RULES.run(&lane, move |job| usage((&control, job), &caller, &key, &looked)).await?
}

fn usage(
    (control, job): (&ControlPlane, &Job),
    caller: &Caller,
    key: &Key,
    looked: &Decision,
) -> Answer<Response> {
    let entries = key.entries()?;
    let usage = Usage::of(looked, &key.domain, &Descriptor { entries: &entries }, control.clock.now());
    let usage = usage.map_err(|error| unknown_domain(control, &error))?;
    job.go_on()?;
    let cells: Vec<Value> = usage.cells.iter().map(cell).collect();
    let others =
        usage.explanation.rules.iter().filter(|one| !matches!(one.outcome, RuleOutcome::Counts { .. }));
    let others: Vec<Value> = others
        .map(|one| {
            let mut value = serde_json::to_value(one).unwrap_or_default();
            if value.get("because").is_none() {
                value["because"] = one.outcome.to_string().into();
            }
            value
        })
        .collect();
    job.go_on()?;
    let body = json!({
        "domain": key.domain,
        "source": usage.source.name(),
        "cells": cells,
        "others": others,
        "overrides": overrides::of_key(control, key, caller),
    });
    Ok(in_pieces(&body, job))
}

fn cell(cell: &CellUsage) -> Value {
    json!({
        "rule": cell.rule,
        "limit_name": cell.limit.name,
        "algorithm": cell.limit.algorithm,
        "mode": cell.mode,
        "limit": cell.quota,
        "window_ms": cell.window.map(Micros::as_millis_ceil),
        "used": cell.quota.saturating_sub(cell.outcome.remaining),
        "remaining": cell.outcome.remaining,
        "reset_after_ms": cell.outcome.reset_after.as_millis_ceil(),
        "retry_after_ms": cell.outcome.retry_after().map(Micros::as_millis_ceil),
        "refused": !cell.outcome.is_admitted(),
        "from": cell.from,
        "key": cell.key,
    })
}

pub(crate) async fn reset(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<KeyReset>,
) -> Answer<Json<Value>> {
    let entries = entries(&wanted.attributes)?;
    refuse_hashes(&control, &wanted.attributes, "attributes")?;
    check_reason(&wanted.reason)?;
    let descriptor = Descriptor { entries: &entries };
    let looked = control.limiter.look(&wanted.domain, descriptor).await;
    let looked = looked.map_err(|error| unknown_domain(&control, &error))?;
    let cells = looked.reports().iter().filter(|report| report.limit().is_some()).count();
    let asks = [DescriptorAsk::of(descriptor).cost(Hits::ZERO)];
    let request = CheckRequest::new(&wanted.domain, &asks);
    let names: Vec<&String> = wanted.attributes.keys().collect();
    let target = format!("{} {names:?}", wanted.domain);
    let detail = json!({ "attributes": wanted.attributes, "cells": cells, "reason": wanted.reason });
    // Before the reset: one that is not in the log must not happen, and a database that does not answer is known in time.
    note_reset(&control, &caller, &target, &detail).await?;
    let Err(error) = reset_patiently(&control.limiter, &request).await else {
        return Ok(Json(json!({ "cells": cells })));
    };
    let mut failed = detail;
    failed["failed"] = error.to_string().into();
    // If this is lost, the log says that a reset was asked for, which is true.
    let _ = note_reset(&control, &caller, &target, &failed).await;
    Err(match error {
        RefundError::UnknownDomain(error) => unknown_domain(&control, &error),
        other => Problem::unavailable(other.to_string())
            .hint("counters may have been reset, all or some; to repeat the reset does no harm"),
    })
}

async fn note_reset(control: &ControlPlane, caller: &Caller, target: &str, detail: &Value) -> Answer<()> {
    let Some(store) = &control.store else { return Ok(()) };
    Ok(store.note(&caller.actor, control.clock.now(), "key.reset", target, detail).await?)
}

/// Retries a reset that timed out: a person can wait longer than a request, and a second reset does no harm.
async fn reset_patiently(limiter: &Limiter, request: &CheckRequest<'_>) -> Result<(), RefundError> {
    for _ in 1..RESET_TRIES {
        match limiter.reset(request).await {
            Err(RefundError::Store(_)) => tokio::time::sleep(BETWEEN_TRIES).await,
            done => return done,
        }
    }
    limiter.reset(request).await
}

pub(crate) fn unknown_domain(control: &ControlPlane, error: &UnknownDomain) -> Problem {
    const MOST_NAMED: usize = 20;
    let snapshot = control.limiter.snapshot();
    let mut known: Vec<&str> = snapshot.rules().domains().collect();
    known.sort_unstable();
    known.truncate(MOST_NAMED);
    Problem::not_found(error.to_string())
        .with("field", "domain")
        .hint(&format!("known domains: {}", known.join(", ")))
}
