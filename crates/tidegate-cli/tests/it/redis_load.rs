//! More requests at once than the deadline allows, and keys that expire by the thousand: the store is busy then, not gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_testkit::{Redis, RedisCluster, eventually, in_three_tries};

use crate::redis_world::{
    Answer, DEFAULT, Load, Node, PATIENCE, PATIENT, POLICY_RULES, alone, check, now, pass, tell,
};

const KEYS: usize = 100_000;
/// A limit that nobody reaches.
const PLENTY: &str = "\
- { name: plenty, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 1000000000, window: 1d }] }
";

/// Who decided how many.
type Sources = BTreeMap<String, usize>;

/// Keeps `connections` times 128 checks in flight over all keys for `span`: who decided, and how many a second.
fn offer(node: &Node, connections: usize, span: Duration) -> (Sources, f64) {
    let (stop, began) = (AtomicBool::new(false), now());
    let sources = std::thread::scope(|scope| {
        let client = |number: usize| {
            let (stop, mut client) = (&stop, node.client());
            scope.spawn(move || {
                let (mut sources, mut user) = (Sources::new(), number * KEYS / connections);
                while !stop.load(Ordering::Relaxed) {
                    let words = |user: usize| {
                        let user = format!("user-{}", user * 7_919 % KEYS);
                        ["TG.CHECK", "api", "user", &user].map(str::to_owned).to_vec()
                    };
                    let commands: Vec<Vec<String>> = (user..user + 128).map(words).collect();
                    user += 128;
                    for reply in client.pipeline(&commands) {
                        *sources.entry(reply.array()[6].text()).or_default() += 1;
                    }
                }
                sources
            })
        };
        let clients: Vec<_> = (0..connections).map(client).collect();
        pass(span);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).fold(Sources::new(), |mut all, some| {
            some.into_iter().for_each(|(source, count)| *all.entry(source).or_default() += count);
            all
        })
    });
    let by_store = sources.get("store").copied().unwrap_or(0) as f64 / began.elapsed().as_secs_f64();
    tell!("{} in flight: {by_store:.0} by the store a second, {sources:?}", 128 * connections);
    (sources, by_store)
}

/// The part of its pace that the store must keep with ten milliseconds for each of 1,024 in flight. Measured: all of it, or nearly.
/// A collapse leaves 3 to 17 %.
const FAIR: f64 = 0.3;

/// Nobody said that the store is gone.
fn assert_not_a_failure(what: &str, node: &Node, sources: &Sources) {
    assert!(sources.keys().all(|source| !source.starts_with("fallback")), "{what}: {sources:?}");
    assert_eq!(node.metric_sum("tidegate_breaker_state{"), 0.0, "{what}: a breaker is open");
    assert!(!node.server.stderr().contains("the store does not answer"), "{what}: {}", node.server.stderr());
}

/// Promise 20: four times as many in flight are decided about as fast, and nobody hears of it afterwards.
#[test]
fn a_thousand_in_flight_over_a_hundred_thousand_keys_slow_a_node_down_and_break_nothing() {
    let _alone = alone();
    let redis = Redis::start();
    let patient = Node::ready(&redis.url(), PATIENT, PLENTY);
    let mut pace = 0.0;
    in_three_tries(|| {
        let (few, some) = offer(&patient, 2, Duration::from_secs(1));
        let (many, more) = offer(&patient, 8, Duration::from_secs(1));
        assert!(few.len() == 1 && many.len() == 1, "with time enough the store decides: {few:?}, {many:?}");
        pace = more;
        if more >= 0.6 * some { Ok(()) } else { Err(format!("{more:.0}/s with 1,024, {some:.0}/s with 256")) }
    });
    let node = Node::ready(&redis.url(), DEFAULT, PLENTY);
    in_three_tries(|| {
        let (sources, more) = offer(&node, 8, Duration::from_secs(2));
        assert_not_a_failure("1,024 in flight", &node, &sources);
        let overloaded = sources.keys().any(|source| source.starts_with("overload"));
        if overloaded {
            eventually("it says that it is too much", PATIENCE, || {
                node.server.stderr().contains("the store is overloaded")
            });
        }
        let mut client = node.client();
        let mut calm = || check(&mut client, &[("user", "calm")], 1);
        let late = (0..200).map(|_| calm()).filter(|answer| !Answer::is_exact(answer)).count();
        tell!("right afterwards {late} of 200 were not decided by the store");
        if overloaded {
            eventually("it says that it is over", PATIENCE, || {
                node.server.stderr().contains("the store answers in time again")
            });
        }
        if more < FAIR * pace {
            return Err(format!("{more:.0}/s by the store, {pace:.0}/s with time enough"));
        }
        if late <= 10 { Ok(()) } else { Err(format!("{late} of 200 right afterwards")) }
    });
}

