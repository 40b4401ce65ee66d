//! Counters in a real Memcached: exact over two nodes, and by policy while it is unavailable.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_testkit::{Memcached, eventually, in_three_tries};

use crate::redis_exact::{LIMIT, flood, flood_one_key};
use crate::redis_outage::{Memory, NOTICED, Outage, Reach};
use crate::redis_world::{BINARY, Node, PATIENCE, PATIENT, alone, check};

const THOUSAND: &str =
    "- { name: one, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }";

#[test]
fn memcached_two_nodes_admit_exactly_a_thousand_of_eleven_hundred_with_sixty_four_in_flight() {
    let _alone = alone();
    let servers = [(); 2].map(|()| Memcached::start());
    let nodes = Node::pair(&Memcached::url_of(&servers.each_ref()), PATIENT, THOUSAND);
    assert_eq!(flood(&nodes.each_ref(), 8), [LIMIT; 8]);
}

/// Breaks a server under load in one way, and mends it.
fn outage(what: &str, memory: Memory, lasts: Duration, begin: fn(&mut Memcached), end: fn(&mut Memcached)) {
    let _alone = alone();
    in_three_tries(|| {
        let server = Mutex::new(Memcached::start());
        let with = |act: fn(&mut Memcached)| act(&mut server.lock().unwrap_or_else(PoisonError::into_inner));
        let url = Memcached::url_of(&[&server.lock().unwrap_or_else(PoisonError::into_inner)]);
        Outage { what, url, lasts, noticed: NOTICED, memory, reach: Reach::All }
            .run(|| with(begin), || with(end))
    });
}

#[test]
fn memcached_that_is_killed_and_restarted() {
    let lasts = Duration::from_millis(1_500);
    outage("Memcached killed", Memory::Lost, lasts, |one| one.process().kill(), Memcached::start_again);
}

#[test]
fn memcached_that_stands_still_for_five_seconds() {
    let lasts = Duration::from_secs(5);
    outage(
        "Memcached stopped",
        Memory::Kept,
        lasts,
        |one| one.process().pause(),
        |one| one.process().resume(),
    );
}

#[test]
fn a_limit_that_memcached_cannot_keep_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "domain: api\nrules:\n- { name: uploads, key: [user], limits: [{ algorithm: concurrency, limit: 60000, ttl: 30s }] }";
    std::fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let path = dir.path().join("tidegate.yaml");
    let config = "store: { url: 'memcached://127.0.0.1:1' }\nlisten: { http: '127.0.0.1:0' }\nrules: { paths: [rules.yaml] }\n";
    std::fs::write(&path, config).unwrap();
    let done = Command::new(BINARY).arg("serve").arg("--config").arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success(), "{said}");
    let expected = "rule `uploads` cannot be exact: Memcached cannot keep 60000 leases at once of one key";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_limit_that_memcached_cannot_keep_is_refused_when_it_comes_with_a_reload_too() {
    let server = Memcached::start();
    let mut node = Node::ready(&Memcached::url_of(&[&server]), PATIENT, THOUSAND);
    let two = "- { name: uploads, key: [user], limits: [{ name: a, algorithm: concurrency, limit: 20000, ttl: 30s }, \
               { name: b, algorithm: concurrency, limit: 20000, ttl: 30s }] }";
    node.write_rules(two);
    node.server.reload();
    let expected =
        "rule `uploads` cannot be exact: Memcached cannot keep 20000 leases at once and 20000 leases at once";
    eventually("the rules are refused by name", PATIENCE, || node.server.stderr().contains(expected));
    assert_eq!(node.metric("tidegate_config_last_reload_success"), 0.0);
    assert!(check(&mut node.client(), &[("user", "a")], 1).is_exact(), "the old ones stay");
}

/// Commands over items, by the server's own count.
fn commands(server: &Memcached) -> u64 {
    let count = |name| server.statistic(name);
    count("cmd_get") + count("cmd_set")
}

#[test]
fn memcached_flood_of_one_key_costs_hardly_any_commands() {
    let _alone = alone();
    let server = Memcached::start();
    let node = Node::ready(&Memcached::url_of(&[&server]), PATIENT, THOUSAND);
    let flood = flood_one_key(&node, || commands(&server) as f64);
    // Two calls a second: one that asks again, and one for those who came meanwhile. Each reads the item, and the server's time with
    // it. And what a busy machine shifts between the two spans.
    assert!(flood < 10.0, "{flood} commands a second for one key that is refused");
}
