//! A reverse proxy that checks every request with the limiter before forwarding it.
//!
//! Bodies stream in both directions, over HTTP/1.1 and HTTP/2 on either side, with or without TLS; a request that leaves
//! HTTP (a WebSocket) becomes a tunnel. It does not cache, rewrites no content, and decides nothing: rules do. Each worker
//! has its own connections to the upstream servers, and all share their health.
//!
//! A request is [admitted](Admission), [identified](tidegate_http::identity), [routed](Route), limited, and then
//! forwarded under the path that the rules saw.

mod admit;
mod answer;
mod balance;
mod body;
mod dial;
mod exchange;
mod fetch;
mod forward;
mod health;
mod hop;
mod outlive;
mod pool;
mod route;
mod settings;
mod stall;
mod stats;
mod target;
mod tls;
mod tunnel;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use tidegate_http::Gate;
use tidegate_http::identity::{ForwardedPath, NormalPath, PathCase};
use tidegate_store::Clock;

pub use admit::Admission;
pub use balance::{Ejection, MOST_TARGETS};
pub use route::Route;
pub use settings::{HealthCheck, ProxyLimits, ProxySettings, Timeouts, UpstreamSettings};
pub use stats::{UpstreamFailure, UpstreamReader, UpstreamStats};
pub use target::{Target, TargetError};
pub use tls::{ClientTls, ClientTlsError, client_config};

use balance::Group;
use dial::Dialer;
use exchange::Upstream;
use forward::Via;
use pool::Pool;
use tidegate_runtime::connection::{self, HttpLimits, HttpVersions};
use tidegate_runtime::{Connection, IdleTimeouts, Protocol, Serving, WorkerId};

/// How often idle connections are swept.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// A reverse proxy, for all workers.
pub struct Proxy {
    shared: Arc<ProxyShared>,
}

/// Shared by all workers.
struct ProxyShared {
    settings: ProxySettings,
    groups: Vec<Arc<Group>>,
    admission: Arc<Admission>,
}

impl Proxy {
    /// A proxy with these settings.
    #[must_use]
    pub fn new(mut settings: ProxySettings) -> Self {
        let group = |upstream: &UpstreamSettings| {
            Arc::new(Group::new(upstream.name.clone(), upstream.targets.clone(), upstream.ejection))
        };
        let groups = settings.upstreams.iter().map(group).collect();
        settings.routes.retain(|route| route.upstream < settings.upstreams.len());
        let case = settings.identity.path_case();
        settings.routes.iter_mut().for_each(|route| route.path = normal(&route.path, case));
        let admission = Admission::new(settings.limits.max_in_flight);
        Proxy { shared: Arc::new(ProxyShared { settings, groups, admission }) }
    }

    /// The count of requests in flight.
    #[must_use]
    pub fn admission(&self) -> Arc<Admission> {
        Arc::clone(&self.shared.admission)
    }

    /// Reads the counts of requests to upstream servers.
    #[must_use]
    pub fn upstreams(&self) -> UpstreamReader {
        UpstreamReader(Arc::clone(&self.shared))
    }

    /// The protocol of one worker, with connections of its own, behind this gate; call it in that worker's runtime. The first
    /// worker also checks the health of the upstream servers.
    #[must_use]
    pub fn for_worker(&self, id: WorkerId, gate: Gate) -> Arc<dyn Protocol> {
        let upstreams =
            (0..self.shared.groups.len()).map(|at| Arc::new(self.shared.upstream(at, &gate.clock))).collect();
        let (shared, open) = (Arc::clone(&self.shared), Open::default());
        let worker = Arc::new(ProxyWorker { shared, gate, upstreams, open });
        let pools = worker.upstreams.iter().flat_map(|upstream| upstream.pools.iter()).cloned().collect();
        tokio::spawn(sweep(pools, Arc::clone(&worker.gate.clock)));
        if id == WorkerId(0) {
            self.shared.watch_health();
        }
        Arc::new(Listening(worker))
    }
}

impl ProxyShared {
    fn upstream(&self, at: usize, clock: &Arc<dyn Clock>) -> Upstream {
        let (group, timeouts) = (&self.groups[at], &self.settings.timeouts);
        let pools = group.targets().map(|target| Pool::new(self.dialer(at, target), timeouts.keep)).collect();
        let clock = Arc::clone(clock);
        Upstream { group: Arc::clone(group), pools, head_within: timeouts.head, clock }
    }

