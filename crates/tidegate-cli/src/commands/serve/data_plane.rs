//! Opens the listeners for requests, and sets the protocol of each.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tidegate_access::{Offers, ServerTls};
use tidegate_core::Micros;
use tidegate_http::identity::Identity;
use tidegate_limiter::{Limiter, Shedder, TokioRuntime, Transport};
use tidegate_proxy::{Proxy, UpstreamReader};
use tidegate_rules::RuleSet;
use tidegate_runtime::connection::HttpLimits;
use tidegate_runtime::{self as runtime, DataPlane, Listener, Protocol, RuntimeError, WarmUp, WorkerId};
use tidegate_server::access::Access;
use tidegate_server::grpc::{Grpc, health_and_reflection};
use tidegate_server::headers;
use tidegate_server::http::Http;
use tidegate_server::resp::{Logins, Resp, RespSettings};
use tidegate_server::rlqs::Quotas;
use tidegate_server::service::{RlsHeaderNames, Service, ServiceSettings};
use tidegate_store::SystemClock;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use super::backend::Backend;
use super::log_observer::LogObserver;
use super::open_files;
use super::secrets::Reloads;
use crate::failure::Failure;
use crate::settings::listeners::resp_users;
use crate::settings::proxy::{Proxy as ProxySection, check_identity};
use crate::settings::{Count, HeaderSet, ResetForm, RlsHeaders, Settings, Span, suggest};

/// A running data plane, its gRPC health reporter, and the limiter of each worker.
pub(super) struct Running {
    pub(super) plane: DataPlane,
    pub(super) health: HealthReporter,
    pub(super) limiters: Vec<Arc<Limiter>>,
    /// Sheds load, if configured.
    pub(super) shedder: Option<Arc<Shedder>>,
    /// Identities whose keys may have to be fetched.
    pub(super) identities: Vec<Arc<Identity>>,
    /// The accepted tokens, and the count of refused callers.
    pub(super) access: Option<Arc<Access>>,
    pub(super) logins: Option<Arc<Logins>>,
    /// Set when the server is about to stop.
    pub(super) stopping: Arc<AtomicBool>,
    /// What can be reloaded from files.
    pub(super) reloads: Reloads,
    /// Counts of requests to upstream servers, if there is a proxy.
    pub(super) upstreams: Option<UpstreamReader>,
    /// What is lent to Envoys. It lends nothing until it may.
    pub(super) quotas: Arc<Quotas>,
}

/// The listeners other than the proxy, and what they need.
struct Listeners {
    all: Vec<Listener>,
    logins: Option<Arc<Logins>>,
}

/// Shared by all listeners.
struct Parts<'p> {
    settings: &'p Settings,
    identity: &'p Arc<Identity>,
    shedder: Option<&'p Arc<Shedder>>,
    services: &'p [Arc<Service>],
    others: &'p Routes,
    access: Option<&'p Arc<Access>>,
    stopping: &'p Arc<AtomicBool>,
    quotas: &'p Arc<Quotas>,
}

/// Serves `limiter` on the listeners that `settings` enable. Each worker has its own connections to the store, and batches
/// its concurrent requests into one call.
pub(super) fn start(
    settings: &Settings,
    backend: &Backend,
    limiter: &Limiter,
    observer: &Arc<LogObserver>,
) -> Result<Running, Failure> {
    let runtime = runtime_settings(settings)?;
    let mut reloads = Reloads::default();
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
    let limiters: Vec<Arc<Limiter>> = services.iter().map(|service| service.limiter.clone()).collect();
    let (others, health) = health_and_reflection();
    let identity = Arc::new(check_identity("", &settings.identity)?);
    let mut identities = vec![identity.clone()];
    let shedder = settings.shedding.clone().map(|config| Shedder::new(config, clock.clone()));
    let access = settings.access.load("access.tokens")?.map(|tokens| {
        reloads.tokens.push(tokens.clone());
        Arc::new(Access::new(tokens))
    });
    super::open_listeners::warn(settings, access.is_some());
    let stopping = Arc::new(AtomicBool::new(false));
    let quotas = Quotas::new(clock.clone());
    let parts = Parts {
        settings,
        identity: &identity,
        shedder: shedder.as_ref(),
        services: &services,
        others: &others,
        access: access.as_ref(),
        stopping: &stopping,
        quotas: &quotas,
    };
    let Listeners { all: mut listeners, logins } = listeners(&parts, &mut reloads)?;
    let mut upstreams = None;
    if let Some(section) = &settings.proxy {
        let proxy = section.settings(identity.clone(), settings.drain.tunnels)?;
        identities.push(proxy.identity.clone());
        check_domains(section, limiter.snapshot().rules())?;
        let proxy = Proxy::new(proxy);
        upstreams = Some(proxy.upstreams());
        let tls = section.tls()?;
        reloads.tls.extend(tls.clone().map(|tls| ("proxy", tls)));
        listeners.push(
            proxy_listener(section.address()?, proxy, tls, services, shedder.clone()).map_err(failure)?,
        );
    }
    let plane = DataPlane::start_warm(&runtime, listeners, warm_up(&limiters)).map_err(failure)?;
    Ok(Running {
        plane,
        health,
        limiters,
        shedder,
        identities,
        access,
        logins,
        stopping,
        reloads,
        upstreams,
        quotas,
    })
}

