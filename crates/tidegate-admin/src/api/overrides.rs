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
use super::guard::Caller;
use super::keys::Key;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::{Control, runtime};

const USUAL: u32 = 100;
const MOST: u32 = 1_000;

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
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Query(filter): Query<Filter>,
) -> Answer<Json<Value>> {
    let limit = filter.limit.unwrap_or(USUAL).clamp(1, MOST);
    // A viewer does not see values, and must not find them by trying either.
    let search = filter.search.filter(|_| caller.actor.role > Role::Viewer);
    let wanted = OverrideFilter {
        domain: filter.domain,
        rule: filter.rule,
        action: filter.action,
        search,
        after: filter.after,
    };
    let (found, total) = store(&control)?.overrides(&wanted, control.clock.now(), limit).await?;
    let next = found.last().filter(|_| found.len() == limit as usize).map(|one| one.id.clone());
    let overrides: Vec<Value> = found.iter().map(|one| as_json(&control, one, &caller)).collect();
    Ok(Json(json!({ "overrides": overrides, "total": total, "next": next })))
}

pub(crate) async fn create(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<OverrideBody>,
) -> Answer<(StatusCode, Json<Value>)> {
    let store = store(&control)?;
    let now = control.clock.now();
    let what = checked(&control, wanted, now)?;
    let made = store.add_override(what, &caller.actor, now).await?;
    control.take_from(store).await;
    Ok((StatusCode::CREATED, Json(as_json(&control, &made, &caller))))
}

pub(crate) async fn lift(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Body(Lift { id, reason }): Body<Lift>,
) -> Answer<Json<Value>> {
    let store = store(&control)?;
    let lifted = store.lift_override(&id, &reason, &caller.actor, control.clock.now()).await?;
    let lifted =
        lifted.ok_or_else(|| Problem::not_found("there is no such override, or it was lifted already"))?;
    control.take_from(store).await;
    Ok(Json(as_json(&control, &lifted, &caller)))
}

/// What was asked for, if it makes sense under the rules in force.
fn checked(control: &Control, wanted: OverrideBody, now: Timestamp) -> Answer<NewOverride> {
    if wanted.when.is_empty() {
        return Err(Problem::field("when", "it is empty, so this would be for everybody")
            .hint("name attributes and their values: {\"user\": \"42\"}"));
    }
    let entries = Key { domain: wanted.domain.clone(), attributes: wanted.when.clone() };
    entries.entries()?;
    if wanted.action != Action::Limits && !wanted.limits.is_empty() {
        return Err(Problem::field("limits", "only `action: limits` has limits"));
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
    // The compiler has the last word; it is asked with this override alone.
    let alone = KeyOverride { id: String::new(), what, author: String::new(), at_us: 0 };
    let base = control.running.lock().base.clone();
    let rules = base.compile().map_err(|found| Problem::invalid_rules(&found))?;
    if let Some(found) = rules.with_overrides(&[runtime(&alone)]).1.into_iter().next() {
        let field =
            if alone.what.action == Action::Limits && alone.what.rule.is_some() { "limits" } else { "rule" };
        return Err(Problem::field(field, found.message));
    }
    Ok(alone.what)
}

/// The overrides that are for this key.
pub(crate) fn of_key(control: &Control, key: &Key, caller: &Caller) -> Vec<Value> {
    let (all, now) = (control.running.lock().overrides.clone(), control.clock.now());
    let fits = |one: &&KeyOverride| {
        one.what.domain == key.domain
            && one.what.until_us.is_none_or(|until| now.as_micros() < until)
            && one.what.when.iter().all(|(name, value)| key.attributes.get(name) == Some(value))
    };
    all.iter().filter(fits).map(|one| as_json(control, one, caller)).collect()
}

fn as_json(control: &Control, one: &KeyOverride, caller: &Caller) -> Value {
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
    let without_effect = control.running.lock().without_effect.clone();
    if let Some((_, why)) = without_effect.iter().find(|(id, _)| *id == one.id) {
        value["warning"] = why.as_str().into();
    }
    value
}

fn store(control: &Control) -> Answer<&RuleStore> {
    control.store.as_ref().ok_or_else(Problem::no_database)
}
