//! The largest numbers that rules and requests may hold, on both stores and all surfaces: nothing overflows, wraps or rounds.

use serde_json::{Value as Json, json};
use tidegate_testkit::{Redis, http};

use crate::redis_world::{Node, PATIENT};

/// Each algorithm at its bound: its name, what it holds, and as a limit. None of it comes back within a test.
const LIMITS: [(&str, u64, &str); 6] = [
    ("fixed", (1 << 53) - 1, "{ algorithm: fixed_window, limit: 9007199254740991, window: 3650d }"),
    ("sliding", u32::MAX as u64, "{ algorithm: sliding_window, limit: 4294967295, window: 3650d }"),
    ("bucket", 104_249, "{ algorithm: token_bucket, rate: 1/d, burst: 104249 }"),
    ("log", 100_000, "{ algorithm: sliding_log, limit: 100000, window: 3650d }"),
    ("counting", 100_000, "{ algorithm: sliding_log, limit: 100000, window: 3650d, count_refused: true }"),
    ("local", (1 << 53) - 1, "{ algorithm: fixed_window, limit: 9007199254740991, window: 3650d }"),
];

/// What is asked for, one after another.
const COSTS: [u64; 9] =
    [1, u32::MAX as u64, 0, 99_999, u64::MAX, (1 << 53) - 1, 1 << 53, i64::MAX as u64, u32::MAX as u64 - 1];

/// What a limit says to each of `COSTS`, by adding up in numbers that hold anything: whether it passes, and what is left.
fn expected(name: &str, capacity: u64) -> Vec<(bool, u64)> {
    let (capacity, mut spent) = (u128::from(capacity), 0);
    let told = COSTS.map(|cost| {
        let passes = spent + u128::from(cost.max(1)) <= capacity;
        if passes {
            spent += u128::from(cost);
        } else if name == "counting" && cost > 0 {
            // Refused hits count, and push out the oldest.
            spent = (spent + u128::from(cost)).min(capacity);
        }
        (passes, u64::try_from(capacity - spent).unwrap())
    });
    told.to_vec()
}

fn rules() -> String {
    let rule = |(name, _, limit): (&str, u64, &str)| {
        let coordination = if name == "local" { "coordination: local, " } else { "" };
        format!(
            "- {{ name: {name}, match: {{ limit: {name} }}, key: [user], {coordination}limits: [{limit}] }}\n"
        )
    };
    LIMITS.map(rule).concat()
}

fn over_http(node: &Node, name: &str, cost: u64) -> (bool, u64) {
    let body = json!({ "domain": "api", "attributes": { "limit": name, "user": "http" }, "cost": cost });
    let answer: Json = http::post_json(node.http, "/v1/check", &body.to_string()).json();
    let wait = answer["retry_after_ms"].as_u64().unwrap_or(0);
    // A sliding window counts the one before it too.
    assert!(wait <= 2 * 3_650 * 86_400_000, "{name}, {cost}: {answer}");
    (answer["allowed"] == true, answer["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}")))
}

fn over_resp(node: &Node, name: &str, cost: u64) -> (bool, u64) {
    let cost = cost.to_string();
    let words = ["TG.CHECK", "api", "COST", &cost, "limit", name, "user", "resp"];
    let reply = node.client().cmd(&words);
    (reply.array()[0].int() == 1, reply.array()[2].int().try_into().unwrap())
}

#[test]
fn the_largest_limits_and_costs_add_up_on_both_stores_over_http_and_resp() {
    let redis = Redis::start();
    for store in ["memory:", &redis.url()] {
        let node = Node::ready(store, PATIENT, &rules());
        for (name, capacity, _) in LIMITS {
            let expected = expected(name, capacity);
            let http: Vec<_> = COSTS.iter().map(|cost| over_http(&node, name, *cost)).collect();
            assert_eq!(http, expected, "{store} {name} over HTTP");
            // A Redis client has no numbers above 2^63: those are refused by name.
            let too_large = |cost: &u64| i64::try_from(*cost).is_err();
            for (cost, expected) in COSTS.iter().zip(&expected).filter(|(cost, _)| !too_large(cost)) {
                if name != "counting" {
                    assert_eq!(over_resp(&node, name, *cost), *expected, "{store} {name} over RESP, {cost}");
                }
            }
        }
        let words = ["TG.CHECK", "api", "COST", "18446744073709551615", "limit", "fixed", "user", "resp"];
        let refused = node.client().cmd(&words);
        assert!(refused.is_error() && refused.text().contains("COST is out of range"), "{refused:?}");
    }
}

#[test]
fn envoy_may_ask_for_as_many_hits_as_its_protocol_holds() {
    let redis = Redis::start();
    for store in ["memory:", &redis.url()] {
        let node = Node::ready(store, PATIENT, &rules());
        for (name, code) in
            [("fixed", "OK"), ("sliding", "OK"), ("bucket", "OVER_LIMIT"), ("log", "OVER_LIMIT")]
        {
            let entries = json!([{ "key": "limit", "value": name }, { "key": "user", "value": "envoy" }]);
            let body =
                json!({ "domain": "api", "hitsAddend": u32::MAX, "descriptors": [{ "entries": entries }] });
            let answer = http::post_json(node.http, "/json", &body.to_string()).json();
            assert_eq!(answer["statuses"][0]["code"], code, "{store} {name}: {answer}");
        }
        // The sliding window is spent to the last hit, and the counter by as much.
        assert_eq!(over_http(&node, "sliding", 1), (true, u64::from(u32::MAX) - 1), "another user's");
        let entries = json!([{ "key": "limit", "value": "sliding" }, { "key": "user", "value": "envoy" }]);
        let body = json!({ "domain": "api", "descriptors": [{ "entries": entries }] });
        let answer = http::post_json(node.http, "/json", &body.to_string()).json();
        assert_eq!(answer["overallCode"], "OVER_LIMIT", "{store}: {answer}");
    }
}

#[test]
fn numbers_that_cannot_be_counted_are_refused_by_name() {
    let redis = Redis::start();
    for store in ["memory:", &redis.url()] {
        let node = Node::ready(store, PATIENT, &rules());
        let most = i64::MAX.to_string();
        for (words, told) in [
            (["CL.THROTTLE", "key", &most, &most, &most, &most], "more than can be counted exactly"),
            (["CL.THROTTLE", "key", "1000000", "1000000", "315360000", "1"], "cannot be counted exactly"),
        ] {
            let reply = node.client().cmd(&words);
            assert!(reply.is_error() && reply.text().contains(told), "{store} {words:?}: {reply:?}");
        }
        // Ten years: one passes, and the next may in ten years.
        let ten_years = |_| {
            let reply = node.client().cmd(&["CL.THROTTLE", "key", "0", "1", "315360000", "1"]);
            reply.array().iter().map(|number| number.int()).collect::<Vec<_>>()
        };
        let [first, second] = [0, 1].map(ten_years);
        assert_eq!(first, [0, 1, 0, -1, 315_360_000], "{store}");
        assert_eq!((second[0], second[3] > 315_359_000), (1, true), "{store}: {second:?}");
        for cost in ["18446744073709551616", "-1", "1.5"] {
            let body = format!(r#"{{"domain":"api","attributes":{{"user":"u"}},"cost":{cost}}}"#);
            let answer = http::post_json(node.http, "/v1/check", &body);
            assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("cost")), "{store} {cost}");
        }
    }
}
