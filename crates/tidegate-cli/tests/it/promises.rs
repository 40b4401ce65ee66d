//! What is promised of a fleet on a real Redis, each promise by its name.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tidegate_testkit::resp::{Client, Value};
use tidegate_testkit::{Redis, ShardedRedis, eventually, http, in_three_tries, poll};

use crate::redis_world::{DEFAULT, Node, PATIENCE, PATIENT, alone, check, left, look, now, pass, tell};

const PER_USER: &str = "\
- { name: per-user, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }
";

pub(crate) const LOCAL: &str = "\
- { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }
";

pub(crate) fn named(user: &str, id: &str) -> Json {
    json!({ "domain": "api", "attributes": { "user": user }, "request_id": id })
}

const SLOTS: &str = "\
- { name: slots, key: [user], limits: [{ algorithm: concurrency, limit: 2, ttl: 60s }] }
";

pub(crate) fn post(http: SocketAddr, path: &str, body: &Json) -> (u16, Json) {
    let answer = http::post_json(http, path, &body.to_string());
    (answer.status, answer.json())
}

#[test]
fn request_id_a_retry_on_another_node_gets_the_first_answer_and_spends_nothing() {
    let redis = Redis::start();
    let [one, other] = [0, 1].map(|_| Node::ready(&redis.url(), PATIENT, PER_USER));
    let first = post(one.http, "/v1/check", &named("42", "r-1"));
    assert_eq!(first.0, 200);
    for node in [&other, &one, &other] {
        assert_eq!(post(node.http, "/v1/check", &named("42", "r-1")), first);
    }
    let batch = json!({ "checks": [named("42", "r-1"), named("42", "r-2")] });
    let (_, decisions) = post(other.http, "/v1/check/batch", &batch);
    assert_eq!(decisions["decisions"][0], first.1);
    assert_eq!(post(one.http, "/v1/check", &named("42", "r-2")).1, decisions["decisions"][1]);
    assert_eq!(post(other.http, "/v1/check", &named("7", "r-1")).0, 200, "another caller's is its own");
    let costlier = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 2, "request_id": "r-1" });
    let (conflict, problem) = post(other.http, "/v1/check", &costlier);
    assert_eq!((conflict, &problem["field"]), (409, &json!("request_id")));
    let refund = json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 1, "request_id": "f-1" });
    for node in [&one, &other] {
        assert_eq!(post(node.http, "/v1/refund", &refund).0, 200);
    }
    assert_eq!(left(&mut one.client(), "42"), 999, "two checks and one refund");
}

#[test]
fn request_id_an_answer_without_the_store_is_not_repeated_when_it_is_back() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), DEFAULT, PER_USER);
    redis.pause();
    assert_eq!(post(node.http, "/v1/check", &named("42", "r-1")).0, 503);
    redis.resume();
    eventually("the check is decided by the store", PATIENCE, || {
        post(node.http, "/v1/check", &named("42", "r-1")).0 == 200
    });
}

#[test]
fn request_id_a_retry_after_the_client_gave_up_does_not_spend_again() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, PER_USER);
    redis.pause();
    let body = named("42", "r-1").to_string();
    let mut client = TcpStream::connect(node.http).unwrap();
    let head = "POST /v1/check HTTP/1.1\r\nhost: api\r\ncontent-type: application/json\r\ncontent-length:";
    client.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    pass(Duration::from_millis(300));
    drop(client);
    pass(Duration::from_millis(100));
    redis.resume();
    let again = poll(PATIENCE, || {
        let answer = post(node.http, "/v1/check", &named("42", "r-1"));
        (answer.0 != 409).then_some(answer)
    });
    assert_eq!(again.map(|answer| answer.0), Some(200));
    assert_eq!(left(&mut node.client(), "42"), 999);
}

