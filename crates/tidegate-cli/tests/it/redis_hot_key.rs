//! One caller that floods one key: Redis hardly hears of it, nobody else is refused, and a node that divides limits by
//! the number of nodes does worse.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_testkit::Redis;
use tidegate_testkit::resp::Client;

use crate::redis_world::{Node, PATIENT, alone, check, now, pass, quantile, tell};

const RULES: &str = "\
- { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 200, window: 1d }] }
- { name: plenty, match: { plan: plenty }, key: [account], limits: [{ algorithm: fixed_window, limit: 1000000000, window: 1d }] }
";
/// Calls a second that go on without any request: ten probes, a heartbeat of each node, what its alerts ask every two seconds
/// (whose duty they are, what is silenced, what the others see), and a margin for one more.
const BACKGROUND: f64 = 13.5;

/// Scripts that Redis has run, by its own count.
fn scripts_run(redis: &Redis) -> u64 {
    let stats = redis.cmd(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Clients that send the same check again and again, many at a time.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

const PIPELINED: usize = 64;

impl Flood {
    fn start(node: &Node, clients: usize, words: &[&str]) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let commands: Vec<Vec<String>> =
            (0..PIPELINED).map(|_| words.iter().map(|word| (*word).to_owned()).collect()).collect();
        let flood = |_| {
            let (stop, sent, mut client) = (stop.clone(), sent.clone(), node.client());
            let commands = commands.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    sent.fetch_add(client.pipeline(&commands).len() as u64, Ordering::Relaxed);
                }
            })
        };
        let clients = (0..clients).map(flood).collect();
        Flood { stop, sent, clients }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().unwrap());
    }
}

/// Offered requests and calls to Redis, each per second, over `span`.
fn rates(flood: &Flood, redis: &Redis, span: Duration) -> (f64, f64) {
    let (began, sent, calls): (Instant, u64, u64) = (now(), flood.sent(), scripts_run(redis));
    pass(span);
    let took = began.elapsed().as_secs_f64();
    ((flood.sent() - sent) as f64 / took, (scripts_run(redis) - calls) as f64 / took)
}

/// How long a round trip of one script takes, asked of Redis alone by one client at a time.
fn round_trip(node: &Node) -> Duration {
    let mut client = node.client();
    let mut took: Vec<Duration> = (0..200)
        .map(|turn| {
            let sent = now();
            assert!(check(&mut client, &[("user", &format!("probe-{turn}"))], 1).allowed);
            sent.elapsed()
        })
        .collect();
    quantile(&mut took, 0.5)
}

/// As many honest callers as the sticky connections of one node carry: none may be refused, and each is answered as soon
/// as without the flood, but for the core that the flood takes.
fn honest(node: &Node, prefix: &str, callers: usize) -> Vec<Duration> {
    let mut client: Client = node.client();
    (0..callers)
        .map(|caller| {
            let sent = now();
            let answer = check(&mut client, &[("user", &format!("{prefix}-{caller}"))], 1);
            assert!(answer.allowed && answer.remaining == 199, "{answer:?}");
            sent.elapsed()
        })
        .collect()
}

#[test]
fn a_flooded_key_costs_redis_about_a_call_a_second_and_refuses_nobody_else() {
    let _alone = alone();
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, RULES);
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    let mut calm = honest(&node, "calm", 2_000);

    let mut attacker = node.client();
    let spent = (0..300).filter(|_| check(&mut attacker, &[("user", "attacker")], 1).allowed).count();
    assert_eq!(spent, 200);
    let flood = Flood::start(&node, 2, &["TG.CHECK", "api", "user", "attacker"]);
    let (offered, calls) = rates(&flood, &redis, Duration::from_secs(4));
    tell!(
        "over the limit: {offered:.0} offered/s, {calls:.2} Redis calls/s, probes and heartbeats included ({cores} cores)"
    );
    assert!(calls <= cores + BACKGROUND, "{calls} calls/s for a key that is over its limit");
    assert!(offered > 1_000.0, "that is no flood: {offered}/s");
    let hits = node.metric("tidegate_deny_cache_hits_total");
    assert!(hits >= offered, "{hits} hits");

    let mut during = honest(&node, "honest", 10_000);
    flood.end();
    tell!(
        "honest callers: p50 {:?} before, {:?} while two connections flood; p99 {:?} and {:?}",
        quantile(&mut calm, 0.5),
        quantile(&mut during, 0.5),
        quantile(&mut calm, 0.99),
        quantile(&mut during, 0.99),
    );

    let trip = round_trip(&node);
    let flood = Flood::start(&node, 2, &["TG.CHECK", "api", "plan", "plenty", "account", "big"]);
    let (offered, calls) = rates(&flood, &redis, Duration::from_secs(2));
    flood.end();
    let most = cores / trip.as_secs_f64();
    tell!(
        "within the limit: {offered:.0} offered/s, {calls:.0} Redis calls/s, round trip {trip:?}: at most {most:.0}"
    );
    assert!(calls <= most, "{calls} calls/s, more than one per round trip and core");
    assert!(calls * 4.0 < offered, "{calls} calls/s for {offered} requests/s: they do not share calls");
    naive_beside_ours();
}

