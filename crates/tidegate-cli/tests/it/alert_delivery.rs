//! How alerts of real servers reach a webhook: again where it fails, together where they come together, later where they are
//! silenced.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_testkit::{Certificates, Received, Redis, SteppedClock, Upstream, eventually};

use crate::alerts::{LONG, count, is_held, openssl_signature, told};
use crate::redis_world::PATIENCE;
use crate::telemetry_out::Server;

/// A server that has something to tell as soon as it runs: its certificate lasts two thousand years, and is to be told of
/// before that.
fn with_an_alert(webhook: &Upstream, more: &str) -> (Server, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::for_loopback(dir.path());
    let section = format!(
        "tls: {{ resp: {{ certificate: '{}', key: '{}' }} }}\nalerts:\n  certificate_days: 1000000\n  \
         webhook: {{ url: 'http://{}/hook'{more} }}",
        certificates.cert.display(),
        certificates.key.display(),
        webhook.addr()
    );
    (Server::start("memory:", &section), dir)
}

fn header<'r>(one: &'r Received, name: &str) -> &'r str {
    let found = one.headers.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("no {name}: {:?}", one.headers)).1
}

fn signed_at(one: &Received) -> u64 {
    let signature = header(one, "x-tidegate-signature");
    signature.strip_prefix("t=").unwrap().split(',').next().unwrap().parse().unwrap()
}

#[test]
fn a_webhook_that_fails_gets_the_same_signed_alert_again_after_pauses_that_double() {
    let webhook = Upstream::recording();
    webhook.set_status(503);
    let (server, _dir) = with_an_alert(&webhook, ", secret: s3cret");
    eventually("it was tried three times", LONG, || webhook.requests() >= 3);
    webhook.set_status(200);
    let taken = "tidegate_alert_deliveries_total{result=\"delivered\"}";
    eventually("it is taken", LONG, || server.metric(taken) == Some(1.0));
    let tries = webhook.received();
    for one in &tries {
        let id = |one| header(one, "x-tidegate-delivery").to_owned();
        assert_eq!((id(one), &one.body), (id(&tries[0]), &tries[0].body), "every try is the same delivery");
        let signature = header(one, "x-tidegate-signature");
        assert_eq!(signature, openssl_signature(signature, "s3cret", &one.body));
    }
    // Half a second, and twice as long each time. A busy machine makes pauses longer, and none shorter.
    let mut least = Duration::from_millis(500);
    for two in tries.windows(2) {
        let pause = two[1].at - two[0].at;
        assert!(pause >= least, "{pause:?} where {least:?} is the least");
        least *= 2;
    }
    let [first, last] = [&tries[0], &tries[tries.len() - 1]].map(signed_at);
    assert!(last > first, "each try is signed anew: a receiver takes only what was signed just now");
    let failed = server.metric("tidegate_alert_deliveries_total{result=\"failed_try\"}");
    assert_eq!(failed, Some((tries.len() - 1) as f64));
}

#[test]
fn an_alert_that_the_webhook_understood_and_refused_is_given_up_counted_and_logged() {
    let webhook = Upstream::recording();
    webhook.set_status(422);
    let (server, _dir) = with_an_alert(&webhook, "");
    let [dropped, waiting] =
        ["tidegate_alert_deliveries_total{result=\"dropped\"}", "tidegate_alert_deliveries_waiting"];
    eventually("it is given up", LONG, || server.metric(dropped) == Some(1.0));
    assert_eq!(server.metric(waiting), Some(0.0));
    assert_eq!(webhook.requests(), 1, "and was tried once");
    let line = "an alert was not delivered, giving up";
    eventually("the log says so", PATIENCE, || server.server.stderr().contains(line));
    let active = server.api("GET", "alerts", "").json();
    assert_eq!(active["active"][0]["kind"], "certificate_ends", "who asks is told: {active}");
}

