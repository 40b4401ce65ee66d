//! Alerts of real servers, at webhooks that are real sockets.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::{Certificates, Redis, Upstream, eventually, http, poll, resp};

use crate::redis_world::{PATIENCE, check, now, tell};
use crate::telemetry_out::{RULES, Server};

/// Longer than a lease, a look and what must last: for machines that are busy.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// The alerts in all bodies that a webhook got: kind and state, in order.
pub(crate) fn told(webhook: &Upstream) -> Vec<(String, String)> {
    let bodies = webhook.received();
    let alerts = bodies.iter().flat_map(|one| {
        let body: Value = serde_json::from_slice(&one.body).unwrap();
        body["alerts"].as_array().unwrap().clone()
    });
    alerts
        .map(|alert| {
            (alert["kind"].as_str().unwrap().to_owned(), alert["state"].as_str().unwrap().to_owned())
        })
        .collect()
}

/// Alerts of this kind and state that a webhook got.
pub(crate) fn count(webhook: &Upstream, kind: &str, state: &str) -> usize {
    told(webhook).iter().filter(|(one, in_state)| one == kind && in_state == state).count()
}

/// Whether telling is some node's duty.
pub(crate) fn is_held(redis: &Redis) -> bool {
    holder(redis).is_some()
}

/// The node whose duty it is to tell.
fn holder(redis: &Redis) -> Option<String> {
    record(redis, "whose duty")?.split(' ').next().map(str::to_owned)
}

/// The record that nodes keep under `alerts: NAME`.
fn record(redis: &Redis, name: &str) -> Option<String> {
    let resp::Value::Array(keys) = redis.cmd(&["KEYS", &format!("*alerts: {name}*")]) else { return None };
    let resp::Value::Bulk(key) = keys.into_iter().next()? else { return None };
    let resp::Value::Bulk(value) = redis.cmd(&[b"GET", key.as_slice()]) else { return None };
    Some(String::from_utf8_lossy(&value).into_owned())
}

#[test]
fn a_killed_redis_is_at_the_webhook_within_ten_seconds_and_its_end_after() {
    let (redis, webhook) = (Redis::start(), Upstream::recording());
    let section = format!(
        "alerts:\n  webhook: {{ url: 'http://{}/hook', secret: s3cret }}\n  dashboard: 'https://gate.example'",
        webhook.addr()
    );
    let mut server = Server::start(&redis.url(), &section);
    let mut client = resp::Client::connect(server.server.addr("resp"));
    let mut ask = || drop(check(&mut client, &[("user", "42")], 1));
    ask();
    assert_eq!(told(&webhook), []);
    // A machine that stands still for seconds tells nothing about alerts: then the whole is measured again.
    let mut outages = 0;
    let in_time = (0..3).any(|_| {
        outages += 1;
        eventually("it holds the lease", PATIENCE, || is_held(&redis));
        redis.kill();
        let killed = now();
        // A node that had not heard yet that the lease is its own tells after 15 s.
        let told_after = poll(Duration::from_secs(60), || {
            ask();
            (count(&webhook, "store_down", "firing") == outages).then(|| killed.elapsed())
        });
        let told_after = told_after.unwrap_or_else(|| panic!("nobody was told: {:?}", told(&webhook)));
        tell!("store_down was at the webhook after {told_after:?}");
        redis.restart();
        eventually("its end is told", Duration::from_secs(60), || {
            ask();
            count(&webhook, "store_down", "resolved") == outages
        });
        assert_eq!(count(&webhook, "store_down", "firing"), outages, "one outage is one alert");
        told_after < Duration::from_secs(10)
    });
    assert!(in_time, "it took longer than ten seconds, three times");
    let log = server.server.stderr();
    let store = redis.addr();
    for line in ["alert: the store", "alert is over: the store"] {
        let count = log.matches(&format!("{line} {store} does not answer")).count();
        assert_eq!(count, outages, "{line}: one line per outage in {log}");
    }
    // What an outage brings is told too.
    for kind in ["fallback", "breaker_open"] {
        assert!(count(&webhook, kind, "firing") > 0, "{kind}: {:?}", told(&webhook));
    }
    let body = &webhook.received()[0];
    let value: Value = serde_json::from_slice(&body.body).unwrap();
    assert_eq!(value["alerts"][0]["link"], "https://gate.example/#/cluster", "{value}");
    assert!(!value["alerts"][0]["next"].as_str().unwrap().is_empty());
    let signed = &body.headers.iter().find(|(name, _)| name == "x-tidegate-signature").unwrap().1;
    assert_eq!(*signed, openssl_signature(signed, "s3cret", &body.body));
    let metrics = http::get(server.admin, "/metrics").text();
    assert!(metrics.contains("tidegate_alerts_active "), "{metrics}");
}