/// The first tries are let go as late; Redis decides them when it goes on, and what they spent goes back.
#[test]
fn request_id_a_check_retried_through_a_pause_of_the_store_is_charged_once() {
    const RULES: &str = "\
- { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }
- { name: bucket, key: [user], limits: [{ algorithm: token_bucket, rate: 1/day, burst: 1000 }] }
";
    let redis = Redis::start();
    let nodes = [0, 1].map(|_| Node::ready(&redis.url(), DEFAULT, RULES));
    for number in 0..6 {
        let user = format!("u{number}");
        redis.pause();
        let mut tries = nodes.iter().cycle();
        let mut ask = || {
            let node = tries.next().expect("it goes round");
            post(node.http, "/v1/check", &named(&user, &format!("r-{number}"))).0 == 200
        };
        let mut passed = (0..3).any(|_| {
            pass(Duration::from_millis(90));
            ask()
        });
        redis.resume();
        passed = passed || poll(PATIENCE, || ask().then_some(())).is_some();
        assert!(passed, "{user} never passed");
        let spent = || nodes.each_ref().map(|node| 1000 - left(&mut node.client(), &user));
        eventually("it is charged once", PATIENCE, || spent() == [1; 2]);
    }
}

/// Nobody hears an answer that comes so late: Redis must not come to the first tries at all when it goes on.
#[test]
fn request_id_a_check_retried_through_a_long_pause_of_the_store_is_charged_once() {
    let redis = Redis::start();
    let nodes = [0, 1].map(|_| Node::ready(&redis.url(), DEFAULT, LOCAL));
    let spent = || nodes.each_ref().map(|node| 1000 - look(&mut node.client(), &[("user", "42")]).remaining);
    assert_eq!(spent(), [0; 2]);
    redis.pause();
    let passed = poll(PATIENCE, || {
        pass(Duration::from_millis(60));
        (post(nodes[0].http, "/v1/check", &named("42", "r-1")).0 == 200).then_some(())
    });
    assert!(passed.is_some(), "it passes by its share");
    pass(Duration::from_millis(2_500));
    redis.resume();
    eventually("it is charged", PATIENCE, || spent() == [1; 2]);
    assert_eq!(post(nodes[1].http, "/v1/check", &named("42", "r-1")).0, 200);
    assert_eq!(spent(), [1; 2]);
}

/// The store has the first answer and cannot say so in time: nobody may decide anew.
#[test]
fn request_id_a_retry_that_meets_a_pause_of_the_store_is_not_decided_there_again() {
    let redis = Redis::start();
    for timeout in [DEFAULT, "100ms"] {
        let [one, other] = [0, 1].map(|_| Node::ready(&redis.url(), timeout, PER_USER));
        for number in 0..5 {
            let (user, id) = (format!("{timeout}-{number}"), format!("{timeout}-r-{number}"));
            let ask = |node: &Node| post(node.http, "/v1/check", &named(&user, &id));
            let first =
                poll(PATIENCE, || Some(ask(&one)).filter(|answer| answer.0 == 200)).expect("it passes");
            redis.pause();
            assert_eq!(ask(&one), first, "its node knows the answer");
            assert_eq!(ask(&other).0, 503, "the other cannot know it");
            redis.resume();
            eventually("the other hears of it", PATIENCE, || ask(&other) == first);
            assert_eq!(left(&mut one.client(), &user), 999);
        }
    }
}

