//! HTTP/JSON: `/v1/check` and related routes, `/json` in envoyproxy/ratelimit's form, and health.
//!
//! Paths are few and fixed, so they are matched by hand: a router took longer than a decision. An invalid request is
//! answered with a problem that names the field, and nothing is spent.

mod auth;
mod batch;
mod check;
mod idempotency;
mod leases;
mod limitador;
mod media;
mod take;
mod usage;
mod utilization;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tidegate_http::identity::{Identity, IdentityConfig};
use tidegate_http::{Gate, trace_of};
use tidegate_limiter::{Health, Shedder, Transport};
use tidegate_store::StoreError;

use crate::access::{Access, Carried};
use crate::json;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use tidegate_runtime::connection::{self, BodyError, HttpVersions, read_body};
use tidegate_runtime::{Connection, IdleTimeouts, Occasional, Protocol, Seat, Serving};

/// The response type of this transport.
pub(crate) type Answer = Response<Full<Bytes>>;

/// The HTTP protocol of one worker, or of all.
#[derive(Clone)]
pub struct Http {
    shared: Arc<HttpState>,
}

#[derive(Clone)]
pub(crate) struct HttpState {
    service: Arc<Service>,
    /// Reads the caller's identity from a request that a gateway describes.
    identity: Arc<Identity>,
    /// Checks such a request.
    gate: Gate,
    /// The accepted tokens; `None` admits every caller.
    access: Option<Arc<Access>>,
    /// Whether the server is shutting down.
    stopping: Arc<AtomicBool>,
    /// Counts requests without an attribute of a rule's key because no setting says where to read it.
    unread: Arc<Mutex<Occasional>>,
}

/// The least time between two log lines about such requests.
const LOG_PAUSE: Duration = Duration::from_secs(60);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

impl Http {
    /// Serves `service`.
    #[must_use]
    pub fn new(service: Arc<Service>) -> Self {
        let identity = Identity::new(&IdentityConfig::default()).expect("the default has no mistakes");
        let gate = service.gate(Transport::Auth, None);
        let (identity, access, stopping) = (Arc::new(identity), None, Arc::default());
        let unread = Arc::new(Mutex::new(Occasional::every(LOG_PAUSE)));
        Self { shared: Arc::new(HttpState { service, identity, gate, access, stopping, unread }) }
    }

    /// Reads identities with `identity`.
    #[must_use]
    pub fn with_identity(self, identity: Arc<Identity>) -> Self {
        self.with(|shared| shared.identity = identity)
    }

    /// Sheds load by `shedder`: `/v1/utilization` reports to it how busy workers are, and `/v1/auth` consults it.
    #[must_use]
    pub fn with_shedder(self, shedder: Arc<Shedder>) -> Self {
        self.with(|shared| shared.gate.shedder = Some(shedder))
    }

    /// Requires one of these tokens for everything but health.
    #[must_use]
    pub fn with_access(self, access: Arc<Access>) -> Self {
        self.with(|shared| shared.access = Some(access))
    }

    /// Once this is set, `/readyz` fails.
    #[must_use]
    pub fn with_stopping(self, stopping: Arc<AtomicBool>) -> Self {
        self.with(|shared| shared.stopping = stopping)
    }

    /// The same for a worker with its own service.
    #[must_use]
    pub fn for_worker(&self, service: Arc<Service>) -> Self {
        self.clone().with(|shared| {
            shared.gate = service.gate(Transport::Auth, shared.gate.shedder.clone());
            shared.service = service;
        })
    }

    fn with(mut self, change: impl FnOnce(&mut HttpState)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }
}

impl Protocol for Http {
    fn serve(&self, connection: Connection) -> Serving {
        let limits = self.shared.service.settings.limits;
        let (shared, peer) = (Arc::clone(&self.shared), connection.peer);
        let caller = Arc::new(HttpCaller { shared, peer, seat: Arc::clone(&connection.seat) });
        let service = hyper::service::service_fn(move |request| {
            let caller = Arc::clone(&caller);
            async move { Ok::<_, Infallible>(caller.answer(request).await) }
        });
        Box::pin(connection::serve(connection, HttpVersions::Http1And2, limits, service))
    }

