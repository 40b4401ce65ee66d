//! What a server on Redis answers, where a shortcut on the way to it could make it differ from one on the memory store.

use serde_json::{Value as Json, json};
use tidegate_testkit::resp::Value;
use tidegate_testkit::{Redis, http};

use crate::control_world::{self, rules_of};
use crate::redis_world::{Node, PATIENT, check};

/// What `/v1/usage` says is left to `user` of the rule's limit.
fn left_of(node: &Node, rule: &str, user: &str) -> Json {
    let usage = http::get(node.http, &format!("/v1/usage?domain=api&user={user}")).json();
    let limits = usage["limits"].as_array().unwrap();
    let of = limits.iter().find(|limit| limit["rule"] == rule);
    of.unwrap_or_else(|| panic!("no {rule} in {usage}"))["remaining"].clone()
}

/// Promise 12. On Redis the first refusal by `few` is remembered, and would be enough to refuse all that follow.
#[test]
fn every_refused_request_is_counted_by_a_limit_that_counts_them_on_redis_as_in_memory() {
    const RULES: &str = "\
- { name: few, key: [user], limits: [{ algorithm: fixed_window, limit: 3, window: 1d }] }
- { name: tries, key: [user], limits: [{ algorithm: sliding_log, limit: 30, window: 1d, count_refused: true }] }
";
    let redis = Redis::start();
    let left = ["memory:", &redis.url()].map(|store| {
        let node = Node::ready(store, PATIENT, RULES);
        let mut client = node.client();
        let passed = (0..3 + 20).filter(|_| check(&mut client, &[("user", "42")], 1).allowed).count();
        assert_eq!(passed, 3, "{store}");
        left_of(&node, "tries", "42")
    });
    assert_eq!(left, [json!(7), json!(7)], "three that passed and twenty that did not, of thirty");
}

/// A server on each store, one after the other.
fn on_each_store(rules: &str, test: impl Fn(&str, &Node)) {
    let redis = Redis::start();
    for (what, store) in [("memory", "memory:"), ("redis", &redis.url())] {
        test(what, &Node::ready(store, PATIENT, rules));
    }
}

/// One descriptor of Envoy's form.
fn descriptor(entries: &[(&str, &str)]) -> Json {
    let entry = |(key, value): &(&str, &str)| json!({ "key": key, "value": value });
    json!({ "entries": entries.iter().map(entry).collect::<Vec<_>>() })
}

/// Asks with several descriptors at once, as only Envoy's protocol can: the overall code.
fn ask_with(node: &Node, descriptors: &[&Json]) -> String {
    let body = json!({ "domain": "api", "descriptors": descriptors }).to_string();
    http::post_json(node.http, "/json", &body).json()["overallCode"].as_str().unwrap().to_owned()
}

/// Promise 16: each request spends two, and five is the stricter tier's limit.
#[test]
fn two_descriptors_that_name_one_counter_under_different_tiers_keep_the_stricter_limit() {
    const RULES: &str = "\
- name: plan
  key: [user]
  tiers:
    on: plan
    default: free
    free: [{ algorithm: fixed_window, limit: 50, window: 1d }]
    pro: [{ algorithm: fixed_window, limit: 5, window: 1d }]
";
    on_each_store(RULES, |store, node| {
        for (user, order) in [("1", ["free", "pro"]), ("2", ["pro", "free"])] {
            let [first, second] = order.map(|plan| descriptor(&[("user", user), ("plan", plan)]));
            let passed = (0..50).filter(|_| ask_with(node, &[&first, &second]) == "OK").count();
            assert_eq!(passed, 2, "{store}, {order:?}");
        }
    });
}

/// Promise 16.
#[test]
fn negative_hits_of_a_request_that_is_refused_are_not_given_back() {
    const RULES: &str =
        "- { name: ten, key: [user], limits: [{ algorithm: fixed_window, limit: 10, window: 1d }] }\n";
    on_each_store(RULES, |store, node| {
        let mut client = node.client();
        assert!(check(&mut client, &[("user", "42")], 10).allowed, "{store}");
        let mut back = descriptor(&[("user", "42")]);
        (back["hitsAddend"], back["isNegativeHits"]) = (json!(4), json!(true));
        let mut too_much = descriptor(&[("user", "7")]);
        too_much["hitsAddend"] = json!(11);
        assert_eq!(ask_with(node, &[&back, &too_much]), "OVER_LIMIT", "{store}");
        assert_eq!(left_of(node, "ten", "42"), json!(0), "{store}: refused");
        assert_eq!(ask_with(node, &[&back]), "OK", "{store}");
        assert_eq!(left_of(node, "ten", "42"), json!(4), "{store}: given back");
    });
}