/// Connects every worker to its store before it serves, for at most [`WARM_UP`].
fn warm_up(limiters: &[Arc<Limiter>]) -> WarmUp {
    let limiters = limiters.to_vec();
    Arc::new(move |WorkerId(worker)| {
        let limiter = limiters[worker].clone();
        Box::pin(async move {
            if !limiter.warm_up(WARM_UP).await && worker == 0 {
                // The look at the servers logs which one it is, and its error, in one line.
                tracing::debug!("starting without the store: it did not answer within {WARM_UP:?}");
            }
        })
    })
}

/// The longest wait for the store at startup.
const WARM_UP: Micros = Micros::from_secs(2);

fn proxy_listener(
    address: SocketAddr,
    proxy: Proxy,
    tls: Option<Arc<ServerTls>>,
    services: Vec<Arc<Service>>,
    shedder: Option<Arc<Shedder>>,
) -> Result<Listener, RuntimeError> {
    let make =
        move |id: WorkerId| proxy.for_worker(id, services[id.0].gate(Transport::Proxy, shedder.clone()));
    Ok(Listener::bind("proxy", address, make)?.with_tls(tls))
}

/// A domain without rules would refuse everything.
pub(super) fn check_domains(section: &ProxySection, rules: &RuleSet) -> Result<(), Failure> {
    let known: Vec<&str> = rules.domains().collect();
    // Rules of a database that does not answer yet come later.
    if known.is_empty() {
        return Ok(());
    }
    match section.domains().find(|domain| !known.contains(domain)) {
        Some(unknown) => Err(Failure::new(format!("proxy.domain: no rule has the domain `{unknown}`"))
            .hint(suggest(unknown, &known))),
        None => Ok(()),
    }
}

/// The enabled listeners, each with a protocol per worker.
fn listeners(parts: &Parts<'_>, reloads: &mut Reloads) -> Result<Listeners, Failure> {
    let Parts { settings, services, others, .. } = *parts;
    let tls = &settings.tls;
    let (mut all, mut logins) = (Vec::new(), None);
    if let Some(address) = settings.http {
        let mut http = Http::new(services[0].clone())
            .with_identity(parts.identity.clone())
            .with_stopping(parts.stopping.clone());
        if let Some(shedder) = parts.shedder {
            http = http.with_shedder(shedder.clone());
        }
        if let Some(access) = parts.access {
            http = http.with_access(access.clone());
        }
        let services = services.to_vec();
        let make = move |WorkerId(worker)| -> Arc<dyn Protocol> {
            Arc::new(http.for_worker(services[worker].clone()))
        };
        let tls = reloads.load("http", tls.http.as_ref(), Offers::Http)?;
        all.push(Listener::bind("http", address, make).map_err(failure)?.with_tls(tls));
    }
    if let Some(address) = settings.grpc {
        let (others, services, access) = (others.clone(), services.to_vec(), parts.access.cloned());
        let quotas = parts.quotas.clone();
        let make = move |WorkerId(worker)| -> Arc<dyn Protocol> {
            let service = services[worker].clone();
            let limits = service.settings.limits;
            let grpc = Grpc::new(service.clone(), others.clone(), limits).with_access(access.clone());
            Arc::new(grpc.with_quotas(service, quotas.clone()))
        };
        let tls = reloads.load("grpc", tls.grpc.as_ref(), Offers::Http2)?;
        all.push(Listener::bind("grpc", address, make).map_err(failure)?.with_tls(tls));
    }
    if let Some(address) = settings.resp {
        let resp = Resp::new(services[0].clone(), resp_settings(settings)?);
        logins = Some(resp.logins());
        let services = services.to_vec();
        let make = move |WorkerId(worker)| -> Arc<dyn Protocol> {
            Arc::new(resp.for_worker(services[worker].clone()))
        };
        let tls = reloads.load("resp", tls.resp.as_ref(), Offers::Nothing)?;
        all.push(Listener::bind("resp", address, make).map_err(failure)?.with_tls(tls));
    }
    Ok(Listeners { all, logins })
}

