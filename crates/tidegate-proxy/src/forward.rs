//! One request, from its head to the head of its answer: admitted, identified, routed, limited, forwarded.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, HeaderValue, RETRY_AFTER, TRAILER, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, Method, Request, Response, StatusCode, request};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tidegate_core::Hits;
use tidegate_http::identity::{Attributes, ForwardedPath, RequestHead};
use tidegate_http::{Admitted, DecisionReport, GateAnswer, HttpCheck, trace_of};
use tidegate_limiter::Patience;

use crate::answer::{AnswerBody, InFlight, ProxyAnswer, problem_answer};
use crate::body::{RequestBody, ResponseBody};
use crate::dial::Wants;
use crate::exchange::{Answered, Outgoing};
use crate::hop::{self, Caller, Peer};
use crate::stall::Answers;
use crate::tunnel::{Slot, Tunnel};
use crate::{ProxyWorker, outlive, route};
use tidegate_http::problem::{Kind, Problem};

/// The connection of a request.
#[derive(Clone)]
pub(crate) struct Via {
    pub(crate) peer: SocketAddr,
    pub(crate) scheme: &'static str,
    /// Where to leave the tunnel, if the request asks for one.
    pub(crate) tunnel: Slot<InFlight>,
    pub(crate) answers: Arc<Answers>,
}

