//! Alerts from real decisions: two nodes on a real Redis, and a webhook on a real socket. The clock is the test's, so that
//! an hour takes seconds.

use std::fs;

use serde_json::Value;
use tidegate_admin::LastSecond;
use tidegate_core::Hits;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Limiter, LimiterConfig};
use tidegate_metrics::Metrics;
use tidegate_rules::{Format as RuleFormat, RuleSet, Source, Timestamp};
use tidegate_store::ManualClock;
use tidegate_telemetry::alerts::Thresholds;
use tidegate_testkit::{Redis, Upstream, eventually, poll, resp};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use super::super::busy::BusyRatio;
use super::super::control_plane::{self, ControlParts};
use super::super::decisions;
use super::super::outgoing::counted;
use super::super::store_fleet::StoreFleet;
use super::*;
use crate::repeats::Repeats;
use crate::repeats::tests::written;
use crate::settings::Settings;

/// The start of an hour in the far future: Redis, which uses the machine's clock, must not consider cells expired.
const START_S: u64 = 4_000_003_200;
const PATIENCE: Duration = Duration::from_secs(60);
const RULES: &str = "\
domain: api
rules:
- { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 300, window: 1m }] }
---
domain: trial
rules:
- { name: tried/out, key: [user], shadow: true, limits: [{ algorithm: fixed_window, limit: 1, window: 1h }] }
";

/// One request: the domain, the caller and the cost.
type Asked = (&'static str, String, u64);

struct Node {
    alert_watcher: AlertWatcher,
    stats: Box<dyn Fn() -> AlertStats>,
    backend: Backend,
    limiter: Arc<Limiter>,
    metrics: Arc<Metrics>,
    control: Arc<ControlPlane>,
    registry: Arc<Registry>,
    last: LastSecond,
    member: u64,
    courier: AbortHandle,
}

impl Node {
    async fn start(store: &str, webhook: &Upstream, name: &str, clock: &Arc<ManualClock>) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tidegate.yaml");
        let config = format!(
            "store: {{ url: '{store}', timeout: 5s }}\nadmin: {{ node: {name}, database: none }}\n\
             alerts: {{ store_p99: 60s, webhook: {{ url: 'http://{}/hook' }} }}\n\
             decision_log: {{ admissions_one_in: 1, refusals_per_second: 1000000 }}\n",
            webhook.addr()
        );
        fs::write(&file, config).unwrap();
        let settings = Settings::of_file(&file).unwrap();
        let (metrics, clock): (_, Arc<dyn Clock>) = (Arc::new(Metrics::new()), clock.clone());
        let backend = Backend::by(&settings, &metrics, clock.clone());
        let log = decisions::keep(&settings, &metrics, &backend).await.unwrap();
        let mut config = LimiterConfig::new(compiled(RULES), backend.store(), metrics.clone());
        config.remote = backend.remote(&settings.store);
        let limiter = Arc::new(Limiter::new(config));
        metrics.began_with(&limiter.snapshot());
        let fleet = backend.fleet().map(|store| StoreFleet::new(store, clock.clone(), None));
        let parts = ControlParts {
            limiter: &limiter,
            metrics: &metrics,
            decisions: log.as_ref(),
            event_counts: &Arc::default(),
            database: None,
            backend: &backend,
            busy: &Arc::new(BusyRatio::default()),
            fleet: fleet.as_ref(),
            admin_tokens: None,
            clock: &clock,
            region_names: &Arc::default(),
        };
        let control = control_plane::control(&settings, &parts);
        let alerts = settings.alerts.check().unwrap().unwrap();
        let alert_watcher = AlertWatcher::new(&alerts, name, &backend, control.clone(), 1, clock);
        let courier = tokio::spawn(alert_watcher.deliver()).abort_handle();
        let (holder, nodes) = (backend.clone(), limiter.clone());
        let registry =
            Registry::new(metrics.clone()).with(move || holder.usage()).with(move || nodes.nodes());
        let (stats, last) = (Box::new(alert_watcher.stats()), control.seconds());
        let member = name.bytes().map(u64::from).sum();
        Node {
            alert_watcher,
            stats,
            backend,
            limiter,
            metrics,
            control,
            registry: Arc::new(registry),
            last,
            member,
            courier,
        }
    }

    async fn ask(&self, asked: &[Asked]) {
        let entries: Vec<_> = asked.iter().map(|(_, user, _)| [("user", user.as_bytes())]).collect();
        let asks: Vec<_> = asked
            .iter()
            .zip(&entries)
            .map(|((_, _, cost), entries)| [DescriptorAsk::one(entries).cost(Hits::new(*cost))])
            .collect();
        let requests: Vec<_> =
            asked.iter().zip(&asks).map(|((domain, ..), asks)| CheckRequest::new(domain, asks)).collect();
        self.limiter.check_batch(&requests).await;
    }

    fn run_rules(&self, rules: &str) {
        self.limiter.use_rules(compiled(rules));
        self.metrics.reloaded(&self.limiter.snapshot());
    }

    /// A node's work in every second.
    async fn beat(&mut self) {
        self.control.count_second(&mut self.last);
        let store = self.backend.store();
        // While the store is down, there is none.
        let _ = store.heartbeat(self.member, Micros::from_secs(5)).answer().await;
    }

    async fn look(&mut self) {
        self.alert_watcher.look(Reading::of(&self.registry).await).await;
    }
}

