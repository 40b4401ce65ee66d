//! Five thousand rules, with everything that tells of them switched on.

use std::fmt::Write as _;
use std::net::UdpSocket;

use serde_json::{Value, json};
use tidegate_testkit::{Redis, Upstream, eventually, http};

use crate::redis_world::PATIENCE;
use crate::telemetry_out::Server;

const COUNT: usize = 5_000;

#[test]
fn five_thousand_rules_are_told_of_within_bounds_and_go_on_deciding() {
    let (redis, collector) = (Redis::start(), Upstream::recording());
    let statsd = UdpSocket::bind("127.0.0.1:0").unwrap();
    statsd.set_read_timeout(Some(PATIENCE)).unwrap();
    let sections = format!(
        "telemetry:\n  statsd: {{ address: '{}', every: 1s }}\n  otlp: {{ endpoint: 'http://{}', metrics_every: 1s }}\n\
         decision_log: {{ admissions_one_in: 1 }}",
        statsd.local_addr().unwrap(),
        collector.addr()
    );
    let mut server = Server::start(&format!("{}', timeout: '5s", redis.url()), &sections);
    let mut rules = "domain: api\nrules:\n".to_owned();
    for n in 0..COUNT {
        writeln!(rules, "- {{ name: rule-{n}, match: {{ path: /p/{n} }}, key: [user], limits: [5/minute] }}")
            .unwrap();
    }
    server.offer_rules(&rules);
    eventually("they are in use", PATIENCE, || server.metric("tidegate_config_rules") == Some(COUNT as f64));
    let check =
        |n: usize| json!({ "domain": "api", "attributes": { "user": "42", "path": format!("/p/{n}") } });
    for first in (0..COUNT).step_by(100) {
        let checks: Vec<Value> = (first..first + 100).map(check).collect();
        let answer =
            http::post_json(server.http, "/v1/check/batch", &json!({ "checks": checks }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // Every rule is told of, in a text whose size is known: a rule has eleven series at most, of some 100 bytes each.
    let text = http::get(server.admin, "/metrics").text();
    let asked =
        text.lines().filter(|line| line.starts_with("tidegate_decisions_total{") && line.ends_with(" 1"));
    assert_eq!(asked.count(), COUNT);
    assert!(text.len() < COUNT * 1_100 + 200_000, "{} bytes", text.len());
    assert_eq!(server.metric("tidegate_rules_sharing_series"), Some(0.0));
    // StatsD's packets fit; a receiver that is slower than they come loses some, as with any UDP.
    let mut packet = [0; 65_536];
    let mut hit = || {
        let length = statsd.recv(&mut packet).unwrap();
        assert!(length <= 1_432, "{length} bytes");
        String::from_utf8_lossy(&packet[..length]).contains(".total_hits:1|c")
    };
    while !hit() {}
    eventually("a collector hears of the last rule", PATIENCE, || {
        collector.received().iter().any(|one| one.body.windows(9).any(|nine| nine == b"rule-4999"))
    });
    // And it goes on: a sixth request of one rule is refused.
    let ask = |n: usize| http::post_json(server.http, "/v1/check", &check(n).to_string()).status;
    assert_eq!([0; 5].map(|_| ask(4_321)), [200, 200, 200, 200, 429]);
    // Callers of 250 rules are ranked: those that were asked first.
    assert_eq!([0; 5].map(|_| ask(7)), [200, 200, 200, 200, 429]);
    let top = server.api("GET", "keys/top?by=used&rule=rule-7", "");
    assert_eq!(top.json()["rules"][0]["total"], 6, "{}", top.text());
    assert_eq!(server.metric("tidegate_ranked_callers"), Some(1_251.0), "and one who was refused");
    assert_eq!(server.api("GET", "alerts", "").status, 200);
    assert!(server.server.process().is_running());
}
