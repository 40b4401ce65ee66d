//! A proxy in front of upstream servers that are scripted byte by byte.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_access::ServerTls;
use tidegate_core::{Micros, Timestamp};
use tidegate_http::Gate;
use tidegate_http::answer::ClosedStatus;
use tidegate_http::headers::HeaderSets;
use tidegate_http::identity::{Identity, IdentityConfig};
use tidegate_limiter::{
    Capacity, Limiter, LimiterConfig, RemoteConfig, Shedder, ShedderConfig, TokioRuntime, Transport,
};
use tidegate_proxy::{
    Admission, Ejection, Proxy, ProxyLimits, ProxySettings, Route, Timeouts, UpstreamSettings,
};
use tidegate_rules::Format;
use tidegate_runtime::{DataPlane, Listener, Settings};
use tidegate_store::conformance::Broken;
use tidegate_store::{Clock, ManualClock, MemoryConfig, MemoryStore, Store, SystemClock};
use tidegate_testkit::http;

use crate::listeners::{Heard, START_S, compile};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Rules that refuse nothing in a test.
const GENEROUS: &str = "domain: edge\nrules: [{ name: all, key: [], limits: [1000000/minute] }]";

const BOUNDS: MemoryConfig = MemoryConfig::new().max_cells(10_000).max_log_bytes(1 << 20);

/// A proxy to be started.
pub(crate) struct Setup {
    rules: String,
    store: Where,
    pub(crate) settings: ProxySettings,
    runtime: Settings,
    time: Time,
    tls: Option<Arc<ServerTls>>,
    workers: Option<NonZeroUsize>,
}

#[derive(PartialEq)]
enum Time {
    StandsStill,
    Passes,
}

#[derive(PartialEq)]
enum Where {
    Memory,
    Away,
}

impl Setup {
    /// One upstream with these targets, for every host and path.
    pub(crate) fn to(targets: &[String]) -> Self {
        let upstream = UpstreamSettings {
            name: "backend".to_owned(),
            targets: targets.iter().map(|target| target.parse().unwrap()).collect(),
            tls: None,
            ejection: Ejection::default(),
            check: None,
        };
        let settings = ProxySettings {
            upstreams: vec![upstream],
            routes: vec![Route { host: None, path: "/".to_owned(), upstream: 0, domain: None }],
            identity: Arc::new(Identity::new(&IdentityConfig::default()).unwrap()),
            domain: "edge".to_owned(),
            timeouts: Timeouts { connect: Duration::from_secs(5), ..Timeouts::default() },
            limits: ProxyLimits::default(),
        };
        Setup {
            rules: GENEROUS.to_owned(),
            store: Where::Memory,
            settings,
            runtime: Settings::default(),
            time: Time::StandsStill,
            tls: None,
            workers: None,
        }
    }

    /// Sheds what so many workers behind it cannot work on at once.
    pub(crate) fn workers(mut self, workers: usize) -> Self {
        self.workers = NonZeroUsize::new(workers);
        self
    }

    pub(crate) fn rules(mut self, rules: &str) -> Self {
        self.rules = rules.to_owned();
        self
    }

    pub(crate) fn without_store(mut self) -> Self {
        self.store = Where::Away;
        self
    }

    /// Lets the limiter's clock run, instead of setting it.
    pub(crate) fn in_real_time(mut self) -> Self {
        self.time = Time::Passes;
        self
    }

    /// Reads identities with this configuration.
    pub(crate) fn identity(mut self, change: impl FnOnce(&mut IdentityConfig)) -> Self {
        let mut config = IdentityConfig::default();
        change(&mut config);
        self.settings.identity = Arc::new(Identity::new(&config).unwrap());
        self
    }

