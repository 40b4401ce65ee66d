//! `/v1/auth`: forward-auth. A gateway asks about a request that it describes in headers, and lets it pass on 2xx.
//!
//! Headers that describe another request are believed from trusted peers alone. Anybody else asks about itself: who could
//! say whose request it is could spend another's quota, or go around its own.

use std::net::SocketAddr;

use axum::extract::Query;
use http::header::{CONTENT_TYPE, HOST, HeaderMap};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, StatusCode, Uri, request};
use serde::Deserialize;
use tidegate_core::Hits;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Patience, Transport};
use tidegate_rules::Descriptor;
use tidegate_tower::identity::RequestHead;

use super::{Answer, Shared, answer};
use crate::problem::{Kind, PROBLEM_JSON, Problem};

/// Traefik and Caddy say `Forwarded`, nginx's users and ingress controllers `Original`.
const METHOD: [&str; 2] = ["x-forwarded-method", "x-original-method"];
const TARGET: [&str; 3] = ["x-forwarded-uri", "x-original-uri", "x-original-url"];
const NAMED_HOST: [&str; 2] = ["x-forwarded-host", "x-original-host"];

/// What the address says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// Whose rules apply.
    domain: String,
    /// What a refusal's status is; nginx passes on 401 and 403 alone.
    deny_status: Option<u16>,
    /// What the request spends.
    #[serde(default = "one")]
    cost: u64,
}

fn one() -> u64 {
    1
}

impl Shared {
    pub(super) async fn auth(&self, parts: &request::Parts, peer: SocketAddr) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let Query(asked) = Query::<Asked>::try_from_uri(&parts.uri).map_err(|error| {
            Problem::new(Kind::InvalidField, error.body_text())
                .at("query")
                .hint("ask /v1/auth?domain=NAME, and perhaps &deny_status=403 or &cost=2")
        })?;
        let deny_status = asked.deny_status.map(denial).transpose()?;
        let described = if self.identity.trusts(Some(peer.ip())) {
            Described::by_gateway(parts)?
        } else {
            Described { method: parts.method.clone(), target: parts.uri.clone() }
        };
        let head = RequestHead {
            method: &described.method,
            uri: &described.target,
            headers: &parts.headers,
            peer: Some(peer.ip()),
            now: began,
        };
        let attributes = self.identity.attributes(&head);
        let entries = attributes.entries();
        let descriptor = Descriptor { entries: &entries };
        let asks = [DescriptorAsk { descriptor, cost: Hits::new(asked.cost), limit: None }];
        // A gateway cannot be told to wait.
        let question =
            CheckRequest { domain: &asked.domain, descriptors: &asks, patience: Patience::MustGoNow };
        let decided = self.service.limiter.check(&question).await;
        let decision = decided.map_err(|error| self.unknown_domain(&error, "domain"))?;
        self.service.answered(Transport::Auth, began);
        let mut told: Answer = self.told(&decision, began).into();
        if !decision.allowed {
            let problem = tidegate_tower::answer::refusal(&decision);
            let status = deny_status.unwrap_or(told.status());
            let headers = std::mem::take(told.headers_mut());
            told = answer(status, PROBLEM_JSON, problem.to_json());
            told.headers_mut()
                .extend(headers.into_iter().filter(|(name, _)| name.as_ref() != Some(&CONTENT_TYPE)));
        }
        Ok(told)
    }
}

fn denial(status: u16) -> Result<StatusCode, Problem> {
    let code =
        StatusCode::from_u16(status).ok().filter(|code| code.is_client_error() || code.is_server_error());
    code.ok_or_else(|| {
        Problem::new(Kind::InvalidField, format!("{status} does not tell a gateway to refuse"))
            .at("deny_status")
            .hint("a status from 400 to 599; nginx knows 401 and 403")
    })
}

/// The request that a gateway asks about.
struct Described {
    method: Method,
    target: Uri,
}

impl Described {
    fn by_gateway(parts: &request::Parts) -> Result<Self, Problem> {
        let method = match first(&parts.headers, &METHOD) {
            Some((name, value)) => {
                Method::from_bytes(value.as_bytes()).map_err(|_| unreadable(name, "a method such as GET"))?
            }
            None => parts.method.clone(),
        };
        Ok(Described { method, target: target(parts)? })
    }
}

/// The target that was asked for, with its host as authority.
fn target(parts: &request::Parts) -> Result<Uri, Problem> {
    let given = match first(&parts.headers, &TARGET) {
        Some((name, value)) => {
            let text = value.as_bytes();
            Uri::try_from(text).map_err(|_| unreadable(name, "a path such as /v1/items?id=1"))?
        }
        None => parts.uri.clone(),
    };
    let host = match first(&parts.headers, &NAMED_HOST) {
        Some((name, value)) => {
            Some(Authority::try_from(value.as_bytes()).map_err(|_| unreadable(name, "a host"))?)
        }
        None => given
            .authority()
            .cloned()
            .or_else(|| parts.headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok())),
    };
    let mut whole = http::uri::Parts::default();
    whole.path_and_query = Some(given.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")));
    if let Some(host) = host {
        whole.scheme = Some(http::uri::Scheme::HTTP);
        whole.authority = Some(host);
    }
    Uri::from_parts(whole).map_err(|_| {
        Problem::new(Kind::InvalidField, "the described request has no target that can be read")
            .at("x-forwarded-uri")
    })
}

/// The first of these headers that is there.
fn first<'p>(headers: &'p HeaderMap, names: &[&'static str]) -> Option<(&'static str, &'p HeaderValue)> {
    names.iter().find_map(|name| Some((*name, headers.get(*name)?)))
}

fn unreadable(name: &'static str, expected: &'static str) -> Problem {
    Problem::new(Kind::InvalidField, format!("the header {name} cannot be read"))
        .at(name)
        .hint(format!("it holds {expected}"))
}
