//! Many nodes, one truth: however many requests fly at once over whichever node, exactly the limit passes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use tidegate_testkit::{Redis, RedisCluster};

use crate::redis_world::{Node, PATIENT, alone, check, left, now, pass, tell};

pub(crate) const LIMIT: usize = 1_000;
const IN_FLIGHT: usize = 64;
/// More than the limit, so that it is reached whatever the order.
const ASKED: usize = 1_100;

/// Asks `rounds` times, each as another user: `IN_FLIGHT` clients over all `nodes`, one request each at a time, `ASKED` in
/// all. Returns how many passed each time.
pub(crate) fn flood(nodes: &[&Node], rounds: usize) -> Vec<usize> {
    let next: Arc<Vec<AtomicUsize>> = Arc::new((0..rounds).map(|_| AtomicUsize::new(0)).collect());
    let start = Arc::new(Barrier::new(IN_FLIGHT));
    let clients: Vec<_> = (0..IN_FLIGHT)
        .map(|number| {
            let (next, start) = (next.clone(), start.clone());
            let mut client = nodes[number % nodes.len()].client();
            std::thread::spawn(move || {
                let mut admitted = vec![0; next.len()];
                for (round, asked) in next.iter().enumerate() {
                    let user = format!("round-{round}");
                    // All begin together, so that all are in flight at once.
                    start.wait();
                    while asked.fetch_add(1, Ordering::Relaxed) < ASKED {
                        let answer = check(&mut client, &[("user", &user)], 1);
                        assert!(answer.is_exact(), "{answer:?}");
                        assert!(
                            !answer.allowed || answer.source == "store",
                            "only the store admits: {answer:?}"
                        );
                        admitted[round] += usize::from(answer.allowed);
                    }
                }
                admitted
            })
        })
        .collect();
    let mut admitted = vec![0; rounds];
    for client in clients {
        let own = client.join().expect("every client is answered");
        admitted.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
    }
    admitted
}

/// Floods one refused key of the rule for `user`, and returns by how much more a second the store's own count of its work grows than
/// without any request: probes, heartbeats and sweeps go on.
pub(crate) fn flood_one_key(node: &Node, work: impl Fn() -> f64) -> f64 {
    let span = Duration::from_secs(4);
    let mut client = node.client();
    let mut flood = |count: usize| {
        let words = ["TG.CHECK", "api", "COST", "1", "user", "flooder"].map(str::to_owned).to_vec();
        let commands = vec![words; 64];
        (0..count).map(|_| client.pipeline(&commands).len()).sum::<usize>()
    };
    // Until it is refused.
    flood(40);
    let before = work();
    pass(span);
    let background = (work() - before) / span.as_secs_f64();
    let (before, began, mut sent) = (work(), now(), 0);
    while began.elapsed() < span {
        sent += flood(10);
    }
    let seconds = began.elapsed().as_secs_f64();
    let under_flood = (work() - before) / seconds;
    let rate = sent as f64 / seconds;
    tell!(
        "{rate:.0} requests/s on one refused key: the store works {under_flood:.1} times a second, {background:.1} without"
    );
    assert!(sent > 10_000, "only {sent} requests");
    under_flood - background
}

#[test]
fn sixty_four_in_flight_over_two_nodes_admit_exactly_a_thousand_a_hundred_times_out_of_a_hundred() {
    let _alone = alone();
    let redis = Redis::start();
    let rules =
        "- { name: one, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }";
    let nodes = Node::pair(&redis.url(), PATIENT, rules);
    let admitted = flood(&nodes.each_ref(), 100);
    tell!("{} rounds of {ASKED} with {IN_FLIGHT} in flight over two nodes: {admitted:?}", admitted.len());
    assert_eq!(admitted, [LIMIT; 100]);
}

