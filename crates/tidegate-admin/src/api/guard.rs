//! Authentication and roles: runs before any route sees the request.
//!
//! A token comes in `Authorization`, never in a URL. A session comes in a cookie that scripts cannot read and other sites
//! cannot send; its changes also need a CSRF token that only the page has. Wrong tokens are rate limited by address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};
use tidegate_access::{PeerGroup, SecretDigest, bearer};
use tidegate_rulestore::{Role, Secret, TokenKind};

use super::caller::Caller;
use super::cookie;
use super::problem::Problem;
use super::{ROUTES, RouteAccess};
use crate::control::ControlPlane;

const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");

/// The address of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Passes a request on only if its caller has the role that the route needs.
pub(crate) async fn guard(
    State(control): State<Arc<ControlPlane>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path =
        request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let mut routes = ROUTES.iter().filter(|(known, ..)| *known == path);
    let needs = match routes.clone().find(|(_, known, _)| *known == method) {
        Some((_, _, RouteAccess::Public)) => return next.run(request).await,
        Some((_, _, RouteAccess::Role(role))) => *role,
        // No such route or method: the router says so, but only to authenticated callers.
        None if routes.next().is_some() || path.is_empty() || path.contains("{*") => Role::Viewer,
        None => return Problem::not_found("there is no such route").into_response(),
    };
    let (peer, headers) = (peer_of(&request), request.headers().clone());
    match authenticate(&control, peer, &headers).await {
        Ok(caller) if caller.actor.role < needs => {
            let detail = format!("this takes the role {needs}, and you have {}", caller.actor.role);
            Problem::forbidden(detail).into_response()
        }
        Ok(caller) => {
            if let Err(problem) = check_csrf(&caller, request.method(), request.headers()) {
                return problem.into_response();
            }
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

async fn authenticate(control: &ControlPlane, peer: IpAddr, headers: &HeaderMap) -> Result<Caller, Problem> {
    let (given, kind) = match (bearer(headers), cookie::read(headers)) {
        (Some(token), _) => (token, TokenKind::Token),
        (None, Some(cookie)) => (cookie.as_bytes(), TokenKind::Session),
        (None, None) => return Err(Problem::unauthorized("this route takes a token")),
    };
    let attempt = Attempt::of(control, peer)?;
    match Caller::find(control, given, kind).await? {
        Some(caller) => Ok(caller),
        // A session that this node kept before it was restarted: no guess, for its secret is random.
        None if kind == TokenKind::Session && control.store.is_none() => {
            Err(Problem::unauthorized("the session has ended"))
        }
        None => Err(attempt.failed(control, given).await?),
    }
}

/// An attempt to sign in, or to use a token. After too many wrong ones, an address is refused without a check.
pub(crate) struct Attempt {
    peer: IpAddr,
}

impl Attempt {
    pub(crate) fn of(control: &ControlPlane, peer: IpAddr) -> Result<Self, Problem> {
        match control.access.guesses.wait(PeerGroup::of(peer)) {
            Some(wait) => Err(Problem::too_many(wait.as_millis_ceil().div_ceil(1_000).max(1))),
            None => Ok(Attempt { peer }),
        }
    }

    pub(crate) fn peer_group(&self) -> PeerGroup {
        PeerGroup::of(self.peer)
    }

    /// The secret was wrong: what to answer.
    pub(crate) async fn failed(self, control: &ControlPlane, given: &[u8]) -> Result<Problem, Problem> {
        let Attempt { peer } = self;
        if !has_ended(control, given).await? && control.access.guesses.wrong(PeerGroup::of(peer)) {
            tracing::warn!(%peer, "too many wrong admin tokens, refusing this address for a while");
        }
        Ok(Problem::unauthorized("the token is wrong, or has ended"))
    }
}

/// Whether the secret was valid once. A page left open overnight, or a forgotten script, is not guessing, and must not lock
/// out others at its address.
async fn has_ended(control: &ControlPlane, given: &[u8]) -> Result<bool, Problem> {
    if control.access.admin_tokens.as_ref().is_some_and(|tokens| tokens.has_ended(given)) {
        return Ok(true);
    }
    let secret = std::str::from_utf8(given).ok().and_then(Secret::parse);
    match (secret, &control.store) {
        (Some(secret), Some(store)) => Ok(store.has_ended(&secret).await?),
        _ => Ok(false),
    }
}

/// The CSRF token of a session: known to the page, which received it, and to no other site.
pub(crate) fn csrf_of(session: &Secret) -> String {
    hex::encode(Sha256::digest([b"csrf ", session.reveal().as_bytes()].concat()))
}

fn check_csrf(caller: &Caller, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(session) = caller.session() else { return Ok(()) };
    if method.is_safe() {
        return Ok(());
    }
    let given = headers.get(CSRF).map(HeaderValue::as_bytes).unwrap_or_default();
    if SecretDigest::of(csrf_of(session).as_bytes()).is_of(given) {
        return Ok(());
    }
    Err(Problem::forbidden("the CSRF token is missing or wrong")
        .hint("send `csrf` of GET /admin/v1/session as X-CSRF-Token"))
}

pub(crate) fn peer_of(request: &Request) -> IpAddr {
    let unknown = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    request.extensions().get::<Peer>().map_or(unknown, |peer| peer.0.ip())
}

/// Security headers of every answer: no content sniffing, no framing, no caching.
pub(crate) async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let policies = [
        (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in policies {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