#[test]
fn request_id_a_refund_that_failed_on_one_of_two_shards_is_given_back_once_by_its_retry() {
    const RULES: &str = "\
- { name: per-user, key: [user], limits: [1000/h] }
- { name: per-tenant, key: [tenant], limits: [1000/h] }
";
    let redis = ShardedRedis::start(2);
    // Longer than by default: on a busy machine a check would otherwise be decided without the store, and be paid later.
    let node = Node::ready(&redis.url(), "500ms", RULES);
    let check = |user: &str, tenant: &str| {
        let attributes = json!({ "user": user, "tenant": tenant });
        json!({ "domain": "api", "attributes": attributes, "cost": 100 })
    };
    let has_a_cell = |shard: &Redis| !shard.cmd(&["KEYS", "*per-*"]).array().is_empty();
    // A user on one shard and a tenant on the other, found by trying.
    let names = (0..64).map(|number| (format!("u{number}"), format!("t{number}")));
    let (user, tenant) = names
        .into_iter()
        .find(|(user, tenant)| {
            redis.nodes().iter().for_each(|shard| drop(shard.cmd(&["FLUSHALL"])));
            let (status, answer) = post(node.http, "/v1/check", &check(user, tenant));
            status == 200 && answer["source"] == "store" && redis.nodes().iter().all(has_a_cell)
        })
        .unwrap();
    for number in 0..8 {
        let mut refund = check(&user, &tenant);
        refund["cost"].take();
        let refund = json!({
            "domain": "api", "attributes": refund["attributes"], "amount": 5, "request_id": format!("f-{number}"),
        });
        let shard = &redis.nodes()[number % 2];
        shard.pause();
        assert_eq!(post(node.http, "/v1/refund", &refund).0, 503);
        shard.resume();
        eventually("the refund is given back", PATIENCE, || post(node.http, "/v1/refund", &refund).0 == 200);
    }
    let query = format!("/v1/usage?domain=api&user={user}&tenant={tenant}");
    // A usage that cannot be read in time is an error, and not one of these numbers.
    let usage = poll(PATIENCE, || Some(http::get(node.http, &query)).filter(|answer| answer.status == 200));
    let usage = usage.expect("the usage is read").json();
    let left: Vec<&Json> = usage["limits"].as_array().unwrap().iter().map(|one| &one["remaining"]).collect();
    assert_eq!(left, [940, 940], "a hundred spent, eight times five given back: {usage}");
}

#[test]
fn request_id_a_refund_that_failed_without_one_says_so() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), DEFAULT, PER_USER);
    let mut refund = json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 1 });
    redis.pause();
    let (status, problem) = post(node.http, "/v1/refund", &refund);
    let hint = problem["hint"].as_str().unwrap();
    assert!(status == 503 && hint.contains("may have been given back"), "{problem}");
    refund["request_id"] = json!("f-1");
    let (status, problem) = post(node.http, "/v1/refund", &refund);
    let hint = problem["hint"].as_str().unwrap();
    assert!(status == 503 && hint.contains("same request_id"), "{problem}");
    redis.resume();
}

