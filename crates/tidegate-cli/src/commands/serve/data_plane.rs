//! Opens the listeners on which requests come in, and says what each of them speaks.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_admin::Metrics;
use tidegate_limiter::Limiter;
use tidegate_server::connection::HttpLimits;
use tidegate_server::grpc::{Grpc, health_and_reflection};
use tidegate_server::headers;
use tidegate_server::http::Http;
use tidegate_server::runtime::{self, DataPlane, Listener, Protocol, RuntimeError};
use tidegate_server::service::{Service, ServiceSettings};
use tidegate_store::SystemClock;
use tonic_health::server::HealthReporter;

use crate::failure::Failure;
use crate::settings::{HeaderSet, RlsHeaders, Settings};

/// A running data plane, and what tells gRPC health checkers about it.
pub(super) struct Running {
    pub(super) plane: DataPlane,
    pub(super) health: HealthReporter,
}

/// Starts to serve `limiter` on the listeners that `settings` ask for.
pub(super) fn start(
    settings: &Settings,
    limiter: &Arc<Limiter>,
    metrics: &Arc<Metrics>,
) -> Result<Running, Failure> {
    let service = Arc::new(Service {
        limiter: limiter.clone(),
        observer: metrics.clone(),
        clock: Arc::new(SystemClock::new()),
        settings: service_settings(settings),
    });
    let mut listeners = Vec::new();
    if let Some(address) = settings.http {
        let http: Arc<dyn Protocol> = Arc::new(Http::new(service.clone()));
        listeners.push(Listener::bind("http", address, move |_| http.clone()));
    }
    let (others, health) = health_and_reflection();
    if let Some(address) = settings.grpc {
        let limits = service.settings.limits;
        let grpc =
            move |_| -> Arc<dyn Protocol> { Arc::new(Grpc::new(service.clone(), others.clone(), limits)) };
        listeners.push(Listener::bind("grpc", address, grpc));
    }
    let listeners = listeners.into_iter().collect::<Result<_, _>>().map_err(failure)?;
    let plane = DataPlane::start(&runtime_settings(settings), listeners).map_err(failure)?;
    Ok(Running { plane, health })
}

fn service_settings(settings: &Settings) -> ServiceSettings {
    let mut limits = HttpLimits::default();
    if let Some(max_body) = settings.bounds.max_body {
        limits.max_body_bytes = max_body.get();
    }
    let headers = settings.headers.iter().map(|set| match set {
        HeaderSet::XRateLimit => headers::HeaderSet::XRatelimit,
        HeaderSet::Ietf => headers::HeaderSet::Ietf,
    });
    let rls_headers = match settings.rls_headers {
        RlsHeaders::None => None,
        RlsHeaders::XRateLimit => Some(headers::HeaderSet::XRatelimit),
        RlsHeaders::Ietf => Some(headers::HeaderSet::Ietf),
    };
    ServiceSettings { headers: headers.collect(), rls_headers, limits }
}

fn runtime_settings(settings: &Settings) -> runtime::Settings {
    let default = runtime::Settings::default();
    runtime::Settings {
        workers: settings.workers.unwrap_or(default.workers),
        max_connections: settings.bounds.max_connections.unwrap_or(default.max_connections),
        drain_deadline: settings.drain.unwrap_or(default.drain_deadline),
    }
}

fn failure(error: RuntimeError) -> Failure {
    match error {
        RuntimeError::Bind { name, address, source } => cannot_bind(name, address, &source),
        RuntimeError::Start { what, source } => {
            Failure::new(format!("cannot start a data plane {what}: {source}"))
        }
    }
}

/// `name` is also the name of the flag.
pub(super) fn cannot_bind(name: &str, address: SocketAddr, source: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot listen for {name} on {address}: {source}"));
    match source.kind() {
        io::ErrorKind::AddrInUse => failure.hint(format!(
            "end what listens there, choose another address with --{name}, or a free port with --{name} {}:0",
            address.ip()
        )),
        io::ErrorKind::PermissionDenied => {
            failure.hint("ports below 1024 need a privilege; choose a higher one")
        }
        _ => failure.hint(format!("choose another address with --{name}")),
    }
}
