//! Who is signed in: everybody sees and ends the sessions of the own token, an admin those of all.
//!
//! Those that this node alone keeps are among them, also while the database that has the others does not answer.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use tidegate_rulestore::{Origin, Role, StoredToken};

use super::body::Path;
use super::caller::Caller;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::{ControlPlane, LocalSession};

/// A session, as it is shown.
#[derive(Serialize)]
struct SignedIn {
    id: String,
    name: String,
    role: Role,
    through: &'static str,
    token: Option<String>,
    from: String,
    created_at: String,
    expires_at: Option<String>,
    this: bool,
}

pub(crate) async fn list(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
) -> Answer<Json<Value>> {
    let now = control.clock.now();
    let (kept, incomplete) = match &control.store {
        None => (
            Vec::new(),
            Some("this node has no database: sessions of the node that has one are listed there"),
        ),
        Some(store) => match store.sessions(caller.sees(), now).await {
            Ok(kept) => (kept, None),
            Err(_) => (
                Vec::new(),
                Some("the database does not answer: these are the sessions that this node alone keeps"),
            ),
        },
    };
    let here = control.access.sessions.list(caller.sees(), now);
    let here = here.into_iter().filter_map(|one| of_this_node(&control, one));
    // A session whose token has left the configuration is over.
    let kept = kept.into_iter().filter(|one| control.knows(&one.origin)).map(SignedIn::from);
    let own = caller.session().map(|session| session.id());
    let shown = here.chain(kept).map(|one| SignedIn { this: own == Some(&*one.id), ..one });
    let mut sessions: Vec<SignedIn> = shown.collect();
    sessions.sort_by(|one, other| other.created_at.cmp(&one.created_at));
    Ok(Json(json!({ "sessions": sessions, "incomplete": incomplete })))
}

impl From<StoredToken> for SignedIn {
    fn from(session: StoredToken) -> Self {
        let (through, token) = match session.origin {
            Origin::Operator => ("link", None),
            Origin::Token(id) => ("token", Some(id)),
            Origin::Configured(_) => ("config", None),
        };
        SignedIn {
            id: session.id,
            name: session.name,
            role: session.role,
            through,
            token,
            from: session.peer,
            created_at: when::text(session.at),
            expires_at: session.expires.map(when::text),
            this: false,
        }
    }
}

fn of_this_node(control: &ControlPlane, session: LocalSession) -> Option<SignedIn> {
    let (name, role) = control.configured(&session.tag)?;
    Some(SignedIn {
        name,
        role,
        through: "config",
        token: None,
        created_at: when::text(session.at),
        expires_at: Some(when::text(session.expires)),
        id: session.id,
        from: session.from,
        this: false,
    })
}

pub(crate) async fn end(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let ended = end_here(&control, &id, caller.sees(), &caller)
        || match &control.store {
            Some(store) => store.end_session(&id, caller.sees(), &caller.actor, control.clock.now()).await?,
            None => false,
        };
    match ended {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such session of yours, or it has ended already")),
    }
}

/// Ends a session that this node alone keeps; false if it is none of these, or not `of` this token.
pub(super) fn end_here(control: &ControlPlane, id: &str, of: Option<&Origin>, caller: &Caller) -> bool {
    let Some(ended) = control.access.sessions.end(id, of) else { return false };
    let name = control.configured(&ended.tag).map(|(name, _)| name).unwrap_or_default();
    if let Some(store) = control.store.clone() {
        let (by, now) = (caller.actor.clone(), control.clock.now());
        let detail = json!({ "id": ended.id, "from": ended.from });
        // Nobody waits for a database that may still be away; the log of this node has it in any case.
        tokio::spawn(async move { store.note(&by, now, "logout", &name, &detail).await });
    }
    true
}
