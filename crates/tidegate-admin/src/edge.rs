//! What every request to the admin listener passes, whatever it asks for: the name it was sent to, the token for metrics and `/rlconfig`, and
//! HSTS. The API has a guard of its own behind this.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{HOST, HeaderValue, RETRY_AFTER, STRICT_TRANSPORT_SECURITY, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tidegate_access::{Guesses, PeerGroup, ServerTls, TokenSource, bearer};

use crate::api::peer_of;

/// A month: longer than anybody stays away, and short enough to get rid of.
const HSTS: HeaderValue = HeaderValue::from_static("max-age=2592000");

/// What the listener is, as far as requests are concerned.
#[derive(Debug)]
pub(crate) struct Edge {
    is_loopback: bool,
    is_encrypted: bool,
    tokens: Option<Arc<TokenSource>>,
    hosts: Vec<String>,
    guesses: Arc<Guesses>,
}

impl Edge {
    /// A listener at `address`, over `tls` if given. Wrong tokens count in `guesses`, with those that the API was given.
    pub(crate) fn new(
        address: SocketAddr,
        tls: Option<&Arc<ServerTls>>,
        tokens: Option<Arc<TokenSource>>,
        hosts: Vec<String>,
        guesses: Arc<Guesses>,
    ) -> Arc<Self> {
        let (is_loopback, is_encrypted) = (address.ip().is_loopback(), tls.is_some());
        Arc::new(Edge { is_loopback, is_encrypted, tokens, hosts, guesses })
    }

    /// Whether a request for `name` is meant for this listener.
    ///
    /// A page whose name resolves to 127.0.0.1 (DNS rebinding) is in the browser's eyes of one origin with what answers
    /// there, and could read everything that needs no token. Its requests carry its name; those of users carry an address
    /// or `localhost`. Beyond loopback nothing is answered without a token.
    fn answers_to(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let is_own = is_address || name == "localhost" || name.ends_with(".localhost");
        !self.is_loopback || is_own || self.hosts.iter().any(|host| host.eq_ignore_ascii_case(&name))
    }

    /// Metrics name servers and rules, and `/rlconfig` names rules, so they take a token beyond loopback. Wrong ones are limited by address: the tokens
    /// are those of the API.
    fn check_token(&self, request: &Request) -> Result<(), Refusal> {
        let Some(tokens) = self.tokens.as_ref().filter(|_| !self.is_loopback) else { return Ok(()) };
        let peer = peer_of(request);
        let group = PeerGroup::of(peer);
        let Some(token) = bearer(request.headers()) else { return Err(Refusal::NoToken) };
        if let Some(wait) = self.guesses.wait(group) {
            return Err(Refusal::TooManyGuesses { wait_s: wait.get().div_ceil(1_000_000).max(1) });
        }
        if tokens.accept(token) {
            return Ok(());
        }
        if self.guesses.wrong(group) {
            tracing::warn!(%peer, "too many wrong admin tokens, refusing this address for a while");
        }
        Err(Refusal::NoToken)
    }
}

/// Why a request is refused here.
#[derive(Debug)]
enum Refusal {
    NoToken,
    TooManyGuesses { wait_s: u64 },
    OtherHost,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Refusal::NoToken => (
                StatusCode::UNAUTHORIZED,
                [(WWW_AUTHENTICATE, "Bearer")],
                "a token is needed\nhint: send `Authorization: Bearer` and one of `admin.tokens`\n",
            )
                .into_response(),
            Refusal::TooManyGuesses { wait_s } => (
                StatusCode::TOO_MANY_REQUESTS,
                [(RETRY_AFTER, HeaderValue::from(wait_s))],
                "too many wrong tokens came from your address\n",
            )
                .into_response(),
            Refusal::OtherHost => (
                StatusCode::MISDIRECTED_REQUEST,
                "this is the admin listener of another host\n\
                 hint: ask 127.0.0.1 or localhost, or add the name to `admin.hosts`\n",
            )
                .into_response(),
        }
    }
}

/// `router` behind the edge.
pub(crate) fn passed(router: Router, edge: Arc<Edge>) -> Router {
    router.layer(middleware::from_fn_with_state(edge, pass))
}

async fn pass(State(edge): State<Arc<Edge>>, request: Request, next: Next) -> Response {
    // Probes of an orchestrator may name anything, and learn only that the process runs.
    let is_probe = request.uri().path() == "/healthz";
    let names = named(request.headers(), request.uri().authority());
    let is_meant = is_probe || names.iter().all(|name| edge.answers_to(name));
    let checked = match request.uri().path() {
        _ if !is_meant => Err(Refusal::OtherHost),
        "/metrics" | "/rlconfig" => edge.check_token(&request),
        _ => Ok(()),
    };
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    // A browser applies it to every port of a name: not to `localhost`, where other servers are in the clear.
    if edge.is_encrypted && !edge.is_loopback {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HSTS);
    }
    response
}

/// Every host that the request names; one that cannot be read is no host of ours.
fn named(headers: &HeaderMap, target: Option<&Authority>) -> Vec<String> {
    let read = |value: &HeaderValue| {
        let text = value.to_str().ok().filter(|text| !text.contains('@'));
        let authority = text.and_then(|text| text.parse::<Authority>().ok());
        authority.map_or_else(String::new, |authority| authority.host().to_owned())
    };
    let in_headers = headers.get_all(HOST).iter().map(read);
    in_headers.chain(target.map(|authority| authority.host().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(address: &str) -> Arc<Edge> {
        let hosts = vec!["limits.example".to_owned()];
        Edge::new(address.parse().unwrap(), None, None, hosts, Arc::default())
    }

    #[test]
    fn loopback_answers_to_addresses_localhost_and_configured_names() {
        let loopback = edge("127.0.0.1:8082");
        for name in
            ["127.0.0.1", "[::1]", "10.0.0.7", "localhost", "LOCALHOST.", "a.localhost", "Limits.example"]
        {
            assert!(loopback.answers_to(name), "{name}");
        }
        for name in ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "1"] {
            assert!(!loopback.answers_to(name), "{name}");
        }
        assert!(edge("0.0.0.0:8082").answers_to("anything.example"));
    }
}