#[test]
fn two_rules_on_one_key_admit_exactly_what_the_tighter_one_allows_and_charge_the_other_no_more() {
    let _alone = alone();
    let redis = Redis::start();
    let rules = "- { name: tight, key: [user], limits: [{ algorithm: token_bucket, rate: 1/d, burst: 1000 }] }\n\
        - { name: wide, key: [user], limits: [{ algorithm: sliding_log, limit: 1050, window: 1d }] }";
    let mut nodes = Node::pair(&redis.url(), PATIENT, rules);
    assert_eq!(flood(&nodes.each_ref(), 10), [LIMIT; 10]);
    // Without the tighter rule, what the wider one has left shows what it was charged.
    let wide = "- { name: wide, key: [user], limits: [{ algorithm: sliding_log, limit: 1050, window: 1d }] }";
    nodes[0].change_rules(wide);
    let mut client = nodes[0].client();
    for round in 0..10 {
        assert_eq!(left(&mut client, &format!("round-{round}")), 50);
    }
}

/// Users, tenants and everybody, each with a limit in a slot of its own.
const THREE: &str = "\
- { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 40, window: 1d }] }
- { name: per-tenant, key: [tenant], limits: [{ algorithm: fixed_window, limit: 110, window: 1d }] }
- { name: everybody, limits: [{ algorithm: fixed_window, limit: 400, window: 1d }] }
";

#[test]
fn on_a_cluster_no_limit_of_user_tenant_or_everybody_is_exceeded_and_no_reservation_is_left() {
    let _alone = alone();
    let cluster = RedisCluster::start();
    let mut nodes = Node::pair(&cluster.url(), PATIENT, THREE);
    // 4 tenants with 6 users each: 24 x 40 > 4 x 110 > 400, so every limit is reached by somebody.
    let clients: Vec<_> = (0..24)
        .map(|number| {
            let mut client = nodes[number % 2].client();
            std::thread::spawn(move || {
                let (user, tenant) = (number.to_string(), (number % 4).to_string());
                let attributes = [("user", user.as_str()), ("tenant", tenant.as_str())];
                let answers = (0..60).map(|_| check(&mut client, &attributes, 1));
                let admitted = answers.inspect(|answer| assert!(answer.is_exact(), "{answer:?}"));
                (tenant.clone(), admitted.filter(|answer| answer.allowed).count())
            })
        })
        .collect();
    let admitted: Vec<(String, usize)> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let mut tenants: BTreeMap<&str, usize> = BTreeMap::new();
    for (tenant, count) in &admitted {
        assert!(*count <= 40, "a user passed {count} times");
        *tenants.entry(tenant).or_default() += count;
    }
    let all: usize = tenants.values().sum();
    tell!("Cluster: {all} of 400 admitted, by tenant {tenants:?}");
    assert!(tenants.values().all(|count| *count <= 110) && all <= 400, "{tenants:?}");

    // What each limit has on its books is what passed: nothing that was reserved and not used is left.
    let mut look = |rule: &str, attributes: &[(&str, &str)]| {
        nodes[0].change_rules(rule);
        check(&mut nodes[0].client(), attributes, 0).remaining
    };
    let lines: Vec<&str> = THREE.lines().collect();
    assert_eq!(look(lines[2], &[]), 400 - all as i64);
    for (tenant, count) in &tenants {
        assert_eq!(look(lines[1], &[("tenant", tenant)]), 110 - *count as i64, "tenant {tenant}");
    }
    for (user, (_, count)) in admitted.iter().enumerate().take(4) {
        assert_eq!(look(lines[0], &[("user", &user.to_string())]), 40 - *count as i64, "user {user}");
    }
    // Whoever asks next gets what is left, to the last one.
    nodes[0].change_rules(THREE);
    let mut client = nodes[0].client();
    let mut more = 0;
    for user in 100..200 {
        let user = user.to_string();
        let attributes = [("user", user.as_str()), ("tenant", user.as_str())];
        more += usize::from(check(&mut client, &attributes, 1).allowed);
    }
    assert_eq!(more, (400 - all).min(100));
}
