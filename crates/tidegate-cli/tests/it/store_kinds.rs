//! Every kind of store is named by what it is, on a real node, and counted with by what `tidegate plan` says of it.

use serde_json::Value;
use tidegate_testkit::{Memcached, Moto, Postgres, Redis, eventually, http};

use crate::control_world::{Node, PATIENCE};
use crate::tidegate;

/// What a node says of its store, and what is planned for it.
fn stores_and_plan(url: &str) -> (Value, Value) {
    let config =
        format!("store: {{ url: '{url}' }}\nrules: {{ paths: [rules.yaml] }}\nadmin: {{ database: none }}");
    let node = Node::start(&config);
    let mut plan = tidegate(&["plan", "--users", "10", "--output", "json", "--store", url, "--rules"]);
    let planned = plan.arg(node.dir.path().join("rules.yaml")).output().unwrap();
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    (node.get("/stores"), serde_json::from_slice(&planned.stdout).unwrap())
}

fn is_named(url: &str, kind: &str) {
    let (stores, plan) = stores_and_plan(url);
    assert_eq!(stores["kind"], kind, "{stores}");
    assert_eq!(plan["store"], kind, "{plan}");
    let (capacity, each) = (&stores["capacity"], format!("{kind}_bytes_each"));
    assert_eq!(capacity["bytes_per_key"], plan["counters"][0][each.as_str()], "{stores} {plan}");
    assert_eq!(capacity["calls_per_request"], plan[kind]["calls_per_request"], "{stores} {plan}");
}

#[test]
fn memory_is_named() {
    let (stores, plan) = stores_and_plan("memory:");
    assert_eq!((&stores["kind"], &plan["store"]), (&"memory".into(), &"memory".into()));
    assert!(stores["capacity"].is_null(), "{stores}");
}

#[test]
fn redis_is_named() {
    is_named(&Redis::start().url(), "redis");
}

#[test]
fn postgres_is_named() {
    is_named(&Postgres::shared().new_database(), "postgres");
}

#[test]
fn memcached_is_named() {
    is_named(&Memcached::url_of(&[&Memcached::start()]), "memcached");
}

#[test]
fn dynamodb_is_named() {
    is_named(&Moto::start().url("limits"), "dynamodb");
}

#[test]
fn an_alert_says_that_postgres_denies_what_a_node_needs() {
    let postgres = Postgres::shared();
    let own = postgres.new_database();
    let database = own.rsplit('/').next().unwrap();
    postgres.run(&own, &format!("CREATE ROLE denied LOGIN; GRANT CREATE ON DATABASE {database} TO denied"));
    let url = own.replace("postgres@", "denied@");
    let node = Node::start(&format!("store: {{ url: '{url}' }}\nadmin: {{ node: one, database: none }}"));
    eventually("it decides there", PATIENCE, || node.get("/stores")["health"] == "healthy");
    postgres.run(&own, "ALTER SCHEMA tidegate OWNER TO postgres");
    let summary = || {
        let alerts = node.get("/alerts");
        let active = alerts["active"].as_array().unwrap();
        let down = active.iter().find(|alert| alert["kind"] == "store_down")?;
        Some(down["summary"].as_str().unwrap().to_owned())
    };
    let expected = "it rejects the login, or denies what a node needs";
    eventually("an alert says why", PATIENCE, || summary().is_some_and(|told| told.contains(expected)));
    let endpoint = node.get("/stores")["nodes"][0]["endpoint"].as_str().unwrap().to_owned();
    let reason = format!("tidegate_store_last_failure{{node=\"{endpoint}\",reason=\"not_allowed\"}} 1");
    let metrics = http::get(node.admin, "/metrics").text();
    assert!(metrics.lines().any(|line| line == reason), "{metrics}");
}