    fn dialer(&self, at: usize, target: &Target) -> Dialer {
        let tls = self.settings.upstreams[at].tls.clone();
        Dialer { target: target.clone(), tls, within: self.settings.timeouts.connect }
    }

    fn watch_health(&self) {
        for (at, group) in self.groups.iter().enumerate() {
            let Some(check) = &self.settings.upstreams[at].check else { continue };
            for (place, target) in group.targets().enumerate() {
                let dialer = self.dialer(at, target);
                tokio::spawn(health::watch(Arc::clone(group), place, dialer, check.clone()));
            }
        }
    }
}

/// A route's path, normalised like those of requests.
fn normal(path: &str, case: PathCase) -> String {
    let normal = NormalPath::read(path, case, ForwardedPath::Normalised);
    normal.map_or_else(|_| path.to_owned(), |normal| normal.matching().to_owned())
}

async fn sweep(pools: Vec<Arc<Pool>>, clock: Arc<dyn Clock>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        let now = clock.now();
        pools.iter().for_each(|pool| pool.sweep(now));
    }
}

/// The proxy on one worker.
struct ProxyWorker {
    shared: Arc<ProxyShared>,
    gate: Gate,
    upstreams: Vec<Arc<Upstream>>,
    open: Open,
}

struct Listening(Arc<ProxyWorker>);

impl Protocol for Listening {
    fn serve(&self, connection: Connection) -> Serving {
        Box::pin(Arc::clone(&self.0).speak(connection))
    }

    fn idle_timeouts(&self) -> IdleTimeouts {
        self.0.shared.settings.limits.http.idle_timeouts()
    }
}

impl ProxyWorker {
    async fn speak(self: Arc<Self>, connection: Connection) {
        let (peer, drain, seat) = (connection.peer, connection.drain.clone(), Arc::clone(&connection.seat));
        let scheme = if connection.stream.is_encrypted() { "https" } else { "http" };
        let via = Via { peer, scheme, tunnel: Arc::default(), answers: Arc::default() };
        let (tunnel, answers) = (Arc::clone(&via.tunnel), Arc::clone(&via.answers));
        let Timeouts { stall, goodbye, .. } = self.shared.settings.timeouts;
        let limits = self.limits_of_one_more();
        let _open = self.open.count();
        let clock = Arc::clone(&self.gate.clock);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (worker, via) = (Arc::clone(&self), via.clone());
            async move { Ok::<_, Infallible>(worker.answer(request, via).await) }
        });
        tokio::select! {
            () = connection::serve(connection, HttpVersions::Http1And2, limits, service) => {}
            () = answers.stalled(&*clock, stall) => {
                return tracing::debug!(%peer, "closed: the client did not read an answer");
            }
        }
        let waiting = tunnel.lock().take();
        if let Some(tunnel) = waiting {
            let _under_way = seat.begin();
            tokio::select! {
                () = tunnel.run() => {}
                () = async { drain.requested().await; tokio::time::sleep(goodbye).await } => {
                    tracing::debug!(%peer, "a tunnel was closed: the server stops");
                }
            }
        }
    }

    /// The limits of a new connection. If the worker has many, its window is small, so that all of them together cannot fill
    /// the memory.
    fn limits_of_one_more(&self) -> HttpLimits {
        let mut limits = self.shared.settings.limits.http;
        if self.open.now() >= WIDE_WINDOWS {
            limits.window_bytes = limits.window_bytes.min(NARROW_WINDOW_BYTES);
        }
        limits
    }
}

/// Connections of a worker that get the full window, and the window of any further one.
const WIDE_WINDOWS: usize = 256;
/// The least that HTTP/2 allows.
const NARROW_WINDOW_BYTES: u32 = 65_535;

/// Open connections of one worker.
#[derive(Debug, Default)]
struct Open(Arc<AtomicUsize>);

impl Open {
    fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more until the result is dropped.
    fn count(&self) -> CountedConnection {
        self.0.fetch_add(1, Ordering::Relaxed);
        CountedConnection(Arc::clone(&self.0))
    }
}

struct CountedConnection(Arc<AtomicUsize>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
