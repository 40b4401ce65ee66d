//! An alert that is judged by whole minutes, on a real server whose wall clock goes several times as fast as the machine's.

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

#[test]
fn a_shadow_rule_that_would_refuse_half_of_a_minute_is_told_with_its_part_and_a_link() {
    let (webhook, clock) = (Upstream::recording(), SteppedClock::new());
    // It begins five seconds into a minute: the rest of that minute is enough to judge.
    let mut ahead_s = 65 - i64::try_from(since_1970().as_secs() % 60).unwrap();
    clock.set_ahead_of_the_machine(ahead_s);
    let section = format!(
        "alerts: {{ dashboard: 'https://gate.example', webhook: {{ url: 'http://{}/hook' }} }}",
        webhook.addr()
    );
    let mut server = Server::start_on(&clock, "memory:", &section);
    let watched = "- { name: watched, key: [user], shadow: true, limits: [{ algorithm: sliding_log, limit: 1, window: 12h }] }\n";
    server.offer_rules(&format!("{}{watched}", RULES.replace("5/minute", "100000/minute")));
    let (mut stepped, mut fresh) = (now(), 0);
    eventually("it is told", LONG, || {
        if stepped.elapsed() >= STEP_EVERY {
            stepped = now();
            ahead_s += STEP_S;
            clock.set_ahead_of_the_machine(ahead_s);
            // One caller again and again, and as many who ask once.
            let checks: Vec<Value> = (0..40)
                .map(|n| {
                    fresh += n % 2;
                    let user = if n % 2 == 0 { "the same".to_owned() } else { format!("u{fresh}") };
                    json!({ "domain": "api", "attributes": { "user": user } })
                })
                .collect();
            let body = json!({ "checks": checks }).to_string();
            assert_eq!(http::post_json(server.http, "/v1/check/batch", &body).status, 200);
        }
        count(&webhook, "shadow_would_refuse", "firing") == 1
    });
    let body: Value = serde_json::from_slice(&webhook.received()[0].body).unwrap();
    let alert = &body["alerts"][0];
    let summary = alert["summary"].as_str().unwrap();
    let part =
        summary.strip_prefix("enforcing api/watched would refuse ").unwrap_or_else(|| panic!("{body}"));
    let percent: u64 = part.strip_suffix(" % of its requests").unwrap().parse().unwrap();
    assert!((48..=50).contains(&percent), "half, but for the first request of the caller: {summary}");
    assert_eq!(alert["link"], "https://gate.example/#/rules/api/watched", "{body}");
}
