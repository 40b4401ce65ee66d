//! `/v1/check`: bodies, statuses, headers.

use serde_json::{Value, json};
use tidegate_core::Micros;
use tidegate_rules::Format;
use tidegate_server::headers::{HeaderSet, HeaderSets, PartitionSecret, ResetForm};
use tidegate_server::service::ServiceSettings;
use tidegate_testkit::http::Response;

use super::PER_USER;
use crate::world::{START_S, World};

/// The headers that tell of limits, by name.
fn told(answer: &Response) -> Vec<String> {
    let about_limits = |name: &str| name.contains("ratelimit") || name == "retry-after";
    let mut headers: Vec<String> = answer
        .headers
        .iter()
        .filter(|(name, _)| about_limits(name))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    headers.sort();
    headers
}

#[test]
fn an_admission_is_answered_with_its_numbers() {
    let world = World::new(PER_USER);
    world.advance(Micros::from_millis(17_500));
    let answer = world.check(&json!({ "user": "42" }));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let text = answer.text();
    let (numbers, spent) = text.split_once(r#","spent":""#).unwrap();
    assert_eq!(
        numbers,
        r#"{"allowed":true,"rule":"per-user","limit":3,"remaining":2,"reset_after_ms":42500,"retry_after_ms":null,"source":"store","lease":null,"delay_ms":0"#
    );
    assert_eq!((spent.len(), &spent[20..]), (22, r#""}"#), "{spent}");
    assert_eq!(
        told(&answer),
        [
            r#"ratelimit-policy: "per-user";q=3;w=60"#.to_owned(),
            // Half a second is rounded up: whoever waits as told is never early.
            r#"ratelimit: "per-user";r=2;t=43"#.to_owned(),
            "x-ratelimit-limit: 3".to_owned(),
            "x-ratelimit-remaining: 2".to_owned(),
            format!("x-ratelimit-reset: {}", START_S + 60),
        ]
    );
}

#[test]
fn a_refusal_says_when_to_try_again() {
    let world = World::new(PER_USER);
    world.post("/v1/check", &json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 3 }));
    world.advance(Micros::from_millis(17_500));
    let answer = world.check(&json!({ "user": "42" }));
    assert_eq!(answer.status, 429);
    assert_eq!(
        answer.text(),
        r#"{"allowed":false,"error":"rate_limit_exceeded","message":"the limit of 3 per 1m is used up","rule":"per-user","limit":3,"remaining":0,"reset_after_ms":42500,"retry_after_ms":42500,"source":"store","lease":null,"delay_ms":0}"#
    );
    assert_eq!(answer.header("retry-after"), Some("43"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
    world.advance(Micros::from_millis(42_500));
    assert_eq!(world.check(&json!({ "user": "42" })).status, 200);
}

#[test]
fn only_the_chosen_headers_are_sent_and_retry_after_always() {
    let with = |sets: &[HeaderSet]| {
        let settings =
            ServiceSettings { headers: sets.iter().copied().collect(), ..ServiceSettings::default() };
        let world = World::with(PER_USER, Format::Native, settings);
        let full = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 3 });
        world.post("/v1/check", &full);
        let names = |answer: &Response| -> Vec<String> {
            told(answer).iter().map(|line| line.split(':').next().unwrap().to_owned()).collect()
        };
        names(&world.post("/v1/check", &full))
    };
    assert_eq!(with(&[]), ["retry-after"]);
    assert_eq!(with(&[HeaderSet::Ietf]), ["ratelimit-policy", "ratelimit", "retry-after"]);
    assert_eq!(
        with(&[HeaderSet::XRatelimit]),
        ["retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
    );
}

#[test]
fn resets_are_seconds_left_where_the_configuration_says_so() {
    let headers = HeaderSets::ALL.with_reset(ResetForm::Delta);
    let world =
        World::with(PER_USER, Format::Native, ServiceSettings { headers, ..ServiceSettings::default() });
    assert_eq!(world.check(&json!({ "user": "42" })).header("x-ratelimit-reset"), Some("60"));
}

/// The values of `pk` in a field, in order; none where an item has none.
fn partitions(answer: &Response, field: &str) -> Vec<Option<String>> {
    let items = answer.header(field).unwrap().split(", ");
    let pk = |item: &str| Some(item.split_once(";pk=:")?.1.strip_suffix(':').unwrap().to_owned());
    items.map(pk).collect()
}

#[test]
fn partition_keys_tell_quotas_apart_and_name_nobody() {
    let rules = "{ domain: api, rules: [
        { name: per-user, key: [user], limits: [3/minute] },
        { name: per-place, key: [user, region], limits: [100/minute] },
        { name: all, limits: [900/minute] }] }";
    let with = |secret: Option<&[u8]>| {
        let headers = HeaderSets::ALL.with_partitions(secret.map(PartitionSecret::new));
        World::with(rules, Format::Native, ServiceSettings { headers, ..ServiceSettings::default() })
    };
    let world = with(Some(b"a secret of the fleet"));
    let ask = |world: &World, user: &str, region: &str| {
        let answer = world.check(&json!({ "user": user, "region": region }));
        (partitions(&answer, "ratelimit-policy"), partitions(&answer, "ratelimit"))
    };
    let (policies, limit) = ask(&world, "dana", "eu");
    let [Some(user), Some(place), None] = &policies[..] else { panic!("{policies:?}") };
    assert_eq!(limit, [Some(user.clone())], "the one that is nearest, with the same key");
    assert_eq!([user.len(), place.len()], [12, 12]);
    assert_ne!(user, place, "a quota of each rule");
    assert_eq!(ask(&world, "dana", "eu").0, policies, "the list stays the same");
    let elsewhere = ask(&world, "dana", "us").0;
    assert_eq!(elsewhere[0].as_ref(), Some(user));
    assert_ne!(elsewhere[1].as_ref(), Some(place));
    assert_ne!(ask(&world, "erin", "eu").0[0].as_ref(), Some(user));
    // Another node of the fleet makes the same, and nobody without the secret does.
    assert_eq!(ask(&with(Some(b"a secret of the fleet")), "dana", "eu").0, policies);
    assert_ne!(ask(&with(Some(b"another secret")), "dana", "eu").0[0].as_ref(), Some(user));
    assert_eq!(ask(&with(None), "dana", "eu"), (vec![None, None, None], vec![None]));
    // A refusal is about the same quota, in a batch too, and a request without the key has none.
    let refused = world.check(&json!({ "user": "dana", "region": "eu" }));
    assert_eq!(refused.status, 429);
    assert_eq!(partitions(&refused, "ratelimit"), [Some(user.clone())]);
    let without = world.check(&json!({}));
    assert_eq!(partitions(&without, "ratelimit-policy"), [None]);
}

