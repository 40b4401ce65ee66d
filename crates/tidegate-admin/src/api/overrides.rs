//! Overrides and bans of single keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_rules::Timestamp;
use tidegate_rulestore::{Action, KeyOverride, NewOverride, OverrideFilter, Role, RuleStore};

use super::body::{Body, Query};
use super::caller::Caller;
use super::keys::{Key, refuse_hashes};
use super::problem::{Answer, Problem};
use super::publish::{check_reason, leading};
use super::when;
use crate::control::{ControlPlane, runtime};

const USUAL: u32 = 100;
const MOST: u32 = 1_000;
/// The most bytes of an override without its reason. Every node keeps all of them, and there may be 200,000.
const MOST_BYTES: usize = 8_192;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    domain: Option<String>,
    rule: Option<String>,
    action: Option<Action>,
    search: Option<String>,
    after: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideBody {
    domain: String,
    #[serde(default)]
    rule: Option<String>,
    when: BTreeMap<String, String>,
    action: Action,
    #[serde(default)]
    limits: Vec<Value>,
    #[serde(default)]
    until: Option<String>,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lift {
    id: String,
    #[serde(default)]
    reason: String,
}

pub(crate) async fn list(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Query(filter): Query<Filter>,
) -> Answer<Json<Value>> {
    let limit = filter.limit.unwrap_or(USUAL).clamp(1, MOST);
    // A viewer does not see values, and must not find them by search either.
    let search = filter.search.filter(|_| caller.actor.role > Role::Viewer);
    let wanted = OverrideFilter {
        domain: filter.domain,
        rule: filter.rule,
        action: filter.action,
        search,
        after: filter.after,
    };
    let (found, total) = match leading(&control) {
        Ok(store) => store.overrides(&wanted, control.clock.now(), limit).await?,
        // If the database is another node's, list the overrides that run here.
        Err(_) => running(&control, &wanted, limit),
    };
    let next = found.last().filter(|_| found.len() == limit as usize).map(|one| one.id.clone());
    let overrides: Vec<Value> = found.iter().map(|one| as_json(&control, one, &caller)).collect();
    Ok(Json(json!({ "overrides": overrides, "total": total, "next": next })))
}

pub(crate) async fn create(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<OverrideBody>,
) -> Answer<(StatusCode, Json<Value>)> {
    let store = leading(&control)?;
    let now = control.clock.now();
    let what = checked(&control, wanted, now)?;
    let made = store.add_override(what, &caller.actor, now).await?;
    control.published.take_own(store).await;
    let answer = changed(&control, store, as_json(&control, &made, &caller)).await;
    Ok((StatusCode::CREATED, Json(answer)))
}

pub(crate) async fn lift(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(Lift { id, reason }): Body<Lift>,
) -> Answer<Json<Value>> {
    let store = leading(&control)?;
    check_reason(&reason)?;
    let lifted = store.lift_override(&id, &reason, &caller.actor, control.clock.now()).await?;
    let lifted =
        lifted.ok_or_else(|| Problem::not_found("there is no such override, or it was lifted already"))?;
    control.published.take_own(store).await;
    Ok(Json(changed(&control, store, as_json(&control, &lifted, &caller)).await))
}

/// The answer to a change: with the revision from which a node has it, and which nodes do.
async fn changed(control: &ControlPlane, store: &RuleStore, mut answer: Value) -> Value {
    answer["revision"] = store.head().await.ok().map(|head| head.overrides).into();
    answer["distribution"] = control.published.distributed(store).await;
    answer
}

/// The bytes of an override that nodes keep.
fn bytes_of(wanted: &OverrideBody) -> usize {
    let when: usize = wanted.when.iter().map(|(name, value)| name.len() + value.len()).sum();
    let limits: usize = wanted.limits.iter().map(|limit| limit.to_string().len()).sum();
    wanted.domain.len() + wanted.rule.as_ref().map_or(0, String::len) + when + limits
}

/// Validates the override against the rules in force.
fn checked(control: &ControlPlane, wanted: OverrideBody, now: Timestamp) -> Answer<NewOverride> {
    if wanted.when.is_empty() {
        return Err(Problem::field("when", "it is empty, so this would be for everybody")
            .hint("name attributes and their values: {\"user\": \"42\"}"));
    }
    let entries = Key { domain: wanted.domain.clone(), attributes: wanted.when.clone() };
    entries.entries()?;
    refuse_hashes(control, &wanted.when, "when")?;
    check_reason(&wanted.reason)?;
    if wanted.when.keys().any(|name| name.chars().any(char::is_control)) {
        return Err(Problem::field("when", "the name of an attribute holds a control character"));
    }
    if wanted.action != Action::Limits && !wanted.limits.is_empty() {
        return Err(Problem::field("limits", "only `action: limits` has limits"));
    }
    let bytes = bytes_of(&wanted);
    if bytes > MOST_BYTES {
        return Err(Problem::field("", format!("the override has {bytes} bytes, more than {MOST_BYTES}"))
            .hint("name the key by fewer or shorter attributes, and give it fewer limits"));
    }
    let until = wanted.until.map(|until| when::parse(&until, "until")).transpose()?;
    if until.is_some_and(|until| until <= now) {
        return Err(Problem::field("until", "it has passed already"));
    }
    let what = NewOverride {
        domain: wanted.domain,
        rule: wanted.rule,
        when: wanted.when,
        action: wanted.action,
        limits: wanted.limits,
        until_us: until.map(Timestamp::as_micros),
        reason: wanted.reason,
    };
    // Only compiling it shows the remaining mistakes.
    let alone = KeyOverride { id: String::new(), what, author: String::new(), at_us: 0 };
    let snapshot = control.limiter.snapshot();
    if let Err(why) =
        snapshot.rules().check_override_within(&runtime(&alone), &|rule| control.limiter.room_of(rule))
    {
        let is_known = snapshot.rules().domains().any(|domain| *domain == *alone.what.domain);
        let field = match (is_known, alone.what.action, &alone.what.rule) {
            (false, ..) => "domain",
            (true, Action::Limits, Some(_)) => "limits",
            _ => "rule",
        };
        return Err(Problem::field(field, why));
    }
    Ok(alone.what)
}

/// The overrides for this key.
pub(crate) fn of_key(control: &ControlPlane, key: &Key, caller: &Caller) -> Vec<Value> {
    let (all, now) = (control.rules.now().overrides.clone(), control.clock.now());
    let fits = |one: &&KeyOverride| {
        one.what.domain == key.domain
            && one.what.until_us.is_none_or(|until| now.as_micros() < until)
            && one.what.when.iter().all(|(name, value)| key.attributes.get(name) == Some(value))
    };
    all.iter().filter(fits).map(|one| as_json(control, one, caller)).collect()
}

fn as_json(control: &ControlPlane, one: &KeyOverride, caller: &Caller) -> Value {
    let mut when: BTreeMap<&String, String> =
        one.what.when.iter().map(|(name, value)| (name, value.clone())).collect();
    if caller.actor.role == Role::Viewer {
        when.values_mut().for_each(|value| "…".clone_into(value));
    }
    let mut value = json!({
        "id": one.id,
        "domain": one.what.domain,
        "rule": one.what.rule,
        "when": when,
        "action": one.what.action,
        "limits": one.what.limits,
        "until": one.what.until_us.map(|until| when::text(Timestamp::from_micros(until))),
        "reason": one.what.reason,
        "author": one.author,
        "at": when::text(Timestamp::from_micros(one.at_us)),
    });
    let without_effect = control.rules.now().without_effect.clone();
    if let Some((_, why)) = without_effect.iter().find(|(id, _)| *id == one.id) {
        value["warning"] = why.as_str().into();
    }
    value
}

/// A page of the overrides that run here, and the number of all matches.
fn running(control: &ControlPlane, wanted: &OverrideFilter, limit: u32) -> (Vec<KeyOverride>, u64) {
    let (all, now) = (control.rules.now().overrides.clone(), control.clock.now().as_micros());
    let fits = |one: &&KeyOverride| {
        let what = &one.what;
        let found = |text: &String| what.when.values().any(|value| value.contains(text.as_str()));
        what.until_us.is_none_or(|until| now < until)
            && wanted.domain.as_ref().is_none_or(|domain| *domain == what.domain)
            && wanted.rule.as_ref().is_none_or(|rule| Some(rule) == what.rule.as_ref())
            && wanted.action.is_none_or(|action| action == what.action)
            && wanted.search.as_ref().is_none_or(found)
    };
    let total = all.iter().filter(fits).count() as u64;
    let after = |one: &&KeyOverride| wanted.after.as_ref().is_none_or(|after| one.id > *after);
    let mut page: Vec<&KeyOverride> = all.iter().filter(fits).filter(after).collect();
    page.sort_by(|one, other| one.id.cmp(&other.id));
    (page.into_iter().take(limit as usize).cloned().collect(), total)
}