/// The same signature, made by somebody else.
pub(crate) fn openssl_signature(ours: &str, secret: &str, body: &[u8]) -> String {
    let at = ours.strip_prefix("t=").unwrap().split(',').next().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), [at.as_bytes(), b".", body].concat()).unwrap();
    let ran =
        Command::new("openssl").args(["dgst", "-sha256", "-hmac", secret]).arg(file.path()).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    format!("t={at},v1={}", said.trim().rsplit(' ').next().unwrap())
}

/// Two nodes on `redis`, called a and b.
fn pair(redis: &Redis, webhook: &Upstream) -> [Server; 2] {
    ["a", "b"].map(|name| {
        let section = format!(
            "admin: {{ node: {name} }}\nalerts: {{ webhook: {{ url: 'http://{}/hook' }} }}",
            webhook.addr()
        );
        Server::start(&redis.url(), &section)
    })
}

/// The pair, the one that tells first.
fn by_duty(redis: &Redis, [a, b]: [Server; 2]) -> ([Server; 2], [&'static str; 2]) {
    let teller = poll(PATIENCE, || holder(redis)).expect("one of them holds the lease");
    if teller == "a" { ([a, b], ["a", "b"]) } else { ([b, a], ["b", "a"]) }
}

/// Who told that the rules of `node` are refused, or are taken again.
fn tellers(webhook: &Upstream, node: &str, state: &str) -> Vec<String> {
    let bodies =
        webhook.received().into_iter().map(|one| serde_json::from_slice::<Value>(&one.body).unwrap());
    let about = |body: &Value| {
        let alerts = body["alerts"].as_array().unwrap().clone();
        alerts.iter().any(|alert| {
            alert["kind"] == "reload_failed" && alert["subject"] == node && alert["state"] == state
        })
    };
    bodies.filter(about).map(|body| body["node"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn one_node_tells_what_another_sees_and_when_it_is_killed_the_other_tells_the_end() {
    let (redis, webhook) = (Redis::start(), Upstream::recording());
    let ([mut first, mut second], [teller, other]) = by_duty(&redis, pair(&redis, &webhook));
    second.offer_rules("domain: [");
    eventually("it is told", LONG, || !tellers(&webhook, other, "firing").is_empty());
    assert_eq!(tellers(&webhook, other, "firing"), [teller], "by the one whose duty it is");
    eventually("a successor can know", LONG, || {
        record(&redis, "told").is_some_and(|told| told.contains(other))
    });
    first.server.process().kill();
    eventually("the duty is the other's", LONG, || holder(&redis).is_some_and(|now| now == other));
    second.offer_rules(RULES);
    eventually("the end is told", LONG, || !tellers(&webhook, other, "resolved").is_empty());
    assert_eq!(tellers(&webhook, other, "resolved"), [other]);
    assert_eq!(tellers(&webhook, other, "firing"), [teller], "and the beginning not again");
}

#[test]
fn one_silence_too_many_is_refused_with_a_way_out_and_a_long_text_by_its_field() {
    let server = Server::start("memory:", "");
    let silence = |subject: &str| {
        let wanted = json!({ "kind": "store_slow", "subject": subject, "until": "1h" });
        server.api("POST", "alerts/silences", &wanted.to_string())
    };
    let long = silence(&"x".repeat(501));
    assert_eq!((long.status, &long.json()["field"]), (422, &json!("subject")), "{}", long.text());
    for odd in ["", "*", " a", "a\n"] {
        let refused = silence(odd);
        assert_eq!((refused.status, &refused.json()["field"]), (422, &json!("subject")), "{odd:?}");
    }
    (0..100).for_each(|number| assert_eq!(silence(&number.to_string()).status, 201));
    let refused = silence("one more");
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.json()["hint"].as_str().unwrap().contains("DELETE"), "{}", refused.text());
}

#[test]
fn who_made_and_who_ended_a_silence_is_known() {
    let server = Server::start("memory:", "");
    let wanted = json!({ "kind": "store_slow", "subject": "a", "until": "1h", "reason": "a test" });
    let made = server.api("POST", "alerts/silences", &wanted.to_string());
    let listed = server.api("GET", "alerts/silences", "").json();
    assert_eq!(listed["silences"][0]["author"], "configured", "{listed}");
    let path = format!("alerts/silences/{}", made.json()["id"]);
    assert_eq!(server.api("DELETE", &path, "").status, 204);
    let audit = server.api("GET", "audit?limit=2", "").json();
    let noted = |place: usize| {
        let entry = &audit["entries"][place];
        [&entry["action"], &entry["actor"], &entry["target"]].map(|text| text.as_str().unwrap().to_owned())
    };
    assert_eq!(noted(0), ["silence.end", "configured", "store_slow a"], "{audit}");
    assert_eq!(noted(1), ["silence.create", "configured", "store_slow a"], "{audit}");
}

#[test]
fn a_silence_made_at_one_node_holds_for_the_fleet_until_it_is_ended() {
    let (redis, webhook) = (Redis::start(), Upstream::recording());
    let ([first, mut second], [_, other]) = by_duty(&redis, pair(&redis, &webhook));
    let wanted = json!({ "kind": "reload_failed", "subject": other, "until": "1h", "reason": "a test" });
    let made = second.api("POST", "alerts/silences", &wanted.to_string());
    assert_eq!(made.status, 201, "{}", made.text());
    let silences = |node: &Server| node.api("GET", "alerts/silences", "").json()["silences"].clone();
    eventually("the one who tells knows of it", LONG, || silences(&first)[0]["id"] == made.json()["id"]);
    second.offer_rules("domain: [");
    let is_active =
        |node: &Server| {
            let alerts = node.api("GET", "alerts", "").json();
            alerts["active"].as_array().unwrap().iter().any(|alert| {
                alert["kind"] == "reload_failed" && alert["silenced"] == true && alert["link"] == ""
            })
        };
    eventually("both show the alert, silenced", LONG, || is_active(&first) && is_active(&second));
    assert_eq!(tellers(&webhook, other, "firing"), Vec::<String>::new());
    let path = format!("alerts/silences/{}", made.json()["id"]);
    assert_eq!(first.api("DELETE", &path, "").status, 204);
    eventually("it is told once the silence ends", LONG, || !tellers(&webhook, other, "firing").is_empty());
    eventually("and ended everywhere", LONG, || silences(&second).as_array().unwrap().is_empty());
}

#[test]
fn a_redis_that_evicts_and_a_certificate_that_ends_soon_are_told() {
    let (redis, webhook, dir) = (Redis::start(), Upstream::recording(), tempfile::tempdir().unwrap());
    let certificates = Certificates::for_loopback(dir.path());
    // The certificate lasts two thousand years: far enough ahead, it ends soon.
    let section = format!(
        "tls: {{ resp: {{ certificate: '{}', key: '{}' }} }}\nalerts:\n  certificate_days: 1000000\n  webhook: {{ url: 'http://{}/hook' }}",
        certificates.cert.display(),
        certificates.key.display(),
        webhook.addr()
    );
    let _server = Server::start(&redis.url(), &section);
    eventually("the certificate is told", LONG, || count(&webhook, "certificate_ends", "firing") == 1);
    assert_eq!(count(&webhook, "store_evicts", "firing"), 0);
    redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "3mb"]);
    let mut number = 0;
    eventually("what Redis forgets is told", LONG, || {
        (0..200).for_each(|_| {
            number += 1;
            redis.cmd(&["SET", &format!("filler{number}"), &"x".repeat(10_000)]);
        });
        count(&webhook, "store_evicts", "firing") == 1
    });
}

#[test]
fn slack_is_told_in_its_own_form_with_what_to_look_at_next_and_a_link() {
    let (webhook, dir) = (Upstream::recording(), tempfile::tempdir().unwrap());
    let certificates = Certificates::for_loopback(dir.path());
    let section = format!(
        "tls: {{ resp: {{ certificate: '{}', key: '{}' }} }}\nalerts:\n  certificate_days: 1000000\n  \
         dashboard: 'https://gate.example'\n  webhook: {{ url: 'http://{}/hook', format: slack }}",
        certificates.cert.display(),
        certificates.key.display(),
        webhook.addr()
    );
    let _server = Server::start("memory:", &section);
    eventually("it is told", LONG, || !webhook.received().is_empty());
    let body: Value = serde_json::from_slice(&webhook.received()[0].body).unwrap();
    let text = body["text"].as_str().unwrap_or_else(|| panic!("{body}"));
    assert!(text.starts_with(":warning: *certificate_ends* the certificate of resp on "), "{text}");
    assert!(text.contains("_next:_ put a new certificate in its file"), "{text}");
    assert!(text.ends_with(" <https://gate.example/#/cluster|open>"), "{text}");
    assert_eq!(body.as_object().unwrap().len(), 1, "nothing that Slack would refuse: {body}");
}