#[test]
fn every_limit_has_a_policy_and_the_list_of_them_stays_the_same() {
    let rules = "{ domain: api, rules: [
        { name: per-user, key: [user], limits: [2/second, 3/minute, { algorithm: concurrency, limit: 9, ttl: 1m, name: jobs }] },
        { name: on-trial, shadow: true, limits: [1/day] },
        { name: all, limits: [900/hour] }] }";
    let world = World::new(rules);
    let policies = r#""per-user/second";q=2;w=1, "per-user/minute";q=3;w=60, "per-user/jobs";q=9;qu="concurrent-requests", "all";q=900;w=3600"#;
    let mut left = Vec::new();
    for _ in 0..3 {
        let answer = world.check(&json!({ "user": "42" }));
        assert_eq!(answer.header("ratelimit-policy"), Some(policies));
        left.push((answer.status, answer.header("ratelimit").unwrap().to_owned()));
    }
    let expected = [
        (200, r#""per-user/second";r=1;t=1"#.to_owned()),
        (200, r#""per-user/second";r=0;t=1"#.to_owned()),
        (429, r#""per-user/second";r=0;t=1"#.to_owned()),
    ];
    assert_eq!(left, expected);
}

#[test]
fn a_hidden_rule_refuses_and_is_in_no_header_nor_body() {
    let rules = "{ domain: api, rules: [
        { name: abuse, key: [user], limits: [1/minute], visible: false },
        { name: per-user, key: [user], limits: [10/minute] }] }";
    let world = World::new(rules);
    let passed = world.check(&json!({ "user": "42" }));
    assert_eq!((passed.status, &passed.json()["rule"]), (200, &json!("per-user")));
    let refused = world.check(&json!({ "user": "42" }));
    assert_eq!(
        refused.text(),
        r#"{"allowed":false,"error":"rate_limit_exceeded","message":"too many requests","rule":null,"limit":null,"remaining":null,"reset_after_ms":null,"retry_after_ms":60000,"source":"store","lease":null,"delay_ms":0}"#
    );
    assert_eq!(refused.header("retry-after"), Some("60"));
    for answer in [&passed, &refused] {
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""per-user";q=10;w=60"#));
        assert_eq!(answer.header("x-ratelimit-limit"), Some("10"));
    }
    let usage = world.post("/v1/usage", &json!({ "domain": "api", "attributes": { "user": "42" } })).json();
    let names: Vec<_> = usage["limits"].as_array().unwrap().iter().map(|one| one["rule"].clone()).collect();
    assert_eq!(names, ["per-user"]);
}

