//! Opens the listeners on which requests come in, and says what each of them speaks.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_access::{SecretDigest, ServerTls};
use tidegate_http::identity::Identity;
use tidegate_limiter::{Limiter, Shedder, TokioRuntime};
use tidegate_server::connection::HttpLimits;
use tidegate_server::grpc::{Grpc, health_and_reflection};
use tidegate_server::headers;
use tidegate_server::http::Http;
use tidegate_server::proxy::Proxy;
use tidegate_server::resp::{Resp, RespSettings, Users};
use tidegate_server::runtime::{self, DataPlane, Listener, Protocol, RuntimeError, WorkerId};
use tidegate_server::service::{Service, ServiceSettings};
use tidegate_store::SystemClock;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use super::backend::Backend;
use super::narrator::Narrator;
use crate::failure::Failure;
use crate::settings::proxy::{Proxy as ProxySection, check_identity};
use crate::settings::{HeaderSet, RlsHeaders, Settings, suggest};

/// A running data plane, what tells gRPC health checkers about it, and the limiter of each worker.
pub(super) struct Running {
    pub(super) plane: DataPlane,
    pub(super) health: HealthReporter,
    pub(super) limiters: Vec<Arc<Limiter>>,
    /// Sheds load, where it is asked to.
    pub(super) shedder: Option<Arc<Shedder>>,
    /// Those whose keys may have to be fetched.
    pub(super) identities: Vec<Arc<Identity>>,
}

/// Starts to serve `limiter` on the listeners that `settings` ask for. Each worker asks the store over connections of its
/// own, and gathers in one call what its own requests ask at the same time.
pub(super) fn start(
    settings: &Settings,
    backend: &Backend,
    limiter: &Limiter,
    observer: &Arc<Narrator>,
) -> Result<Running, Failure> {
    let runtime = runtime_settings(settings);
    let clock = Arc::new(SystemClock::new());
    let worker = |_| {
        Arc::new(Service {
            limiter: Arc::new(limiter.for_core(backend.store(), Arc::new(TokioRuntime))),
            observer: observer.clone(),
            clock: clock.clone(),
            settings: service_settings(settings),
        })
    };
    let services: Vec<Arc<Service>> = (0..runtime.workers.get()).map(worker).collect();
    let limiters = services.iter().map(|service| service.limiter.clone()).collect();
    let (others, health) = health_and_reflection();
    let identity = Arc::new(check_identity("", &settings.identity)?);
    let mut identities = vec![identity.clone()];
    let shedder = settings.shedding.clone().map(|config| Shedder::new(config, clock.clone()));
    let mut listeners =
        listeners(settings, &identity, shedder.as_ref(), &services, &others).map_err(failure)?;
    if let Some(section) = &settings.proxy {
        let proxy = section.settings(identity)?;
        identities.push(proxy.identity.clone());
        check_domains(section, limiter)?;
        let proxy = match &shedder {
            Some(shedder) => Proxy::new(proxy).with_shedder(shedder.clone()),
            None => Proxy::new(proxy),
        };
        let tls = section.tls()?;
        listeners.push(proxy_listener(section.address()?, proxy, tls, services).map_err(failure)?);
    }
    let plane = DataPlane::start(&runtime, listeners).map_err(failure)?;
    Ok(Running { plane, health, limiters, shedder, identities })
}

fn proxy_listener(
    address: SocketAddr,
    proxy: Proxy,
    tls: Option<Arc<ServerTls>>,
    services: Vec<Arc<Service>>,
) -> Result<Listener, RuntimeError> {
    let make = move |id: WorkerId| proxy.for_worker(id, services[id.0].clone());
    Ok(Listener::bind("proxy", address, make)?.with_tls(tls))
}

/// A domain that has no rules would let nothing pass.
fn check_domains(section: &ProxySection, limiter: &Limiter) -> Result<(), Failure> {
    let snapshot = limiter.snapshot();
    let known: Vec<&str> = snapshot.rules().domains().collect();
    match section.domains().find(|domain| !known.contains(domain)) {
        Some(unknown) => Err(Failure::new(format!("proxy.domain: no rule speaks of the domain `{unknown}`"))
            .hint(suggest(unknown, &known))),
        None => Ok(()),
    }
}

/// The listeners that are on, each with a protocol per worker. `services` has one for each worker.
fn listeners(
    settings: &Settings,
    identity: &Arc<Identity>,
    shedder: Option<&Arc<Shedder>>,
    services: &[Arc<Service>],
    others: &Routes,
) -> Result<Vec<Listener>, RuntimeError> {
    let mut listeners = Vec::new();
    if let Some(address) = settings.http {
        let mut http = Http::new(services[0].clone()).with_identity(identity.clone());
        if let Some(shedder) = shedder {
            http = http.with_shedder(shedder.clone());
        }
        let services = services.to_vec();
        let make = move |WorkerId(worker)| -> Arc<dyn Protocol> {
            Arc::new(http.for_worker(services[worker].clone()))
        };
        listeners.push(Listener::bind("http", address, make)?);
    }
    if let Some(address) = settings.grpc {
        let (others, services) = (others.clone(), services.to_vec());
        let make = move |WorkerId(worker)| -> Arc<dyn Protocol> {
            let service = services[worker].clone();
            let limits = service.settings.limits;
            Arc::new(Grpc::new(service, others.clone(), limits))
        };
        listeners.push(Listener::bind("grpc", address, make)?);
    }
    if let Some(address) = settings.resp {
        let (resp, services) = (Resp::new(services[0].clone(), resp_settings(settings)), services.to_vec());
        let make = move |WorkerId(worker)| -> Arc<dyn Protocol> {
            Arc::new(resp.for_worker(services[worker].clone()))
        };
        listeners.push(Listener::bind("resp", address, make)?);
    }
    Ok(listeners)
}

fn resp_settings(settings: &Settings) -> RespSettings {
    let mut users = Users::default();
    if let Some(password) = &settings.resp_password {
        users = users.with("default", vec![SecretDigest::of(password.reveal().as_bytes())]);
    }
    RespSettings { users, ..RespSettings::default() }
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
        ..default
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

/// `name` is also the name of the flag, where there is one.
pub(super) fn cannot_bind(name: &str, address: SocketAddr, source: &io::Error) -> Failure {
    let setting = if name == "proxy" { "proxy.listen".to_owned() } else { format!("--{name}") };
    let failure = Failure::new(format!("cannot listen for {name} on {address}: {source}"));
    match source.kind() {
        io::ErrorKind::AddrInUse => failure.hint(format!(
            "end what listens there, choose another address with {setting}, or a free port with {setting} {}:0",
            address.ip()
        )),
        io::ErrorKind::PermissionDenied => {
            failure.hint("ports below 1024 need a privilege; choose a higher one")
        }
        _ => failure.hint(format!("choose another address with {setting}")),
    }
}