struct World {
    runtime: Runtime,
    redis: Redis,
    webhook: Upstream,
    clock: Arc<ManualClock>,
    nodes: [Node; 2],
    /// Notices already checked.
    seen: usize,
}

impl World {
    /// Two nodes, called a and b; a looks first, so it sends the notices.
    fn start() -> World {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (redis, webhook) = (Redis::start(), Upstream::recording());
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(START_S * 1_000_000)));
        let nodes = runtime.block_on(async {
            [
                Node::start(&redis.url(), &webhook, "a", &clock).await,
                Node::start(&redis.url(), &webhook, "b", &clock).await,
            ]
        });
        World { runtime, redis, webhook, clock, nodes, seen: 0 }
    }

    /// Lets minutes pass, with this traffic on each node in each second.
    fn pass(&mut self, minutes: u64, traffic: impl Fn(u64) -> Vec<Asked>) {
        let World { runtime, clock, nodes, .. } = self;
        runtime.block_on(async {
            for second in 0..minutes * 60 {
                for node in nodes.iter_mut() {
                    node.ask(&traffic(second)).await;
                    // A minute need not be complete.
                    if second % 4 != 3 {
                        node.beat().await;
                    }
                    if second % 60 == 0 {
                        node.backend.look().await;
                    }
                    if second % 10 == 5 {
                        node.look().await;
                    }
                }
                clock.advance(Micros::from_secs(1));
            }
        });
    }

    /// Sends requests until the store of every node is up, or down.
    #[track_caller]
    fn until_stores_are(&self, up: f64) {
        for node in &self.nodes {
            eventually("the store is seen as it is", PATIENCE, || {
                let families = self.runtime.block_on(async {
                    node.ask(&usual(0)).await;
                    // Connections are made meanwhile.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    counted(&node.registry).await
                });
                families.series("tidegate_store_up").iter().all(|one| one.number() == up)
            });
        }
    }

    /// Lets seconds pass, with traffic on both nodes, which look in this order.
    fn look_for(&mut self, seconds: usize, order: [usize; 2]) {
        let World { runtime, clock, nodes, .. } = self;
        runtime.block_on(async {
            for _ in (0..seconds).step_by(2) {
                for node in order {
                    let node = &mut nodes[node];
                    node.ask(&usual(0)).await;
                    node.beat().await;
                    node.look().await;
                }
                clock.advance(Micros::from_secs(2));
            }
        });
    }

    /// Whether a node never tried to send a notice.
    fn sent_nothing(&self, node: usize) -> bool {
        let AlertStats { waiting, delivered, failed_tries, dropped, .. } = (self.nodes[node].stats)();
        [waiting, delivered, failed_tries, dropped] == [0; 4]
    }

    /// Every notice that arrived: sender, kind, subject and state.
    fn notices(&self) -> Vec<[String; 4]> {
        // Deliveries progress only while the runtime runs.
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
        let bodies = self
            .webhook
            .received()
            .into_iter()
            .map(|one| serde_json::from_slice::<Value>(&one.body).unwrap());
        let notices = bodies.flat_map(|body| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let alerts = body["alerts"].as_array().unwrap().clone();
            alerts.into_iter().map(move |alert| {
                [text(&body["node"]), text(&alert["kind"]), text(&alert["subject"]), text(&alert["state"])]
            })
        });
        notices.collect()
    }

    /// Replaces both nodes by new ones with the same names.
    fn restart(&mut self) {
        let World { runtime, redis, webhook, clock, nodes, .. } = self;
        runtime.block_on(async {
            nodes.iter().for_each(|node| node.courier.abort());
            // As if more than the lease's lifetime had passed by Redis's clock: nobody holds it.
            forget_lease(redis);
            clock.advance(Micros::from_secs(60));
            *nodes = [
                Node::start(&redis.url(), webhook, "a", clock).await,
                Node::start(&redis.url(), webhook, "b", clock).await,
            ];
        });
    }

    /// The notices of these minutes and the usual ones after them, once all alerts are over.
    #[track_caller]
    fn incident(&mut self, minutes: u64, traffic: impl Fn(u64) -> Vec<Asked>) -> Vec<String> {
        self.pass(minutes, traffic);
        self.pass(4, usual);
        let new = poll(PATIENCE, || {
            let new = self.notices().split_off(self.seen);
            let count = |state: &str| new.iter().filter(|notice| notice[3] == state).count();
            (!new.is_empty() && count("firing") == count("resolved")).then_some(new)
        });
        let new = new.unwrap_or_else(|| panic!("no beginning, or no end: {:?}", self.notices()));
        self.seen += new.len();
        began(&new)
    }
}