fn resp_settings(settings: &Settings) -> Result<RespSettings, Failure> {
    let section = &settings.resp_section;
    let default = RespSettings::default();
    Ok(RespSettings {
        users: resp_users(section.password.as_ref(), section.users.as_deref().unwrap_or_default())?,
        login_timeout: section.login_timeout.map_or(default.login_timeout, |Span(span)| span),
        idle_timeout: section.idle_timeout.map_or(default.idle_timeout, |Span(span)| span),
        ..default
    })
}

fn service_settings(settings: &Settings) -> ServiceSettings {
    let mut limits = HttpLimits::default();
    let (given, time) = (&settings.limits, |Span(time)| time);
    limits.max_body_bytes = given.max_body.map_or(limits.max_body_bytes, |Count(most)| most.get());
    limits.head_timeout = given.head_timeout.map_or(limits.head_timeout, time);
    limits.body_timeout = given.body_timeout.map_or(limits.body_timeout, time);
    limits.idle_timeout = given.idle_timeout.map_or(limits.idle_timeout, time);
    let headers = settings.headers.iter().map(|set| match set {
        HeaderSet::XRateLimit => headers::HeaderSet::XRatelimit,
        HeaderSet::Ietf => headers::HeaderSet::Ietf,
        HeaderSet::Ietf11 => headers::HeaderSet::Ietf11,
        HeaderSet::IetfNext => headers::HeaderSet::IetfNext,
    });
    let rls_headers = match settings.rls_headers {
        RlsHeaders::None => None,
        RlsHeaders::XRateLimit => Some(headers::HeaderSet::XRatelimit),
        RlsHeaders::Ietf => Some(headers::HeaderSet::Ietf),
        RlsHeaders::Ietf11 => Some(headers::HeaderSet::Ietf11),
        RlsHeaders::IetfNext => Some(headers::HeaderSet::IetfNext),
    };
    let closed_status = settings.store.closed_status;
    let reset = match settings.x_reset {
        ResetForm::Unix => headers::ResetForm::Unix,
        ResetForm::Delta => headers::ResetForm::Delta,
    };
    let partitions =
        settings.partition_secret.as_ref().map(|secret| headers::PartitionSecret::new(secret.bytes()));
    let headers = headers::HeaderSets::from_iter(headers).with_reset(reset).with_partitions(partitions);
    let rls_header_names = settings.rls_header_names.as_ref().map(|names| RlsHeaderNames {
        limit: names.limit.0.clone(),
        remaining: names.remaining.0.clone(),
        reset: names.reset.0.clone(),
    });
    let (rls_metadata, limitador_api) = (settings.rls_metadata, settings.limitador_api);
    ServiceSettings {
        headers,
        rls_headers,
        rls_header_names,
        rls_metadata,
        limitador_api,
        closed_status,
        limits,
    }
}

fn runtime_settings(settings: &Settings) -> Result<runtime::Settings, Failure> {
    let (default, limits) = (runtime::Settings::default(), &settings.limits);
    let workers = settings.workers.unwrap_or(default.workers);
    let wanted = limits.max_connections.map_or(default.max_connections, |Count(most)| most);
    let count = |given: Option<Count>, default| given.map_or(default, |Count(most)| most.get());
    // A body of the largest size must fit.
    let connection_memory = count(limits.max_connection_memory, default.connection_memory)
        .max(2 * count(limits.max_body, HttpLimits::default().max_body_bytes));
    Ok(runtime::Settings {
        workers,
        max_connections: open_files::fit(wanted, &open_files::Needs::of(settings, workers))?,
        max_connections_per_peer: limits.max_connections_per_peer.map(|Count(most)| most),
        connection_memory,
        worker_memory: count(limits.max_worker_memory, default.worker_memory).max(connection_memory),
        drain_deadline: settings.drain.timeout.unwrap_or(default.drain_deadline),
        ..default
    })
}

fn failure(error: RuntimeError) -> Failure {
    match error {
        RuntimeError::Bind { name, address, source } => cannot_bind(name, address, &source),
        RuntimeError::Start { what, source } => {
            Failure::new(format!("cannot start a data plane {what}: {source}"))
        }
    }
}

/// `name` is also the name of the flag, if there is one.
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