#[test]
fn alerts_of_several_kinds_that_a_silence_held_back_come_in_one_delivery_once_it_is_ended() {
    let (redis, webhook) = (Redis::start(), Upstream::recording());
    let section = format!("alerts: {{ webhook: {{ url: 'http://{}/hook' }} }}", webhook.addr());
    let server = Server::start(&redis.url(), &section);
    eventually("it holds the lease", PATIENCE, || is_held(&redis));
    let made = server.api("POST", "alerts/silences", &json!({ "until": "1h" }).to_string());
    assert_eq!(made.status, 201, "{}", made.text());
    redis.kill();
    let outage = BTreeSet::from(["store_down", "breaker_open", "fallback"].map(str::to_owned));
    let mut users = (0..).map(|user| format!("u{user}"));
    eventually("all three are active and silenced", LONG, || {
        server.check(&users.next().unwrap(), None);
        let alerts = server.api("GET", "alerts", "").json();
        let silenced = alerts["active"].as_array().unwrap().iter().filter(|alert| alert["silenced"] == true);
        silenced.map(|alert| alert["kind"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>() == outage
    });
    assert_eq!(told(&webhook), [], "a silence of all kinds holds all back");
    let path = format!("alerts/silences/{}", made.json()["id"]);
    assert_eq!(server.api("DELETE", &path, "").status, 204);
    eventually("they are told", LONG, || {
        // Without requests, nothing would be decided by a policy any more.
        server.check(&users.next().unwrap(), None);
        !webhook.received().is_empty()
    });
    let body: Value = serde_json::from_slice(&webhook.received()[0].body).unwrap();
    let alerts = body["alerts"].as_array().unwrap();
    assert!(alerts.iter().all(|alert| alert["state"] == "firing"), "{body}");
    let kinds: Vec<String> = alerts.iter().map(|alert| alert["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!((kinds.len(), kinds.into_iter().collect()), (3, outage), "{body}");
    let ids: BTreeSet<&str> = alerts.iter().map(|alert| alert["fingerprint"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 3, "receivers tell them apart: {body}");
}

#[test]
fn a_silence_ends_at_its_time_and_what_still_goes_on_is_told_then() {
    let (webhook, clock) = (Upstream::recording(), SteppedClock::new());
    let section = format!("alerts: {{ webhook: {{ url: 'http://{}/hook' }} }}", webhook.addr());
    let mut server = Server::start_on(&clock, "memory:", &section);
    let wanted = json!({ "kind": "reload_failed", "until": "1h" });
    let made = server.api("POST", "alerts/silences", &wanted.to_string());
    assert_eq!(made.status, 201, "{}", made.text());
    server.offer_rules("domain: [");
    eventually("the alert is active, and silenced", LONG, || {
        let alerts = server.api("GET", "alerts", "").json();
        alerts["active"][0]["kind"] == "reload_failed" && alerts["active"][0]["silenced"] == true
    });
    assert_eq!(told(&webhook), []);
    clock.set_ahead_of_the_machine(3_601);
    eventually("it is told", LONG, || count(&webhook, "reload_failed", "firing") == 1);
    let body: Value = serde_json::from_slice(&webhook.received()[0].body).unwrap();
    let [told_s, until_s] = [&body["at_s"], &made.json()["until_s"]].map(|at| at.as_u64().unwrap());
    assert!(told_s >= until_s, "told at {told_s}, silenced until {until_s}: {body}");
    let silences = server.api("GET", "alerts/silences", "").json();
    assert_eq!(silences["silences"], json!([]), "what is over is not listed");
}

/// Structured mode of CloudEvents' HTTP binding: one event, which its content type names.
#[test]
fn webhook_for_cloudevents_gets_an_event_of_that_content_type() {
    let webhook = Upstream::recording();
    let (_server, _dir) = with_an_alert(&webhook, ", format: cloudevents, secret: s3cret");
    eventually("it is delivered", LONG, || webhook.requests() >= 1);
    let one = &webhook.received()[0];
    assert_eq!(header(one, "content-type"), "application/cloudevents+json; charset=UTF-8");
    let signature = header(one, "x-tidegate-signature");
    assert_eq!(signature, openssl_signature(signature, "s3cret", &one.body));
    let event: Value = serde_json::from_slice(&one.body).unwrap();
    assert_eq!(
        [&event["specversion"], &event["type"], &event["datacontenttype"]],
        [&json!("1.0"), &json!("tidegate.alerts.v1"), &json!("application/json")]
    );
    assert_eq!(event["id"], header(one, "x-tidegate-delivery"));
    assert!(event["source"].as_str().unwrap().starts_with("/tidegate/"), "{event}");
    assert!(event["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{event}");
    assert_eq!(event["data"]["alerts"][0]["kind"], "certificate_ends", "{event}");
}
