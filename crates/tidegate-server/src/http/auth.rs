//! `/v1/auth`: forward-auth. A gateway describes a request in headers, and admits it on 2xx.
//!
//! Headers that describe another request are trusted only from trusted peers. Any other peer asks about itself: if it could
//! choose whose request it is, it could spend another's quota, or evade its own.

use std::net::SocketAddr;

use axum::extract::Query;
use http::header::{CONTENT_TYPE, HOST, HeaderMap};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri, request};
use serde::Deserialize;
use tidegate_core::Hits;
use tidegate_http::identity::{ForwardedPath, RequestHead};
use tidegate_http::{GateAnswer, HttpCheck, Refusal, trace_of};
use tidegate_limiter::{Decision, Patience, ReportKind};
use tidegate_rules::UnknownDomain;

use super::{Answer, HttpState, JSON};
use crate::problem::{Kind, Problem};

/// Traefik and Caddy send `X-Forwarded-*`; nginx configurations and ingress controllers send `X-Original-*`.
const METHOD: [&str; 2] = ["x-forwarded-method", "x-original-method"];
const TARGET: [&str; 3] = ["x-forwarded-uri", "x-original-uri", "x-original-url"];
const NAMED_HOST: [&str; 2] = ["x-forwarded-host", "x-original-host"];

/// The query parameters, as they came: what they say is read one by one, so that a mistake names its parameter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthQuery {
    domain: Option<String>,
    deny_status: Option<String>,
    cost: Option<String>,
}

/// What a gateway asks for.
struct Asked {
    /// The domain whose rules apply.
    domain: String,
    /// The status of a refusal; nginx passes on only 401 and 403.
    deny_status: Option<StatusCode>,
    /// The cost of the request.
    cost: u64,
}

impl Asked {
    fn of(uri: &Uri) -> Result<Self, Problem> {
        const HINT: &str = "ask /v1/auth?domain=NAME, and perhaps &deny_status=403 or &cost=2";
        let Query(query) = Query::<AuthQuery>::try_from_uri(uri).map_err(|error| {
            let text = error.body_text();
            let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            Problem::new(Kind::InvalidField, text.to_owned()).at("query").hint(HINT)
        })?;
        let Some(domain) = query.domain else {
            return Err(Problem::new(Kind::InvalidField, "domain: it is missing").at("domain").hint(HINT));
        };
        let deny_status = query.deny_status.map(|text| whole_number(&text, "deny_status"));
        Ok(Asked {
            domain,
            deny_status: deny_status.transpose()?.map(denial).transpose()?,
            cost: query.cost.map_or(Ok(1), |text| whole_number(&text, "cost"))?,
        })
    }
}

fn whole_number(text: &str, parameter: &'static str) -> Result<u64, Problem> {
    text.parse().map_err(|_| {
        let detail = format!("{parameter}: `{text}` is not a whole number of at most 20 digits");
        Problem::new(Kind::InvalidField, detail)
            .at(parameter)
            .hint("write it in digits, such as deny_status=403 or cost=2")
    })
}

impl HttpState {
    pub(super) async fn auth(&self, parts: &request::Parts, peer: SocketAddr) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let asked = Asked::of(&parts.uri)?;
        let deny_status = asked.deny_status;
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
            // The gateway forwards the path, not we.
            forwarded_path: ForwardedPath::AsWritten,
        };
        let attributes = match self.identity.attributes(&head) {
            Ok(attributes) => attributes,
            Err(problem) => return Ok(refused(problem.into(), deny_status)),
        };
        // A gateway cannot be asked to wait. It is gone when it has its answer, so only what others count or report can show
        // how busy workers are.
        let check = HttpCheck {
            domain: &asked.domain,
            attributes: &attributes,
            cost: Hits::new(asked.cost),
            patience: Patience::MustGoNow,
            trace: trace_of(&parts.headers),
        };
        match self.gate.admit(&check).await {
            GateAnswer::Admitted(admitted) => {
                self.warn_of_unread(&admitted.report.decision);
                let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, JSON)]);
                admitted.report.write(&mut headers);
                Ok(self.answered(&admitted.report.decision, None, headers).into())
            }
            GateAnswer::Refused(refusal) if refusal.problem.kind() == Kind::UnknownDomain => {
                // The gateway's mistake, not the client's: the answer lists the known domains.
                Err(self.unknown_domain(&UnknownDomain { domain: asked.domain }, "domain"))
            }
            GateAnswer::Refused(refusal) | GateAnswer::Shed(refusal) => Ok(refused(refusal, deny_status)),
        }
    }
}