fn compiled(rules: &str) -> RuleSet {
    let files: Vec<Source> = rules.split("---\n").map(|text| Source::new("rules.yaml", text)).collect();
    RuleSet::compile(&files, RuleFormat::Native).unwrap()
}

fn forget_lease(redis: &Redis) {
    let resp::Value::Array(keys) = redis.cmd(&["KEYS", "*"]) else { panic!("no list") };
    for key in keys {
        let resp::Value::Bulk(key) = key else { panic!("no key") };
        if String::from_utf8_lossy(&key).contains("whose duty") {
            redis.cmd(&[b"DEL", key.as_slice()]);
        }
    }
}

fn began(notices: &[[String; 4]]) -> Vec<String> {
    let firing = notices.iter().filter(|notice| notice[3] == "firing");
    firing.map(|[node, kind, subject, _]| format!("{node}: {kind} {subject}")).collect()
}

/// Five users make requests in turn, all at once every five seconds: 240 per minute over both nodes.
fn usual(second: u64) -> Vec<Asked> {
    users(second, 2)
}

fn users(second: u64, requests: u64) -> Vec<Asked> {
    let users = (0..requests * 5).filter(|_| second.is_multiple_of(5));
    users.map(|n| ("api", format!("u{}", n % 5), 1)).collect()
}

#[test]
fn what_two_nodes_decide_together_is_judged_each_minute_and_told_by_one_of_them() {
    let mut world = World::start();
    world.pass(36, usual);
    assert_eq!(world.notices(), Vec::<[String; 4]>::new(), "usual traffic is no alert");

    assert_eq!(world.incident(3, |second| users(second, 8)), ["a: traffic_spike api/per-user"]);
    assert_eq!(world.incident(3, |_| Vec::new()), ["a: traffic_drop api/per-user"]);
    let dear = |second| users(second, 2).into_iter().map(|(domain, user, _)| (domain, user, 20)).collect();
    assert_eq!(world.incident(3, dear), ["a: refusal_spike api/per-user"]);
    // As many requests as ever, of which three in four are from a new caller.
    let mallory = |second: u64| match second % 20 {
        0 => users(second, 2),
        5 | 10 | 15 => vec![("api", "mallory".to_owned(), 1); 10],
        _ => Vec::new(),
    };
    assert_eq!(world.incident(3, mallory), ["a: new_top_caller api/per-user"]);
    assert!(
        world.webhook.received().iter().all(|one| !String::from_utf8_lossy(&one.body).contains("mallory"))
    );
    let trial = |second| [usual(second), vec![("trial", "t".to_owned(), 1)]].concat();
    assert_eq!(world.incident(2, trial), ["a: shadow_would_refuse trial/tried/out"]);
    // Keys from another program.
    let for_each_filler = |call: &str| format!("for n = 1, 3000 do redis.call({call}) end");
    world.redis.cmd(&["EVAL", &for_each_filler("'SET', 'filler' .. n, 1"), "0"]);
    world.pass(2, usual);
    world.redis.cmd(&["EVAL", &for_each_filler("'DEL', 'filler' .. n"), "0"]);
    assert_eq!(world.incident(1, usual), ["a: key_cardinality store"]);

    // One caller under many names. The cells do not expire in a test's time, so the alert does not end.
    let rotating = |second: u64| {
        let names = (0..20).map(|n| ("api", format!("r{second}-{n}"), 1));
        usual(second).into_iter().chain(names).collect()
    };
    world.pass(4, rotating);
    let told = || began(&world.notices()[world.seen..]);
    eventually("a caller with many keys is told", PATIENCE, || told().len() >= 3);
    assert_eq!(
        told(),
        ["a: key_cardinality store", "a: traffic_spike api/per-user", "a: spread_caller api/per-user"]
    );
    assert!(world.sent_nothing(1));
}

