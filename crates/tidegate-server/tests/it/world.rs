//! A data plane with HTTP and gRPC on real sockets, over a real limiter whose clock stands still until told otherwise.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tidegate_core::{Micros, Timestamp};
use tidegate_http::identity::Identity;
use tidegate_limiter::{
    Capacity, Limiter, LimiterConfig, NoObserver, Observer, RemoteConfig, RequestResult, RuleWatcher,
    Shedder, ShedderConfig, TokioRuntime, Transport,
};
use tidegate_rules::{Format, Rule, RuleSet, Source};
use tidegate_runtime::connection::HttpLimits;
use tidegate_runtime::{DataPlane, Listener, Settings};
use tidegate_server::access::Access;
use tidegate_server::grpc::{Grpc, health_and_reflection};
use tidegate_server::http::Http;
use tidegate_server::rlqs::Quotas;
use tidegate_server::rls::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::rls::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use tidegate_server::service::{Service, ServiceSettings};
use tidegate_store::conformance::Broken;
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore};
use tidegate_testkit::http::{self, Response};
use tonic::transport::{Channel, Endpoint};

/// The start of a minute, an hour and a day in UTC, in Unix seconds.
pub(crate) const START_S: u64 = 1_800_057_600;
const START: Timestamp = Timestamp::from_micros(START_S * 1_000_000);

pub(crate) struct World {
    pub(crate) plane: DataPlane,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) heard: Arc<Heard>,
    pub(crate) quotas: Arc<Quotas>,
}

impl World {
    /// Serves these rules in our own format.
    pub(crate) fn new(rules: &str) -> Self {
        World::with(rules, Format::Native, ServiceSettings::default())
    }

    /// Serves these rules in envoyproxy/ratelimit's format.
    pub(crate) fn envoy(rules: &str) -> Self {
        World::with(rules, Format::EnvoyRatelimit, ServiceSettings::default())
    }

