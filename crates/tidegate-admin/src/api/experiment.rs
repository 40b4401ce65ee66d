//! How many callers are on each side of an experiment, on all nodes together.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use tidegate_decisions::SideCallers;

use super::decisions::log_of;
use super::fresh::Fresh;
use super::problem::{Answer, Problem};
use crate::control::{ControlPlane, NodeAnswer, Question};

pub(crate) async fn callers(
    State(control): State<Arc<ControlPlane>>,
    fresh: Fresh,
    Path((domain, rule)): Path<(String, String)>,
) -> Answer<Json<Value>> {
    let log = log_of(&control)?;
    let snapshot = control.limiter.snapshot();
    let known = snapshot.rules().rules().find(|known| known.domain() == domain && known.name() == rule);
    if known.is_none_or(|known| known.experiment().is_none()) {
        let text = format!("the domain `{domain}` has no rule `{rule}` with an experiment");
        return Err(
            Problem::not_found(text).hint("`GET /admin/v1/rules` lists the rules, and which have one")
        );
    }
    let gathered = control.questions.gather(log, Question::Sides { domain, rule }, fresh.shared()).await;
    let nodes: Vec<&String> = gathered.answers.iter().map(|(node, _)| node).collect();
    let mut sides = ["control", "experiment"].map(|variant| (variant, SideCallers::default()));
    let told = gathered.answers.iter().filter_map(|(_, answer)| match answer {
        NodeAnswer::Sides { sides } => Some(sides),
        _ => None,
    });
    for one in told.flatten() {
        sides.iter_mut().filter(|(variant, _)| *variant == one.variant).for_each(|(_, sum)| sum.merge(one));
    }
    let side =
        |(variant, callers): &(&str, SideCallers)| json!({ "variant": variant, "callers": callers.count() });
    Ok(Json(json!({
        "sides": sides.iter().map(side).collect::<Vec<_>>(),
        "error_percent": SideCallers::error_percent(),
        "hours": SideCallers::HOURS,
        "nodes": nodes,
        "missing": gathered.missing,
    })))
}
