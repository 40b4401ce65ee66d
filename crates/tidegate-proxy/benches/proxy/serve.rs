//! Our proxy, without the rest of the binary.

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tidegate_http::Gate;
use tidegate_http::answer::ClosedStatus;
use tidegate_http::headers::HeaderSets;
use tidegate_http::identity::{Identity, IdentityConfig};
use tidegate_limiter::{Limiter, LimiterConfig, NoObserver, TokioRuntime, Transport};
use tidegate_proxy::{Ejection, Proxy, ProxyLimits, ProxySettings, Route, Timeouts, UpstreamSettings};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_runtime::{DataPlane, Listener, Settings};
use tidegate_store::{MemoryConfig, MemoryStore, SystemClock};

/// A limit that nobody reaches: a refusal would not be forwarded.
const RULES: &str = "{ domain: bench, rules: [{ name: per-ip, key: [ip], limits: [1000000000/hour] }] }";

pub(crate) fn run(upstream: SocketAddr) -> Result<(), Box<dyn Error>> {
    let rules = RuleSet::compile(&[Source::new("rules", RULES)], Format::Native)?;
    let store = Arc::new(MemoryStore::new(MemoryConfig::default()));
    let limiter = Arc::new(Limiter::new(LimiterConfig::new(rules, store, Arc::new(NoObserver))));
    let clock = Arc::new(SystemClock::new());
    let gate = move || Gate {
        limiter: Arc::clone(&limiter),
        shedder: None,
        headers: HeaderSets::ALL,
        closed_status: ClosedStatus::default(),
        runtime: Arc::new(TokioRuntime),
        clock: clock.clone(),
        observed: Some((Arc::new(NoObserver), Transport::Proxy)),
    };
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
    let listener = Listener::bind("proxy", any, move |id| proxy.for_worker(id, gate()))?;
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
