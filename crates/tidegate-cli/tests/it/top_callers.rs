//! Who asks most, as `tidegate top` shows it: how far its counts may be off, and who sees whose name.

use std::collections::HashMap;
use std::net::UdpSocket;

use serde_json::{Value, json};
use tidegate_testkit::{eventually, http};

use crate::fleet_decisions::zipf;
use crate::redis_world::PATIENCE;
use crate::telemetry_out::{Server, TOKEN};
use crate::tidegate;

/// One request each; nothing of it comes back while the test runs.
const RULES: &str = "domain: api\nrules:\n- { name: once, key: [user], limits: [{ algorithm: sliding_log, limit: 1, window: 12h }] }\n";

fn start(clear: &str) -> Server {
    let section =
        format!("decision_log: {{ admissions_one_in: 1, refusals_per_second: 1000000, clear: {clear} }}");
    let mut server = Server::start("memory:", &section);
    server.offer_rules(RULES);
    eventually("the rules are in use", PATIENCE, || {
        server.metric("tidegate_config_reloads_total{result=\"success\"}") == Some(1.0)
    });
    server
}

fn ask(server: &Server, users: &[String]) {
    for some in users.chunks(100) {
        let checks: Vec<Value> =
            some.iter().map(|user| json!({ "domain": "api", "attributes": { "user": user } })).collect();
        let body = json!({ "checks": checks }).to_string();
        assert_eq!(http::post_json(server.http, "/v1/check/batch", &body).status, 200);
    }
}

/// What `tidegate top` writes for who has this token.
fn top(server: &Server, token: &str, more: &[&str]) -> String {
    let ran = tidegate(&[&["top", "--once"], more].concat())
        .env("TIDEGATE_ADMIN", format!("http://{}", server.admin))
        .env("TIDEGATE_TOKEN", token)
        .env("HOME", server.dir.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// Five rules for one request, of which one refuses from the eleventh on.
const FIVE_RULES: &str = "\
domain: api
rules:
- { name: everybody, key: [], limits: [{ algorithm: fixed_window, limit: 100000, window: 1d }] }
- { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 10, window: 1d }] }
- { name: an-hour, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1h }] }
- { name: a-day, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }
- { name: trial, key: [user], shadow: true, limits: [{ algorithm: fixed_window, limit: 1, window: 1d }] }
";

#[test]
fn top_and_statsd_lead_with_requests_as_a_client_counted_them() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = receiver.local_addr().unwrap();
    let mut server = Server::start(
        "memory:",
        &format!("telemetry: {{ statsd: {{ address: '{address}', every: 200ms }} }}"),
    );
    server.offer_rules(FIVE_RULES);
    eventually("the rules are in use", PATIENCE, || {
        server.metric("tidegate_config_reloads_total{result=\"success\"}") == Some(1.0)
    });
    let (mut counted, mut looks) = ([0_u64; 2], 0);
    // Two of three requests are refused, and not two of thirteen checks. `top` shows the last ten seconds: when one caller is gone
    // from there, another comes.
    eventually("top has the client's share", PATIENCE, || {
        if looks % 10 == 0 {
            let user = looks.to_string();
            (0..30).for_each(|_| counted[usize::from(server.check(&user, None) == 429)] += 1);
        }
        looks += 1;
        top(&server, TOKEN, &[]).contains("refused (66.7 %)")
    });
    assert_eq!(counted[1], 2 * counted[0], "by every caller's limit of ten");
    let names = ["tidegate.requests.api.allowed:", "tidegate.requests.api.refused:"];
    let (mut sums, mut packet) = ([0_u64; 2], [0; 65_536]);
    while sums.iter().zip(counted).any(|(sum, counted)| *sum < counted) {
        let length = receiver.recv(&mut packet).unwrap_or_else(|error| panic!("{error}: {sums:?}"));
        for line in String::from_utf8_lossy(&packet[..length]).lines() {
            for (sum, name) in sums.iter_mut().zip(names) {
                let count = line.strip_prefix(name).and_then(|rest| rest.strip_suffix("|c"));
                *sum += count.map_or(0, |count| count.parse::<u64>().unwrap());
            }
        }
    }
    assert_eq!(sums, counted, "nothing is counted twice");
}

#[test]
fn top_ranks_the_refused_with_bounds_between_which_the_exact_counts_lie() {
    let server = start("['*']");
    // Many more callers than the 256 that are ranked: counts of the last are mostly those of callers before them.
    let users: Vec<String> = zipf(2_000, 12_000).iter().map(|user| format!("u{user}")).collect();
    ask(&server, &users);
    let mut refused = HashMap::<&str, i64>::new();
    users.iter().for_each(|user| *refused.entry(user).or_insert(-1) += 1);
    let shown = top(&server, TOKEN, &["--callers", "250"]);
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.first() == Some(&"refused"))
        .collect();
    assert_eq!(rows.len(), 250, "{shown}");
    let mut estimates = 0;
    for row in &rows {
        let [_, "api/once", caller, most, least, ..] = row[..] else { panic!("{row:?}") };
        let [most, least] = [most, least].map(|count| count.parse::<i64>().unwrap());
        let truth = refused[caller.strip_prefix("user=").unwrap()];
        assert!(least <= truth && truth <= most, "{row:?}: {truth}");
        estimates += usize::from(least < most);
    }
    assert!(estimates > 0, "all counts are exact: the traffic tells nothing of the bound\n{shown}");
    // The busiest are told apart however many others there are.
    let callers = rows.iter().take(3).map(|row| row[2]).collect::<Vec<_>>();
    assert_eq!(callers, ["user=u0", "user=u1", "user=u2"]);
}

/// A token of this role.
fn token(server: &Server, role: &str) -> String {
    let made = server.api("POST", "tokens", &json!({ "name": role, "role": role }).to_string());
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()["token"].as_str().unwrap().to_owned()
}

#[test]
fn top_shows_a_viewer_no_name_that_the_configuration_shows_to_others() {
    let server = start("['*']");
    ask(&server, &["alice", "alice"].map(str::to_owned));
    for role in ["editor", "admin"] {
        let shown = top(&server, &token(&server, role), &[]);
        assert!(shown.contains("user=alice"), "{role}: {shown}");
    }
    let viewer = token(&server, "viewer");
    for more in [&[][..], &["--output", "json"]] {
        let shown = top(&server, &viewer, more);
        assert!(!shown.contains("alice"), "{shown}");
        assert!(shown.contains("user=#") || shown.contains("\"#"), "a hash stands for it: {shown}");
    }
}

#[test]
fn top_shows_nobody_a_name_that_the_configuration_does_not_list() {
    let server = start("[]");
    ask(&server, &["alice", "alice"].map(str::to_owned));
    let shown = top(&server, &token(&server, "admin"), &[]);
    assert!(!shown.contains("alice") && shown.contains("user=#"), "{shown}");
}
