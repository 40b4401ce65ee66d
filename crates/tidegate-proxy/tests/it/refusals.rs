//! A refusal is the same on every surface that reads requests itself: proxy and forward-auth here, and the middleware in the
//! tests of its crate, are tested against one list.

use serde_json::{Value, json};
use tidegate_testkit::Upstream;
use tidegate_testkit::http::{self, Response};

use crate::listeners::World;
use crate::world::{Setup, target};

const REFUSALS: &str = include_str!("../../../tidegate-http/tests/refusals.json");

fn rules(domain: &str) -> String {
    format!(
        "{{ domain: {domain}, rules: [{{ name: per-hour, limits: [1/hour], on_store_failure: closed }}] }}"
    )
}

#[track_caller]
fn check(refusal: &Value, surface: &str, answer: &Response) {
    let what = format!("{} on {surface}", refusal["what"]);
    assert_eq!(json!(answer.status), refusal["status"], "{what}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}");
    assert_eq!(json!(answer.header("retry-after").is_some()), refusal["retry_after"], "{what}");
    assert_eq!(answer.json(), refusal["body"], "{what}");
}

#[test]
fn proxy_and_forward_auth_refuse_in_the_same_words() {
    let refusals: Vec<Value> = serde_json::from_str(REFUSALS).unwrap();
    assert!(refusals.len() >= 3);
    for refusal in &refusals {
        let path = refusal["path"].as_str().unwrap();
        let without_store = refusal["without_store"] == true;
        let upstream = Upstream::start();
        let setup = Setup::to(&[target(&upstream)]).rules(&rules("edge"));
        let edge = if without_store { setup.without_store() } else { setup }.start();
        edge.get("/");
        check(refusal, "the proxy", &edge.get(path));

        let world =
            if without_store { World::without_store(&rules("api")) } else { World::new(&rules("api")) };
        let ask = |path: &str| {
            let described = [("x-forwarded-uri", path)];
            http::request(world.http(), "GET", "/v1/auth?domain=api", &described, b"").unwrap()
        };
        ask("/");
        check(refusal, "/v1/auth", &ask(path));
    }
}