    pub(crate) fn with(rules: &str, format: Format, settings: ServiceSettings) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let bounds = MemoryConfig::new().max_cells(10_000).max_log_bytes(1 << 20);
        let store = MemoryStore::with_clock(bounds, clock.clone());
        World::on(clock, settings, LimiterConfig::new(compile(rules, format), Arc::new(store), nobody()))
    }

    /// Serves these rules on a store that is returned, too.
    pub(crate) fn with_store(rules: &str) -> (Self, Arc<MemoryStore<Arc<ManualClock>>>) {
        let clock = Arc::new(ManualClock::at(START));
        let bounds = MemoryConfig::new().max_cells(10_000).max_log_bytes(1 << 20);
        let store = Arc::new(MemoryStore::with_clock(bounds, clock.clone()));
        let config = LimiterConfig::new(compile(rules, Format::Native), store.clone(), nobody());
        (World::on(clock, ServiceSettings::default(), config), store)
    }

    /// Serves these rules within these limits.
    pub(crate) fn with_limits(rules: &str, limits: HttpLimits, runtime: Settings) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let bounds = MemoryConfig::new().max_cells(10_000).max_log_bytes(1 << 20);
        let store = Arc::new(MemoryStore::with_clock(bounds, clock.clone()));
        let config = LimiterConfig::new(compile(rules, Format::Native), store, nobody());
        let settings = ServiceSettings { limits, ..ServiceSettings::default() };
        World::start_as(clock, settings, config, |http| http, &runtime)
    }

    /// Serves these rules on an unreachable store.
    pub(crate) fn without_store(rules: &str) -> Self {
        let config = LimiterConfig::new(compile(rules, Format::Native), Arc::new(Broken::AWAY), nobody())
            .over_a_network(RemoteConfig::new(Arc::new(TokioRuntime)));
        World::on(Arc::new(ManualClock::at(START)), ServiceSettings::default(), config)
    }

    /// Serves these rules to gateways, whose requests are read by `identity`.
    pub(crate) fn identified(rules: &str, identity: Identity) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::with_clock(
            MemoryConfig::new().max_cells(1_000).max_log_bytes(1 << 20),
            clock.clone(),
        );
        let config = LimiterConfig::new(compile(rules, Format::Native), Arc::new(store), nobody());
        World::start(clock, ServiceSettings::default(), config, |http| http.with_identity(Arc::new(identity)))
    }

    /// Serves these rules to callers with a token.
    pub(crate) fn with_access(rules: &str, access: Arc<Access>) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let bounds = MemoryConfig::new().max_cells(1_000).max_log_bytes(1 << 20);
        let store = Arc::new(MemoryStore::with_clock(bounds, clock.clone()));
        let config = LimiterConfig::new(compile(rules, Format::Native), store, nobody());
        World::start(clock, ServiceSettings::default(), config, |http| http.with_access(access))
    }

    /// Serves no rules at all.
    pub(crate) fn without_rules() -> Self {
        let config = LimiterConfig::new(RuleSet::default(), Arc::new(Broken::AWAY), nobody());
        World::on(Arc::new(ManualClock::at(START)), ServiceSettings::default(), config)
    }

    fn on(clock: Arc<ManualClock>, settings: ServiceSettings, config: LimiterConfig) -> Self {
        let shedder = Shedder::new(ShedderConfig::new(Capacity::Reported), clock.clone());
        World::start(clock, settings, config, |http| http.with_shedder(shedder))
    }

    fn start(
        clock: Arc<ManualClock>,
        settings: ServiceSettings,
        config: LimiterConfig,
        change: impl FnOnce(Http) -> Http,
    ) -> Self {
        World::start_as(clock, settings, config, change, &Settings::default())
    }

    fn start_as(
        clock: Arc<ManualClock>,
        settings: ServiceSettings,
        mut config: LimiterConfig,
        change: impl FnOnce(Http) -> Http,
        runtime: &Settings,
    ) -> Self {
        let heard = Arc::new(Heard::default());
        (config.clock, config.observer) = (clock.clone(), heard.clone());
        let limiter = Arc::new(Limiter::new(config));
        let service = Arc::new(Service { limiter, observer: heard.clone(), clock: clock.clone(), settings });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (http, for_http) = (change(Http::new(service.clone())), service.clone());
        let (others, _health) = health_and_reflection();
        let quotas = Quotas::new(clock.clone());
        quotas.may_lend(quotas.now(), Micros::new(u64::MAX));
        let lent = quotas.clone();
        let listeners = vec![
            Listener::bind("http", any, move |_| Arc::new(http.for_worker(for_http.clone()))).unwrap(),
            Listener::bind("grpc", any, move |_| {
                let grpc = Grpc::new(service.clone(), others.clone(), service.settings.limits);
                Arc::new(grpc.with_quotas(service.clone(), lent.clone()))
            })
            .unwrap(),
        ];
        let plane = DataPlane::start(runtime, listeners).unwrap();
        World { plane, clock, heard, quotas }
    }

    pub(crate) fn advance(&self, span: Micros) {
        self.clock.advance(span);
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.plane.addresses()[0].1
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.plane.addresses()[1].1
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        http::post_json(self.http(), path, &body.to_string())
    }

    /// One hit for these attributes, in the domain `api`.
    pub(crate) fn check(&self, attributes: &Value) -> Response {
        self.post("/v1/check", &json!({ "domain": "api", "attributes": attributes }))
    }

    /// What remains for user 42 in the domain `api`, read without spending.
    pub(crate) fn left(&self) -> u64 {
        let look = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 0 });
        self.post("/v1/check", &look).json()["remaining"].as_u64().unwrap()
    }

    pub(crate) fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.plane.addresses()[1].1)).unwrap().connect_lazy()
    }

    /// Envoy's question, over gRPC.
    pub(crate) async fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        let answer = RateLimitServiceClient::new(self.channel()).should_rate_limit(request).await;
        answer.map(tonic::Response::into_inner)
    }
}

/// A placeholder for the world's own observer.
fn nobody() -> Arc<NoObserver> {
    Arc::new(NoObserver)
}

#[track_caller]
pub(crate) fn compile(rules: &str, format: Format) -> RuleSet {
    RuleSet::compile(&[Source::new("rules.yaml", rules)], format).unwrap_or_else(|error| panic!("{error}"))
}

/// A request for these descriptors of the domain `api`.
pub(crate) fn request(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "api".to_owned(),
        descriptors: descriptors.into_iter().collect(),
        ..RateLimitRequest::default()
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: value.as_bytes().to_vec().into(),
    };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

/// What the observer recorded.
#[derive(Default)]
pub(crate) struct Heard {
    unknown_domains: AtomicU64,
    answered: [AtomicU64; 2],
    requests: AtomicU64,
}

impl Heard {
    /// The number of requests that rules decided.
    #[allow(dead_code, reason = "the proxy's tests ask for it")]
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn unknown_domains(&self) -> u64 {
        self.unknown_domains.load(Ordering::SeqCst)
    }

    /// The number of timed answers over gRPC and over HTTP.
    pub(crate) fn answered(&self) -> [u64; 2] {
        [0, 1].map(|place| self.answered[place].load(Ordering::SeqCst))
    }
}

impl Observer for Heard {
    fn watch_rule(&self, _rule: &Rule) -> Arc<dyn RuleWatcher> {
        Arc::new(NoObserver)
    }

    fn unknown_domain(&self) {
        self.unknown_domains.fetch_add(1, Ordering::SeqCst);
    }

    fn request(&self, _domain: &str, _result: RequestResult, _by: tidegate_limiter::Source) {
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    fn answered(&self, transport: Transport, _took: std::time::Duration) {
        let place = usize::from(transport != Transport::Grpc);
        self.answered[place].fetch_add(1, Ordering::SeqCst);
    }
}
