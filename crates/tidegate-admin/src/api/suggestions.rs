//! Suggested limits: derived from the peak demand of callers over all nodes, with one call to try one in shadow.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_decisions::{DecisionLog, LimitDemand, NamedPeak};
use tidegate_rules::{Mode, RuleSet, Timestamp, shadow_of};
use tidegate_rulestore::put_rule;

use super::body::{Body, Query};
use super::caller::Caller;
use super::decisions::{log_of, mask};
use super::fresh::Fresh;
use super::problem::{Answer, Problem};
use super::publish::{Wanted, documents, editable, publish};
use super::replay_sample::{Touched, touched};
use super::when;
use crate::control::{ControlPlane, Enforced, JoinedDemand, SHARED_FOR, worthy};

/// The number of callers above a suggested limit that are named.
const NAMED: usize = 5;
/// The least confidence of a suggestion, in percent.
const LEAST_CONFIDENCE: u64 = 90;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SuggestionsQuery {
    domain: Option<String>,
    rule: Option<String>,
}

/// The suggestion to try.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TryLimit {
    domain: String,
    rule: String,
    /// The limit's name; by default the rule's first limit.
    limit: Option<String>,
    /// A number to use instead of the suggested one.
    value: Option<u64>,
    #[serde(default)]
    reason: String,
}

/// A number, and how often it occurred.
#[derive(Serialize)]
struct Counted {
    value: u64,
    count: u64,
}

#[derive(Serialize)]
struct Above {
    key: Vec<(String, String)>,
    peak: u64,
}

pub(crate) async fn suggestions(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    fresh: Fresh,
    Query(wanted): Query<SuggestionsQuery>,
) -> Answer<Json<Value>> {
    let log = log_of(&control)?;
    let JoinedDemand { limits, nodes, missing } =
        control.questions.demand(log, wanted.domain, wanted.rule, fresh.shared()).await;
    let snapshot = control.limiter.snapshot();
    let waits = control.autopilot_waits.lock().clone();
    let mut rules: Vec<Value> = Vec::new();
    for limit in &limits {
        let mode = mode(snapshot.rules(), limit);
        let shown = shown(limit, mode, log, &caller);
        match rules.last_mut() {
            Some(last) if last["domain"] == limit.domain && last["rule"] == limit.rule => {
                if let Some(limits) = last["limits"].as_array_mut() {
                    limits.push(shown);
                }
            }
            _ => rules.push(json!({
                "domain": limit.domain,
                "rule": limit.rule,
                "shadow": mode == Mode::Shadow,
                "autopilot": waits.get(&(limit.domain.clone(), limit.rule.clone())),
                "limits": [shown],
            })),
        }
    }
    Ok(Json(json!({ "rules": rules, "nodes": nodes, "missing": missing })))
}

/// The mode of the limit's rule. One that is no longer in use was enforced, for all that is known.
fn mode(rules: &RuleSet, limit: &LimitDemand) -> Mode {
    let is_it = |rule: &&tidegate_rules::Rule| rule.domain() == limit.domain && rule.name() == limit.rule;
    rules.rules().find(is_it).map_or(Mode::Enforce, |rule| rule.mode())
}

fn shown(limit: &LimitDemand, mode: Mode, log: &DecisionLog, caller: &Caller) -> Value {
    let peaks = limit.peaks();
    let suggested = worthy(limit, Enforced::of(mode, limit.quota), LEAST_CONFIDENCE, NAMED);
    let none_because = suggested.as_ref().err().cloned();
    let suggestion = suggested.ok().map(|suggested| {
        let above = |one: NamedPeak| {
            let (peak, mut key) = (one.peak.needed(), one.key);
            mask(&mut key, log, caller);
            Above { key, peak }
        };
        json!({
            "limit": suggested.limit,
            "percentile": 99.9,
            "confidence_percent": suggested.confidence_percent,
            "callers_above": suggested.above,
            "requests_above": suggested.requests_above,
            "busiest": suggested.busiest.into_iter().map(above).collect::<Vec<_>>(),
        })
    });
    json!({
        "limit": limit.limit,
        "algorithm": limit.algorithm,
        "quota": limit.quota,
        "window_us": limit.window_us,
        "since": when::text(Timestamp::from_micros(limit.since_us)),
        "requests": limit.requests(),
        "left_out": limit.left_out,
        "callers": peaks.total(),
        "sampled_one_in": limit.sampled_one_in(),
        "peaks": peaks.iter().map(|(value, count)| Counted { value, count }).collect::<Vec<_>>(),
        "touched": curve(limit),
        "suggestion": suggestion,
        "none_because": none_because,
    })
}

