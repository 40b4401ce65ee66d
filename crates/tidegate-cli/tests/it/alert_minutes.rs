//! Alerts that are judged by whole minutes, on a real server whose wall clock goes several times as fast as the machine's.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::{SteppedClock, Upstream, eventually, http};

use crate::alerts::{LONG, count};
use crate::live_and_replay::now as since_1970;
use crate::redis_world::now;
use crate::telemetry_out::{RULES, Server};

/// Seconds that the clock goes ahead by, and how often. A server looks every two seconds, and takes a minute for seen where
/// looks are at most 20 s apart.
const STEP_S: i64 = 3;
const STEP_EVERY: Duration = Duration::from_millis(500);

/// A server that tells a webhook, on a clock that goes ahead while it is asked.
struct FastServer {
    server: Server,
    webhook: Upstream,
    clock: SteppedClock,
    ahead_s: i64,
    stepped: std::time::Instant,
}

impl FastServer {
    fn start(rules: &str) -> Self {
        FastServer::start_with(rules, "")
    }

    /// With these lines of configuration, too.
    fn start_with(rules: &str, more: &str) -> Self {
        let (webhook, clock) = (Upstream::recording(), SteppedClock::new());
        // It begins five seconds into a minute: the rest of that minute is enough to judge.
        let ahead_s = 65 - i64::try_from(since_1970().as_secs() % 60).unwrap();
        clock.set_ahead_of_the_machine(ahead_s);
        let section = format!(
            "alerts: {{ dashboard: 'https://gate.example', webhook: {{ url: 'http://{}/hook' }} }}\n{more}",
            webhook.addr()
        );
        let mut server = Server::start_on(&clock, "memory:", &section);
        server.offer_rules(rules);
        FastServer { server, webhook, clock, ahead_s, stepped: now() }
    }

    /// Goes ahead by one step and makes these checks in one batch, each of a user and a cost, if it is time.
    fn step(&mut self, checks: impl FnOnce() -> Vec<(String, u64)>) {
        if self.stepped.elapsed() < STEP_EVERY {
            return;
        }
        self.stepped = now();
        self.ahead_s += STEP_S;
        self.clock.set_ahead_of_the_machine(self.ahead_s);
        let check = |(user, cost)| json!({ "domain": "api", "attributes": { "user": user }, "cost": cost });
        let checks: Vec<Value> = checks().into_iter().map(check).collect();
        let body = json!({ "checks": checks }).to_string();
        assert_eq!(http::post_json(self.server.http, "/v1/check/batch", &body).status, 200);
    }

    /// Steps until this kind is told, and returns what is told of it.
    fn told(
        &mut self,
        kind: &str,
        within: Duration,
        mut checks: impl FnMut() -> Vec<(String, u64)>,
    ) -> Value {
        eventually("it is told", within, || {
            self.step(&mut checks);
            count(&self.webhook, kind, "firing") > 0
        });
        let bodies = self.webhook.received();
        let bodies = bodies.iter().map(|request| serde_json::from_slice::<Value>(&request.body).unwrap());
        let mut alerts = bodies.flat_map(|body| body["alerts"].as_array().unwrap().clone());
        alerts.find(|alert| alert["kind"] == kind).unwrap()
    }
}

#[test]
fn a_shadow_rule_that_would_refuse_half_of_a_minute_is_told_with_its_part_and_a_link() {
    let watched = "- { name: watched, key: [user], shadow: true, limits: [{ algorithm: sliding_log, limit: 1, window: 12h }] }\n";
    let mut server = FastServer::start(&format!("{}{watched}", RULES.replace("5/minute", "100000/minute")));
    let mut fresh = 0;
    // One caller again and again, and as many who ask once.
    let alert = server.told("shadow_would_refuse", LONG, || {
        let next = |n| {
            fresh += n % 2;
            (if n % 2 == 0 { "the same".to_owned() } else { format!("u{fresh}") }, 1)
        };
        (0..40).map(next).collect()
    });
    let summary = alert["summary"].as_str().unwrap();
    let part =
        summary.strip_prefix("enforcing api/watched would refuse ").unwrap_or_else(|| panic!("{alert}"));
    let percent: u64 = part.strip_suffix(" % of its requests").unwrap().parse().unwrap();
    assert!((48..=50).contains(&percent), "half, but for the first request of the caller: {summary}");
    assert_eq!(alert["link"], "https://gate.example/#/rules/api/watched", "{alert}");
}

/// What a baseline takes to be known, and some more.
const LEARNED_AFTER: Duration = Duration::from_secs(35 * 60);
const MINUTES: Duration = Duration::from_secs(15 * 60);

/// A server that has admitted fifteen callers in each step for longer than half an hour, by its clock, and told of nothing.
fn learned(more: &str) -> FastServer {
    let mut server = FastServer::start_with(PER_USER, more);
    let began_s = server.ahead_s + i64::try_from(since_1970().as_secs()).unwrap();
    let until_s = began_s + i64::try_from(LEARNED_AFTER.as_secs()).unwrap();
    eventually("half an hour has passed", MINUTES, || {
        server.step(|| (0..15).map(|user| (format!("u{user}"), 1)).collect());
        server.ahead_s + i64::try_from(since_1970().as_secs()).unwrap() >= until_s
    });
    let told: Vec<Vec<u8>> = server.webhook.received().into_iter().map(|request| request.body).collect();
    assert!(
        told.is_empty(),
        "{:?}",
        told.iter().map(|body| String::from_utf8_lossy(body)).collect::<Vec<_>>()
    );
    server
}

const PER_USER: &str = "domain: api\nrules:\n- { name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1000/s, burst: 1000 }] }\n";

#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
fn six_times_the_usual_requests_of_a_rule_are_told_as_a_spike() {
    let mut server = learned("");
    let alert = server.told("traffic_spike", LONG, || (0..90).map(|n| (format!("u{}", n % 15), 1)).collect());
    assert_eq!(alert["subject"], "api/per-user", "{alert}");
}

#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
fn a_rule_that_begins_to_refuse_half_of_its_requests_is_told_as_a_spike_of_refusals() {
    let mut server = learned("");
    // Every other one asks for more than the rule ever gives.
    let cost = |n| if n % 2 == 0 { 1 } else { 1_001 };
    let alert = server.told("refusal_spike", LONG, || (0..15).map(|n| (format!("u{n}"), cost(n))).collect());
    assert_eq!(alert["subject"], "api/per-user", "{alert}");
}

/// Callers choose their names, and may choose one that looks like a hash, which alerts show whole.
#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
fn a_new_caller_whose_clear_name_begins_like_a_hash_is_told_by_its_beginning() {
    let mut server = learned("decision_log: { clear: [user], admissions_one_in: 1 }");
    let name = |n| if n < 60 { "#0123456789abcdef-mallory".to_owned() } else { format!("u{}", n - 60) };
    let alert = server.told("new_top_caller", LONG, || (0..75).map(|n| (name(n), 1)).collect());
    assert!(alert["summary"].as_str().unwrap().starts_with("user=#0… is new, and takes "), "{alert}");
    for request in server.webhook.received() {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        assert!(!body.contains("mallory") && !body.contains("#0123"), "{body}");
    }
}