    fn idle_timeouts(&self) -> IdleTimeouts {
        self.shared.service.settings.limits.idle_timeouts()
    }
}

/// One connection's state for its requests.
struct HttpCaller {
    shared: Arc<HttpState>,
    peer: SocketAddr,
    seat: Arc<Seat>,
}

impl HttpCaller {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        self.route(request).await.unwrap_or_else(|problem| problem_answer(&problem))
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Answer, Problem> {
        let shared = &self.shared;
        if let Some(access) = &shared.access {
            self.check_access(access, &request)?;
        }
        let post = request.method() == Method::POST;
        let get = request.method() == Method::GET || request.method() == Method::HEAD;
        match request.uri().path() {
            "/v1/check" if post => {
                let trace = trace_of(request.headers());
                shared.check(self.body(request).await?, trace).await
            }
            "/v1/check/batch" if post => shared.check_batch(self.body(request).await?).await,
            "/v1/refund" if post => shared.refund(self.body(request).await?).await,
            "/v1/release" if post => shared.release(&self.body(request).await?).await,
            "/v1/renew" if post => shared.renew(&self.body(request).await?).await,
            "/v1/take" if post => shared.take(&self.body(request).await?).await,
            "/v1/usage" if post => shared.usage(&self.body(request).await?).await,
            "/v1/usage" if get => shared.usage_of_query(request.uri().query().unwrap_or_default()).await,
            "/v1/utilization" if post => shared.report_utilization(&self.body(request).await?),
            "/json" if post => shared.rls_json(&self.any_body(request).await?).await,
            "/v1/auth" if get || post => shared.auth(&request.into_parts().0, self.peer).await,
            "/healthz" if get => Ok(text(StatusCode::OK, "ok\n")),
            "/readyz" if get => Ok(shared.ready()),
            "/healthcheck" if get => Ok(shared.healthcheck()),
            "/rlconfig" if get => {
                let snapshot = shared.service.limiter.snapshot();
                Ok(text(StatusCode::OK, snapshot.rules().envoy_listing()))
            }
            "/openapi.json" if get => Ok(answer(StatusCode::OK, JSON, OPENAPI)),
            "/v1/check" | "/v1/check/batch" | "/v1/refund" | "/v1/release" | "/v1/renew" | "/v1/take"
            | "/v1/utilization" | "/json" => Ok(wrong_method(&request, "POST")),
            "/v1/auth" | "/v1/usage" => Ok(wrong_method(&request, "GET, HEAD, POST")),
            "/healthz" | "/readyz" | "/healthcheck" | "/rlconfig" | "/openapi.json" => {
                Ok(wrong_method(&request, "GET, HEAD"))
            }
            "/metrics" => Err(Problem::new(Kind::NotFound, "there is no /metrics")
                .hint("metrics are on the admin listener, by default 127.0.0.1:8082")),
            path if path == "/" || path.starts_with("/admin/") => {
                Err(Problem::new(Kind::NotFound, format!("there is no {}", shown(path)))
                    .hint("the dashboard and its API are on the admin listener, by default 127.0.0.1:8082"))
            }
            path if post && shared.service.settings.limitador_api && limitador::Call::at(path).is_some() => {
                let call = limitador::Call::at(path).unwrap_or(limitador::Call::Check);
                shared.limitador(call, &self.any_body(request).await?).await
            }
            path => Err(Problem::new(Kind::NotFound, format!("there is no {}", shown(path)))
                .hint("POST /v1/check decides a request; GET /openapi.json lists everything")),
        }
    }

