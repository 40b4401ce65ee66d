//! Nodes, stores, and the audit log.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_limiter::BreakerState;
use tidegate_metrics::StoreUsage;
use tidegate_rules::Timestamp;
use tidegate_rulestore::{AUDIT_ACTIONS, AuditFilter};

use super::body::{Body, Query};
use super::caller::Caller;
use super::fresh::Fresh;
use super::problem::{Answer, Problem};
use super::publish::check_reason;
use super::when;
use crate::control::{ControlPlane, NodeStatus, RuleSource, SHARED_FOR, why_missing};

const USUAL: u32 = 100;
const MOST: u32 = 1_000;

pub(crate) async fn nodes(State(control): State<Arc<ControlPlane>>, fresh: Fresh) -> Answer<Json<Value>> {
    let own = control.note();
    let found = control.known_nodes(fresh.0).await;
    let mut warnings = Vec::new();
    let are_known = found.is_ok();
    let mut notes = match found {
        Ok(notes) => {
            control.identity.last_nodes.lock().clone_from(&notes);
            notes
        }
        Err(why) => {
            warnings.push(format!("the other nodes are unknown: {why}"));
            control.identity.last_nodes.lock().clone()
        }
    };
    let is_own = |note: &NodeStatus| note.name == own.name && note.started_us == own.started_us;
    // This node's own state is newer than its last announcement.
    match notes.iter_mut().find(|note| is_own(note)) {
        Some(note) => {
            *note = NodeStatus { id: note.id.clone(), signals: note.signals.take(), ..own.clone() };
        }
        None => notes.push(own.clone()),
    }
    notes.sort_by(|one, other| (&one.name, one.started_us).cmp(&(&other.name, other.started_us)));
    let (version, overrides) = published(&control, &notes).await;
    let (alive, lost): (Vec<&NodeStatus>, Vec<&NodeStatus>) = notes.iter().partition(|note| !note.lost);
    for note in lost {
        warnings.push(format!(
            "{}: {}; its counts are missing from everything shown here",
            note.name,
            why_missing(note)
        ));
    }
    for (what, of) in
        [("stores", (|note| &note.store) as fn(&NodeStatus) -> &String), ("key layouts", |note| &note.layout)]
    {
        if alive.iter().any(|note| of(note) != of(alive[0])) {
            warnings.push(format!("nodes use different {what}: they do not count together"));
        }
    }
    warnings.extend((control.probes.apart)());
    let homes = |note: &NodeStatus| note.homes.iter().map(|home| home.store.clone()).collect::<Vec<_>>();
    // One that does not report them is of an earlier release.
    let mut with_homes = alive.iter().filter(|note| !note.homes.is_empty());
    if let Some(first) = with_homes.next()
        && with_homes.any(|note| homes(note) != homes(first))
    {
        warnings.push(
            "nodes use different homes: they do not count together what is for all regions; set the same \
             `regions.home` on all"
                .to_owned(),
        );
    }
    let runs_it =
        |note: &NodeStatus| (note.version, note.overrides) == (version, overrides) && note.error.is_none();
    let differ = who_runs_other_rules(&notes);
    let converged = alive.iter().all(|note| runs_it(note)) && differ.is_none();
    warnings.extend(differ.map(|(one, other)| {
        format!("{one} and {other} run different rules under the same version: compare their rule files")
    }));
    let now_us = control.clock.now().as_micros();
    let nodes: Vec<Value> = notes
        .iter()
        .map(|note| {
            let mut value = as_json(note, is_own(note), now_us);
            if !are_known && !is_own(note) {
                value["unknown"] = true.into();
                value["health"] = "unknown: the shared store does not answer".into();
            }
            value
        })
        .collect();
    Ok(Json(json!({
        "version": version,
        "overrides": overrides,
        "nodes": nodes,
        "converged": converged,
        "warnings": warnings,
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeadBody {
    reason: String,
}

/// Makes this node's database the fleet's.
pub(crate) async fn lead(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(LeadBody { reason }): Body<LeadBody>,
) -> Answer<Json<Value>> {
    let store = control.store.as_ref().ok_or_else(Problem::no_database)?;
    check_reason(&reason)?;
    let detail = json!({ "reason": reason, "instead_of": control.note().lineage });
    // Before it happens, so that it does not happen without.
    store.note(&caller.actor, control.clock.now(), "nodes.lead", &control.identity.node, &detail).await?;
    control.published.take_over(store).await?.map_err(|error| Problem::unavailable(error.to_string()))?;
    Ok(Json(json!({ "leads": true })))
}

/// Two nodes of one release with the same version but different rules, which is possible with rule files.
fn who_runs_other_rules(notes: &[NodeStatus]) -> Option<(&str, &str)> {
    // Of one moment with the version: the digest among the signals for alerts may be older.
    let rules = |note: &NodeStatus| Some(note.rules.clone()).filter(|rules| !rules.is_empty());
    let alike = |note: &NodeStatus| (note.release.clone(), note.version);
    notes.iter().enumerate().find_map(|(place, one)| {
        let differs = |other: &&NodeStatus| {
            alike(one) == alike(other)
                && rules(one).zip(rules(other)).is_some_and(|(one, other)| one != other)
        };
        let other = notes[place + 1..].iter().find(differs)?;
        Some((one.name.as_str(), other.name.as_str()))
    })
}

/// The published version and overrides by the database; if it does not answer, the newest that some node runs.
async fn published(control: &ControlPlane, notes: &[NodeStatus]) -> (u64, u64) {
    let head = match &control.store {
        Some(store) => store.head().await.ok(),
        None => None,
    };
    let newest = |of: fn(&NodeStatus) -> u64| notes.iter().map(of).max().unwrap_or_default();
    match (head, control.rules.source()) {
        (Some(head), RuleSource::Database) => (head.version, head.overrides),
        (Some(head), RuleSource::Files(_)) => (newest(|note| note.version), head.overrides),
        (None, _) => (newest(|note| note.version), newest(|note| note.overrides)),
    }
}

fn as_json(note: &NodeStatus, this: bool, now_us: u64) -> Value {
    // The input for alerts is not meant for people.
    let mut value = serde_json::to_value(NodeStatus { signals: None, ..note.clone() }).unwrap_or_default();
    value["started_at"] = when::text(Timestamp::from_micros(note.started_us)).into();
    value["this"] = this.into();
    if note.lost {
        value["health"] = format!("not heard for {} s", note.last_seen_ms / 1_000).into();
    }
    // How far its clock is ahead of this node's, as precisely as the age of its announcement is known.
    let ahead_ms = |clock_us: u64| {
        let ms = |us: u64| i64::try_from(us / 1_000).unwrap_or(i64::MAX);
        let age = i64::try_from(note.last_seen_ms).unwrap_or(i64::MAX);
        ms(clock_us).saturating_add(age).saturating_sub(ms(now_us))
    };
    value["clock_ahead_ms"] = (note.clock_us > 0).then(|| ahead_ms(note.clock_us)).into();
    value
}

pub(crate) async fn stores(State(control): State<Arc<ControlPlane>>) -> Json<Value> {
    let usage = (control.probes.usage)();
    let nodes: Vec<Value> = control
        .limiter
        .nodes()
        .into_iter()
        .map(|node| {
            let breaker = match node.breaker {
                BreakerState::Closed => "closed",
                BreakerState::Open => "open",
                BreakerState::HalfOpen => "half_open",
            };
            json!({ "endpoint": node.endpoint, "breaker": breaker })
        })
        .collect();
    let remote = control.limiter.remote_stats();
    let health = control.limiter.health().to_string();
    let error = control.published.database_error();
    let kind = control.store.as_ref().map_or("none", |store| store.url().kind().name());
    Json(json!({
        "kind": control.probes.store_kind,
        "health": health,
        "nodes": nodes,
        "keys": usage.keys,
        "bytes": usage.bytes,
        "most_bytes": usage.most_bytes,
        "capacity": capacity(&control, &usage).await,
        "fleet": remote.map_or(1, |stats| stats.fleet),
        "debts": remote.map_or(0, |stats| stats.debts),
        "orphans": remote.map_or(0, |stats| stats.orphans),
        "database": { "kind": kind, "healthy": error.is_none(), "error": error },
    }))
}

/// How full the store is, and how busy, by what `tidegate plan` counts with; null for a store that was not measured.
async fn capacity(control: &ControlPlane, usage: &StoreUsage) -> Value {
    let Some(cost) = control.store_cost() else { return Value::Null };
    let free = usage.most_bytes.saturating_sub(usage.bytes);
    let nodes = control.known_nodes(SHARED_FOR).await.unwrap_or_else(|_| vec![control.note()]);
    let alive = nodes.iter().filter(|node| !node.lost);
    // An empty sum of floats is minus zero.
    let requests_per_s = alive.fold(0.0, |sum, node| sum + node.allowed_per_s + node.refused_per_s);
    // Each server decides on one core.
    let servers = control.limiter.nodes().len().max(1) as f64;
    let most_per_s = (cost.us_per_request > 0.0).then(|| (servers * 1e6 / cost.us_per_request).floor());
    json!({
        "bytes_per_key": cost.bytes_per_key,
        "keys_until_full": (usage.most_bytes > 0).then(|| free.checked_div(cost.bytes_per_key)),
        "calls_per_request": cost.calls_per_request,
        "requests_per_s": requests_per_s,
        "requests_per_s_most": most_per_s,
        "calls_per_s": requests_per_s * cost.calls_per_request as f64,
        "calls_per_s_most": most_per_s.map(|most| most * cost.calls_per_request as f64),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditPage {
    before: Option<u64>,
    limit: Option<u32>,
    actor: Option<String>,
    action: Option<String>,
}

pub(crate) async fn audit(
    State(control): State<Arc<ControlPlane>>,
    Query(page): Query<AuditPage>,
) -> Answer<Json<Value>> {
    let limit = page.limit.unwrap_or(USUAL).clamp(1, MOST);
    let store = control.store.as_ref().ok_or_else(Problem::no_database)?;
    let filter = AuditFilter { before: page.before, actor: page.actor, action: page.action };
    let entries = store.audit(&filter, limit).await?;
    let next = entries.last().filter(|_| entries.len() == limit as usize).map(|entry| entry.id);
    let entries: Vec<Value> = entries
        .into_iter()
        .map(|entry| {
            json!({
                "id": entry.id,
                "at": when::text(entry.at),
                "actor": entry.actor,
                "role": entry.role,
                "action": entry.action,
                "target": entry.target,
                "detail": entry.detail,
            })
        })
        .collect();
    Ok(Json(json!({ "entries": entries, "next": next, "actions": AUDIT_ACTIONS })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &str, version: u64, rules: &str) -> NodeStatus {
        NodeStatus { name: name.to_owned(), version, rules: rules.to_owned(), ..NodeStatus::default() }
    }

    #[test]
    fn only_nodes_with_other_rules_under_one_version_are_named() {
        let (a, b) = (note("a", 7, "digest of 7"), note("b", 7, "digest of other files"));
        assert_eq!(who_runs_other_rules(&[a.clone(), note("c", 7, "digest of 7"), b]), Some(("a", "b")));
        // An autopilot has published, and not every node has it yet.
        assert_eq!(who_runs_other_rules(&[a.clone(), note("b", 8, "digest of 8")]), None);
        // A node of an earlier release says nothing of its rules, and another release digests them otherwise.
        assert_eq!(who_runs_other_rules(&[a.clone(), note("b", 7, "")]), None);
        let newer = NodeStatus { release: "2".to_owned(), ..note("b", 7, "another digest of 7") };
        assert_eq!(who_runs_other_rules(&[a, newer]), None);
    }
}