/// Points for a slider: what each limit would have touched, including the limit in force.
fn curve(limit: &LimitDemand) -> Vec<Touched> {
    let peaks = limit.peaks();
    let values: Vec<u64> = peaks.iter().map(|(value, _)| value).chain([limit.quota]).collect();
    touched(&values, |at| (peaks.above(at), limit.requests_above(at)))
}

/// Publishes a shadow rule with the suggested limit: it counts, but never refuses.
pub(crate) async fn make_shadow(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<TryLimit>,
) -> Answer<Response> {
    let store = editable(&control)?;
    let log = log_of(&control)?;
    let TryLimit { domain, rule, limit, value, reason } = wanted;
    let snapshot = control.limiter.snapshot();
    let known = snapshot.rules().rules().find(|known| known.domain() == domain && known.name() == rule);
    let known =
        known.ok_or_else(|| Problem::not_found(format!("the domain `{domain}` has no rule `{rule}`")))?;
    let place = match &limit {
        Some(limit) => known.limits().position(|one| one.name == *limit).ok_or_else(|| {
            let names: Vec<&str> = known.limits().map(|one| one.name.as_str()).collect();
            Problem::field("limit", format!("the rule has no limit `{limit}`"))
                .hint(&format!("it has {}", names.join(", ")))
        })?,
        None => 0,
    };
    let name = known.limits().nth(place).map(|one| one.name.clone()).unwrap_or_default();
    let number = match value {
        Some(0) => return Err(Problem::field("value", "a limit is 1 or more")),
        Some(value) => value,
        None => {
            let demand =
                control.questions.demand(log, Some(domain.clone()), Some(rule.clone()), SHARED_FOR).await;
            let seen = demand.limits.iter().find(|seen| seen.limit == name);
            let enforced = |seen: &LimitDemand| Enforced::of(known.mode(), seen.quota);
            let suggested = seen.map(|seen| worthy(seen, enforced(seen), LEAST_CONFIDENCE, 0));
            let suggested = suggested.unwrap_or_else(|| Err("no caller was seen".to_owned()));
            let none = |why: String| {
                Problem::field("rule", format!("nothing is suggested: {why}"))
                    .hint("give the number with `value`")
            };
            suggested.map_err(none)?.limit
        }
    };
    let on = store.head().await?.version;
    let before = documents(store, on).await?;
    let document = before
        .get(&domain)
        .ok_or_else(|| Problem::not_found(format!("there is no document of the domain `{domain}`")))?;
    let shadow = format!("{rule}-suggested");
    let about = format!("what {rule} would do with {number} as its limit {name}");
    let text =
        shadow_of(document, (&domain, &rule), (place, number), (&shadow, &about)).ok_or_else(|| {
            Problem::field("rule", "its number is not written in its list of limits")
                .hint("write the shadow rule by hand: tiers and defaults have numbers elsewhere")
        })?;
    let changed =
        put_rule(document, &shadow, &text).map_err(|error| Problem::field("rule", error.to_string()))?;
    let documents = before.with(&domain, changed);
    let reason =
        if reason.is_empty() { format!("tries {number} for {domain}/{rule} in shadow") } else { reason };
    publish(&control, &caller, Wanted { on, documents, reason: &reason, action: "publish" }).await
}
