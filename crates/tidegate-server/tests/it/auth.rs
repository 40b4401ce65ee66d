//! Forward-auth on a real socket. Our peer is loopback, which is trusted, unless identity trusts no hop at all.

use serde_json::json;
use tidegate_http::identity::{Identity, IdentityConfig};
use tidegate_testkit::http::{self, Response};

use crate::world::World;

const RULES: &str = "
domain: api
rules:
  - { name: logins, match: { method: POST, path: /login }, key: [ip], limits: [1/hour] }
  - { name: per-ip, key: [ip], limits: [3/hour] }
";

/// Checks a request that these headers describe.
fn ask(world: &World, query: &str, headers: &[(&str, &str)]) -> Response {
    http::request(world.http(), "GET", &format!("/v1/auth?{query}"), headers, b"").unwrap()
}

#[test]
fn a_gateway_asks_about_the_client_that_it_names() {
    let world = World::new(RULES);
    let ask = |client| ask(&world, "domain=api", &[("x-forwarded-for", client)]);
    let first = ask("192.0.2.1");
    assert_eq!((first.status, first.header("x-ratelimit-remaining")), (200, Some("2")));
    assert_eq!(first.json()["rule"], "per-ip");
    ask("192.0.2.1");
    ask("192.0.2.1");
    let refused = ask("192.0.2.1");
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(refused.json()["violated-policies"], json!(["per-ip"]));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.header("ratelimit-policy"), Some(r#""per-ip";q=3;w=3600"#));
    assert_eq!(ask("192.0.2.2").status, 200);
}

#[test]
fn method_path_and_host_are_those_of_the_request_that_is_asked_about() {
    let described: [&[(&str, &str)]; 3] = [
        &[("x-forwarded-method", "POST"), ("x-forwarded-uri", "//LOGIN/?next=/")],
        &[("x-original-method", "POST"), ("x-original-uri", "/login")],
        &[("x-forwarded-method", "POST"), ("x-original-url", "https://shop.example/login?x")],
    ];
    for headers in described {
        let world = World::new(RULES);
        assert_eq!(ask(&world, "domain=api", headers).json()["rule"], "logins", "{headers:?}");
        assert_eq!(ask(&world, "domain=api", headers).status, 429, "{headers:?}");
    }
    let world =
        World::new("domain: api\nrules: [{ name: shop, match: { host: shop.example }, limits: [1/hour] }]");
    let hosts: [&[(&str, &str)]; 3] = [
        &[("x-forwarded-host", "Shop.Example:443"), ("x-forwarded-uri", "/")],
        &[("x-original-host", "shop.example")],
        &[("x-original-url", "https://shop.example/")],
    ];
    for headers in hosts {
        assert_eq!(ask(&world, "domain=api&cost=0", headers).json()["rule"], "shop", "{headers:?}");
    }
    // One of them is the gateway's, and the other may be the client's.
    let chosen = [("x-forwarded-uri", "/"), ("x-original-url", "https://shop.example/")];
    assert_eq!(ask(&world, "domain=api&cost=0", &chosen).json()["rule"], json!(null));
}

#[test]
fn a_stranger_can_ask_about_nobody_but_itself() {
    let mut config = IdentityConfig::default();
    config.hops = Some(0);
    let identity = Identity::new(&config).unwrap();
    let world = World::identified(RULES, identity);
    let claims = |client: &'static str| {
        [("x-forwarded-for", client), ("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login")]
    };
    // Three different names, one address: its limit is used up for all of them together, and no login is counted.
    let answers = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"]
        .map(|client| ask(&world, "domain=api", &claims(client)));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 200, 429]);
    assert_eq!(answers[0].json()["rule"], "per-ip");
}