#[test]
fn lease_tokens_are_signed_by_the_fleet_and_a_forged_one_ends_nothing() {
    let redis = Redis::start();
    let [one, other] = [0, 1].map(|_| Node::ready(&redis.url(), PATIENT, SLOTS));
    let stranger = Node::ready("memory:", PATIENT, SLOTS);
    let take = |node: &Node| {
        post(node.http, "/v1/check", &json!({ "domain": "api", "attributes": { "user": "42" } })).1
    };
    let (mine, theirs) = (take(&one)["lease"].clone(), take(&stranger)["lease"].clone());
    assert!(take(&other)["allowed"] == true && take(&one)["allowed"] == false, "two at once");
    for path in ["/v1/release", "/v1/renew"] {
        let (status, problem) = post(other.http, path, &json!({ "lease": theirs }));
        assert_eq!((status, &problem["field"]), (422, &json!("lease")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("not a lease of this fleet"), "{problem}");
    }
    assert_eq!(take(&other)["allowed"], false, "a forged token ends nothing");
    assert_eq!(post(other.http, "/v1/release", &json!({ "lease": mine })).1["released"], true);
    assert_eq!(take(&one)["allowed"], true);
    let unexpired = redis
        .cmd(&["KEYS", "*"])
        .array()
        .iter()
        .filter(|key| redis.cmd(&["TTL", &key.text()]).int() < 0)
        .count();
    assert_eq!(unexpired, 0, "every key has a time to live");
}

/// Asks until the rule's local fallback has decided so often: how many requests were admitted by then. What is remembered to be
/// refused is not the fallback's decision.
fn admitted_in_fallback(client: &mut Client, user: &str, decided: usize) -> usize {
    let (mut by_fallback, mut admitted) = (0, 0);
    let done = poll(PATIENCE, || {
        let answer = check(client, &[("user", user)], 1);
        admitted += usize::from(answer.allowed);
        by_fallback += usize::from(answer.source == "fallback_local");
        (by_fallback >= decided).then_some(admitted)
    });
    done.expect("the fallback decides")
}

#[test]
fn local_fallback_does_not_renew_itself_when_redis_stalls_again_and_again() {
    let redis = Redis::start();
    let rules = "- { name: few, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 1d }] }\n";
    let node = Node::ready(&redis.url(), DEFAULT, rules);
    let mut client = node.client();
    while look(&mut client, &[("user", "42")]).remaining > 0 {
        check(&mut client, &[("user", "42")], 1);
    }
    let mut admitted = 0;
    for _ in 0..8 {
        redis.pause();
        admitted += admitted_in_fallback(&mut client, "42", 10);
        redis.resume();
        eventually("the node is in touch with its store", PATIENCE, || node.readyz() == "ready\n");
    }
    assert_eq!(admitted, 0, "all five were spent");
}

#[test]
fn concurrency_fallback_gives_no_place_that_was_seen_taken() {
    let redis = Redis::start();
    let rules = "- { name: slots, key: [user], limits: [{ algorithm: concurrency, limit: 10, ttl: 60s }] }\n";
    let node = Node::ready(&redis.url(), DEFAULT, rules);
    let mut client = node.client();
    while look(&mut client, &[("user", "42")]).remaining > 0 {
        check(&mut client, &[("user", "42")], 1);
    }
    redis.pause();
    let admitted = admitted_in_fallback(&mut client, "42", 20);
    redis.resume();
    assert_eq!(admitted, 0, "all ten places were taken");
}

/// What `min-replicas-to-write` does to a master that is cut off.
#[test]
fn a_master_without_its_replicas_decides_nothing_and_its_nodes_fall_back() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, PER_USER);
    let mut client = node.client();
    assert_eq!(check(&mut client, &[("user", "42")], 1).source, "store");
    redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let answer = check(&mut client, &[("user", "42")], 1);
    assert_eq!((answer.allowed, answer.source.as_str()), (false, "fallback_closed"));
    eventually("the reason is named", PATIENCE, || {
        node.metric(r#"tidegate_store_call_failures_total{reason="no_replicas"}"#) > 0.0
    });
    redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(look(&mut client, &[("user", "42")]).remaining, 999);
}

#[test]
fn a_warm_start_has_a_connection_on_every_worker_before_it_listens() {
    let redis = Redis::start();
    let clients = || redis.info("connected_clients").unwrap().trim().parse::<usize>().unwrap();
    let idle = clients();
    // Nobody asks, so that a worker without a connection would stay without. The background work and the prober, which does
    // not hold up the start, have one each.
    for workers in [1, 2, 5] {
        let node = Node::start_with(&redis.url(), PATIENT, PER_USER, &format!("workers: {workers}\n"));
        let connected = clients() - idle;
        assert!((workers + 1..=workers + 2).contains(&connected), "{connected} with {workers} workers");
        eventually("the prober is connected", PATIENCE, || clients() - idle == workers + 2);
        drop(node);
        eventually("its connections are closed", PATIENCE, || clients() == idle);
    }
}

/// Limits of 500 a day, by each policy.
const FIVE_HUNDRED: &str = "\
- { name: local, match: { policy: local }, key: [user], on_store_failure: local, limits: [{ algorithm: fixed_window, limit: 500, window: 1d }] }
- { name: closed, match: { policy: closed }, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 500, window: 1d }] }
";