/// The two-layer fix that divides a limit by the number of nodes, with callers whose connections stick to one node each:
/// a caller that stays within its limit is refused as soon as it has spent its part.
fn naive_beside_ours() {
    const NODES: u64 = 4;
    const LIMIT: u64 = 200;
    let callers = 50;
    let redis = Redis::start();
    let rules = format!(
        "- {{ name: a, key: [user], limits: [{{ algorithm: fixed_window, limit: {LIMIT}, window: 1d }}] }}"
    );
    let naive = format!(
        "- {{ name: a, key: [user], coordination: local, limits: [{{ algorithm: fixed_window, limit: {}, window: 1d }}] }}",
        LIMIT / NODES
    );
    tell!(
        "{callers} honest callers, each {LIMIT} requests within a limit of {LIMIT}, stuck to one of {NODES} nodes:"
    );
    for (name, rules) in [("ours", rules), ("limit / nodes", naive)] {
        let node = Node::ready(&redis.url(), PATIENT, &rules);
        let mut client = node.client();
        let commands = |caller: usize| -> Vec<Vec<String>> {
            let words = ["TG.CHECK", "api", "user", &format!("sticky-{caller}")].map(str::to_owned);
            (0..LIMIT).map(|_| words.to_vec()).collect()
        };
        let refused: usize = (0..callers)
            .map(|caller| {
                let replies = client.pipeline(&commands(caller));
                replies.iter().filter(|reply| reply.array()[0].int() == 0).count()
            })
            .sum();
        tell!("{name:>14}: {refused} of {} refused wrongly", callers as u64 * LIMIT);
        let expected = if name == "ours" { 0 } else { callers as u64 * (LIMIT - LIMIT / NODES) };
        assert_eq!(refused as u64, expected, "{name}");
    }
}

/// Promise 1: 40 connections of 128 pipelined checks each, again and again just after the deny cache has forgotten.
#[test]
fn a_flood_of_5120_checks_at_once_on_one_key_admits_exactly_the_limit_under_every_policy() {
    let redis = Redis::start();
    let rule = |policy: &str| {
        format!(
            "- {{ name: {policy}, match: {{ policy: {policy} }}, key: [user], on_store_failure: {policy}, limits: [{{ algorithm: fixed_window, limit: 100, window: 1d }}] }}\n"
        )
    };
    let rules: String = ["open", "closed", "local"].map(rule).concat();
    let node = Node::ready(&redis.url(), PATIENT, &rules);
    let mut clients: Vec<Client> = (0..40).map(|_| node.client()).collect();
    let mut admitted = BTreeMap::<&str, i64>::new();
    for burst in 0..3 {
        for policy in ["open", "closed", "local"] {
            let words = ["TG.CHECK", "api", "policy", policy, "user", "one"].map(str::to_owned).to_vec();
            let commands = vec![words; 128];
            clients.iter_mut().for_each(|client| client.send(&commands).unwrap());
            for client in &mut clients {
                for _ in 0..commands.len() {
                    let reply = client.receive().unwrap();
                    let source = reply.array()[6].text();
                    assert!(["store", "deny_cache"].contains(&&*source), "{policy}, burst {burst}: {source}");
                    *admitted.entry(policy).or_default() += reply.array()[0].int();
                }
            }
        }
        pass(Duration::from_millis(2_100));
    }
    assert_eq!(admitted, BTreeMap::from([("open", 100), ("closed", 100), ("local", 100)]));
    assert_eq!(node.metric_sum("tidegate_overloads_total"), 0.0);
}
