//! Real Envoys that decide by themselves, each within the part of a limit that the real server lends it: the files in
//! `examples/gateways/envoy`, in which nothing is changed but addresses.
//!
//! Each test takes more than a minute: Envoy reports every five seconds, and a server lends nothing for its first nineteen.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_testkit::{Envoy, Redis, TidegateServer, Upstream, eventually, http};
use tokio::time::Instant;

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
/// As in `quotas-rules.yaml`.
const LIMIT: u64 = 60;
/// More than all of the limit, so that one Envoy's load could use it up.
const MUCH: u64 = 100;
/// A server lends nothing before: another may have lent it.
const SETTLED: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(45);

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateways/envoy").join(name)
}

fn serve(grpc: &str, store: &str) -> TidegateServer {
    let rules = example("quotas-rules.yaml");
    let listeners = ["--http", "127.0.0.1:0", "--grpc", grpc, "--resp", "off", "--admin", "127.0.0.1:0"];
    let args = ["--rules", rules.to_str().unwrap(), "--store", store];
    TidegateServer::start(BINARY, &[&listeners[..], &args].concat())
}

fn envoy(nodes: &[SocketAddr], upstream: &Upstream) -> Envoy {
    let mut config = fs::read_to_string(example("quotas.yaml")).unwrap();
    let address = |port| {
        format!(
            "- endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}\n"
        )
    };
    let nodes: Vec<String> = nodes.iter().map(|node| address(node.port())).collect();
    let changes = [
        (address(8081), nodes.join("              ")),
        (address(3000), address(upstream.addr().port())),
        ("port_value: 8000".to_owned(), "port_value: 0".to_owned()),
    ];
    for (shown, real) in changes {
        assert!(config.contains(&shown), "the example shows no {shown}");
        config = config.replace(&shown, &real);
    }
    Envoy::start(&config)
}