/// Promise 19: at `hz 10` Redis drops what has expired in long pauses.
#[test]
fn ten_thousand_keys_that_expire_every_second_open_no_breaker() {
    let _alone = alone();
    let redis = Redis::builder().config("hz 10").start();
    let rules = "- { name: short, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 5, window: 1s }] }\n";
    let node = Node::ready(&redis.url(), DEFAULT, rules);
    let (mut client, began) = (node.client(), now());
    let (mut sources, mut user) = (Sources::new(), 0);
    // A thousand every tenth of a second for ten seconds, or as fast as the machine can.
    for turn in 1..=100 {
        for _ in 0..20 {
            let words =
                |user: usize| ["TG.CHECK", "api", "user", &user.to_string()].map(str::to_owned).to_vec();
            let commands: Vec<Vec<String>> = (user..user + 50).map(words).collect();
            user += 50;
            for reply in client.pipeline(&commands) {
                *sources.entry(reply.array()[6].text()).or_default() += 1;
            }
        }
        pass((turn * Duration::from_millis(100)).saturating_sub(began.elapsed()));
    }
    let rate = user as f64 / began.elapsed().as_secs_f64();
    let expired: f64 = redis.info("expired_keys").unwrap().trim().parse().unwrap();
    tell!("{rate:.0} keys made a second, {expired} expired meanwhile: {sources:?}");
    assert!(expired > user as f64 / 10.0, "they do not expire: {expired}");
    assert_not_a_failure("keys that expire", &node, &sources);
    let by_store = sources.get("store").copied().unwrap_or(0);
    assert!(10 * by_store >= 9 * user, "pauses make few late: {sources:?}");
    assert_spread(&redis);
}

/// What both servers are advised to change comes last, so that what is not said before it is not said at all.
#[test]
fn a_higher_hz_is_recommended_at_the_start_where_redis_has_a_low_one_and_nowhere_else() {
    for (hz, is_low) in [(10, true), (100, false)] {
        let config = [format!("hz {hz}"), "lazyfree-lazy-expire no".to_owned()];
        let redis = config.into_iter().fold(Redis::builder(), |redis, line| redis.config(line)).start();
        let node = Node::ready(&redis.url(), DEFAULT, PLENTY);
        eventually("it recommends to free keys in the background", PATIENCE, || {
            node.server.stderr().contains("use `lazyfree-lazy-expire yes`")
        });
        let stderr = node.server.stderr();
        assert_eq!(stderr.contains("use `hz 100`"), is_low, "hz {hz}: {stderr}");
    }
}

