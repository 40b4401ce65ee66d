//! Versions: history, differences, and rollback.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_rulestore::{RuleStore, Version};

use super::body::{Body, Path, Query};
use super::caller::Caller;
use super::pieces::in_pieces;
use super::problem::{Answer, Problem};
use super::publish::{Wanted, diff_of, documents, editable, leading, made_on, publish};
use super::rules::Reason;
use super::when;
use crate::control::ControlPlane;
use crate::jobs;

const USUAL: u32 = 50;
const MOST: u32 = 500;
/// A smaller page, because each entry compares two versions' documents.
const MOST_WITH_CHANGES: u32 = 25;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    before: Option<u64>,
    limit: Option<u32>,
    /// Whether to list the rules that each version changed.
    #[serde(default)]
    changes: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Against {
    against: Option<u64>,
}

pub(crate) async fn list(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Query(page): Query<Page>,
) -> Answer<Json<Value>> {
    let most = if page.changes { MOST_WITH_CHANGES } else { MOST };
    let limit = page.limit.unwrap_or(USUAL).clamp(1, most);
    let store = leading(&control)?;
    let versions = store.versions(page.before.unwrap_or(u64::MAX), limit).await?;
    let next = versions.last().filter(|_| versions.len() == limit as usize).map(|version| version.number);
    let mut shown: Vec<Value> = versions.iter().map(as_json).collect();
    if page.changes {
        for (version, shown) in versions.iter().zip(&mut shown) {
            shown["rules"] = changes(store, &caller, version).await?;
        }
    }
    Ok(Json(json!({ "versions": shown, "next": next })))
}

/// The rules that a version changed.
async fn changes(store: &RuleStore, caller: &Caller, version: &Version) -> Answer<Value> {
    let old = documents(store, version.parent.unwrap_or_default()).await?;
    let new = documents(store, version.number).await?;
    let rules = move |job: &jobs::Job| Ok(json!(diff_of(&old, &new, job)?.rules));
    jobs::RULES.run(&caller.lane, rules).await?
}

pub(crate) async fn one(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path(number): Path<u64>,
) -> Answer<Response> {
    let store = leading(&control)?;
    let version = find(store, number).await?;
    let mut body = as_json(&version);
    let documents = documents(store, number).await?;
    let written = move |job: &jobs::Job| {
        body["documents"] = json!(documents.to_documents());
        in_pieces(&body, job)
    };
    Ok(jobs::RULES.run(&caller.lane, written).await?)
}

pub(crate) async fn diff(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path(number): Path<u64>,
    Query(Against { against }): Query<Against>,
) -> Answer<Response> {
    let store = leading(&control)?;
    let version = find(store, number).await?;
    let against = match against {
        Some(other) => find(store, other).await?.number,
        None => version.parent.unwrap_or_default(),
    };
    let (old, new) = (documents(store, against).await?, documents(store, number).await?);
    let diff = move |job: &jobs::Job| {
        let diff = diff_of(&old, &new, job)?;
        Ok(in_pieces(&diff.of(Some(against).filter(|number| *number > 0), Some(number)), job))
    };
    jobs::RULES.run(&caller.lane, diff).await?
}

pub(crate) async fn rollback(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path(number): Path<u64>,
    headers: HeaderMap,
    Body(Reason { reason }): Body<Reason>,
) -> Answer<Response> {
    let store = editable(&control)?;
    let on = made_on(&headers)?;
    find(store, number).await?;
    let documents = documents(store, number).await?;
    let reason = if reason.is_empty() { format!("back to version {number}") } else { reason };
    publish(&control, &caller, Wanted { on, documents, reason: &reason, action: "rollback" }).await
}

async fn find(store: &RuleStore, number: u64) -> Answer<Version> {
    let found = store.version(number).await?;
    found.ok_or_else(|| {
        Problem::not_found(format!("there is no version {number}, or it is too old to be kept"))
    })
}

pub(crate) fn as_json(version: &Version) -> Value {
    json!({
        "number": version.number,
        "parent": version.parent,
        "author": version.author,
        "at": when::text(version.at),
        "reason": version.reason,
        "domains": version.domains,
    })
}
