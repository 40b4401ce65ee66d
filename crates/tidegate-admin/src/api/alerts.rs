//! What is the matter, and what nobody wants to hear of for a while.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_telemetry::alerts::{Kind, MOST_SILENCES, Silence};

use super::body::{Body, Path};
use super::problem::{Answer, Problem};
use super::when;
use crate::alerts::AlertDesk;
use crate::control::Control;

fn desk(control: &Control) -> Answer<&Arc<AlertDesk>> {
    control.alerts.get().ok_or_else(|| {
        Problem::unavailable("alerts are switched off here").hint("set `alerts.enabled: true`")
    })
}

pub(crate) async fn list(State(control): State<Arc<Control>>) -> Answer<Json<Value>> {
    let (active, over, told_by) = desk(&control)?.show();
    Ok(Json(json!({ "active": active, "over": over, "told_by": told_by })))
}

pub(crate) async fn silences(State(control): State<Arc<Control>>) -> Answer<Json<Value>> {
    let now_s = control.clock.now().as_micros() / 1_000_000;
    Ok(Json(json!({ "silences": desk(&control)?.silences(now_s) })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSilence {
    kind: Option<String>,
    subject: Option<String>,
    until: String,
    #[serde(default)]
    reason: String,
}

/// Longer texts are no reason, and no subject: all nodes keep them.
const LONGEST: usize = 500;

pub(crate) async fn silence(
    State(control): State<Arc<Control>>,
    Body(wanted): Body<NewSilence>,
) -> Answer<(StatusCode, Json<Value>)> {
    let kind = match &wanted.kind {
        None => None,
        Some(name) => Some(Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            Problem::field("kind", format!("there is no kind `{name}`"))
                .hint(&format!("one of {}", known.join(", ")))
        })?),
    };
    for (field, text) in [("reason", Some(&wanted.reason)), ("subject", wanted.subject.as_ref())] {
        if text.is_some_and(|text| text.len() > LONGEST) {
            return Err(Problem::field(field, format!("it is longer than {LONGEST} bytes")));
        }
    }
    let now = control.clock.now();
    let until = when::moment_or_ahead(&wanted.until, now, "until")?;
    if until <= now {
        return Err(Problem::field("until", "it is past").hint("give a later moment, or a span such as 2h"));
    }
    let until_s = until.as_micros() / 1_000_000;
    let silence = Silence { id: 0, kind, subject: wanted.subject, until_s, reason: wanted.reason };
    let id = desk(&control)?.with_silences(|silences| silences.add(silence));
    let id = id.ok_or_else(|| {
        Problem::field("", format!("there are {MOST_SILENCES} silences already"))
            .hint("end one first: DELETE /admin/v1/alerts/silences/{id}")
    })?;
    control.alerts_changed();
    Ok((StatusCode::CREATED, Json(json!({ "id": id, "until_s": until_s }))))
}

pub(crate) async fn end_silence(
    State(control): State<Arc<Control>>,
    Path(id): Path<u64>,
) -> Answer<StatusCode> {
    match desk(&control)?.with_silences(|silences| silences.end(id)) {
        true => {
            control.alerts_changed();
            Ok(StatusCode::NO_CONTENT)
        }
        false => Err(Problem::not_found(format!("there is no silence {id}"))),
    }
}