impl ProxyWorker {
    /// Answers a request, whatever happens to it.
    pub(crate) async fn answer(&self, request: Request<Incoming>, via: Via) -> ProxyAnswer {
        let Some(entered) = self.shared.admission.enter() else {
            let problem = Problem::new(Kind::Overloaded, "the proxy has no room for one more request")
                .hint("try again in a moment");
            return problem_answer(
                &problem,
                HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("1"))]),
            );
        };
        self.serve(request, via, InFlight::new(entered))
            .await
            .unwrap_or_else(|problem| problem_answer(&problem, HeaderMap::new()))
    }

    async fn serve(
        &self,
        request: Request<Incoming>,
        via: Via,
        mut in_flight: InFlight,
    ) -> Result<ProxyAnswer, Problem> {
        let (mut parts, body) = request.into_parts();
        let host = host(&parts)?;
        self.check_length(&parts.headers)?;
        check_coding(&parts.headers)?;
        let (upstream, path, report) = {
            let attributes = self.attributes(&parts, &via)?;
            let route = self.route(&host, &attributes)?;
            let domain = route.domain.as_deref().unwrap_or(&self.shared.settings.domain);
            let (patience, trace) = (Patience::Waits, trace_of(&parts.headers));
            let check = HttpCheck { domain, attributes: &attributes, cost: Hits::ONE, patience, trace };
            let Admitted { report, held } = match self.gate.admit(&check).await {
                GateAnswer::Admitted(admitted) => admitted,
                GateAnswer::Refused(refusal) | GateAnswer::Shed(refusal) => {
                    return Ok(refusal.into_response(&parts.headers));
                }
            };
            in_flight.hold(held);
            (route.upstream, forwarded_path(&parts, &attributes)?, report)
        };
        let client = parts.extensions.remove::<OnUpgrade>();
        let protocol = client.as_ref().and_then(|_| hop::upgrade(&parts.headers));
        self.prepare(&mut parts.headers, &via, &host);
        if let Some(protocol) = &protocol {
            hop::set_upgrade(&mut parts.headers, protocol.clone());
        }
        let settings = &self.shared.settings;
        let (body, upload) = RequestBody::new(body, settings.limits.max_body_bytes, settings.pace());
        let wants = if protocol.is_some() { Wants::Http1 } else { Wants::Any };
        let (method, headers) = (parts.method, parts.headers);
        let outgoing = Outgoing { method, path, host, headers, body, upload, wants };
        let idle = settings.timeouts.idle;
        let (asked, in_flight) = outlive::ask(&self.upstreams[upstream], outgoing, in_flight, idle).await?;
        match asked {
            Ok(answered) if answered.response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let changed = hop::upgrade(answered.response.headers());
                match (client, protocol.and(changed)) {
                    (Some(client), Some(_)) => Ok(self.tunnel(answered, client, &via, &report, in_flight)),
                    _ => Err(Problem::new(Kind::BadGateway, "the upstream server changed protocols unasked")),
                }
            }
            Ok(answered) => Ok(self.pass_on(answered, &via, &report, in_flight)),
            Err(problem) => {
                let mut answer = problem_answer(&problem, HeaderMap::new());
                report.write(answer.headers_mut());
                Ok(answer)
            }
        }
    }

    fn attributes<'a>(&'a self, parts: &'a request::Parts, via: &Via) -> Result<Attributes<'a>, Problem> {
        let head = RequestHead {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            peer: Some(via.peer.ip()),
            now: self.gate.clock.now(),
            forwarded_path: ForwardedPath::Normalised,
        };
        self.shared.settings.identity.attributes(&head)
    }

    fn route(&self, host: &HeaderValue, attributes: &Attributes<'_>) -> Result<&route::Route, Problem> {
        let routes = &self.shared.settings.routes;
        let host = host.to_str().unwrap_or_default();
        let place = route::find(routes, host, attributes.path().matching());
        place.map(|place| &routes[place]).ok_or_else(|| {
            Problem::new(Kind::NotFound, "no route leads from this host and path to an upstream server")
        })
    }

    /// Rejects a body that declares itself too large before anything is spent, and one with two lengths.
    fn check_length(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let most = self.shared.settings.limits.max_body_bytes;
        let mut lengths = headers.get_all(CONTENT_LENGTH).into_iter();
        let Some(length) = lengths.next() else { return Ok(()) };
        // `010` is ten to some servers and eight to others.
        let is_number = |text: &[u8]| {
            text == b"0" || matches!(text, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit))
        };
        if lengths.next().is_some() || !is_number(length.as_bytes()) {
            return Err(Problem::new(Kind::MalformedRequest, "the length of the body is not one number")
                .at("content-length")
                .hint("send it once"));
        }
        match length.to_str().ok().and_then(|length| length.parse::<u64>().ok()) {
            Some(length) if length <= most => Ok(()),
            _ => Err(Problem::new(Kind::BodyTooLarge, format!("more than {most} bytes are not let through"))),
        }
    }

    /// Turns the client's headers into those of our own request.
    fn prepare(&self, headers: &mut HeaderMap, via: &Via, host: &HeaderValue) {
        let identity = &self.shared.settings.identity;
        hop::strip(headers, |name| identity.reads(name));
        hop::drop_aliases(headers);
        hop::join_cookies(headers);
        // Trailers are not forwarded.
        headers.remove(TRAILER);
        headers.remove(HOST);
        // We answer it ourselves, by reading the body once the upstream accepts it.
        headers.remove(EXPECT);
        let address = via.peer.ip();
        let peer = if identity.trusts(Some(address)) { Peer::Trusted } else { Peer::Stranger };
        hop::forward(headers, &Caller { address, peer, scheme: via.scheme, host: Some(host) });
    }

    fn pass_on(
        &self,
        answered: Answered,
        via: &Via,
        report: &DecisionReport,
        in_flight: InFlight,
    ) -> ProxyAnswer {
        let Answered { response, connection, target } = answered;
        let (mut parts, body) = response.into_parts();
        hop::strip(&mut parts.headers, |_| false);
        // The upstream's own rate limit headers stay; ours are added to them, or replace laxer ones.
        report.write(&mut parts.headers);
        let idle = self.shared.settings.timeouts.idle;
        let clock = Arc::clone(&self.gate.clock);
        let taking = via.answers.begin(clock.now());
        let body = ResponseBody::new(body, idle, connection, target, Some(taking), clock);
        Response::from_parts(parts, AnswerBody::upstream(body, in_flight))
    }

    /// Answers with the protocol change, and leaves the tunnel to start when HTTP has released the client's connection.
    fn tunnel(
        &self,
        answered: Answered,
        client: OnUpgrade,
        via: &Via,
        report: &DecisionReport,
        mut in_flight: InFlight,
    ) -> ProxyAnswer {
        let Answered { mut response, target, .. } = answered;
        let upstream = hyper::upgrade::on(&mut response);
        let (mut parts, _) = response.into_parts();
        let protocol = hop::upgrade(&parts.headers);
        hop::strip(&mut parts.headers, |_| false);
        if let Some(protocol) = protocol {
            hop::set_upgrade(&mut parts.headers, protocol);
        }
        report.write(&mut parts.headers);
        in_flight.hold_target(target);
        let idle = self.shared.settings.timeouts.tunnel;
        *via.tunnel.lock() = Some(Tunnel { client, upstream, idle, _holds: in_flight });
        Response::from_parts(parts, AnswerBody::from(Bytes::new()))
    }
}

