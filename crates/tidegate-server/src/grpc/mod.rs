//! gRPC: Envoy's rate limit service and rate limit quota service, health and reflection.
//!
//! `ShouldRateLimit` is the hot path and goes straight from HTTP/2 to the service: tonic's codec, boxed futures and router
//! took a quarter of a request. Streams of quotas pull their reports (`quotas.rs`). tonic serves everything else.

mod quotas;
mod unary;

use crate::access::{Access, Carried};
use crate::rlqs::{QuotaSession, Quotas, STREAM_RATE_LIMIT_QUOTAS};
use crate::rls::{Code, DESCRIPTORS, RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT};
use http::{Request, Response};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_http::trace_of;
use tidegate_limiter::{TraceContext, Transport};
use tidegate_runtime::connection::{self, HttpLimits, HttpVersions};
use tidegate_runtime::{Connection, Drain, IdleTimeouts, Protocol, Seat, Serving};
use tonic::Status;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;
use unary::{GrpcBody, Unread};

use crate::service::Service;

/// Answers `ShouldRateLimit`.
pub trait RateLimits: Send + Sync + 'static {
    /// Answers one request; an error only if the request itself is malformed, because Envoy admits requests on errors.
    fn should_rate_limit(
        &self,
        request: RateLimitRequest,
        trace: Option<TraceContext>,
    ) -> impl Future<Output = Result<RateLimitResponse, Status>> + Send;
}

impl RateLimits for Arc<Service> {
    async fn should_rate_limit(
        &self,
        request: RateLimitRequest,
        trace: Option<TraceContext>,
    ) -> Result<RateLimitResponse, Status> {
        let began = self.clock.now();
        let answer = Service::should_rate_limit(self, &request).await;
        self.answered(Transport::Grpc, began);
        if let Ok(answer) = &answer {
            let allowed = answer.overall_code() != Code::OverLimit;
            self.traced_verdict(trace, Transport::Grpc, began, &request.domain, allowed);
        }
        answer.map_err(|mistake| Status::invalid_argument(mistake.to_string()))
    }
}

/// The gRPC protocol of one worker.
pub struct Grpc<S> {
    services: Arc<Services<S>>,
    limits: HttpLimits,
}

struct Services<S> {
    rate_limits: S,
    others: Routes,
    limits: HttpLimits,
    access: Option<Arc<Access>>,
    quotas: Option<(Arc<Service>, Arc<Quotas>)>,
}

impl<S: RateLimits> Grpc<S> {
    /// Serves `rate_limits`, and `others` (see [`health_and_reflection`]) beside it.
    pub fn new(rate_limits: S, others: Routes, limits: HttpLimits) -> Self {
        let services = Services { rate_limits, others, limits, access: None, quotas: None };
        Self { services: Arc::new(services), limits }
    }

    /// Lends `quotas` by the rules of `service`. Call it before it serves.
    ///
    /// # Panics
    /// If it already serves.
    #[must_use]
    pub fn with_quotas(mut self, service: Arc<Service>, quotas: Arc<Quotas>) -> Self {
        Arc::get_mut(&mut self.services).expect("it does not serve yet").quotas = Some((service, quotas));
        self
    }

    /// Requires one of these tokens for everything but health. Call it before it serves.
    ///
    /// # Panics
    /// If it already serves.
    #[must_use]
    pub fn with_access(mut self, access: Option<Arc<Access>>) -> Self {
        Arc::get_mut(&mut self.services).expect("it does not serve yet").access = access;
        self
    }
}

impl<S: RateLimits> Protocol for Grpc<S> {
    fn serve(&self, connection: Connection) -> Serving {
        let (services, seat) = (Arc::clone(&self.services), Arc::clone(&connection.seat));
        let (peer, drain) = (connection.peer, connection.drain.clone());
        let served = Arc::new(Served { services, peer, seat, drain });
        let service = hyper::service::service_fn(move |request| {
            let served = Arc::clone(&served);
            async move { Ok::<_, Infallible>(served.answer(request).await) }
        });
        Box::pin(connection::serve(connection, HttpVersions::Http2Only, self.limits, service))
    }

    fn idle_timeouts(&self) -> IdleTimeouts {
        self.limits.idle_timeouts()
    }
}

/// The service of one connection.
struct Served<S> {
    services: Arc<Services<S>>,
    peer: SocketAddr,
    seat: Arc<Seat>,
    drain: Drain,
}

impl<S: RateLimits> Served<S> {
    async fn answer(&self, request: Request<Incoming>) -> Response<GrpcBody> {
        let services = &*self.services;
        if let Some(access) = &services.access
            && !request.uri().path().starts_with(HEALTH)
            && let Err(refused) = access.check(request.headers(), Carried::InEither, self.peer)
        {
            return Status::unauthenticated(refused.to_string()).into_http();
        }
        if let Some((service, quotas)) = &services.quotas
            && request.uri().path() == STREAM_RATE_LIMIT_QUOTAS
        {
            return self.lend(request, service, quotas);
        }
        if request.uri().path() != SHOULD_RATE_LIMIT {
            let answered = services.others.clone().call(request.map(tonic::body::Body::new)).await;
            let answered = answered.unwrap_or_else(|never| match never {});
            // A health watch ends at a drain, so that its client reconnects elsewhere.
            return answered.map(|body| GrpcBody::tonic(body, self.drain.clone()));
        }
        if !unary::is_grpc(request.headers()) {
            return unary::unsupported_media_type();
        }
        let trace = trace_of(request.headers());
        let answered = match unary::read(request, &services.limits, &self.seat).await {
            Ok(message) => services.rate_limits.should_rate_limit(message, trace).await,
            // On an error Envoy would admit the request: a caller could evade a limit by making the message too large.
            Err(Unread::TooLarge) => Ok(over_limit()),
            Err(Unread::Wrong(status)) => Err(status),
        };
        match answered {
            Ok(reply) => unary::reply(&reply),
            Err(status) => status.into_http(),
        }
    }

    fn lend(
        &self,
        request: Request<Incoming>,
        service: &Arc<Service>,
        quotas: &Arc<Quotas>,
    ) -> Response<GrpcBody> {
        if !unary::is_grpc(request.headers()) {
            return unary::unsupported_media_type();
        }
        let Some(place) = quotas.open_stream() else {
            return Status::resource_exhausted("too many streams of quotas").into_http();
        };
        let session = QuotaSession::new(Arc::clone(service), place, self.peer.ip());
        quotas::answer(request.into_body(), session, Arc::clone(&self.seat), self.drain.clone())
    }
}

/// The path prefix of the health service.
const HEALTH: &str = "/grpc.health.v1.Health/";

fn over_limit() -> RateLimitResponse {
    RateLimitResponse { overall_code: Code::OverLimit.into(), ..RateLimitResponse::default() }
}

/// The health and reflection services, and the handle that sets the health status.
///
/// Create them once and give each worker a clone. Health is "serving" for the server as a whole (the empty name) until it is
/// changed.
#[must_use]
pub fn health_and_reflection() -> (Routes, HealthReporter) {
    let reporter = HealthReporter::new();
    let health = tonic_health::pb::health_server::HealthServer::new(
        tonic_health::server::HealthService::from_health_reporter(reporter.clone()),
    );
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = Routes::new(health)
        .add_service(reflection().build_v1().expect("committed descriptors decode"))
        .add_service(reflection().build_v1alpha().expect("committed descriptors decode"));
    (routes, reporter)
}
