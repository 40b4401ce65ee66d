//! Five thousand rules, with everything that tells of them switched on.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tidegate_testkit::{Redis, Upstream, eventually, http, in_three_tries, poll};

use crate::redis_world::PATIENCE;
use crate::telemetry_out::Server;

const COUNT: usize = 5_000;

/// What a receiver of StatsD heard: requests by rule.
struct Hits {
    address: SocketAddr,
    count: Arc<Mutex<HashMap<String, u64>>>,
}

impl Hits {
    /// Reads what comes from now on.
    fn receive() -> Hits {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (address, count) = (socket.local_addr().unwrap(), Arc::<Mutex<HashMap<String, u64>>>::default());
        let heard = count.clone();
        std::thread::spawn(move || {
            let mut packet = [0; 65_536];
            while let Ok(length) = socket.recv(&mut packet) {
                assert!(length <= 1_432, "{length} bytes");
                let text = String::from_utf8_lossy(&packet[..length]);
                let hits =
                    text.lines().filter_map(|line| line.strip_suffix("|c")?.split_once(".total_hits:"));
                let mut heard = heard.lock().unwrap();
                hits.for_each(|(rule, hits)| {
                    *heard.entry(rule.to_owned()).or_default() += hits.parse::<u64>().unwrap();
                });
            }
        });
        Hits { address, count }
    }

    /// Packets that the system has thrown away, because they came faster than they were read.
    fn lost(&self) -> u64 {
        let port = format!(":{:04X}", self.address.port());
        let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
        let is_own = |line: &&str| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&port));
        let own = sockets.lines().find(is_own).expect("the socket is open");
        own.split_whitespace().last().unwrap().parse().unwrap()
    }
}

#[test]
fn five_thousand_rules_are_told_of_within_bounds_and_go_on_deciding() {
    let (redis, collector) = (Redis::start(), Upstream::recording());
    let statsd = Hits::receive();
    let sections = format!(
        "telemetry:\n  statsd: {{ address: '{}', every: 1s }}\n  otlp: {{ endpoint: 'http://{}', metrics_every: 1s }}\n\
         decision_log: {{ admissions_one_in: 1 }}",
        statsd.address,
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
    let ask_all = || {
        for first in (0..COUNT).step_by(100) {
            let checks: Vec<Value> = (first..first + 100).map(check).collect();
            let answer =
                http::post_json(server.http, "/v1/check/batch", &json!({ "checks": checks }).to_string());
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    };
    ask_all();
    // Every rule is told of, in a text whose size is known: a rule has eleven series at most, of some 100 bytes each.
    let text = http::get(server.admin, "/metrics").text();
    let asked =
        text.lines().filter(|line| line.starts_with("tidegate_decisions_total{") && line.ends_with(" 1"));
    assert_eq!(asked.count(), COUNT);
    assert!(text.len() < COUNT * 1_100 + 200_000, "{} bytes", text.len());
    assert_eq!(server.metric("tidegate_rules_sharing_series"), Some(0.0));
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
    // A receiver of StatsD hears of every rule, once for each request, but for packets that a busy machine throws away.
    in_three_tries(|| {
        let lost = statsd.lost();
        statsd.count.lock().unwrap().clear();
        ask_all();
        let heard = || statsd.count.lock().unwrap().values().filter(|hits| **hits >= 1).count();
        if poll(PATIENCE / 2, || (heard() == COUNT).then_some(())).is_some() {
            return Ok(());
        }
        let (told, lost) = (format!("{} rules of {COUNT} were heard of", heard()), statsd.lost() - lost);
        assert!(lost > 0, "{told}, and no packet was lost");
        Err(format!("{told}, and {lost} packets were lost"))
    });
    assert_eq!(server.metric("tidegate_telemetry_lost_total{to=\"statsd\"}"), Some(0.0));
    assert!(server.server.process().is_running());
}
