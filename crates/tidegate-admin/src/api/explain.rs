//! Which rules match a request, and why the others do not: in the words of `tidegate explain`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tidegate_rules::Descriptor;

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
    Ok(Json(json!(explained.map_err(|error| unknown_domain(&control, &error))?)))
}
