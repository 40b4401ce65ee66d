//! A served limiter, its clock, and short helpers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_runtime::{DataPlane, Listener, Settings};
use tidegate_server::resp::{Resp, RespSettings};
use tidegate_server::service::{Service, ServiceSettings};
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore, Store};
use tidegate_testkit::resp::{Client, Value};

pub(super) struct World {
    pub(super) plane: DataPlane,
    pub(super) clock: Arc<ManualClock>,
    pub(super) addr: SocketAddr,
}

const START: Timestamp = Timestamp::from_micros(1_800_057_600_000_000);

pub(super) const RULES: &str = "
domain: api
rules:
  - { name: per-user, key: [user], limits: [3/minute] }
  - { name: uploads, match: { path: /upload }, key: [user], limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }
---
domain: smooth
rules:
  - { name: queue, limits: [{ algorithm: leaky_bucket, rate: 1/s, max_delay: 10s }] }
";

impl World {
    pub(super) fn new() -> Self {
        World::with_settings(RespSettings::default())
    }

    pub(super) fn with_settings(settings: RespSettings) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let config = MemoryConfig::new().max_cells(100_000).max_log_bytes(1 << 20);
        let store = MemoryStore::with_clock(config, clock.clone());
        World::on(Arc::new(store), clock, settings)
    }

    pub(super) fn on(store: Arc<dyn Store>, clock: Arc<ManualClock>, settings: RespSettings) -> Self {
        let rules = RuleSet::compile(&[Source::new("rules.yaml", RULES)], Format::Native)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut config = LimiterConfig::new(rules, store, Arc::new(NoObserver));
        config.clock = clock.clone();
        let service = Service {
            limiter: Arc::new(Limiter::new(config)),
            observer: Arc::new(NoObserver),
            clock: clock.clone(),
            settings: ServiceSettings::default(),
        };
        let service = Arc::new(service);
        let resp = Resp::new(service.clone(), settings);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener =
            Listener::bind("resp", any, move |_| Arc::new(resp.for_worker(service.clone()))).unwrap();
        // One worker, so that connections must share it.
        let settings = Settings {
            workers: NonZeroUsize::MIN,
            drain_deadline: Duration::from_secs(5),
            ..Settings::default()
        };
        let plane = DataPlane::start(&settings, vec![listener]).unwrap();
        let addr = plane.addresses()[0].1;
        World { plane, clock, addr }
    }

    pub(super) fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    pub(super) fn advance(&self, span: Micros) {
        self.clock.advance(span);
    }

    /// A connection without a client library in between.
    pub(super) fn raw(&self) -> Raw {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_nodelay(true).unwrap();
        Raw(stream)
    }
}

/// Bytes out, bytes in.
pub(super) struct Raw(pub(super) TcpStream);

impl Raw {
    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.0.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Exactly these bytes come.
    #[track_caller]
    pub(super) fn expect(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let mut found = vec![0; bytes.as_ref().len()];
        let complete = self.0.read_exact(&mut found);
        assert_eq!(shown(&found), shown(bytes.as_ref()), "{complete:?}");
        self
    }

    /// Exactly these bytes come, and then the end.
    #[track_caller]
    pub(super) fn expect_end(&mut self, bytes: impl AsRef<[u8]>) {
        let mut found = Vec::new();
        let end = self.0.read_to_end(&mut found);
        assert_eq!(shown(&found), shown(bytes.as_ref()), "{end:?}");
        end.unwrap();
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Sends a command whose words are separated by spaces.
#[track_caller]
pub(super) fn ask(client: &mut Client, command: &str) -> Value {
    client.cmd(&command.split(' ').collect::<Vec<_>>())
}

/// The integers of an array reply.
#[track_caller]
pub(super) fn integers(value: &Value) -> Vec<i64> {
    value.array().iter().map(Value::int).collect()
}
