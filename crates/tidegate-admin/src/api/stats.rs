//! History for charts.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_rules::Timestamp;

use super::body::Query;
use super::problem::{Answer, Problem};
use super::{versions, when};
use crate::control::{ControlPlane, Latencies, Series, Unknown, Window, is_others, merged, sides};

/// The default range.
const USUAL_S: u64 = 900;
/// Steps finer than a minute are available for this long.
const FINE_S: u64 = 900;
/// The most versions marked in a chart.
const MOST_MARKS: u32 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatsQuery {
    domain: Option<String>,
    rule: Option<String>,
    from: Option<String>,
    to: Option<String>,
    step: Option<String>,
    /// Only the rules with the most refusals; `total` covers all requests.
    most: Option<usize>,
}

pub(crate) async fn stats(
    State(control): State<Arc<ControlPlane>>,
    Query(wanted): Query<StatsQuery>,
) -> Answer<Json<Value>> {
    let now = control.clock.now();
    let window = window(&wanted, now)?;
    let fits = |(domain, rule): &(String, String)| {
        wanted.domain.as_ref().is_none_or(|wanted| wanted == domain)
            && wanted.rule.as_ref().is_none_or(|wanted| wanted == rule)
    };
    let fits = |name: &(String, String)| is_others(name) || fits(name);
    let own = {
        let history = control.history.lock();
        (history.series(window, fits), history.latencies(window))
    };
    let (of, numbers) = window.chunks();
    let fleets = control.fleet_history(of, numbers).await;
    // If the fleet cannot be asked, this node's own history is better than none.
    let nodes =
        if fleets.is_some() { control.limiter.remote_stats().map_or(1, |stats| stats.fleet) } else { 1 };
    let sides = match (&fleets, &wanted.domain, &wanted.rule) {
        (Some(read), Some(domain), Some(rule)) => sides(window, read.read_s, &read.chunks, (domain, rule)),
        _ => Vec::new(),
    };
    let ((mut series, latencies), unknown) = match fleets {
        Some(read) => merged(window, read.read_s, &read.chunks, own, fits),
        // Without a shared store, this node is the whole fleet.
        None => {
            let steps = window.steps().count();
            let unknown = Unknown {
                of_one_node: vec![control.fleet.is_shared(); steps],
                incomplete: vec![false; steps],
            };
            (own, unknown)
        }
    };
    let requests: Vec<Series> = series.extract_if(.., |one| one.is_of_requests()).collect();
    let all_rules = Series::total(&series);
    // They are no rule that anybody can open.
    let others: Vec<Series> = series.extract_if(.., |one| is_others(&one.key())).collect();
    let rules = series.len();
    let total = match (&wanted.domain, &wanted.rule) {
        (_, Some(_)) => Series::total(&series),
        // Requests, each counted once; a request that matches five rules is in five of their series.
        (Some(_), None) => {
            Series { shadow_refused: Series::total(&series).shadow_refused, ..Series::total(&requests) }
        }
        (None, None) => Series { shadow_refused: all_rules.shadow_refused, ..Series::total(&requests) },
    };
    if let Some(most) = wanted.most {
        series.sort_by(|one, other| other.refusals().total_cmp(&one.refusals()));
        series.truncate(most);
    }
    let column = |of: fn(&Latencies) -> Option<f64>| latencies.iter().map(of).collect::<Vec<_>>();
    let second = |second: u64| when::text(Timestamp::from_micros(second * 1_000_000));
    Ok(Json(json!({
        "from": second(window.from_s),
        "to": second(window.to_s),
        "step_s": window.step_s,
        "series": series,
        "total": total,
        "rules": rules,
        "others": others.first(),
        "sides": sides,
        "decision_p50_us": column(|one| one.decision_p50_us),
        "decision_p99_us": column(|one| one.decision_p99_us),
        "store_p50_us": column(|one| one.store_p50_us),
        "store_p99_us": column(|one| one.store_p99_us),
        "nodes": nodes,
        "partial": unknown.of_one_node,
        "incomplete": unknown.incomplete,
        "versions": marks(&control, window).await,
    })))
}

fn window(wanted: &StatsQuery, now: Timestamp) -> Answer<Window> {
    let seconds = |at: Timestamp| at.as_micros() / 1_000_000;
    let to_s = match &wanted.to {
        Some(to) => seconds(when::moment_or_back(to, now, "to")?),
        None => seconds(now),
    };
    let from_s = match &wanted.from {
        Some(from) => seconds(when::moment_or_back(from, now, "from")?),
        None => to_s.saturating_sub(USUAL_S),
    };
    if from_s >= to_s {
        return Err(Problem::field("from", "it must be before `to`"));
    }
    let usual_step = if from_s + FINE_S >= seconds(now) { 1 } else { 60 };
    let step_s = match &wanted.step {
        Some(step) => (when::span_us(step, "step")? / 1_000_000).max(1),
        None => usual_step,
    };
    if (to_s - from_s).div_ceil(step_s) > Window::MOST_STEPS {
        let detail = format!("this would be more than {} steps", Window::MOST_STEPS);
        return Err(Problem::field("step", detail).hint("ask for longer steps, or a shorter range"));
    }
    Ok(Window { from_s: from_s / step_s * step_s, to_s, step_s })
}

/// The versions published in this range; none if the database does not answer.
async fn marks(control: &ControlPlane, window: Window) -> Vec<Value> {
    let Some(store) = &control.store else { return Vec::new() };
    let newest = store.versions(u64::MAX, MOST_MARKS).await.unwrap_or_default();
    let within = newest.iter().filter(|version| {
        let second = version.at.as_micros() / 1_000_000;
        (window.from_s..window.to_s).contains(&second)
    });
    within.map(versions::as_json).collect()
}
