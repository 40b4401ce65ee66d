//! Our server, without the rest of the binary.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_runtime::{DataPlane, Listener, Settings};
use tidegate_server::resp::{Resp, RespSettings};
use tidegate_server::service::{Service, ServiceSettings};
use tidegate_store::{MemoryConfig, MemoryStore, SystemClock};

/// A limit that nobody reaches: refusals are cheaper, so a mix would flatter.
pub(crate) const RULES: &str =
    "{ domain: bench, rules: [{ name: per-user, key: [user], limits: [1000000000/hour] }] }";

pub(crate) fn run(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let rules = RuleSet::compile(&[Source::new("rules", RULES)], Format::Native)?;
    let store = Arc::new(MemoryStore::new(MemoryConfig::default()));
    let service = Arc::new(Service {
        limiter: Arc::new(Limiter::new(LimiterConfig::new(rules, store, Arc::new(NoObserver)))),
        observer: Arc::new(NoObserver),
        clock: Arc::new(SystemClock::new()),
        settings: ServiceSettings::default(),
    });
    let resp = Resp::new(service.clone(), RespSettings::default());
    let listener = Listener::bind("resp", address, move |_| Arc::new(resp.for_worker(service.clone())))?;
    let plane = DataPlane::start(&Settings::default(), vec![listener])?;
    for (name, address) in plane.addresses() {
        println!("listening {name} {address}");
    }
    loop {
        std::thread::park();
    }
}