#[test]
fn the_status_of_a_refusal_can_be_one_that_the_gateway_passes_on() {
    let world = World::new("domain: api\nrules: [{ name: all, key: [], limits: [1/hour] }]");
    assert_eq!(ask(&world, "domain=api&deny_status=403", &[]).status, 200);
    let refused = ask(&world, "domain=api&deny_status=403", &[]);
    assert_eq!((refused.status, refused.json()["status"].as_u64()), (403, Some(429)));
    assert_eq!(refused.header("x-tidegate-status"), Some("429"));
    assert!(refused.header("retry-after").is_some());
}

#[test]
fn a_path_that_the_gateway_may_read_otherwise_is_refused_and_spends_nothing() {
    let world = World::new(RULES);
    let climbs = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/a%2Fb/../login")];
    let plain = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login")];
    assert_eq!(ask(&world, "domain=api", &climbs).status, 400);
    assert_eq!(ask(&world, "domain=api&deny_status=403", &climbs).status, 403);
    assert_eq!(ask(&world, "domain=api", &plain).status, 200);
}

#[test]
fn a_gateway_that_cannot_wait_is_refused_what_would_have_to() {
    let world = World::new(
        "domain: api\nrules: [{ name: queue, limits: [{ algorithm: leaky_bucket, rate: 1/s, max_delay: 5s }] }]",
    );
    assert_eq!([200, 429], [0; 2].map(|_| ask(&world, "domain=api", &[]).status));
}

#[test]
fn a_post_with_a_body_is_answered_like_a_get() {
    let world = World::new(RULES);
    let answer = http::request(world.http(), "POST", "/v1/auth?domain=api", &[], b"whatever").unwrap();
    assert_eq!(answer.status, 200);
}

#[test]
fn mistakes_are_named_and_spend_nothing() {
    let world = World::new(RULES);
    let check = |query: &str, headers: &[(&str, &str)], field: &str, says: &str| {
        let answer = ask(&world, query, headers);
        assert_eq!(answer.status, 422, "{query}: {}", answer.text());
        assert_eq!(answer.json()["field"], field, "{query}");
        assert!(answer.text().contains(says), "{query}: {}", answer.text());
        let rusts = ["invalid digit", "Failed to deserialize"];
        assert!(!rusts.iter().any(|text| answer.text().contains(text)), "{query}: {}", answer.text());
    };
    check("", &[], "domain", "it is missing");
    check("domain=api&deny=403", &[], "query", "deny");
    check("domain=api&deny_status=200", &[], "deny_status", "400 to 599");
    check("domain=api&deny_status=70000", &[], "deny_status", "400 to 599");
    check("domain=api&deny_status=abc", &[], "deny_status", "`abc` is not a whole number");
    check("domain=api&cost=-1", &[], "cost", "`-1` is not a whole number");
    check("domain=api&cost=two", &[], "cost", "`two` is not a whole number");
    check("domain=api&cost=two", &[], "cost", "write it in digits, such as deny_status=403 or cost=2");
    check("domain=api&domain=ape", &[], "query", "duplicate field");
    check("domain=ape", &[], "domain", "known domains: api");
    assert_eq!(world.heard.unknown_domains(), 1, "it is counted once");
    check("domain=api", &[("x-forwarded-method", "P OST")], "x-forwarded-method", "GET");
    check("domain=api", &[("x-forwarded-uri", "/a b")], "x-forwarded-uri", "/v1/items");
    // If the gateway sets one of them and the client sends the other, neither is trusted.
    let twice = [("x-original-uri", "/login"), ("x-forwarded-uri", "/cheap")];
    check("domain=api", &twice, "x-original-uri", "two ways");
    check(
        "domain=api",
        &[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b")],
        "x-forwarded-uri",
        "two ways",
    );
    let same = [("x-original-url", "https://a/login?x=1"), ("x-forwarded-uri", "/login?x=1")];
    assert_eq!(ask(&world, "domain=api&cost=0", &same).status, 200);
    assert_eq!(ask(&world, "domain=api&cost=0", &[]).header("x-ratelimit-remaining"), Some("3"));
}