/// The senders of notices about an outage, after which the nodes look in this order at a Redis that has lost its data; and
/// the number of ends sent.
fn of_an_outage(then: [usize; 2]) -> (Vec<String>, usize) {
    let mut world = World::start();
    world.pass(1, usual);
    world.look_for(2, [0, 1]);
    world.redis.kill();
    world.until_stores_are(0.0);
    // Shorter than a lease: no node may assume that the holder is gone.
    world.look_for(12, [0, 1]);
    eventually("it is told", PATIENCE, || began(&world.notices()).len() >= 3);
    world.redis.restart();
    world.until_stores_are(1.0);
    world.look_for(20, then);
    let ended = || world.notices().iter().filter(|notice| notice[3] == "resolved").count();
    eventually("its end is told", PATIENCE, || ended() == began(&world.notices()).len());
    let store = world.redis.addr().to_string();
    (began(&world.notices()).iter().map(|notice| notice.replace(&store, "redis")).collect(), ended())
}

#[test]
fn an_outage_that_both_nodes_see_is_told_by_the_one_that_held_the_lease() {
    let told = ["a: store_down redis", "a: breaker_open redis", "a: fallback a"];
    assert_eq!(of_an_outage([0, 1]), (told.map(str::to_owned).to_vec(), 3));
}

#[test]
fn an_outage_is_told_once_though_the_lease_is_lost_in_it_and_taken_by_another() {
    // No other node could learn that b decided without the store, so b reports that itself.
    let told = ["a: store_down redis", "a: breaker_open redis", "a: fallback a", "b: fallback b"];
    assert_eq!(of_an_outage([1, 0]), (told.map(str::to_owned).to_vec(), 4));
}

#[test]
fn nodes_that_run_different_rules_still_do_while_the_store_that_says_so_is_down() {
    let mut world = World::start();
    world.pass(1, usual);
    let other_rules = RULES.replace("limit: 300", "limit: 301");
    world.nodes[1].run_rules(&other_rules);
    world.look_for(320, [0, 1]);
    let skew = |world: &World, state: &str| {
        let notices = world.notices();
        notices.iter().filter(|notice| notice[1] == "version_skew" && notice[3] == state).count()
    };
    eventually("it is found", PATIENCE, || skew(&world, "firing") == 1);
    world.redis.kill();
    world.until_stores_are(0.0);
    world.look_for(60, [0, 1]);
    let active = |node: &Node| node.alert_watcher.desk.with_book(|book| book.active());
    let is_active = |node: &Node| active(node).iter().any(|alert| alert.kind.name() == "version_skew");
    assert!(world.nodes.iter().all(is_active));
    assert_eq!(skew(&world, "resolved"), 0);

    world.redis.restart();
    world.until_stores_are(1.0);
    world.nodes[0].run_rules(&other_rules);
    world.look_for(30, [0, 1]);
    eventually("its end is found", PATIENCE, || skew(&world, "resolved") == 1);
}

#[test]
fn what_its_holder_could_not_deliver_before_it_was_killed_is_told_by_the_next() {
    let mut world = World::start();
    world.pass(1, usual);
    world.webhook.set_status(500);
    let trial = |second| [usual(second), vec![("trial", "t".to_owned(), 1)]].concat();
    world.pass(2, trial);
    eventually("it is tried", PATIENCE, || !world.notices().is_empty());
    // The first node is gone: it does nothing more, and its lease expires.
    world.nodes[0].courier.abort();
    world.webhook.set_status(200);
    forget_lease(&world.redis);
    world.look_for(10, [1, 1]);
    let by_b = || world.notices().into_iter().filter(|notice| notice[0] == "b").collect::<Vec<_>>();
    eventually("it is told", PATIENCE, || !by_b().is_empty());
    assert_eq!(began(&by_b()), ["b: shadow_would_refuse trial/tried/out"]);
}

#[test]
fn what_is_usual_outlives_a_restart_of_every_node() {
    let mut world = World::start();
    // A rule's baseline is stored once an hour, this one's in the 53rd minute.
    world.clock.advance(Micros::from_secs(20 * 60));
    world.pass(36, usual);
    assert_eq!(world.notices(), Vec::<[String; 4]>::new());
    world.restart();
    assert_eq!(
        world.incident(3, |second| users(second, 8)),
        ["a: traffic_spike api/per-user"],
        "long before it has seen half an hour of it"
    );
}

