//! Who was refused, and why: a search over the decision log, and the busiest callers of a rule.
//!
//! A viewer sees no caller's key, only hashes: the same for the same caller, so that what belongs together can be told.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_decisions::{By, DecisionLog, Query as Search, Record, Verdict};
use tidegate_rules::Timestamp;
use tidegate_rulestore::Role;

use super::body::Query;
use super::guard::Caller;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::Control;

/// What is returned where nothing is asked for, and at most.
const USUAL: usize = 100;
const MOST: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionsQuery {
    /// Attributes as `user=42`, several with commas between them.
    key: Option<String>,
    domain: Option<String>,
    rule: Option<String>,
    verdict: Option<String>,
    from: Option<String>,
    to: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopQuery {
    domain: Option<String>,
    rule: Option<String>,
    by: Option<String>,
    limit: Option<usize>,
}

/// The log, or how to have one.
pub(crate) fn log_of(control: &Control) -> Answer<&Arc<DecisionLog>> {
    control.metrics.decisions().ok_or_else(|| {
        Problem::not_found("this node keeps no decisions")
            .hint("switch it on with a section `decision_log: {}` in the configuration")
    })
}

pub(crate) async fn search(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<DecisionsQuery>,
) -> Answer<Json<Value>> {
    let log = log_of(&control)?;
    let now = control.clock.now();
    let moment = |text: &Option<String>, field| match text {
        Some(text) => when::moment_or_back(text, now, field).map(|at| Some(at.as_micros())),
        None => Ok(None),
    };
    let search = Search {
        from_us: moment(&wanted.from, "from")?,
        to_us: moment(&wanted.to, "to")?,
        attributes: attributes(wanted.key.as_deref())?,
        verdict: wanted.verdict.as_deref().map(verdict).transpose()?,
        domain: wanted.domain,
        rule: wanted.rule,
        most: wanted.limit.unwrap_or(USUAL).min(MOST),
    };
    let found = log.search(&search);
    let masked = caller.actor.role == Role::Viewer;
    let decisions: Vec<Value> = found.records.iter().map(|record| shown(record, log, masked)).collect();
    Ok(Json(json!({
        "decisions": decisions,
        "fit": found.fit,
        "stand_for": found.stand_for,
        "oldest": found.oldest_us.map(|at| when::text(Timestamp::from_micros(at))),
        "node": control.node,
    })))
}

fn attributes(key: Option<&str>) -> Answer<Vec<(String, String)>> {
    let pairs = key.into_iter().flat_map(|key| key.split(',')).filter(|pair| !pair.is_empty());
    let pair = |pair: &str| match pair.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Problem::field("key", "it has no `=`").hint("name and value: key=user=42")),
    };
    pairs.map(pair).collect()
}

fn verdict(text: &str) -> Answer<Verdict> {
    match text {
        "admitted" => Ok(Verdict::Admitted),
        "refused" => Ok(Verdict::Refused),
        _ => Err(Problem::field("verdict", "it is admitted or refused")),
    }
}

fn shown(record: &Record, log: &DecisionLog, masked: bool) -> Value {
    let mut value = serde_json::to_value(record).unwrap_or_default();
    value["time"] = when::text(Timestamp::from_micros(record.time_us)).into();
    if masked && let Some(attributes) = value["attributes"].as_object_mut() {
        for (name, shown) in attributes {
            *shown = log.names().masked(name, shown.as_str().unwrap_or_default()).into();
        }
    }
    value
}

pub(crate) async fn top(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<TopQuery>,
) -> Answer<Json<Value>> {
    let log = log_of(&control)?;
    let by = match wanted.by.as_deref() {
        None | Some("refused") => By::Refused,
        Some("used") => By::Used,
        Some("near") => By::Near,
        Some(_) => return Err(Problem::field("by", "it is refused, used or near")),
    };
    let most = wanted.limit.unwrap_or(10).min(MOST);
    let fits = |(domain, rule): &(String, String)| {
        wanted.domain.as_ref().is_none_or(|wanted| wanted == domain)
            && wanted.rule.as_ref().is_none_or(|wanted| wanted == rule)
    };
    let masked = caller.actor.role == Role::Viewer;
    let rules = log.top().rules().into_iter().filter(fits).map(|(domain, rule)| {
        let mut top = log.top().top(&domain, &rule, by, most);
        if masked {
            for (name, value) in top.callers.iter_mut().flat_map(|caller| &mut caller.key) {
                *value = log.names().masked(name, value);
            }
        }
        json!({ "domain": domain, "rule": rule, "callers": top.callers, "total": top.total, "most_error": top.most_error })
    });
    Ok(Json(json!({ "rules": rules.collect::<Vec<_>>(), "node": control.node })))
}
