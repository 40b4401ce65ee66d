//! A node whose clock is set: what has ended by it ends at once, and comes back with it.

use serde_json::json;
use tidegate_testkit::{Redis, SteppedClock, eventually, http};

use crate::control_world::{Node, PATIENCE, TOKEN, rules_of};

const HOUR_S: i64 = 3_600;

fn with_token(node: &Node, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    http::request(node.admin, "GET", "/admin/v1/rules", &[("authorization", &bearer)], b"").unwrap().status
}

#[test]
fn a_clock_that_was_ahead_has_ended_no_ban_and_no_token_for_good() {
    let (redis, clock) = (Redis::start(), SteppedClock::new());
    let env = clock.env();
    let env = env.each_ref().map(|(name, path)| (*name, path.to_str().unwrap()));
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let mut node = Node::start_with(&format!("{store}\nadmin: {{ node: leader }}"), &env);
    assert_eq!(node.publish(&rules_of(9)).status, 200);
    let follower = Node::start(&format!("{store}\nadmin: {{ database: none }}"));
    let made = node.post("/tokens", &json!({ "name": "short", "role": "viewer", "expires_in": "90m" }));
    assert_eq!(made.status, 201, "{}", made.text());
    let (token, until) =
        (made.json()["token"].as_str().unwrap().to_owned(), made.json()["expires_at"].clone());
    let ban = json!({ "domain": "api", "when": { "user": "7" }, "action": "ban", "until": until });
    assert_eq!(node.post("/keys/overrides", &ban).status, 201);
    assert_eq!((node.allows("7"), with_token(&node, &token)), (false, 200));
    eventually("the other hears of it", PATIENCE, || !follower.allows("7"));

    clock.set_ahead_of_the_machine(2 * HOUR_S);
    eventually("both have ended", PATIENCE, || node.allows("7") && with_token(&node, &token) == 401);
    // What has ended is deleted at every start and when something is made; the ban that is published now is another.
    node.come_back();
    assert!(node.allows("7"));
    node.ban("8");
    assert_eq!(node.post("/tokens", &json!({ "name": "other", "role": "viewer" })).status, 201);
    eventually("the other hears of that", PATIENCE, || !follower.allows("8"));
    assert!(!follower.allows("7"), "whose clock is right, the ban holds");

    clock.set_ahead_of_the_machine(0);
    eventually("both are back", PATIENCE, || !node.allows("7") && with_token(&node, &token) == 200);
}

#[test]
fn guesses_are_limited_by_a_clock_that_cannot_be_set() {
    const DAY_S: i64 = 24 * HOUR_S;
    let clock = SteppedClock::new();
    let env = clock.env();
    let env = env.each_ref().map(|(name, path)| (*name, path.to_str().unwrap()));
    let node = Node::start_with("", &env);
    let looked_at = |guesses: usize| (0..guesses).filter(|_| with_token(&node, "a-guess") == 401).count();
    // One is given back every six seconds: a slow machine may have some more.
    assert!(looked_at(30) < 20);
    clock.set_ahead_of_the_machine(DAY_S);
    assert!(looked_at(30) < 10, "a day ahead would have given all ten back");
    clock.set_ahead_of_the_machine(-DAY_S);
    let right = || with_token(&node, TOKEN) == 200;
    eventually("one is given back in six seconds, not in two days", PATIENCE, right);
}