/// Asks `count` times at once over some connections: how many passed, and who decided.
fn burst(node: &Node, policy: &str, user: &str, count: usize) -> (usize, Vec<String>) {
    const CONNECTIONS: usize = 6;
    let words = ["TG.CHECK", "api", "policy", policy, "user", user].map(str::to_owned).to_vec();
    let replies: Vec<Value> = std::thread::scope(|scope| {
        let some = || scope.spawn(|| node.client().pipeline(&vec![words.clone(); count / CONNECTIONS]));
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| some()).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let mut sources: Vec<String> = replies.iter().map(|reply| reply.array()[6].text()).collect();
    sources.sort_unstable();
    sources.dedup();
    (replies.iter().filter(|reply| reply.array()[0].int() == 1).count(), sources)
}

/// Asks two nodes for 600 at once: how many passed, and who decided.
fn burst_over(nodes: &[Node; 2], policy: &str, user: &str) -> (usize, Vec<String>) {
    std::thread::scope(|scope| {
        let asked = nodes.each_ref().map(|node| scope.spawn(|| burst(node, policy, user, 300)));
        let [(some, by), (others, by_others)] = asked.map(|one| one.join().unwrap());
        (some + others, [by, by_others].concat())
    })
}

#[test]
fn two_nodes_admit_the_limit_exactly_from_the_moment_that_they_listen() {
    let _alone = alone();
    let redis = Redis::start();
    // With the default deadline a busy machine may be late (`overload`), but a store that a worker has not met is a failure
    // (`fallback`). With time enough all is decided by the store.
    for (start, timeout) in [DEFAULT, DEFAULT, DEFAULT, PATIENT].into_iter().enumerate() {
        let url = redis.url();
        let nodes = std::thread::scope(|scope| {
            let node = || scope.spawn(|| Node::start(&url, timeout, FIVE_HUNDRED));
            [node(), node()].map(|node| node.join().unwrap())
        });
        for policy in ["closed", "local"] {
            let (admitted, sources) = burst_over(&nodes, policy, &format!("start-{start}"));
            let is_late = sources.iter().any(|source| source.starts_with("overload"));
            tell!("start {start}, {timeout}: {admitted} admitted by {sources:?}");
            assert!(
                sources.iter().all(|source| !source.starts_with("fallback")),
                "start {start}: {sources:?}"
            );
            assert!(!is_late || timeout == DEFAULT, "start {start}: {sources:?}");
            // Each node may admit its half for requests that the store was too late for, and is charged for it afterwards.
            let most = if policy == "local" && is_late { 1_000 } else { 500 };
            assert!(
                admitted == 500 || is_late && admitted <= most,
                "{admitted} at start {start}: {sources:?}"
            );
        }
    }
}

#[test]
fn three_nodes_that_start_without_redis_divide_a_limit_by_how_many_the_config_expects() {
    let redis = Redis::start();
    redis.pause();
    let rules = "- { name: few, key: [user], on_store_failure: local, limits: [{ algorithm: fixed_window, limit: 15, window: 1d }] }\n";
    let store = format!("{DEFAULT}, expected_nodes: 3");
    let url = redis.url();
    let nodes = std::thread::scope(|scope| {
        let start = || scope.spawn(|| Node::start(&url, &store, rules));
        [start(), start(), start()].map(|node| node.join().unwrap())
    });
    let mut admitted = [0; 3];
    for (node, admitted) in nodes.iter().zip(&mut admitted) {
        let mut client = node.client();
        let asked: Vec<_> = (0..20).map(|_| check(&mut client, &[("user", "42")], 1)).collect();
        assert!(asked.iter().all(|answer| answer.source == "fallback_local"), "{asked:?}");
        *admitted = asked.iter().filter(|answer| answer.allowed).count();
    }
    redis.resume();
    assert_eq!(admitted, [5, 5, 5], "fifteen in all, a third at each");
}

#[test]
fn a_start_without_its_store_waits_two_seconds_and_says_so() {
    let redis = Redis::start();
    let start = || {
        let began = now();
        (Node::start(&redis.url(), DEFAULT, PER_USER), began.elapsed())
    };
    let (_, in_touch) = start();
    redis.pause();
    let (node, took) = start();
    let waited = took.saturating_sub(in_touch);
    tell!("a start takes {in_touch:?}, without its store {took:?}");
    // A second for what the fleet runs, then two for the workers; as long as a start takes it may take once more.
    assert!(
        took >= Duration::from_secs(2) && waited <= Duration::from_secs(4) + in_touch,
        "{took:?}, {in_touch:?}"
    );
    assert_eq!(post(node.http, "/v1/check", &named("42", "r-1")).0, 503);
    eventually("it says so", PATIENCE, || {
        let (stderr, address) = (node.server.stderr(), redis.addr().to_string());
        let line =
            stderr.lines().find(|line| line.contains("rules decide by their failure policy until it does"));
        line.is_some_and(|line| line.contains("WARN") && line.contains(&address))
    });
    redis.resume();
    eventually("the node is in touch with its store", PATIENCE, || {
        post(node.http, "/v1/check", &named("42", "r-1")).0 == 200
    });
}

#[test]
fn a_refund_that_says_its_age_goes_into_the_window_that_was_charged() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, PER_USER);
    check(&mut node.client(), &[("user", "42")], 1_000);
    let refund = |age_ms: u64| {
        let body = json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 10, "age_ms": age_ms });
        assert_eq!(post(node.http, "/v1/refund", &body).0, 200);
        left(&mut node.client(), "42")
    };
    assert_eq!(refund(2 * 86_400_000), 0, "that window is over");
    assert_eq!(refund(1), 10);
}