#[test]
fn a_node_alone_with_its_memory_judges_its_own_minutes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let webhook = Upstream::recording();
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(START_S * 1_000_000)));
    let told = runtime.block_on(async {
        let mut node = Node::start("memory:", &webhook, "alone", &clock).await;
        assert!(!node.control.is_shared());
        let mut told = Vec::new();
        for second in 0..35 * 60 {
            // The memory store uses the machine's clock: new callers are within their limits.
            let asked = users(second, if second / 60 < 32 { 2 } else { 8 });
            let asked: Vec<Asked> =
                (0..).zip(asked).map(|(n, (domain, ..))| (domain, format!("u{second}-{n}"), 1)).collect();
            node.ask(&asked).await;
            if second % 10 == 5 {
                node.look().await;
                let active = node.alert_watcher.desk.with_book(|book| book.active());
                let named = active.iter().map(|alert| format!("{} {}", alert.kind.name(), alert.subject));
                told.push((second / 60, named.collect::<Vec<_>>()));
            }
            clock.advance(Micros::from_secs(1));
        }
        told
    });
    let first = told.iter().find(|(_, active)| !active.is_empty()).expect("it is found");
    assert_eq!(
        *first,
        (34, vec!["traffic_spike api/per-user".to_owned()]),
        "once two whole minutes were unusual"
    );
}

#[test]
fn each_of_many_alerts_has_a_line_when_it_begins_and_one_when_it_is_over() {
    let mut book = ActiveAlerts::new("");
    let down = |number| Signals { stores_down: vec![format!("redis:{number}")], ..Signals::default() };
    let nodes: Vec<Signals> = (0..30).map(down).collect();
    let mut detector = Detector::new(Thresholds::default());
    let lines = written(&Repeats::default(), || {
        for now_s in 0..20 {
            let found = detector.look(now_s, if now_s < 5 { &nodes } else { &[] }, OthersHeard::Yes);
            book.step(now_s, found, &[], Sender::ThisNode).iter().for_each(tell);
        }
    });
    for number in 0..30 {
        let end = format!("the store redis:{number} does not answer ");
        let begun =
            lines.iter().filter(|line| line.contains(" WARN ") && line.contains(&format!("alert: {end}")));
        let over = lines
            .iter()
            .filter(|line| line.contains(" INFO ") && line.contains(&format!("alert is over: {end}")));
        assert_eq!((begun.count(), over.count()), (1, 1), "{number}: {lines:#?}");
    }
    assert_eq!(lines.len(), 60);
}

/// The longest that `work` keeps its thread busy without a pause, by the thread's own time: a busy machine adds nothing.
async fn longest_turn(work: impl Future<Output = ()>) -> Duration {
    let own_time = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(time).expect("time is not negative")
    };
    let (mut work, mut longest) = (std::pin::pin!(work), Duration::ZERO);
    std::future::poll_fn(|context| {
        let began = own_time();
        let polled = work.as_mut().poll(context);
        longest = longest.max(own_time().saturating_sub(began));
        polled
    })
    .await;
    longest
}

#[test]
fn looking_at_many_rules_holds_up_no_heartbeat() {
    const RULES: usize = 5_000;
    let name = |number: usize| format!("rule-number-{number}-of-many");
    let rules: String = (0..RULES)
        .map(|number| {
            format!("- {{ name: {}, match: {{ path: /{number} }}, limits: [9/s] }}\n", name(number))
        })
        .collect();
    let counts = |number| {
        let rule = RuleName::new("api", &name(number));
        RuleCounts { rule, ..RuleCounts::default() }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(START_S * 1_000_000)));
    let turns = runtime.block_on(async {
        let mut node = Node::start("memory:", &Upstream::recording(), "alone", &clock).await;
        node.run_rules(&format!("domain: api\nrules:\n{rules}"));
        let (mut counted, mut turns) = ((0..RULES).map(counts).collect::<Vec<RuleCounts>>(), Vec::new());
        for look in 0..32 {
            counted.iter_mut().for_each(|counts| counts.total = 100 * look);
            let reading = Reading { families: Families::default(), rules: counted.clone() };
            turns.push(longest_turn(node.alert_watcher.look(reading)).await);
            clock.advance(Micros::from_secs(2));
        }
        let TrafficStats { baselines, without } = node.alert_watcher.detector.stats();
        assert_eq!(baselines + without, RULES as u64, "they are judged");
        turns
    });
    assert!(turns.iter().all(|turn| *turn < Duration::from_millis(5)), "{turns:?}");
}
