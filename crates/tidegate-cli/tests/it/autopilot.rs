//! Autopilots of two servers on one Redis and one database.

use serde_json::{Value, json};
use tidegate_testkit::{Certificates, Postgres, Redis, SteppedClock, eventually, http, poll};

use crate::alerts::LONG;
use crate::control_world::{Node, rules_of};

/// A rule of ten a day for each user, which may follow what callers ask for every second.
fn steered() -> String {
    let limited = "limits: [{ algorithm: fixed_window, limit: 10, window: 1d }]";
    rules_of(3).replace("limits: [{ algorithm: fixed_window, limit: 3, window: 1d }]", limited)
        + "    autopilot: { min: 6, max: 50, step: 20%, every: 1s }\n"
}

/// Callers who ask once, at one node or the other: enough to be 95 % sure that one a day would do.
fn ask(nodes: [&Node; 2]) {
    for first in (0..3_200).step_by(100) {
        let checks: Vec<Value> = (first..first + 100)
            .map(|user| json!({ "domain": "api", "attributes": { "user": format!("u{user}") } }))
            .collect();
        let body = json!({ "checks": checks }).to_string();
        assert_eq!(http::post_json(nodes[first / 100 % 2].http, "/v1/check/batch", &body).status, 200);
    }
}

/// The steps that were published, oldest first: `10 -> 8`.
fn steps(node: &Node) -> Vec<String> {
    let versions = node.get("/versions");
    let own = versions["versions"].as_array().unwrap().iter().filter(|one| one["author"] == "autopilot");
    let reasons = own.map(|one| one["reason"].as_str().unwrap().to_owned());
    let mut steps: Vec<String> =
        reasons.map(|reason| reason.split(": ").nth(2).unwrap().to_owned()).collect();
    steps.reverse();
    steps
}

#[test]
fn of_two_nodes_that_steer_at_once_one_makes_each_step_and_none_is_lost_or_made_twice() {
    let (redis, postgres) = (Redis::start(), Postgres::shared());
    let database = postgres.new_database();
    let [one, two] = ["one", "two"].map(|name| {
        Node::start(&format!(
            "store: {{ url: '{}', timeout: 5s }}\nadmin: {{ node: {name}, database: '{database}' }}\n\
             decision_log: {{ admissions_one_in: 1 }}",
            redis.url()
        ))
    });
    eventually("rules can be published", LONG, || one.publish(&steered()).status == 200);
    [&one, &two].iter().for_each(|node| node.runs(10));
    ask([&one, &two]);
    // Nodes that are a step apart for a moment are not nodes with different rule files.
    eventually("both run the last step", LONG, || {
        let told = one.get("/nodes")["warnings"].to_string();
        assert!(!told.contains("different rules"), "{told}");
        [&one, &two].iter().all(|node| node.limit() == Some(6))
    });
    assert_eq!(steps(&one), ["10 -> 8", "8 -> 7", "7 -> 6"]);
    assert_eq!(steps(&two), steps(&one));
}

#[test]
fn autopilot_without_a_step_says_why() {
    let node = Node::start("decision_log: { admissions_one_in: 1 }\nalerts: { enabled: false }");
    assert_eq!(node.publish(&steered()).status, 200);
    node.runs(10);
    let check = json!({ "domain": "api", "attributes": { "user": "alone" } }).to_string();
    assert_eq!(http::post_json(node.http, "/v1/check", &check).status, 200);
    let told = |text: &str| {
        node.get("/suggestions")["rules"][0]["autopilot"].as_str().is_some_and(|why| why.contains(text))
    };
    eventually("the suggestions say why", LONG, || told("% sure"));
    let logged = node.server.stderr();
    assert!(
        logged.contains("the autopilot makes no step: the suggestion is only"),
        "at the usual level: {logged}"
    );
}

#[test]
fn no_step_is_made_while_an_alert_is_active() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::for_loopback(dir.path());
    // Its certificate lasts two thousand years: far enough ahead, it ends soon.
    let node = Node::start(&format!(
        "decision_log: {{ admissions_one_in: 1 }}\nlog: {{ level: 'info,tidegate_admin=debug' }}\n\
         tls: {{ resp: {{ certificate: '{}', key: '{}' }} }}\nalerts: {{ certificate_days: 1000000 }}",
        certificates.cert.display(),
        certificates.key.display()
    ));
    eventually("there is an alert", LONG, || node.get("/alerts")["active"][0]["kind"] == "certificate_ends");
    assert_eq!(node.publish(&steered()).status, 200);
    node.runs(10);
    ask([&node, &node]);
    // A step would be due every second, and nothing else speaks against it.
    let held_back = || node.server.stderr().matches("an alert is active: the certificate of resp").count();
    let before = held_back();
    eventually("it holds back again and again", LONG, || held_back() >= before + 5);
    assert_eq!((steps(&node), node.limit()), (vec![], Some(10)));
}

