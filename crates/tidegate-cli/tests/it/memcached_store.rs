//! Counters in a real Memcached: exact over two nodes, and by policy while it is unavailable.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_testkit::{Memcached, in_three_tries};

use crate::redis_exact::{LIMIT, flood};
use crate::redis_outage::{Memory, NOTICED, Outage, Reach};
use crate::redis_world::{BINARY, Node, PATIENT, alone};

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
    let expected = "rule `uploads`: memcached://127.0.0.1:1 cannot keep 60000 leases at once";
    assert!(said.contains(expected), "{said}");
}