/// Redis's time in whole windows.
fn window_of(redis: &Redis, window_s: i64) -> i64 {
    redis.cmd(&["TIME"]).array()[0].text().parse::<i64>().unwrap() / window_s
}

#[test]
fn a_refund_by_spent_after_its_window_is_over_gives_nothing_back_on_redis() {
    const WINDOW_S: i64 = 2;
    let rules =
        "- { name: ten, key: [user], limits: [{ algorithm: fixed_window, limit: 10, window: 2s }] }\n";
    let redis = Redis::start();
    let [decides, refunds] = [0, 1].map(|_| Node::ready(&redis.url(), PATIENT, rules));
    let mut tries = 0;
    in_three_tries(|| {
        tries += 1;
        let user = format!("user-{tries}");
        let attributes = json!({ "user": user });
        let spend = |node: &Node, cost: u64| {
            post(node.http, "/v1/check", &json!({ "domain": "api", "attributes": attributes, "cost": cost }))
                .1
        };
        let refund = |amount: u64, spent: &Json| {
            let body = json!({ "domain": "api", "attributes": attributes, "amount": amount, "spent": spent });
            assert_eq!(post(refunds.http, "/v1/refund", &body).0, 200);
        };
        let first = spend(&decides, 10);
        let began = poll(PATIENCE, || {
            let window = window_of(&redis, WINDOW_S);
            spend(&decides, 10)["allowed"].as_bool().unwrap().then_some(window)
        });
        refund(10, &first["spent"]);
        // The node that refunds has forgotten what it knew: it asks the store.
        let after = spend(&refunds, 1);
        if began != Some(window_of(&redis, WINDOW_S)) {
            return Err("the window was over before all was asked".to_owned());
        }
        assert_eq!((&after["allowed"], &after["source"]), (&json!(false), &json!("store")), "{after}");
        Ok(())
    });
}

#[test]
fn a_refund_by_spent_gives_back_on_another_node_what_the_window_still_holds() {
    let redis = Redis::start();
    let [decides, refunds] = [0, 1].map(|_| Node::ready(&redis.url(), PATIENT, PER_USER));
    let reply = decides.client().cmd(&["TG.CHECK", "api", "COST", "1000", "SPENT", "user", "42"]);
    let spent = reply.array()[8].text();
    let refunded = refunds.client().cmd(&["TG.REFUND", "api", "AMOUNT", "7", "SPENT", &spent, "user", "42"]);
    // Unless a day has begun a moment ago.
    assert_eq!((refunded.int(), left(&mut refunds.client(), "42")), (7, 7));
}