/// That no step is made then is said above: here a busy machine may take the other node for gone.
#[test]
fn an_alert_that_only_another_node_knows_of_holds_the_autopilot_back() {
    let (redis, postgres, dir) = (Redis::start(), Postgres::shared(), tempfile::tempdir().unwrap());
    let (database, certificates) = (postgres.new_database(), Certificates::for_loopback(dir.path()));
    let start = |name: &str, sections: &str| {
        Node::start(&format!(
            "store: {{ url: '{}', timeout: 5s }}\nadmin: {{ node: {name}, database: '{database}' }}\n\
             decision_log: {{ admissions_one_in: 1 }}\nlog: {{ level: 'info,tidegate_admin=debug' }}\n{sections}",
            redis.url()
        ))
    };
    // Its certificate lasts two thousand years: far enough ahead, it ends soon.
    let mut alerted = start(
        "alerted",
        &format!(
            "tls: {{ resp: {{ certificate: '{}', key: '{}' }} }}\nalerts: {{ certificate_days: 1000000 }}",
            certificates.cert.display(),
            certificates.key.display()
        ),
    );
    let active = |node: &Node| node.get("/alerts")["active"].as_array().unwrap().len();
    eventually("there is an alert", LONG, || active(&alerted) == 1);
    let blind = start("blind", "alerts: { enabled: false }");
    eventually("rules can be published", LONG, || blind.publish(&steered()).status == 200);
    [&blind, &alerted].iter().for_each(|node| node.runs(10));
    ask([&blind, &blind]);
    let why = "an alert is active: the certificate of resp on alerted ends in";
    eventually("the other holds back, and says why", LONG, || blind.server.stderr().contains(why));
    // In order: what a node that is lost has seen is unknown, and nothing is changed without it.
    alerted.server.terminate();
    let steps = poll(LONG, || Some(steps(&blind)).filter(|steps| !steps.is_empty()));
    assert!(steps.is_some(), "without the alert it steps: {}", blind.get("/suggestions"));
}

/// Two rules that the same callers spend from; `pilot` is what the second says of an autopilot.
fn left_and(pilot: &str) -> String {
    let limited = "key: [user], limits: [{ algorithm: fixed_window, limit: 10, window: 1d }]";
    format!(
        "domain: api\nrules:\n  - {{ name: left, {limited} }}\n  - {{ name: steered, {limited}{pilot} }}\n"
    )
}

/// Of two rules in one world, that one steps shows that nothing else held the other back. The first is looked at first.
#[test]
fn a_rule_that_does_not_ask_for_an_autopilot_has_none_however_sure_its_suggestion_is() {
    let clock = SteppedClock::new();
    let env = clock.env();
    let env = env.each_ref().map(|(name, path)| (*name, path.to_str().unwrap()));
    let sections = "decision_log: { admissions_one_in: 1 }\nalerts: { enabled: false }";
    let node = Node::start_with(sections, &env);
    assert_eq!(node.publish(&left_and("")).status, 200);
    node.runs(10);
    ask([&node, &node]);
    let suggested = |rule: &str| {
        let rules = node.get("/suggestions")["rules"].as_array().unwrap().clone();
        let one = rules.into_iter().find(|one| one["rule"] == rule)?["limits"][0]["suggestion"].clone();
        Some((one["limit"].as_u64()?, one["confidence_percent"].as_u64()? >= 95))
    };
    let both_have_one = || ["left", "steered"].map(suggested) == [Some((1, true)); 2];
    eventually("both have a suggestion", LONG, both_have_one);
    // A day is what an autopilot waits that says nothing else.
    clock.set_ahead_of_the_machine(25 * 3_600);
    assert_eq!(node.publish(&left_and(", autopilot: { min: 6, max: 50, step: 20% }")).status, 200);
    eventually("the one that asks for it is steered", LONG, || !steps(&node).is_empty());
    let versions = node.get("/versions");
    let reasons: Vec<&str> =
        versions["versions"].as_array().unwrap().iter().map(|one| one["reason"].as_str().unwrap()).collect();
    assert!(reasons[0].starts_with("autopilot: api/steered: 10 -> 8: "), "{reasons:?}");
    assert!(reasons[1..].iter().all(|reason| !reason.starts_with("autopilot")), "{reasons:?}");
    assert_eq!(suggested("left"), Some((1, true)));
}
