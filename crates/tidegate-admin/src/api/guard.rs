//! Authentication and roles: runs before any route sees the request.
//!
//! A token comes in `Authorization`, never in a URL. A session comes in a cookie that scripts cannot read and other sites
//! cannot send; its changes also need a CSRF token that only the page has. Wrong tokens are rate limited by address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};
use tidegate_access::{PeerGroup, SecretDigest, bearer};
use tidegate_rules::Timestamp;
use tidegate_rulestore::{Actor, Role, Secret, StoredToken, TokenKind};

use super::problem::Problem;
use super::{Needs, ROUTES};
use crate::control::Control;

/// The cookie of a session.
pub(crate) const COOKIE_NAME: &str = "tidegate_session";
const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");

/// The authenticated caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) actor: Actor,
    pub(crate) expires: Option<Timestamp>,
    /// The session's secret, if the caller is a browser.
    pub(crate) session: Option<Secret>,
}

/// The address of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Passes a request on only if its caller has the role that the route needs.
pub(crate) async fn guard(State(control): State<Arc<Control>>, mut request: Request, next: Next) -> Response {
    let path =
        request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let mut routes = ROUTES.iter().filter(|(known, ..)| *known == path);
    let needs = match routes.clone().find(|(_, known, _)| *known == method) {
        Some((_, _, Needs::Nobody)) => return next.run(request).await,
        Some((_, _, Needs::Role(role))) => *role,
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

async fn authenticate(control: &Control, peer: IpAddr, headers: &HeaderMap) -> Result<Caller, Problem> {
    let (given, kind) = match (bearer(headers), session_cookie(headers)) {
        (Some(token), _) => (token, TokenKind::Token),
        (None, Some(cookie)) => (cookie.as_bytes(), TokenKind::Session),
        (None, None) => return Err(Problem::unauthorized("this route takes a token")),
    };
    verify(control, peer, given, kind).await
}

/// The owner of this secret. After too many wrong ones, an address is refused without a check.
pub(crate) async fn verify(
    control: &Control,
    peer: IpAddr,
    given: &[u8],
    kind: TokenKind,
) -> Result<Caller, Problem> {
    let (group, now) = (PeerGroup::of(peer), control.clock.now());
    if let Some(wait) = control.guesses.wait(group, now) {
        return Err(Problem::too_many(wait.as_millis_ceil().div_ceil(1_000).max(1)));
    }
    match look_up(control, given, kind, now).await? {
        Some(caller) => Ok(caller),
        None => {
            if !has_ended(control, given, kind).await? && control.guesses.wrong(group, now) {
                tracing::warn!(%peer, "too many wrong admin tokens, refusing this address for a while");
            }
            let wrong = Problem::unauthorized("the token is wrong, or has expired");
            Err(match kind {
                // For a person at the log-in page.
                TokenKind::LogIn => wrong.hint("`tidegate login` prints a link that signs in"),
                _ => wrong,
            })
        }
    }
}

/// Whether the token was valid once. A page left open overnight, or a forgotten script, is not guessing, and must not lock
/// out others at its address.
async fn has_ended(control: &Control, given: &[u8], kind: TokenKind) -> Result<bool, Problem> {
    let secret = std::str::from_utf8(given).ok().and_then(Secret::parse);
    match (secret, &control.store) {
        (Some(secret), Some(store)) => Ok(store.has_ended(&secret, kind).await?),
        _ => Ok(false),
    }
}

async fn look_up(
    control: &Control,
    given: &[u8],
    kind: TokenKind,
    now: Timestamp,
) -> Result<Option<Caller>, Problem> {
    if kind != TokenKind::Session
        && let Some(token) = control.tokens.iter().find(|token| token.digest.is_of(given))
    {
        let actor = Actor { name: token.name.clone(), role: token.role };
        return Ok(Some(Caller { actor, expires: None, session: None }));
    }
    if kind != TokenKind::Session && control.admin_tokens.as_ref().is_some_and(|tokens| tokens.accept(given))
    {
        let actor = Actor { name: "configured".to_owned(), role: Role::Admin };
        return Ok(Some(Caller { actor, expires: None, session: None }));
    }
    let secret = std::str::from_utf8(given).ok().and_then(Secret::parse);
    let (Some(secret), Some(store)) = (secret, &control.store) else { return Ok(None) };
    let found = match kind {
        TokenKind::LogIn => match store.redeem(&secret, now).await? {
            // The expiry of a log-in code does not limit the session made from it.
            Some(found) => Some(StoredToken { expires: None, ..found }),
            None => store.verify(&secret, TokenKind::Token, now).await?,
        },
        kind => store.verify(&secret, kind, now).await?,
    };
    Ok(found.map(|token| Caller {
        actor: Actor { name: token.name, role: token.role },
        expires: token.expires,
        session: (kind == TokenKind::Session).then_some(secret),
    }))
}

/// The CSRF token of a session: known to the page, which received it, and to no other site.
pub(crate) fn csrf_of(session: &Secret) -> String {
    let digest = Sha256::digest([b"csrf ", session.reveal().as_bytes()].concat());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_csrf(caller: &Caller, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(session) = &caller.session else { return Ok(()) };
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

fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value)
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