/// Promise 16: a limit of nothing never lets anybody pass, so there is no time to come back. Asked twice, for on Redis the second
/// answer is the deny cache's.
#[test]
fn a_look_at_a_limit_of_nothing_names_no_time_to_come_back() {
    for limit in ["{ algorithm: fixed_window, limit: 0, window: 1h }", "0/minute"] {
        let rules = format!("- {{ name: ban, key: [user], limits: [{limit}] }}\n");
        on_each_store(&rules, |store, node| {
            let mut client = node.client();
            for cost in ["0", "1", "0"] {
                let reply = client.cmd(&["TG.CHECK", "api", "COST", cost, "user", "42"]);
                let (allowed, retry_after_ms) = (&reply.array()[0], &reply.array()[3]);
                assert_eq!(
                    (allowed, retry_after_ms),
                    (&Value::Int(0), &Value::Nil),
                    "{limit} on {store}, cost {cost}"
                );
            }
            let body = json!({ "domain": "api", "attributes": { "user": "42" } }).to_string();
            let answer = http::post_json(node.http, "/v1/check", &body);
            let told = answer.json();
            let [limit_said, left, source] = ["limit", "remaining", "source"].map(|field| &told[field]);
            assert_eq!(
                (answer.status, limit_said, left),
                (429, &json!(0), &json!(0)),
                "{limit} on {store}: {source}"
            );
        });
    }
}

/// Promise 16: the other kind of ban, of one key, which may have an end. A look is answered as a hit is.
#[test]
fn a_look_at_a_banned_key_names_the_time_to_come_back_where_its_ban_has_an_end() {
    let redis = Redis::start();
    for store in ["memory:", &redis.url()] {
        let node = control_world::Node::start(&format!("store: {{ url: '{store}' }}"));
        assert_eq!(node.publish(&rules_of(9)).status, 200);
        let token = json!({ "name": "t", "role": "viewer", "expires_in": "90m" });
        let in_90_minutes = node.post("/tokens", &token).json()["expires_at"].clone();
        for (user, until) in [("7", in_90_minutes), ("8", Json::Null)] {
            let ban = json!({ "domain": "api", "when": { "user": user }, "action": "ban", "until": until });
            assert_eq!(node.post("/keys/overrides", &ban).status, 201, "{store}");
        }
        let retry_after_ms = |user: &str, cost: u64| {
            let body = json!({ "domain": "api", "attributes": { "user": user }, "cost": cost }).to_string();
            let answer = http::post_json(node.http, "/v1/check", &body);
            assert_eq!(answer.status, 429, "{store}");
            answer.json()["retry_after_ms"].as_u64()
        };
        for cost in [0, 1, 0] {
            let wait_ms = retry_after_ms("7", cost);
            assert!(
                wait_ms.is_some_and(|wait| (5_300_000..=5_400_000).contains(&wait)),
                "{store}: {wait_ms:?}"
            );
            assert_eq!(retry_after_ms("8", cost), None, "{store}, for good");
        }
    }
}

/// Promise 16: one hit in ten years and a burst of 25, so it is full after 250 years; times of that length once wrapped.
#[test]
fn a_bucket_that_refills_over_centuries_says_what_is_left_however_often_it_refuses() {
    const RULES: &str =
        "- { name: slow, key: [user], limits: [{ algorithm: token_bucket, rate: 1/3650d, burst: 25 }] }\n";
    on_each_store(RULES, |store, node| {
        let mut client = node.client();
        assert_eq!(check(&mut client, &[("user", "42")], 5).remaining, 20, "{store}");
        let sources = [0; 3].map(|_| {
            let refused = check(&mut client, &[("user", "42")], 21);
            assert_eq!((refused.allowed, refused.remaining), (false, 20), "{store}: {refused:?}");
            refused.source
        });
        let repeated = if store == "redis" { "deny_cache" } else { "store" };
        assert_eq!(sources, ["store", repeated, repeated], "{store}");
    });
}