#[test]
fn a_request_that_no_rule_matches_passes_and_is_told_nothing() {
    let world = World::new("{ domain: api, rules: [{ name: a, match: { path: /a }, limits: [1/minute] }] }");
    let answer = world.check(&json!({ "path": "/b" }));
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.text(),
        r#"{"allowed":true,"rule":null,"limit":null,"remaining":null,"reset_after_ms":null,"retry_after_ms":null,"source":"none","lease":null,"delay_ms":0}"#
    );
    assert_eq!(told(&answer), [""; 0]);
}

#[test]
fn a_cost_of_zero_looks_and_one_above_the_limit_never_passes() {
    let world = World::new(PER_USER);
    let cost = |cost: u64| {
        let body = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": cost });
        let answer = world.post("/v1/check", &body);
        let [remaining, retry] = ["remaining", "retry_after_ms"].map(|name| answer.json()[name].clone());
        (answer.status, remaining, retry, answer.header("retry-after").map(str::to_owned))
    };
    assert_eq!(cost(0), (200, json!(3), Value::Null, None));
    assert_eq!(cost(4), (429, json!(3), Value::Null, None));
    assert_eq!(cost(u64::MAX), (429, json!(3), Value::Null, None));
    assert_eq!(cost(3), (200, json!(0), Value::Null, None));
    // A look answers as one hit would.
    assert_eq!(cost(0), (429, json!(0), json!(60_000), Some("60".to_owned())));
}

#[test]
fn without_a_cost_or_attributes_one_hit_is_asked_of_the_rules_for_everybody() {
    let world = World::new(
        "{ domain: api, rules: [{ name: all, limits: [{ algorithm: fixed_window, limit: 2, window: 1m }] }] }",
    );
    assert_eq!(world.post("/v1/check", &json!({ "domain": "api" })).json()["remaining"], 1);
}

#[test]
fn a_leaky_bucket_tells_the_delay_and_takes_the_slot() {
    let world = World::new(
        "{ domain: api, rules: [{ name: calm, limits: [{ algorithm: leaky_bucket, rate: 5/s, max_delay: 300ms }] }] }",
    );
    let ask = || {
        let answer = world.check(&json!({}));
        (answer.status, answer.json()["delay_ms"].as_u64().unwrap())
    };
    assert_eq!([ask(), ask(), ask()], [(200, 0), (200, 200), (429, 0)]);
}

#[test]
fn a_closed_rule_without_its_store_is_unavailable_and_others_go_on() {
    let world = World::without_store(
        "domain: api\n\
         rules:\n\
         - { name: shut, match: { path: /shut }, on_store_failure: closed, limits: [9/minute] }\n\
         - { name: open, match: { path: /open }, on_store_failure: open, limits: [9/minute] }\n\
         - { name: local, match: { path: /local }, limits: [9/minute] }\n",
    );
    let ask = |path: &str| {
        let answer = world.check(&json!({ "path": path }));
        (answer.status, answer.json()["allowed"].clone(), answer.json()["source"].clone())
    };
    assert_eq!(ask("/shut"), (503, json!(false), json!("fallback_closed")));
    assert_eq!(ask("/open"), (200, json!(true), json!("fallback_open")));
    assert_eq!(ask("/local"), (200, json!(true), json!("fallback_local")));
}

#[test]
fn answers_are_timed() {
    let world = World::new(PER_USER);
    world.check(&json!({ "user": "42" }));
    world.post("/v1/check/batch", &json!({ "checks": [{ "domain": "api" }] }));
    assert_eq!(world.heard.answered(), [0, 2]);
}

#[test]
fn http_2_is_spoken_on_the_same_port() {
    let world = World::new(PER_USER);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(world.http()).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let body = http_body_util::Full::new(bytes::Bytes::from(r#"{"domain":"api"}"#));
        let request = http::Request::post(format!("http://{}/v1/check", world.http())).body(body).unwrap();
        sender.send_request(request).await.unwrap().status()
    });
    assert_eq!(status, 200);
}
