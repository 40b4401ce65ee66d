//! Alerts, and their silences.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_telemetry::alerts::{Kind, MOST_SILENCES, SharedAlerts, Silence};

use super::body::{Body, Path};
use super::caller::Caller;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::ControlPlane;

fn desk(control: &ControlPlane) -> Answer<&Arc<SharedAlerts>> {
    control.alerts.desk.get().ok_or_else(|| {
        Problem::unavailable("alerts are switched off here").hint("set `alerts.enabled: true`")
    })
}

pub(crate) async fn list(State(control): State<Arc<ControlPlane>>) -> Answer<Json<Value>> {
    let (active, resolved, sent_by) = desk(&control)?.show();
    Ok(Json(json!({ "active": active, "resolved": resolved, "sent_by": sent_by })))
}

pub(crate) async fn silences(State(control): State<Arc<ControlPlane>>) -> Answer<Json<Value>> {
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

/// The most bytes of a reason or subject: all nodes keep them.
const LONGEST: usize = 500;

pub(crate) async fn silence(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
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
    if let Some(subject) = &wanted.subject {
        check_subject(subject)?;
    }
    let now = control.clock.now();
    let until = when::moment_or_ahead(&wanted.until, now, "until")?;
    if until <= now {
        return Err(Problem::field("until", "it is past").hint("give a later moment, or a span such as 2h"));
    }
    let until_s = until.as_micros() / 1_000_000;
    let author = caller.actor.name.clone();
    let silence = Silence { id: 0, kind, subject: wanted.subject, until_s, reason: wanted.reason, author };
    let id = desk(&control)?.with_silences(|silences| silences.add(silence.clone()));
    let id = id.ok_or_else(|| {
        Problem::field("", format!("there are {MOST_SILENCES} silences already"))
            .hint("end one first: DELETE /admin/v1/alerts/silences/{id}")
    })?;
    control.alerts_changed();
    note(&control, &caller, "silence.create", &Silence { id, ..silence }).await;
    Ok((StatusCode::CREATED, Json(json!({ "id": id, "until_s": until_s }))))
}

pub(crate) async fn end_silence(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<u64>,
) -> Answer<StatusCode> {
    let now_s = control.clock.now().as_micros() / 1_000_000;
    let desk = desk(&control)?;
    let ended = desk.silences(now_s).into_iter().find(|silence| silence.id == id);
    match ended.filter(|_| desk.with_silences(|silences| silences.end(id))) {
        Some(silence) => {
            control.alerts_changed();
            note(&control, &caller, "silence.end", &silence).await;
            Ok(StatusCode::NO_CONTENT)
        }
        None => Err(Problem::not_found(format!("there is no silence {id}"))),
    }
}

/// Subjects match exactly, so one that no alert can have would silence nothing.
fn check_subject(subject: &str) -> Answer<()> {
    let wrong = |why: &str, hint: &str| Err(Problem::field("subject", why).hint(hint));
    match subject {
        "" => wrong("it is empty", "leave it out to silence every subject"),
        "*" => {
            wrong("subjects are compared whole, without wildcards", "leave it out to silence every subject")
        }
        _ if subject.trim() != subject || subject.chars().any(char::is_control) => wrong(
            "no subject begins or ends with a space, or has control characters",
            "copy it from GET /admin/v1/alerts",
        ),
        _ => Ok(()),
    }
}

/// Writes to the audit log. A silence takes effect even if the database does not answer: that is when it is needed most.
async fn note(control: &ControlPlane, caller: &Caller, action: &str, silence: &Silence) {
    let Some(store) = &control.store else { return };
    let kind = silence.kind.map_or("every kind", Kind::name);
    let target = format!("{kind} {}", silence.subject.as_deref().unwrap_or("everything"));
    let detail = json!({ "id": silence.id, "until_s": silence.until_s, "reason": silence.reason, "author": silence.author });
    if let Err(error) = store.note(&caller.actor, control.clock.now(), action, &target, &detail).await {
        tracing::warn!(%error, action, about = target, by = caller.actor.name, "cannot write to the audit log");
    }
}
