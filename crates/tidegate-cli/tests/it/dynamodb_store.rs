//! Counters in an emulated DynamoDB (`moto`; never run against AWS): exact over two nodes, and one clear line where it cannot be used.

use std::process::Command;

use tidegate_testkit::Moto;

use crate::redis_exact::{LIMIT, flood};
use crate::redis_world::{BINARY, Node, PATIENT, alone};

const THOUSAND: &str =
    "- { name: one, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }";

#[test]
fn dynamodb_two_nodes_admit_exactly_a_thousand_of_eleven_hundred_with_sixty_four_in_flight() {
    let _alone = alone();
    let server = Moto::start();
    let nodes = Node::pair(&server.url("limits"), PATIENT, THOUSAND);
    assert_eq!(flood(&nodes.each_ref(), 8), [LIMIT; 8]);
}

/// What `serve` says when it must have its store and does not start.
fn said(url: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let rules = "domain: api\nrules:\n- { name: uploads, key: [user], limits: [{ algorithm: concurrency, limit: 60000, ttl: 30s }] }";
    std::fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let path = dir.path().join("tidegate.yaml");
    let config = format!(
        "store: {{ url: '{url}' }}\nlisten: {{ http: '127.0.0.1:0' }}\nrules: {{ paths: [rules.yaml] }}\n"
    );
    std::fs::write(&path, config).unwrap();
    let done = Command::new(BINARY).arg("serve").arg("--config").arg(&path).output().unwrap();
    assert!(!done.status.success());
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn a_limit_that_dynamodb_cannot_keep_is_refused_by_name() {
    let said = said("dynamodb://limits?region=eu-west-1");
    let expected = "rule `uploads`: dynamodb://limits?region=eu-west-1 cannot keep 60000 leases at once";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_url_without_a_region_says_how_to_write_it() {
    let said = said("dynamodb://limits");
    assert!(said.contains("cannot read the store's url: it has no region"), "{said}");
}