#[test]
fn lease_tokens_may_be_signed_with_a_secret_from_the_config_which_the_store_never_sees() {
    let redis = Redis::start();
    let with = |secret: &str| format!("{PATIENT}, lease_secret: '{secret}'");
    let [one, other] = [0, 1].map(|_| Node::ready(&redis.url(), &with("of-the-whole-fleet"), SLOTS));
    let stranger = Node::ready(&redis.url(), &with("of-another-fleet"), SLOTS);
    let ask = json!({ "domain": "api", "attributes": { "user": "42" } });
    let lease = post(one.http, "/v1/check", &ask).1["lease"].clone();
    let records = redis.cmd(&["KEYS", "*lease-key*"]);
    assert_eq!(records.array().len(), 0, "no secret lies beside the counters: {records:?}");
    let (status, problem) = post(stranger.http, "/v1/release", &json!({ "lease": lease }));
    assert_eq!((status, &problem["field"]), (422, &json!("lease")), "{problem}");
    assert_eq!(post(other.http, "/v1/release", &json!({ "lease": lease })).1["released"], true);
}

/// Which of the servers holds the counter of each user.
fn homes(shards: &ShardedRedis, users: &[String]) -> Vec<usize> {
    let holds =
        |server: &Redis, user: &String| !server.cmd(&["KEYS", &format!("*{user}*")]).array().is_empty();
    let home = |user| shards.nodes().iter().position(|server| holds(server, user)).expect("everybody asked");
    users.iter().map(home).collect()
}

/// What decided each of these users' checks, all in one batch.
fn sources_of_a_batch(node: &Node, users: &[&String]) -> Vec<String> {
    let check = |user| json!({ "domain": "api", "attributes": { "user": user } });
    let body = json!({ "checks": users.iter().map(check).collect::<Vec<_>>() });
    let (_, answer) = post(node.http, "/v1/check/batch", &body);
    let decisions = answer["decisions"].as_array().unwrap();
    decisions.iter().map(|one| one["source"].as_str().unwrap().to_owned()).collect()
}

/// Promise 8: once with a shard that is gone, once with one that stands still.
#[test]
fn a_batch_with_one_check_on_a_dead_shard_falls_back_for_that_one_alone() {
    for (what, lose) in [("killed", Redis::kill as fn(&Redis)), ("stopped", Redis::pause)] {
        let shards = ShardedRedis::start(3);
        let node = Node::ready(&shards.url(), "1s", PER_USER);
        let users: Vec<String> = (0..40).map(|user| format!("user-{user}-")).collect();
        let all: Vec<&String> = users.iter().collect();
        assert!(sources_of_a_batch(&node, &all).iter().all(|source| source == "store"));
        let homes = homes(&shards, &users);
        let (lost, well): (Vec<_>, Vec<_>) = all.iter().zip(&homes).partition(|(_, home)| **home == 0);
        lose(&shards.nodes()[0]);
        for round in 0..6 {
            let (dead, _) = lost[round % lost.len()];
            let mut batch: Vec<&String> = well.iter().map(|(user, _)| **user).collect();
            batch.insert(round, dead);
            let sources = sources_of_a_batch(&node, &batch);
            for (place, source) in sources.iter().enumerate() {
                // Until its breaker opens, one that stands still may only be slow.
                let expected: &[&str] =
                    if place == round { &["fallback_closed", "overload_closed"] } else { &["store"] };
                assert!(
                    expected.contains(&source.as_str()),
                    "{what}, round {round}, place {place}: {sources:?}"
                );
            }
        }
        for server in &shards.nodes()[1..] {
            let state = format!("tidegate_breaker_state{{node=\"{}\"", server.addr());
            assert_eq!(node.metric_sum(&state), 0.0, "{what}: the breaker of a healthy shard");
        }
        // On a busy machine a few silent calls are no failure yet.
        eventually(&format!("{what}: the breaker of the lost shard opens"), PATIENCE, || {
            sources_of_a_batch(&node, &[lost[0].0]);
            node.metric_sum("tidegate_breaker_state{") > 0.0
        });
    }
}
