//! Who was refused, and why: searches the decision logs of all nodes, and ranks the top callers of a rule.
//!
//! A viewer sees no caller's key, only its hash. The hash is stable, so that decisions of one caller can be correlated.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_decisions::{
    DecisionLog, Query as Search, RankBy, RuleTop, Steps, Top, Verdict, is_hash, merge,
};
use tidegate_rules::Timestamp;
use tidegate_rulestore::Role;

use super::body::Query;
use super::caller::Caller;
use super::fresh::Fresh;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::{ControlPlane, NodeAnswer, Question};

/// The default and the largest number of results.
const USUAL: usize = 100;
const MOST: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionsQuery {
    /// Attributes as `user=42`, separated by commas, or as a JSON object.
    key: Option<String>,
    domain: Option<String>,
    rule: Option<String>,
    verdict: Option<String>,
    from: Option<String>,
    to: Option<String>,
    limit: Option<usize>,
    /// The length of the steps to count in, such as `10m`.
    step: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopQuery {
    domain: Option<String>,
    rule: Option<String>,
    by: Option<String>,
    limit: Option<usize>,
}

/// The decision log, or an error that says how to enable it.
pub(crate) fn log_of(control: &ControlPlane) -> Answer<&Arc<DecisionLog>> {
    control.decisions.as_ref().ok_or_else(|| {
        Problem::not_found("this node keeps no decisions")
            .hint("switch it on with a section `decision_log: {}` in the configuration")
    })
}

pub(crate) async fn search(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    fresh: Fresh,
    Query(wanted): Query<DecisionsQuery>,
) -> Answer<Json<Value>> {
    let log = log_of(&control)?;
    let now = control.clock.now();
    // Spans go back from an even time: who asks the same a moment later shares the fleet's answer.
    let back_from = Timestamp::from_micros(fresh.even_us(now.as_micros()));
    let moment = |text: &Option<String>, field| match text {
        Some(text) => when::moment_or_back(text, back_from, field).map(|at| Some(at.as_micros())),
        None => Ok(None),
    };
    let (from_us, to_us) = (moment(&wanted.from, "from")?, moment(&wanted.to, "to")?);
    if from_us.unwrap_or(0) >= to_us.unwrap_or(u64::MAX) {
        return Err(Problem::field("from", "it must be before `to`")
            .hint("spans go back from now: from=1h and to=15m is what was between them"));
    }
    let steps = match &wanted.step {
        Some(step) => Some(steps(step, from_us, to_us.unwrap_or(back_from.as_micros() + fresh.us()))?),
        None => None,
    };
    let attributes = attributes(wanted.key.as_deref())?;
    let masked = caller.actor.role == Role::Viewer;
    if masked && !attributes.iter().all(|(_, value)| is_hash(value)) {
        // A caller that may test values could find them without being shown any.
        return Err(Problem::forbidden("a viewer can search callers by hash, and not by attribute values")
            .hint("take the hash from a decision or a list of top callers, or ask an editor"));
    }
    let search = Search {
        from_us,
        to_us,
        attributes,
        verdict: wanted.verdict.as_deref().map(verdict).transpose()?,
        domain: wanted.domain,
        rule: wanted.rule,
        most: wanted.limit.unwrap_or(USUAL).min(MOST),
        steps,
    };
    let most = search.most;
    let unknown = unknown_name(&control, &search);
    let question = Question::Decisions { search: search.hidden(log.names()) };
    let gathered = control.questions.gather(log, question, fresh.shared()).await;
    let (mut found, mut nodes) = (Vec::new(), Vec::new());
    let (mut matched, mut represents, mut oldest, mut cut) = (0, 0, None, false);
    let mut counted = vec![[0_u64; 2]; steps.map_or(0, |steps| steps.number)];
    for (node, answer) in gathered.answers {
        let NodeAnswer::Decisions {
            decisions,
            fit: own,
            stand_for: own_represents,
            oldest_us,
            cut: own_cut,
            steps: own_steps,
        } = answer
        else {
            continue;
        };
        nodes.push(json!({ "node": node, "matched": own, "oldest": oldest_us.map(micros) }));
        // Another node told these numbers: they may be anything.
        matched = u64::saturating_add(matched, own);
        represents = u64::saturating_add(represents, own_represents);
        cut |= own_cut;
        for (sum, own) in counted.iter_mut().zip(own_steps) {
            *sum = [sum[0].saturating_add(own[0]), sum[1].saturating_add(own[1])];
        }
        // The merged log is complete only from where all of them are.
        oldest = oldest.max(oldest_us);
        found.extend(decisions.into_iter().map(Value::Object));
    }
    found.sort_by_key(|decision| u64::MAX - decision["time_us"].as_u64().unwrap_or(0));
    found.truncate(most);
    let decisions: Vec<Value> = found.into_iter().map(|decision| shown(decision, log, masked)).collect();
    Ok(Json(json!({
        "decisions": decisions,
        "matched": matched,
        "represents": represents,
        "oldest": oldest.map(micros),
        "cut": cut,
        "counts": steps.map(|steps| json!({
            "from": micros(steps.from_us),
            "step_s": steps.step_us / 1_000_000,
            "admitted": counted.iter().map(|[admitted, _]| admitted).collect::<Vec<_>>(),
            "refused": counted.iter().map(|[_, refused]| refused).collect::<Vec<_>>(),
        })),
        "unknown": unknown,
        "node": control.identity.node,
        "nodes": nodes,
        "missing": gathered.missing,
    })))
}

/// The steps between two moments. They begin at multiples of their length, so that those of the next question are the same.
fn steps(step: &str, from_us: Option<u64>, to_us: u64) -> Answer<Steps> {
    let step_us = when::span_us(step, "step")?.max(1_000_000) / 1_000_000 * 1_000_000;
    let from_us =
        from_us.ok_or_else(|| Problem::field("from", "steps need a start").hint("such as from=24h"))?;
    let from_us = from_us / step_us * step_us;
    let number = to_us.saturating_sub(from_us).div_ceil(step_us);
    let number = usize::try_from(number).ok().filter(|number| *number <= Steps::MOST).ok_or_else(|| {
        Problem::field("step", format!("this would be more than {} steps", Steps::MOST))
            .hint("ask for longer steps, or a shorter range")
    })?;
    Ok(Steps { from_us, step_us, number })
}

/// A warning if no rule in use has the requested name. An earlier rule may have had it, and its logged decisions are still
/// found.
fn unknown_name(control: &ControlPlane, search: &Search) -> Option<String> {
    let snapshot = control.limiter.snapshot();
    let mut domains = snapshot.rules().domains();
    if let Some(wanted) = search.domain.as_ref().filter(|wanted| !domains.any(|domain| domain == *wanted)) {
        return Some(format!("no domain in use is called `{wanted}`"));
    }
    let name = search.rule.as_ref()?;
    let is_in = |domain: &str| search.domain.as_ref().is_none_or(|wanted| wanted == domain);
    let is_known = snapshot.rules().rules().any(|rule| rule.name() == name && is_in(rule.domain()));
    (!is_known).then(|| format!("no rule in use is called `{name}`"))
}

fn micros(at: u64) -> String {
    when::text(Timestamp::from_micros(at))
}

fn attributes(key: Option<&str>) -> Answer<Vec<(String, String)>> {
    let Some(key) = key.filter(|key| !key.is_empty()) else { return Ok(Vec::new()) };
    if key.starts_with('{') {
        let object = serde_json::from_str::<BTreeMap<String, String>>(key);
        let object = object.map_err(|error| {
            Problem::field("key", format!("it is not a JSON object of strings: {error}"))
                .hint("name and value: key={\"user\":\"42\"}, or key=user=42")
        })?;
        return Ok(object.into_iter().collect());
    }
    let mut pairs: Vec<(String, String)> = Vec::new();
    for part in key.split(',') {
        match (part.split_once('='), pairs.last_mut()) {
            (Some((name, value)), _) => pairs.push((name.to_owned(), value.to_owned())),
            // A comma inside the value.
            (None, Some((_, value))) => *value = format!("{value},{part}"),
            (None, None) => {
                return Err(Problem::field("key", "it has no `=`").hint("name and value: key=user=42"));
            }
        }
    }
    Ok(pairs)
}

fn verdict(text: &str) -> Answer<Verdict> {
    match text {
        "admitted" => Ok(Verdict::Admitted),
        "refused" => Ok(Verdict::Refused),
        _ => Err(Problem::field("verdict", "it is admitted or refused")),
    }
}

fn shown(mut decision: Value, log: &DecisionLog, masked: bool) -> Value {
    decision["time"] = micros(decision["time_us"].as_u64().unwrap_or(0)).into();
    if masked && let Some(attributes) = decision["attributes"].as_object_mut() {
        for (name, shown) in attributes {
            *shown = log.names().masked(name, shown.as_str().unwrap_or_default()).into();
        }
    }
    decision
}

/// Replaces the values of a key by hashes for a viewer.
pub(crate) fn mask(key: &mut [(String, String)], log: &DecisionLog, caller: &Caller) {
    if caller.actor.role == Role::Viewer {
        key.iter_mut().for_each(|(name, value)| *value = log.names().masked(name, value));
    }
}

pub(crate) async fn top(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    fresh: Fresh,
    Query(wanted): Query<TopQuery>,
) -> Answer<Json<Value>> {
    let log = log_of(&control)?;
    let by = match wanted.by.as_deref() {
        None | Some("refused") => RankBy::Refused,
        Some("used") => RankBy::Used,
        Some("near") => RankBy::Near,
        Some(_) => return Err(Problem::field("by", "it is refused, used or near")),
    };
    let most = wanted.limit.unwrap_or(10).min(MOST);
    let (domain, rule) = (wanted.domain, wanted.rule);
    let gathered = control.questions.gather(log, Question::Top { domain, rule, by }, fresh.shared()).await;
    let nodes: Vec<&String> = gathered.answers.iter().map(|(node, _)| node).collect();
    let mut of_rule: BTreeMap<(String, String), Vec<Top>> = BTreeMap::new();
    for (_, answer) in &gathered.answers {
        let NodeAnswer::Top { rules } = answer else { continue };
        for one in rules {
            of_rule.entry((one.domain.clone(), one.rule.clone())).or_default().push(one.top.clone());
        }
    }
    let rules = of_rule.into_iter().map(|((domain, rule), tops)| {
        let mut top = merge(&tops, by, most);
        top.callers.iter_mut().for_each(|one| mask(&mut one.key, log, &caller));
        RuleTop { domain, rule, top }
    });
    let rules: Vec<RuleTop> = rules.collect();
    Ok(Json(
        json!({ "rules": rules, "node": control.identity.node, "nodes": nodes, "missing": gathered.missing }),
    ))
}