    pub(crate) fn change(mut self, change: impl FnOnce(&mut ProxySettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Serves clients over TLS.
    pub(crate) fn over_tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(Arc::new(tls));
        self
    }

    pub(crate) fn drain_deadline(mut self, deadline: Duration) -> Self {
        self.runtime.drain_deadline = deadline;
        self
    }

    pub(crate) fn handshake_timeout(mut self, within: Duration) -> Self {
        self.runtime.handshake_timeout = within;
        self
    }

    pub(crate) fn start(self) -> Edge {
        let manual = Arc::new(ManualClock::at(Timestamp::from_micros(START_S * 1_000_000)));
        let clock: Arc<dyn Clock> = match self.time {
            Time::StandsStill => manual.clone(),
            Time::Passes => Arc::new(SystemClock::new()),
        };
        let memory: Arc<dyn Store> = match self.time {
            Time::StandsStill => Arc::new(MemoryStore::with_clock(BOUNDS, manual.clone())),
            Time::Passes => Arc::new(MemoryStore::new(BOUNDS)),
        };
        let rules = compile(&self.rules, Format::Native);
        let heard = Arc::new(Heard::default());
        let observer = heard.clone();
        let mut config = match self.store {
            Where::Memory => LimiterConfig::new(rules, memory, observer.clone()),
            Where::Away => LimiterConfig::new(rules, Arc::new(Broken::AWAY), observer.clone())
                .over_a_network(RemoteConfig::new(Arc::new(TokioRuntime))),
        };
        config.clock = clock.clone();
        let limiter = Arc::new(Limiter::new(config));
        let shedding = self.workers.map(|workers| ShedderConfig::new(Capacity::Workers(workers)));
        let shedder = shedding.map(|config| Shedder::new(config, clock.clone()));
        let gate = move || Gate {
            limiter: Arc::clone(&limiter),
            shedder: shedder.clone(),
            headers: HeaderSets::ALL,
            closed_status: ClosedStatus::default(),
            runtime: Arc::new(TokioRuntime),
            clock: Arc::clone(&clock),
            observed: Some((observer.clone(), Transport::Proxy)),
        };
        let proxy = Proxy::new(self.settings);
        let admission = proxy.admission();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let make = move |id| proxy.for_worker(id, gate());
        let listener = Listener::bind("proxy", any, make).unwrap().with_tls(self.tls);
        let plane = DataPlane::start(&self.runtime, vec![listener]).unwrap();
        Edge { plane, admission, heard, clock: manual }
    }
}

pub(crate) struct Edge {
    pub(crate) plane: DataPlane,
    pub(crate) admission: Arc<Admission>,
    pub(crate) heard: Arc<Heard>,
    clock: Arc<ManualClock>,
}

impl Edge {
    pub(crate) fn addr(&self) -> SocketAddr {
        self.plane.addresses()[0].1
    }

    pub(crate) fn advance(&self, span: Micros) {
        self.clock.advance(span);
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> http::Response {
        self.send("GET", path, &[], b"")
    }

    #[track_caller]
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> http::Response {
        http::request(self.addr(), method, path, headers, body).unwrap()
    }

    /// A raw connection for a test.
    pub(crate) fn connect(&self) -> Wire {
        Wire::new(TcpStream::connect(self.addr()).unwrap())
    }

    #[track_caller]
    pub(crate) fn eventually_idle(&self) {
        tidegate_testkit::eventually("nothing is in flight", PATIENCE, || self.admission.in_flight() == 0);
    }
}

/// One end of a connection, read line by line or as it comes.
pub(crate) struct Wire(pub(crate) BufReader<TcpStream>);

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Wire(BufReader::new(stream))
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    #[track_caller]
    pub(crate) fn write(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// A line without its end; empty at the end of a head or of the connection.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// The lines of a head, names in lower case.
    #[track_caller]
    pub(crate) fn head(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.line().unwrap();
            if line.is_empty() {
                return lines;
            }
            lines.push(line.to_lowercase());
        }
    }

    #[track_caller]
    pub(crate) fn exactly(&mut self, bytes: usize) -> String {
        let mut text = vec![0; bytes];
        self.0.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// A chunk of a chunked body.
    #[track_caller]
    pub(crate) fn chunk(&mut self) -> String {
        let size = usize::from_str_radix(&self.line().unwrap(), 16).unwrap();
        let text = self.exactly(size);
        self.line().unwrap();
        text
    }

    /// Everything until the other end closes, however it does.
    pub(crate) fn rest(&mut self) -> String {
        let mut all = Vec::new();
        let _ = self.0.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }
}

/// An upstream server that handles each connection in its own thread, as scripted.
pub(crate) struct Raw {
    pub(crate) addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Raw {
    pub(crate) fn start(handle: impl Fn(Wire) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let (handle, count) = (Arc::new(handle), accepted.clone());
        // They end with the test process: nothing else holds the listener.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let handle = handle.clone();
                std::thread::spawn(move || handle(Wire::new(stream)));
            }
        });
        Raw { addr, accepted }
    }

    /// Answers every request with this text, on connections that stay open.
    pub(crate) fn saying(answer: &'static str) -> Self {
        Raw::start(move |mut wire| {
            while !wire.head().is_empty() {
                wire.write(answer);
            }
        })
    }

    pub(crate) fn target(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// How many connections were made to it.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// A port on which nothing listens.
pub(crate) fn nobody() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

pub(crate) fn target(upstream: &tidegate_testkit::Upstream) -> String {
    format!("http://{}", upstream.addr())
}

/// Two hundred and its body.
pub(crate) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
