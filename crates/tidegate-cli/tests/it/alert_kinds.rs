//! Alerts that begin only after a while, on real servers: their wall clock goes ahead by that while, again and again, as long
//! as what is the matter lasts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_testkit::{Fault, FaultProxy, Redis, SteppedClock, Upstream, eventually, http, poll, resp};

use crate::alerts::{LONG, count};
use crate::redis_world::now;
use crate::telemetry_out::{RULES, Server};

/// Longer than the pause between two looks, so that what is the matter is seen before and after each step.
const STEP_EVERY: Duration = Duration::from_secs(3);

/// A clock that goes ahead by so many seconds now and then.
struct Ahead {
    clock: SteppedClock,
    by_s: i64,
    ahead_s: i64,
    stepped: Instant,
}

impl Ahead {
    fn by(by_s: i64) -> Ahead {
        Ahead { clock: SteppedClock::new(), by_s, ahead_s: 0, stepped: now() }
    }

    fn maybe_step(&mut self) {
        if self.stepped.elapsed() >= STEP_EVERY {
            self.stepped = now();
            self.ahead_s += self.by_s;
            self.clock.set_ahead_of_the_machine(self.ahead_s);
        }
    }
}

fn webhook_section(webhook: &Upstream) -> String {
    format!("alerts: {{ webhook: {{ url: 'http://{}/hook' }} }}", webhook.addr())
}

#[test]
fn a_store_that_is_asked_more_than_it_answers_in_time_is_told_as_overload_and_as_slow() {
    let (redis, webhook, mut ahead) = (Redis::start(), Upstream::recording(), Ahead::by(31));
    let network = FaultProxy::start(redis.addr());
    // One queue, in which those who come while a call is under way have too little time left after it, again and again: less
    // than one request in a thousand would be no alert.
    let section = format!("workers: 1\n{}", webhook_section(&webhook));
    let url = format!("redis://{}', timeout: '300ms", network.addr());
    let server = Server::start_on(&ahead.clock, &url, &section);
    assert_eq!(server.check("first", None), 200);
    network.set(Fault::Delay(Duration::from_millis(250)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for thread in 0..8 {
            let (server, stop) = (&server, &stop);
            threads.spawn(move || {
                let mut users = (0..).map(|n| format!("u{thread}-{n}"));
                while !stop.load(Ordering::Relaxed) {
                    server.check(&users.next().unwrap(), None);
                }
            });
        }
        let told = poll(LONG, || {
            ahead.maybe_step();
            ["overload", "store_slow"].iter().all(|kind| count(&webhook, kind, "firing") > 0).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        assert!(told.is_some(), "{:?}", webhook.received());
    });
}

#[test]
fn callers_at_their_limit_who_are_forgotten_for_want_of_room_are_told() {
    let (webhook, mut ahead) = (Upstream::recording(), Ahead::by(31));
    let section = format!("limits: {{ max_cells: 1000 }}\n{}", webhook_section(&webhook));
    let mut server = Server::start_on(&ahead.clock, "memory:", &section);
    server.offer_rules(&RULES.replace("5/minute", "1/hour"));
    let mut number = 0;
    eventually("it is told", LONG, || {
        ahead.maybe_step();
        for _ in 0..20 {
            let checks: Vec<Value> = (0..100)
                .map(|n| json!({ "domain": "api", "attributes": { "user": format!("u{}", number + n) } }))
                .collect();
            number += 100;
            let body = json!({ "checks": checks }).to_string();
            assert_eq!(http::post_json(server.http, "/v1/check/batch", &body).status, 200);
        }
        count(&webhook, "spent_evicted", "firing") == 1
    });
}

#[test]
fn a_store_that_is_nearly_full_is_told() {
    let (redis, webhook, mut ahead) = (Redis::start(), Upstream::recording(), Ahead::by(31));
    let _server = Server::start_on(&ahead.clock, &redis.url(), &webhook_section(&webhook));
    eventually("the store's memory is told", LONG, || {
        ahead.maybe_step();
        let resp::Value::Bulk(info) = redis.cmd(&["INFO", "memory"]) else { return false };
        let info = String::from_utf8_lossy(&info).into_owned();
        let used =
            info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse::<u64>().ok());
        redis.cmd(&["CONFIG", "SET", "maxmemory", &(used.unwrap() * 100 / 92).to_string()]);
        count(&webhook, "store_memory", "firing") == 1
    });
}

#[test]
fn of_two_nodes_on_one_store_only_one_tells_what_both_see() {
    let (redis, mut ahead) = (Redis::start(), Ahead::by(301));
    // Each has a webhook of its own, so that it is known who told.
    let webhooks = [0, 1].map(|_| Upstream::recording());
    let mut nodes = webhooks
        .each_ref()
        .map(|webhook| Server::start_on(&ahead.clock, &redis.url(), &webhook_section(webhook)));
    let told = |state| webhooks.each_ref().map(|webhook| count(webhook, "version_skew", state));
    let shown = |node: &Server, list: &str| {
        let alerts = node.api("GET", "alerts", "").json();
        alerts[list].as_array().unwrap().iter().any(|alert| alert["kind"] == "version_skew")
    };
    // As many rules under the same names, of files without a version: one number differs.
    let another = RULES.replace("5/minute", "6/minute");
    nodes[1].offer_rules(&another);
    let limit = "tidegate_limit{domain=\"api\",rule=\"per-user\",tier=\"\",limit=\"sliding_log/1m\"}";
    eventually("it runs other rules", LONG, || nodes[1].metric(limit) == Some(6.0));
    eventually("both see that they differ for five minutes, and it is told", LONG, || {
        ahead.maybe_step();
        nodes.iter().all(|node| shown(node, "active")) && told("firing") != [0, 0]
    });
    let fleet = nodes[0].api("GET", "nodes", "").json();
    assert_eq!(fleet["converged"], false, "{fleet}");
    assert!(fleet["warnings"].to_string().contains("run different rules"), "{fleet}");
    nodes[0].offer_rules(&another);
    eventually("both see the end of it, and that is told", LONG, || {
        nodes.iter().all(|node| shown(node, "resolved") && !shown(node, "active"))
            && told("resolved") != [0, 0]
    });
    let began = told("firing");
    assert!([[0, 1], [1, 0]].contains(&began), "one of them told that it began: {began:?}");
    assert_eq!(told("resolved"), began, "and the same one that it is over");
}
