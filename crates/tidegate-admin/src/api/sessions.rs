//! Who is signed in: everybody sees and ends the sessions of the own token, an admin those of all.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tidegate_rulestore::{Origin, StoredToken};

use super::body::Path;
use super::caller::Caller;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::ControlPlane;

pub(crate) async fn list(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
) -> Answer<Json<Value>> {
    let store = control.store.as_ref().ok_or_else(Problem::no_database)?;
    let found = store.sessions(caller.sees(), control.clock.now()).await?;
    let own = caller.session().map(|session| session.id());
    // A session whose token has left the configuration is over.
    let open = found.iter().filter(|one| control.knows(&one.origin));
    let sessions: Vec<Value> = open.map(|one| as_json(one, own == Some(&*one.id))).collect();
    Ok(Json(json!({ "sessions": sessions })))
}

fn as_json(session: &StoredToken, is_this: bool) -> Value {
    let (through, token) = match &session.origin {
        Origin::Operator => ("link", None),
        Origin::Token(id) => ("token", Some(id)),
        Origin::Configured(_) => ("config", None),
    };
    json!({
        "id": session.id,
        "name": session.name,
        "role": session.role,
        "through": through,
        "token": token,
        "from": session.peer,
        "created_at": when::text(session.at),
        "expires_at": session.expires.map(when::text),
        "this": is_this,
    })
}

pub(crate) async fn end(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let store = control.store.as_ref().ok_or_else(Problem::no_database)?;
    let ended = store.end_session(&id, caller.sees(), &caller.actor, control.clock.now()).await?;
    match ended {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such session of yours, or it has ended already")),
    }
}
