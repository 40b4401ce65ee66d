//! Which rules match a request, and why the others do not: in the words of `tidegate explain`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tidegate_rules::{Descriptor, RuleOutcome};

use super::body::Body;
use super::keys::{Key, unknown_domain};
use super::problem::Answer;
use crate::control::Control;

pub(crate) async fn explain(
    State(control): State<Arc<Control>>,
    Body(key): Body<Key>,
) -> Answer<Json<Value>> {
    let entries = key.entries()?;
    let snapshot = control.limiter.snapshot();
    let explained =
        snapshot.rules().explain(&key.domain, &Descriptor { entries: &entries }, control.clock.now());
    let mut explained = explained.map_err(|error| unknown_domain(&control, &error))?;
    explained.rules.sort_by_key(|one| matches!(one.outcome, RuleOutcome::NotMatched { .. }));
    Ok(Json(json!(explained)))
}
