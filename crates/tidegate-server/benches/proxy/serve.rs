//! Our proxy, without the rest of the binary.

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tidegate_http::identity::{Identity, IdentityConfig};
use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_server::proxy::{
    Ejection, Proxy, ProxyLimits, ProxySettings, Route, Timeouts, UpstreamSettings,
};
use tidegate_server::runtime::{DataPlane, Listener, Settings};
use tidegate_server::service::{Service, ServiceSettings};
use tidegate_store::{MemoryConfig, MemoryStore, SystemClock};

/// A limit that nobody reaches: a refusal would not be forwarded.
const RULES: &str = "{ domain: bench, rules: [{ name: per-ip, key: [ip], limits: [1000000000/hour] }] }";

pub(crate) fn run(upstream: SocketAddr) -> Result<(), Box<dyn Error>> {
    let rules = RuleSet::compile(&[Source::new("rules", RULES)], Format::Native)?;
    let store = Arc::new(MemoryStore::new(MemoryConfig::default()));
    let service = Arc::new(Service {
        limiter: Arc::new(Limiter::new(LimiterConfig::new(rules, store, Arc::new(NoObserver)))),
        observer: Arc::new(NoObserver),
        clock: Arc::new(SystemClock::new()),
        settings: ServiceSettings::default(),
    });
    let proxy = Proxy::new(ProxySettings {
        upstreams: vec![UpstreamSettings {
            name: "bench".to_owned(),
            targets: vec![format!("http://{upstream}").parse()?],
            tls: None,
            ejection: Ejection::default(),
            check: None,
        }],
        routes: vec![Route { host: None, path: "/".to_owned(), upstream: 0, domain: None }],
        identity: Arc::new(Identity::new(&IdentityConfig::default())?),
        domain: "bench".to_owned(),
        timeouts: Timeouts::default(),
        limits: ProxyLimits::default(),
    });
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind("proxy", any, move |id| proxy.for_worker(id, service.clone()))?;
    // As many as nginx has.
    let settings = Settings { workers: NonZeroUsize::MIN, ..Settings::default() };
    let plane = DataPlane::start(&settings, vec![listener])?;
    for (name, address) in plane.addresses() {
        println!("listening {name} {address}");
    }
    loop {
        std::thread::park();
    }
}
