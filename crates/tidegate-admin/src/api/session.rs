//! Sessions of the dashboard: a token, or the code of a sign-in link, becomes a cookie.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse, Response};
use axum::{Json, extract::FromRequest as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_access::PeerGroup;
use tidegate_rulestore::{Grant, Origin, Redeem, Role, RuleStore, Secret, TokenKind};

use super::body::Body;
use super::caller::Caller;
use super::cookie::{self, Scheme};
use super::guard::{Attempt, csrf_of, peer_of};
use super::problem::{Answer, Problem};
use super::publish::can_edit;
use super::{sessions, tokens, when};
use crate::control::ControlPlane;

/// How long a sign-in link works.
const LINK_LASTS: Duration = Duration::from_secs(600);

/// How long a session lasts, and a token that was made with a link.
const LASTS: Duration = Duration::from_secs(12 * 3_600);
const TOKEN_LASTS: Duration = Duration::from_secs(30 * 24 * 3_600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogIn {
    token: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keep {
    code: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Name {
    name: String,
}

#[derive(Serialize)]
pub(crate) struct Session {
    name: String,
    /// Whether the name is that of the link: nobody knows yet who this is.
    unnamed: bool,
    role: Role,
    csrf: Option<String>,
    expires_at: Option<String>,
    environment: String,
    editable: bool,
    addresses: BTreeMap<&'static str, String>,
}

pub(crate) async fn show(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
) -> Json<Session> {
    Json(session_of(&control, &caller))
}

fn session_of(control: &ControlPlane, caller: &Caller) -> Session {
    let addresses = control.identity.addresses.get().into_iter().flatten();
    Session {
        name: caller.actor.name.clone(),
        unnamed: caller.origin == Origin::Operator && caller.actor.name == Grant::OPERATORS_LINK,
        role: caller.actor.role,
        csrf: caller.session().map(csrf_of),
        expires_at: caller.expires.map(when::text),
        environment: control.identity.environment.clone(),
        editable: can_edit(control),
        addresses: addresses.map(|(name, address)| (*name, address.to_string())).collect(),
    }
}

pub(crate) async fn log_in(State(control): State<Arc<ControlPlane>>, request: Request) -> Answer<Response> {
    let (peer, scheme, headers) = (peer_of(&request), scheme_of(&request), request.headers().clone());
    let Body(LogIn { token }) = Body::from_request(request, &()).await?;
    let attempt = Attempt::of(&control, peer)?;
    let caller = match &control.store {
        Some(store) => match open(&control, store, token.as_bytes(), peer).await {
            Ok(Some(caller)) => caller,
            Ok(None) => return Err(refuse(&control, store, attempt, token.as_bytes()).await?),
            // The database does not answer. This node keeps the session, if it knows the token itself.
            Err(problem) => Caller::open_here(&control, token.as_bytes(), peer, LASTS)?.ok_or(problem)?,
        },
        None => match Caller::open_here(&control, token.as_bytes(), peer, LASTS)? {
            Some(caller) => caller,
            None => {
                attempt.failed(&control, token.as_bytes()).await?;
                return Err(elsewhere(&control).await);
            }
        },
    };
    let now = control.clock.now();
    let secret = caller.session().map(Secret::reveal).unwrap_or_default();
    let left_us = caller.expires.map_or(0, |end| end.as_micros().saturating_sub(now.as_micros()));
    let cookie = cookie::set(&headers, scheme, secret, left_us / 1_000_000);
    Ok(([(SET_COOKIE, cookie)], Json(session_of(&control, &caller))).into_response())
}

/// Why nobody can sign in here, with the name of the node where they can.
async fn elsewhere(control: &ControlPlane) -> Problem {
    let notes = control.fleet.known_nodes().await.unwrap_or_default();
    let Some(leader) = notes.iter().find(|note| note.leads) else { return Problem::no_database() };
    let away =
        if leader.lost { ", which has not been heard lately: this works again when it is back" } else { "" };
    let hint = format!(
        "tokens and sessions are kept by the node {}{away}; a token of this node's configuration (`admin.tokens`) signs in here",
        leader.name
    );
    Problem::no_database().hint(&hint)
}

/// For a person at the sign-in page, or one with a link that was used or replaced.
const ANOTHER_LINK: &str =
    "`tidegate login` prints a link that signs in; each works once, until a newer one is made";

/// Audits a failed sign-in: what to answer.
async fn refuse(
    control: &ControlPlane,
    store: &RuleStore,
    attempt: Attempt,
    given: &[u8],
) -> Answer<Problem> {
    store.note_failed_log_in(&attempt.peer_group().to_string(), control.clock.now()).await?;
    Ok(attempt.failed(control, given).await?.hint(ANOTHER_LINK))
}

/// Opens a session with a token, or the code of a sign-in link.
async fn open(
    control: &ControlPlane,
    store: &RuleStore,
    given: &[u8],
    peer: IpAddr,
) -> Answer<Option<Caller>> {
    let (now, from, peer) = (control.clock.now(), peer, PeerGroup::of(peer).to_string());
    let opened = match (code(given), Caller::find(control, given, TokenKind::Token).await?) {
        (_, Some(caller)) => store.open_session(&caller.grant(), &peer, LASTS, now).await?,
        (Some(code), None) => store.redeem(&code, Redeem::Session { peer: &peer }, LASTS, now).await?,
        (None, None) => None,
    };
    let caller = opened.and_then(|(stored, secret)| Caller::of(control, stored, secret, TokenKind::Session));
    if let Some(caller) = &caller {
        store.note(&caller.actor, now, "login", &caller.actor.name, &json!({ "from": from })).await?;
    }
    Ok(caller)
}

fn code(given: &[u8]) -> Option<Secret> {
    std::str::from_utf8(given).ok().and_then(Secret::parse)
}

pub(crate) async fn log_out(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Response> {
    let session =
        caller.session().filter(|session| !sessions::end_here(&control, session.id(), None, &caller));
    if let (Some(session), Some(store)) = (session, &control.store) {
        store.end_session(session.id(), None, &caller.actor, control.clock.now()).await?;
    }
    let cookie = cookie::set(request.headers(), scheme_of(&request), "", 0);
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]).into_response())
}

/// Names who uses a session that was opened with an operator's link: versions, bans and the audit log show it.
pub(crate) async fn name(
    State(control): State<Arc<ControlPlane>>,
    Extension(mut caller): Extension<Caller>,
    Body(Name { name }): Body<Name>,
) -> Answer<Json<Session>> {
    let name = tokens::checked_name(&name)?.to_owned();
    let (store, now) = (database(&control)?, control.clock.now());
    let id = caller.session().map(Secret::id).unwrap_or_default();
    if !store.name_session(id, &name, &caller.actor, now).await? {
        let detail = "only a session that was opened with an operator's link takes a name";
        return Err(Problem::field("name", detail).hint("other sessions have the name of their token"));
    }
    caller.actor.name = name;
    Ok(Json(session_of(&control, &caller)))
}

fn scheme_of(request: &Request) -> Scheme {
    request.extensions().get::<Scheme>().copied().unwrap_or(Scheme::Http)
}

/// Creates a sign-in code with the caller's own role, in place of the last one.
pub(crate) async fn link(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
) -> Answer<(StatusCode, Json<Value>)> {
    let (store, now) = (database(&control)?, control.clock.now());
    let made = store.make_link(&caller.grant(), LINK_LASTS, now).await?;
    let (link, code) = made.ok_or_else(|| Problem::unauthorized("the token has ended"))?;
    store.note(&caller.actor, now, "login.link", &caller.actor.name, &json!({})).await?;
    let expires_at = link.expires.map(when::text);
    let body = json!({ "code": code.reveal(), "role": link.role, "expires_at": expires_at });
    Ok((StatusCode::CREATED, Json(body)))
}

/// Exchanges the code of a sign-in link for a token of a machine, with the link's role.
pub(crate) async fn keep(State(control): State<Arc<ControlPlane>>, request: Request) -> Answer<Response> {
    let peer = peer_of(&request);
    let Body(Keep { code: given, name }) = Body::from_request(request, &()).await?;
    let name = tokens::checked_name(&name)?;
    let (store, now) = (database(&control)?, control.clock.now());
    let attempt = Attempt::of(&control, peer)?;
    let made = match code(given.as_bytes()) {
        Some(code) => store.redeem(&code, Redeem::Token { name }, TOKEN_LASTS, now).await?,
        None => None,
    };
    let Some((stored, secret)) = made else {
        return Err(refuse(&control, store, attempt, given.as_bytes()).await?);
    };
    Ok((StatusCode::CREATED, Json(tokens::created(&stored, &secret))).into_response())
}

fn database(control: &ControlPlane) -> Answer<&RuleStore> {
    control.store.as_ref().ok_or_else(Problem::no_database)
}