    /// Refuses callers without a token. A gateway's request carries its client's `Authorization`, not the gateway's.
    fn check_access(&self, access: &Access, request: &Request<Incoming>) -> Result<(), Problem> {
        let carried = match request.uri().path() {
            "/healthz" | "/readyz" | "/healthcheck" => return Ok(()),
            "/v1/auth" => Carried::InOurs,
            _ => Carried::InEither,
        };
        access.check(request.headers(), carried, self.peer).map_err(|refused| {
            let hint = match carried {
                Carried::InEither => "send `Authorization: Bearer` and one of the tokens under `access`",
                Carried::InOurs => {
                    "have the gateway send `X-Tidegate-Token`, with one of the tokens under `access`"
                }
            };
            Problem::new(Kind::Unauthorized, refused.to_string()).hint(hint)
        })
    }

    /// The whole body of a request, which must be JSON.
    async fn body(&self, request: Request<Incoming>) -> Result<Bytes, Problem> {
        media::check(request.headers())?;
        self.any_body(request).await
    }

    /// The whole body of a request of any type.
    async fn any_body(&self, request: Request<Incoming>) -> Result<Bytes, Problem> {
        let limits = &self.shared.service.settings.limits;
        read_body(request.into_body(), limits.max_body_bytes, limits, &self.seat).await.map_err(|error| {
            let kind = match error {
                BodyError::TooLarge { .. } => Kind::BodyTooLarge,
                BodyError::TooSlow { .. } => Kind::BodyTooSlow,
                BodyError::NoRoom => Kind::Overloaded,
                BodyError::Broken(_) => Kind::MalformedJson,
            };
            Problem::new(kind, error.to_string())
        })
    }
}

impl HttpState {
    /// envoyproxy/ratelimit's JSON form: the gRPC request and answer, with its status codes. As there, the content type does
    /// not matter: its guide posts with plain `curl --data`.
    async fn rls_json(&self, body: &[u8]) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let question = json::parse_rls(body)?;
        let reply = self
            .service
            .should_rate_limit(&question)
            .await
            .map_err(|mistake| Problem::new(Kind::InvalidField, mistake.to_string()).at(mistake.field))?;
        self.service.answered(Transport::Http, began);
        let status = match reply.overall_code() {
            crate::rls::Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
            crate::rls::Code::Ok | crate::rls::Code::Unknown => StatusCode::OK,
        };
        Ok(answer(status, JSON, json::write_rls(&reply)))
    }

    /// As envoyproxy/ratelimit answers it: whether the server takes requests.
    fn healthcheck(&self) -> Answer {
        match self.stopping.load(Ordering::Relaxed) {
            true => text(StatusCode::INTERNAL_SERVER_ERROR, "stopping"),
            false => text(StatusCode::OK, "OK"),
        }
    }

    fn ready(&self) -> Answer {
        if self.stopping.load(Ordering::Relaxed) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
        }
        if self.service.limiter.snapshot().rules().domains().next().is_none() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "no rules\n");
        }
        match self.service.limiter.health() {
            Health::Healthy => text(StatusCode::OK, "ready\n"),
            // Still ready: every rule says what to do without the store, and removing the node would help nobody. Which
            // store server failed, and how, is only in the log and the metrics: anybody may ask here.
            _ => text(StatusCode::OK, "degraded\nsome of the store does not answer\n"),
        }
    }
}

/// Describes every path, for clients and their tools.
const OPENAPI: &str = include_str!("openapi.json");

pub(crate) fn answer(status: StatusCode, kind: HeaderValue, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, TEXT, body)
}

fn store_unavailable(error: &StoreError) -> Problem {
    Problem::new(Kind::StoreUnavailable, error.to_string()).hint("try again in a moment")
}

fn problem_answer(problem: &Problem) -> Answer {
    let mut answer: Answer = problem.to_response();
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

fn wrong_method(request: &Request<Incoming>, allowed: &'static str) -> Answer {
    let path = shown(request.uri().path());
    let problem = Problem::new(Kind::MethodNotAllowed, format!("{path} takes {allowed}"));
    let mut answer = problem_answer(&problem);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// A path as it may appear in a message: it comes from the peer.
fn shown(path: &str) -> &str {
    const LONGEST: usize = 200;
    &path[..path.floor_char_boundary(LONGEST)]
}
