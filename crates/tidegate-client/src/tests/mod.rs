//! Clients against a real server over a real limiter, whose clock stands still until it is moved.

mod ask;
mod client;
mod mistakes;
mod sim;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_access::{Offers, ServerTls, TlsFiles, TokenSource};
use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_runtime::{DataPlane, Listener, Settings};
use tidegate_server::access::Access;
use tidegate_server::http::Http;
use tidegate_server::service::{Service, ServiceSettings};
use tidegate_store::{Clock, ManualClock, MemoryConfig, MemoryStore};
use tidegate_testkit::Certificates;

use crate::connection::Connection;

/// The start of a day in UTC.
const START: Timestamp = Timestamp::from_micros(1_800_057_600_000_000);

struct World {
    plane: DataPlane,
    clock: Arc<ManualClock>,
    limiter: Arc<Limiter>,
}

/// What a server wants of its clients.
#[derive(Default)]
struct Wants {
    token: Option<&'static str>,
    tls: Option<Certificates>,
}

/// A server's data plane, and where it listens.
fn serve(limiter: &Arc<Limiter>, clock: Arc<dyn Clock>, wants: &Wants) -> DataPlane {
    let (limiter, observer) = (limiter.clone(), Arc::new(NoObserver));
    let service = Arc::new(Service { limiter, observer, clock, settings: ServiceSettings::default() });
    let mut http = Http::new(service.clone());
    if let Some(token) = wants.token {
        let tokens = TokenSource::load(vec![token.to_owned()], None).unwrap();
        http = http.with_access(Arc::new(Access::new(Arc::new(tokens))));
    }
    let tls = wants.tls.as_ref().map(|Certificates { cert, key, .. }| {
        let files = TlsFiles { certificate: cert.clone(), key: key.clone(), client_ca: None };
        Arc::new(ServerTls::load(files, Offers::Http).unwrap())
    });
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind("http", any, move |_| Arc::new(http.for_worker(service.clone()))).unwrap();
    DataPlane::start(&Settings::default(), vec![listener.with_tls(tls)]).unwrap()
}

fn url_of(plane: &DataPlane) -> String {
    format!("http://{}", plane.addresses()[0].1)
}

impl World {
    fn new(rules: &str) -> Self {
        Self::that(rules, &Wants::default())
    }

    fn that(rules: &str, wants: &Wants) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::with_clock(MemoryConfig::new(), clock.clone());
        let mut config = LimiterConfig::new(compile(rules), Arc::new(store), Arc::new(NoObserver));
        config.clock = clock.clone();
        let limiter = Arc::new(Limiter::new(config));
        let plane = serve(&limiter, clock.clone(), wants);
        World { plane, clock, limiter }
    }

    fn url(&self) -> String {
        url_of(&self.plane)
    }

    fn connection(&self) -> Connection {
        Connection::new(&self.url(), None, None, Duration::from_secs(30)).unwrap()
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn advance(&self, span: Micros) {
        self.clock.advance(span);
    }
}

fn compile(rules: &str) -> RuleSet {
    RuleSet::compile(&[Source::new("rules.yaml", rules)], Format::Native)
        .unwrap_or_else(|error| panic!("{error}"))
}
