//! Sessions of the dashboard: a token, or the code of a log-in link, becomes a cookie.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, extract::FromRequest as _};
use serde::{Deserialize, Serialize};
use tidegate_core::Micros;
use tidegate_rules::Timestamp;
use tidegate_rulestore::{NewToken, Role, TokenKind};

use super::body::Body;
use super::guard::{COOKIE_NAME, Caller, csrf_of, peer_of, verify};
use super::problem::{Answer, Problem};
use super::publish::can_edit;
use super::when;
use crate::control::Control;

/// How long a log-in link works.
const LINK_LASTS: Micros = Micros::from_secs(600);

/// How long a session lasts.
const LASTS: Micros = Micros::from_secs(12 * 3_600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogIn {
    token: String,
}

#[derive(Serialize)]
pub(crate) struct Session {
    name: String,
    role: Role,
    csrf: Option<String>,
    expires_at: Option<String>,
    environment: String,
    editable: bool,
}

pub(crate) async fn show(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
) -> Json<Session> {
    Json(session_of(&control, &caller))
}

fn session_of(control: &Control, caller: &Caller) -> Session {
    Session {
        name: caller.actor.name.clone(),
        role: caller.actor.role,
        csrf: caller.session.as_ref().map(csrf_of),
        expires_at: caller.expires.map(when::text),
        environment: control.environment.clone(),
        editable: can_edit(control),
    }
}

pub(crate) async fn log_in(State(control): State<Arc<Control>>, request: Request) -> Answer<Response> {
    let peer = peer_of(&request);
    let Body(LogIn { token }) = Body::from_request(request, &()).await?;
    let caller = verify(&control, peer, token.as_bytes(), TokenKind::LogIn).await?;
    let store = control.store.as_ref().ok_or_else(Problem::no_database)?;
    let now = control.clock.now();
    let end = Timestamp::from_micros(now.as_micros() + LASTS.get());
    // A session never outlives the token that it was made with.
    let expires = caller.expires.map_or(end, |expires| expires.min(end));
    let new = NewToken {
        kind: TokenKind::Session,
        name: caller.actor.name.clone(),
        role: caller.actor.role,
        expires: Some(expires),
    };
    let (_, secret) = store.create_token(&new, &caller.actor, now).await?;
    store.note(&caller.actor, now, "login", &caller.actor.name, &serde_json::json!({ "from": peer })).await?;
    let cookie = set_cookie(secret.reveal(), (expires.as_micros() - now.as_micros()) / 1_000_000);
    let caller = Caller { expires: Some(expires), session: Some(secret), ..caller };
    Ok(([(SET_COOKIE, cookie)], Json(session_of(&control, &caller))).into_response())
}

pub(crate) async fn log_out(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
) -> Answer<Response> {
    if let (Some(session), Some(store)) = (&caller.session, &control.store) {
        store.end_session(session).await?;
    }
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, set_cookie("", 0))]).into_response())
}

/// `HttpOnly` and `SameSite`: scripts cannot read it, and other sites cannot send it.
fn set_cookie(value: &str, seconds: u64) -> HeaderValue {
    let cookie = format!("{COOKIE_NAME}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&cookie).expect("hexadecimal digits make a header")
}

/// Creates a log-in code with the caller's own role.
pub(crate) async fn link(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
) -> Answer<(StatusCode, Json<serde_json::Value>)> {
    let store = control.store.as_ref().ok_or_else(Problem::no_database)?;
    let now = control.clock.now();
    let end = Timestamp::from_micros(now.as_micros() + LINK_LASTS.get());
    let expires = caller.expires.map_or(end, |expires| expires.min(end));
    let (name, role) = (caller.actor.name.clone(), caller.actor.role);
    let new = NewToken { kind: TokenKind::LogIn, name: name.clone(), role, expires: Some(expires) };
    let (_, code) = store.create_token(&new, &caller.actor, now).await?;
    store.note(&caller.actor, now, "login.link", &name, &serde_json::json!({})).await?;
    let body = serde_json::json!({ "code": code.reveal(), "role": role, "expires_at": when::text(expires) });
    Ok((StatusCode::CREATED, Json(body)))
}