#[test]
fn settings_by_which_one_lost_server_stops_all_are_said_at_the_start() {
    let says = |url: &str, line: &str| {
        let node = Node::ready(url, PATIENT, PLENTY);
        eventually(line, PATIENCE, || node.server.stderr().contains(line));
    };
    let cluster = RedisCluster::start();
    for member in cluster.nodes() {
        member.cmd(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    says(&cluster.url(), "use `cluster-require-full-coverage no`");
    let master = Redis::start();
    let replica = format!("replicaof {} {}", master.addr().ip(), master.addr().port());
    let _replica = Redis::builder().config(replica).start();
    eventually("the replica is known", PATIENCE, || master.info("connected_slaves").as_deref() == Some("1"));
    master.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    says(&master.url(), "`min-replicas-to-write 1` with 1 replicas");
}

/// The moments at which keys will expire are spread: no tenth of a second has many more than its part.
fn assert_spread(redis: &Redis) {
    let mut client = redis.client();
    let keys = client.cmd(&["KEYS", "*short*"]);
    let asks: Vec<Vec<Vec<u8>>> = keys
        .array()
        .iter()
        .map(|key| match key {
            tidegate_testkit::resp::Value::Bulk(key) => vec![b"PEXPIRETIME".to_vec(), key.clone()],
            other => panic!("not a key: {other:?}"),
        })
        .collect();
    let moments: Vec<i64> =
        client.pipeline(&asks).iter().map(|at| at.int() / 100).filter(|at| *at > 0).collect();
    let mut tenths = BTreeMap::<i64, usize>::new();
    moments.iter().for_each(|tenth| *tenths.entry(*tenth).or_default() += 1);
    let (most, mean) = (tenths.values().max().copied().unwrap_or(0), moments.len() / tenths.len().max(1));
    tell!(
        "{} keys expire in {} tenths of a second, {mean} in each, {most} at most",
        moments.len(),
        tenths.len()
    );
    assert!(moments.len() > 1_000 && tenths.len() > 10 && most < 4 * mean, "{tenths:?}");
}

/// Redis stands still for 20 ms, as its own expiry cycle makes it: that is no failure, whatever the policy.
#[test]
fn stalls_of_twenty_milliseconds_open_no_breaker_and_are_over_at_once() {
    const STALL: Duration = Duration::from_millis(20);
    let _alone = alone();
    in_three_tries(|| {
        let redis = Redis::start();
        let node = Node::ready(&redis.url(), DEFAULT, POLICY_RULES);
        eventually("it recommends more steps a second", PATIENCE, || {
            node.server.stderr().contains("`hz 10` expires keys in pauses of up to 25 ms: use `hz 100`")
        });
        let load = Load::start(&[&node], 2);
        let mut stalls = Vec::new();
        for _ in 0..10 {
            pass(Duration::from_millis(150));
            let began = load.at();
            redis.pause();
            pass(STALL);
            redis.resume();
            stalls.push((began, load.at()));
        }
        pass(Duration::from_millis(150));
        let outcome = load.finish();
        let longest = stalls.iter().map(|(began, over)| *over - *began).max().unwrap();
        let stalled = |one: &&crate::redis_world::Asked| {
            stalls.iter().any(|(began, over)| one.at + one.took > *began && one.at < *over)
        };
        let met = outcome.asked.iter().filter(|one| !one.answer.is_exact()).filter(stalled).count();
        let again = stalls.iter().map(|(_, over)| outcome.exact_again_after(*over)).max().unwrap();
        let noise = outcome.noise();
        tell!(
            "stalls of up to {longest:?}: {met} of {} answers without the store, exact again after {again:?}, pings {noise:?}",
            outcome.asked.len()
        );
        if longest > 5 * STALL {
            return Err(format!("the machine made a stall last {longest:?}"));
        }
        assert!(met > 0, "no stall was noticed");
        let failed = outcome.asked.iter().find(|one| one.answer.is_fallback());
        let stderr = node.server.stderr();
        if let Some(failed) = failed {
            outcome
                .unless_it_stood_still(failed.at, &format!("taken for a failure: {failed:?}\n{stderr}"))?;
        }
        assert!(!stderr.contains("the store does not answer"), "{stderr}");
        assert_eq!(node.metric_sum("tidegate_breaker_state{"), 0.0);
        let soon = Duration::from_millis(50) + 3 * noise;
        if again <= soon {
            Ok(())
        } else {
            Err(format!("exact again only after {again:?}, more than {soon:?}"))
        }
    });
}