fn metric(server: &mut TidegateServer, name: &str) -> f64 {
    let text = http::get(server.addr("admin"), "/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

/// Sends requests of one tenant to one Envoy, at a rate that can be changed.
struct Load {
    per_second: Arc<AtomicU64>,
    to: Arc<Mutex<SocketAddr>>,
    passed: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn on(envoy: &Envoy) -> Self {
        let (per_second, passed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (to, ends) = (Arc::new(Mutex::new(envoy.listener("clients"))), Arc::<AtomicBool>::default());
        let [rate, counted] = [&per_second, &passed].map(Arc::clone);
        let (address, ended) = (to.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let Some(pause) = Duration::from_secs(1).checked_div(rate.load(Ordering::Relaxed) as u32)
                else {
                    std::thread::park_timeout(Duration::from_millis(50));
                    continue;
                };
                let began = Instant::now();
                let address = *address.lock().unwrap();
                if let Ok(answer) = http::request(address, "GET", "/", &[("x-tenant", "a")], b"")
                    && answer.status == 200
                {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::park_timeout(pause.saturating_sub(began.elapsed()));
            }
        });
        Load { per_second, to, passed, ends, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

struct World {
    server: TidegateServer,
    upstream: Upstream,
    envoys: Vec<Envoy>,
    loads: Vec<Load>,
}

impl World {
    /// Three Envoys with an equal load, and a server that has settled.
    fn start() -> Self {
        let (mut server, upstream) = (serve("127.0.0.1:0", "memory:"), Upstream::start());
        let (grpc, began) = (server.addr("grpc"), Instant::now());
        while began.elapsed() < SETTLED {
            std::thread::park_timeout(SETTLED.saturating_sub(began.elapsed()));
        }
        let envoys: Vec<Envoy> = (0..3).map(|_| envoy(&[grpc], &upstream)).collect();
        let loads = envoys.iter().map(Load::on).collect();
        let mut world = World { server, upstream, envoys, loads };
        world.load([MUCH; 3]);
        world.wait_until_lent(LIMIT * 9 / 10);
        // Three reports, in which the first gives the others their parts.
        world.pass(Duration::from_secs(16));
        world
    }

    fn load(&self, rates: [u64; 3]) {
        for (load, rate) in self.loads.iter().zip(rates) {
            load.per_second.store(rate, Ordering::Relaxed);
        }
    }

    fn metric(&mut self, name: &str) -> f64 {
        metric(&mut self.server, name)
    }

    fn wait_until_lent(&mut self, at_least: u64) {
        eventually("the limit is lent", PATIENCE, || {
            self.metric("tidegate_rlqs_lent_requests_per_second") >= at_least as f64
        });
    }

    /// What passed in each second of `span` through each Envoy.
    fn pass(&mut self, span: Duration) -> Vec<[u64; 3]> {
        let counts = |loads: &[Load]| [0, 1, 2].map(|one: usize| loads[one].passed.load(Ordering::Relaxed));
        let (began, mut before, mut all) = (Instant::now(), counts(&self.loads), Vec::new());
        for second in 1..=span.as_secs() {
            let at = Duration::from_secs(second);
            std::thread::park_timeout(at.saturating_sub(began.elapsed()));
            let now = counts(&self.loads);
            all.push([0, 1, 2].map(|one| now[one] - before[one]));
            before = now;
        }
        all
    }
}

fn sum(seconds: &[[u64; 3]]) -> u64 {
    seconds.iter().flatten().sum()
}

/// What was over the limit in any seconds one after another, beyond `burst`.
fn over(seconds: &[[u64; 3]], burst: u64) -> u64 {
    let mut most = 0;
    for first in 0..seconds.len() {
        for last in first + 1..=seconds.len() {
            let allowed = LIMIT * (last - first) as u64 + burst;
            most = most.max(sum(&seconds[first..last]).saturating_sub(allowed));
        }
    }
    most
}

#[test]
fn three_envoys_share_a_limit_and_their_shares_follow_the_load() {
    let mut world = World::start();

    // Nothing changes: nothing is over. A second's burst, and one that a busy machine counts a second late.
    let steady = world.pass(Duration::from_secs(10));
    println!("steady: {steady:?}");
    assert_eq!(over(&steady, 2 * LIMIT), 0, "{steady:?}");

    world.load([MUCH, 0, 0]);
    let shift = world.pass(Duration::from_secs(20));
    println!("over by {} in the 20 s after the load moved: {shift:?}", over(&shift, LIMIT));
    // Each change of a share fills that Envoy's bucket once more, with a second's worth of the share.
    assert_eq!(over(&shift, 5 * LIMIT), 0, "{shift:?}");
    let moved = world.pass(Duration::from_secs(8));
    println!("moved: {moved:?}");
    assert!(
        sum(&moved) * 10 > LIMIT * 8 * 5,
        "more than half, where a third each would be a third: {moved:?}"
    );
    assert_eq!(over(&moved, 2 * LIMIT), 0, "{moved:?}");

    let reported = world.metric("tidegate_rlqs_requests_total{domain=\"edge\",result=\"allowed\"}");
    assert!(reported > 0.0 && world.metric("tidegate_rlqs_streams") >= 3.0);
}

#[test]
fn restarts_of_an_envoy_and_of_the_server_lend_nothing_twice() {
    let mut world = World::start();

    // Its share stays lent until it ends: the process may live on behind a broken network.
    let third = envoy(&[world.server.addr("grpc")], &world.upstream);
    *world.loads[2].to.lock().unwrap() = third.listener("clients");
    world.envoys[2] = third;
    let restarted = world.pass(Duration::from_secs(15));
    println!("an Envoy restarted: over by {}: {restarted:?}", over(&restarted, LIMIT));
    assert_eq!(over(&restarted, 5 * LIMIT), 0, "{restarted:?}");

    let grpc = world.server.addr("grpc").to_string();
    world.server.process().kill();
    world.server = serve(&grpc, "memory:");
    let settling = world.pass(Duration::from_secs(18));
    println!("the server restarted: over by {}: {settling:?}", over(&settling, LIMIT));
    assert_eq!(over(&settling, 5 * LIMIT), 0, "{settling:?}");
    assert!(
        settling.iter().all(|second| second.iter().sum::<u64>() > 0),
        "none is without a share: {settling:?}"
    );
    world.wait_until_lent(LIMIT * 9 / 10);
}

#[test]
fn one_node_of_a_fleet_lends_and_another_takes_over() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let mut nodes = [(); 2].map(|()| serve("127.0.0.1:0", &redis.url()));
    let addresses = nodes.each_mut().map(|node| node.addr("grpc"));
    let lends = |node: &mut TidegateServer| metric(node, "tidegate_rlqs_lends") > 0.0;
    assert!(!nodes.iter_mut().any(lends), "no Envoy asked");

    let envoy = envoy(&addresses, &upstream);
    let ask =
        || http::request(envoy.listener("clients"), "GET", "/", &[("x-tenant", "a")], b"").unwrap().status;
    assert_eq!(ask(), 200);
    let has_stream = |node: &mut TidegateServer| lends(node) && metric(node, "tidegate_rlqs_streams") > 0.0;
    eventually("a node lends to Envoy", PATIENCE, || nodes.iter_mut().any(has_stream));
    let which = nodes.iter_mut().position(lends).expect("one lends");
    assert!(!lends(&mut nodes[1 - which]), "and only one");

    nodes[which].terminate();
    let other = &mut nodes[1 - which];
    eventually("the other node lends to Envoy", PATIENCE, || {
        ask();
        has_stream(other)
    });
}

#[test]
#[ignore = "takes two minutes"]
fn an_envoy_that_stands_still_loses_its_share_and_gets_it_back() {
    let mut world = World::start();
    world.envoys[2].process().pause();
    world.load([MUCH, MUCH, 0]);
    let silent = world.pass(Duration::from_secs(35));
    println!("one Envoy stands still: over by {}: {silent:?}", over(&silent, LIMIT));
    assert_eq!(over(&silent, 5 * LIMIT), 0, "{silent:?}");
    assert!(sum(&silent[30..]) * 10 > LIMIT * 5 * 8, "the two have all of it: {silent:?}");
    world.envoys[2].process().resume();
    world.load([MUCH; 3]);
    let back = world.pass(Duration::from_secs(30));
    println!("it goes on: over by {}: {back:?}", over(&back, LIMIT));
    assert!(back[25..].iter().map(|second| second[2]).sum::<u64>() > 0, "{back:?}");
    assert_eq!(over(&back[20..], 2 * LIMIT), 0, "{back:?}");
}