impl HttpState {
    /// Logs now and then that a rule's key uses an attribute that is not read here: the rule limits nothing, and nothing
    /// else would show it. Rules may be meant for `/v1/check`, whose callers send their own attributes, so this is known
    /// only now.
    fn warn_of_unread(&self, decision: &Decision) {
        let missing =
            decision.reports().iter().filter(|report| matches!(report.kind, ReportKind::KeyMissing(_)));
        for rule in missing.filter_map(|report| decision.rule_of(report)) {
            let Some(attribute) = rule.key().iter().find(|name| !self.identity.gives(name)) else { continue };
            if let Some(requests) = self.unread.lock().happened() {
                tracing::warn!(
                    rule = rule.name(),
                    domain = rule.domain(),
                    attribute,
                    requests,
                    "a rule counts by what /v1/auth is not configured to read, so it limits nobody here: \
                     say under `identity` where it is"
                );
            }
        }
    }
}

fn refused(refusal: Refusal, deny_status: Option<StatusCode>) -> Answer {
    let mut answer: Answer = refusal.problem.to_response();
    answer.headers_mut().extend(refusal.headers);
    if let Some(status) = deny_status {
        let meant = std::mem::replace(answer.status_mut(), status);
        answer.headers_mut().insert(MEANT_STATUS, HeaderValue::from(meant.as_u16()));
    }
    answer
}

/// The status that `deny_status` replaces: a gateway that accepts only a few can still send it to its client.
const MEANT_STATUS: HeaderName = HeaderName::from_static("x-tidegate-status");

fn denial(status: u64) -> Result<StatusCode, Problem> {
    let code = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let code = code.filter(|code| code.is_client_error() || code.is_server_error());
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
        let headers = &parts.headers;
        let method =
            one_of(headers, &METHOD, "a method such as GET", |value| Method::from_bytes(value).ok())?;
        let target = one_of(headers, &TARGET, "a path such as /v1/items?id=1", |value| {
            // A fragment is not part of the target for us, but may be for the upstream server.
            let target = Uri::try_from(value).ok().filter(|_| !value.contains(&b'#'))?;
            // `example.com` alone is a host without a path.
            (target.authority().is_none() || target.scheme().is_some()).then_some(AuthTarget(target))
        })?;
        let host = one_of(headers, &NAMED_HOST, "a host such as shop.example", |value| {
            Authority::try_from(value).ok()
        })?;
        let given = target.map_or_else(|| parts.uri.clone(), |AuthTarget(target)| target);
        let own = || Authority::try_from(headers.get(HOST)?.as_bytes()).ok();
        let host = host.or_else(|| host_of_targets(headers)).or_else(own);
        Ok(Described { method: method.unwrap_or_else(|| parts.method.clone()), target: at(host, &given) })
    }
}

/// A target that compares equal with and without the host.
struct AuthTarget(Uri);

impl PartialEq for AuthTarget {
    fn eq(&self, other: &Self) -> bool {
        self.0.path_and_query() == other.0.path_and_query()
    }
}

/// The host in every described target. If a gateway writes `/a` and a client `http://other/a`, the host would be the
/// client's choice.
fn host_of_targets(headers: &HeaderMap) -> Option<Authority> {
    let lines = TARGET.iter().flat_map(|name| headers.get_all(*name));
    let mut hosts = lines.map(|line| Uri::try_from(line.as_bytes()).ok()?.into_parts().authority);
    let first = hosts.next()??;
    hosts.all(|host| host.as_ref() == Some(&first)).then_some(first)
}

/// `target` with this host.
fn at(host: Option<Authority>, target: &Uri) -> Uri {
    let mut whole = http::uri::Parts::default();
    whole.path_and_query = Some(target.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")));
    if let Some(host) = host {
        whole.scheme = Some(http::uri::Scheme::HTTP);
        whole.authority = Some(host);
    }
    Uri::from_parts(whole).expect("a path, and a scheme wherever there is a host")
}

/// The value of these headers, which must be equal in all of them: a gateway sets one of them, and a client may have sent
/// another. Whichever we preferred, the clients of some gateway could choose it.
fn one_of<T: PartialEq>(
    headers: &HeaderMap,
    names: &[&'static str],
    expected: &'static str,
    read: impl Fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let mut said: Option<T> = None;
    for name in names {
        for value in headers.get_all(*name) {
            let value = read(value.as_bytes()).ok_or_else(|| {
                Problem::new(Kind::InvalidField, format!("the header {name} cannot be read"))
                    .at(*name)
                    .hint(format!("it holds {expected}"))
            })?;
            if said.as_ref().is_some_and(|before| *before != value) {
                return Err(Problem::new(Kind::InvalidField, "the request is described in two ways")
                    .at(*name)
                    .hint(format!("let the gateway set {}, whatever the client sent", names.join(", "))));
            }
            said = Some(value);
        }
    }
    Ok(said)
}
