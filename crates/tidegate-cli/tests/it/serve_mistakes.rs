//! What `tidegate serve` says when it cannot start.

use std::fs;

use insta::assert_snapshot;

use crate::{run, run_in};

#[test]
fn a_taken_port_is_an_error_with_a_way_out() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = run(&["serve", "--http", &address, "--grpc", "off", "--resp", "off", "--admin", "off"]);
    assert_snapshot!(ran.replace(&address, "HOST:PORT"));
}

#[test]
fn rules_with_a_mistake_stop_it_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let limit = "{ algorithm: fixed_window, limit: 1, window: 0d }";
    let rules = format!("domain: api\nrules:\n  - name: per-user\n    key: [user]\n    limits: [{limit}]\n");
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    assert_snapshot!(run_in(dir.path(), &["serve", "--rules", "rules.yaml"]));
}

#[test]
fn a_mistake_in_the_configuration_is_shown_with_its_place_and_a_way_out() {
    let configs = [
        "listen:\n  htpp: 127.0.0.1:80\n",
        "listen:\n  http: 8080\n",
        "log: { level: inof }\n",
        "headers: [x-ratelimit, rfc]\n",
        "drain: { timeout: soon }\n",
        "store: { timeout: 10 }\n",
        "limits:\n  max_cells: 0\n",
        "workers: [1]\n",
        "listen: { http: a:1 }\nlisten: { grpc: a:2 }\n",
        "listen: {\n",
        "dashbord: { listen: a:1 }\n",
    ];
    let dir = tempfile::tempdir().unwrap();
    let shown = configs.map(|config| {
        fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
        run_in(dir.path(), &["serve", "--config", "tidegate.yaml"])
    });
    assert_snapshot!(shown.join("\n"));
}

#[test]
fn other_mistakes_at_the_start_say_what_to_do() {
    let shown = [
        &["serve", "--config", "absent.yaml"][..],
        &["serve", "--rules", "absent.yaml"],
        &["serve", "--store", "redis://user:sec/ret@127.0.0.1"],
        &["serve", "--store", "redis+sentinel://127.0.0.1"],
        &["serve", "--store", "etcd://127.0.0.1"],
        &["serve", "--http", ":8080"],
        &["serve", "--log-level", "loud"],
        &["serve", "--http", "off", "--grpc", "off", "--resp", "off", "--admin", "off"],
    ];
    let dir = tempfile::tempdir().unwrap();
    assert_snapshot!(shown.map(|args| run_in(dir.path(), args)).join("\n"));
}