/// Rejects transfer codings other than `chunked` alone: the header concerns one hop and is dropped, and hyper decodes only
/// the chunks, so the upstream would not know of the coding.
fn check_coding(headers: &HeaderMap) -> Result<(), Problem> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).into_iter();
    let is_chunks = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(only), None) if is_chunks(only) => Ok(()),
        _ => Err(Problem::new(Kind::MalformedRequest, "the body is coded in a way that is not understood")
            .at("transfer-encoding")
            .hint("send it as `chunked` alone, or with its length")),
    }
}

/// Whether it is only a name or an address, with an optional port: servers that cut or decode more would see another host
/// than the rules.
fn is_one_host(authority: &Authority) -> bool {
    let (text, host) = (authority.as_str(), authority.host());
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name =
        !host.is_empty() && host.bytes().all(letters) && !host.starts_with('.') && !host.contains("..");
    let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_address = inside.is_some_and(|inside| inside.parse::<Ipv6Addr>().is_ok());
    let is_port = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let ported = text.strip_prefix(host).and_then(|rest| rest.strip_prefix(':'));
    let port_fits =
        ported.is_none_or(|port| is_port(port) && (port.is_empty() || port.parse::<u16>().is_ok()));
    (is_name || is_address) && text.starts_with(host) && port_fits
}

/// The host that the client requested. With two hosts, or none, an upstream could see another one than we did.
fn host(parts: &request::Parts) -> Result<HeaderValue, Problem> {
    let bad = |why: &'static str| Problem::new(Kind::MalformedRequest, why).at("host");
    if parts.method == Method::CONNECT {
        return Err(Problem::new(Kind::MethodNotAllowed, "this is a reverse proxy: it has no CONNECT"));
    }
    if parts.uri.authority().is_some() && parts.uri.scheme().is_none() {
        return Err(bad("the request names a host and nothing that it asks for there"));
    }
    if !matches!(parts.uri.scheme_str(), None | Some("http" | "https")) {
        return Err(Problem::new(Kind::MalformedRequest, "only http and https lead here").at("scheme"));
    }
    let mut named = parts.headers.get_all(HOST).iter();
    let header = named.next();
    if named.next().is_some() {
        return Err(bad("the request names its host twice"));
    }
    match (parts.uri.authority(), header) {
        (Some(authority), _) => {
            if !is_one_host(authority) {
                return Err(bad("the host is not a name or an address, and perhaps a port"));
            }
            HeaderValue::from_str(authority.as_str()).map_err(|_| bad("the host cannot be read"))
        }
        (None, Some(host)) if !host.is_empty() => match Authority::try_from(host.as_bytes()) {
            Ok(authority) if is_one_host(&authority) => Ok(host.clone()),
            _ => Err(bad("the host cannot be read")),
        },
        (None, _) => Err(bad("the request names no host")),
    }
}

/// The path that was matched, and the original query.
fn forwarded_path(parts: &request::Parts, attributes: &Attributes<'_>) -> Result<PathAndQuery, Problem> {
    let normal = attributes.path().forward();
    let given = parts.uri.path_and_query();
    if let Some(given) = given
        && given.path() == normal
    {
        return Ok(given.clone());
    }
    let target = match parts.uri.query() {
        Some(query) => format!("{normal}?{query}"),
        None => normal.to_owned(),
    };
    PathAndQuery::from_maybe_shared(Bytes::from(target))
        .map_err(|_| Problem::new(Kind::MalformedRequest, "the path cannot be read").at("path"))
}
