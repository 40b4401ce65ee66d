//! `tidegate plan`

use std::fs;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_core::{
    Ask, Concurrency, Group, LeaseId, Limit, Micros, RefusedHits, Scope, SlidingLog, SlidingWindow, Touch,
};
use tidegate_store::{CellKey, Request, Spend, Store};
use tidegate_store_memcached::{MemcachedConfig, MemcachedStore};
use tidegate_store_postgres::{PostgresConfig, PostgresStore};
use tidegate_store_redis::{RedisConfig, RedisStore};
use tidegate_testkit::{Memcached, Postgres, Redis, eventually, http};

use crate::control_world::{Node, PATIENCE};
use crate::{run_in, tidegate};

const RULES: &str = "\
domain: api
rules:
  - { name: per-user, key: [user], limits: [1000/hour] }
  - { name: log, key: [user], limits: [{ algorithm: sliding_log, limit: 100, window: 1h }] }
  - { name: uploads, key: [user], limits: [{ algorithm: concurrency, limit: 50, ttl: 1h }] }
  - { name: per-plan, key: [tenant], tiers: { on: plan, default: free, free: [200/minute], pro: [1000/minute] } }
  - { name: everybody, key: [], limits: [{ algorithm: token_bucket, rate: 10000/s, burst: 20000 }] }
  - { name: here, key: [user], limits: [1000/s], coordination: local }
";

fn dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    dir
}

/// The plan that a program gets, for a million users unless `more` says otherwise.
fn planned(dir: &TempDir, more: &[&str]) -> Value {
    let users = if more.contains(&"--users") { &[][..] } else { &["--users", "1000000"] };
    let args = [&["plan", "--rules", "rules.yaml", "--output", "json"], users, more].concat();
    let output = tidegate(&args).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn counter<'p>(plan: &'p Value, rule: &str) -> Vec<&'p Value> {
    plan["counters"].as_array().unwrap().iter().filter(|counter| counter["rule"] == rule).collect()
}

#[test]
fn a_server_says_how_full_and_busy_its_redis_is_by_what_plan_counts_with() {
    let redis = Redis::start();
    let config = format!("store: {{ url: '{}' }}\nrules: {{ paths: [rules.yaml] }}", redis.url());
    let node = Node::start(&config);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let mut stores = Value::Null;
    let mut users = 0..;
    eventually("it knows how much its Redis may hold, and who asks", PATIENCE, || {
        let user = format!("u{}", users.next().unwrap_or(0));
        let check = json!({ "domain": "api", "attributes": { "user": user } }).to_string();
        assert_eq!(http::post_json(node.http, "/v1/check", &check).status, 200);
        stores = node.get("/stores");
        stores["most_bytes"] == 100 << 20 && stores["capacity"]["requests_per_s"].as_f64() > Some(0.0)
    });
    let (plan, capacity) = (planned(&node.dir, &[]), &stores["capacity"]);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number: {value}, {stores}"));
    assert_eq!(capacity["bytes_per_key"], counter(&plan, "per-user")[0]["redis_bytes_each"], "{stores}");
    assert_eq!(capacity["calls_per_request"], plan["redis"]["calls_per_request"]);
    let free = number(&stores["most_bytes"]) - number(&stores["bytes"]);
    assert_eq!(number(&capacity["keys_until_full"]), (free / number(&capacity["bytes_per_key"])).floor());
    let one_core = number(&plan["assumed"]["rate_per_s"]) / number(&plan["redis"]["cores"]);
    assert_eq!(number(&capacity["requests_per_s_most"]), one_core.floor());

    let alone = Node::start("store: { url: 'memory:' }\nrules: { paths: [rules.yaml] }");
    assert_eq!(alone.get("/stores")["capacity"], Value::Null, "memory was not measured");
}

#[test]
fn a_person_reads_what_is_needed_and_what_was_assumed() {
    assert_snapshot!(run_in(
        dir().path(),
        &["plan", "--users", "1000000", "--rules", "rules.yaml", "--rate", "50000", "--keys", "per-plan=300"]
    ));
}

#[test]
fn a_key_has_one_counter_per_limit_and_tiers_share_theirs() {
    let plan = planned(&dir(), &["--keys", "per-plan=300"]);
    let keys = |rule| {
        counter(&plan, rule).iter().map(|counter| counter["keys"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(keys("per-user"), [1_000_000]);
    assert_eq!(keys("per-plan"), [300], "both tiers count per minute");
    assert_eq!(keys("everybody"), [1]);
    assert_eq!(counter(&plan, "here")[0]["redis_bytes_each"], Value::Null, "it never leaves its node");
}

#[test]
fn disabled_rules_need_nothing() {
    let (dir, without) = (dir(), dir());
    let more = "  - { name: off, key: [other], limits: [9/s], enabled: false }\n  \
        - { name: off-too, key: [user], limits: [9/s], coordination: approximate, enabled: false }\n";
    fs::write(dir.path().join("rules.yaml"), format!("{RULES}{more}")).unwrap();
    assert_eq!(planned(&dir, &["--rate", "50000"]), planned(&without, &["--rate", "50000"]));
}

#[test]
fn totals_are_the_sum_of_the_counters() {
    let plan = planned(&dir(), &[]);
    for (total, each) in [("memory", "memory_bytes_each"), ("redis", "redis_bytes_each")] {
        let counters = plan["counters"].as_array().unwrap();
        let sum: u64 = counters
            .iter()
            .map(|counter| counter[each].as_u64().unwrap_or(0) * counter["keys"].as_u64().unwrap())
            .sum();
        assert_eq!(plan[total]["bytes"], sum, "{total}");
    }
}

#[test]
fn a_request_over_several_keys_is_several_calls_where_servers_are() {
    let dir = dir();
    let calls =
        |store: &str| planned(&dir, &["--store", store, "--rate", "1000"])["redis"]["calls_per_s"].as_f64();
    assert_eq!(calls("redis://127.0.0.1:6379"), Some(1_000.0));
    assert_eq!(calls("redis+cluster://127.0.0.1:7000"), Some(3_000.0), "user, tenant and everybody");
    assert_eq!(calls("redis+sharded://127.0.0.1:7000,127.0.0.1:7001"), Some(3_000.0));
}

#[test]
fn an_approximate_rule_reports_instead_of_asking() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "domain: api\nrules: [{ name: a, key: [user], limits: [10/s], coordination: approximate, sync_every: 2s }]";
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let calls =
        |rate: &str| planned(&dir, &["--users", "1000", "--rate", rate])["redis"]["calls_per_s"].as_f64();
    assert_eq!(calls("100000"), Some(500.0), "each of 1,000 keys every two seconds");
    assert_eq!(calls("20"), Some(20.0), "never more often than it is asked for");
}

#[test]
fn more_memory_or_more_calls_need_more_nodes() {
    let dir = dir();
    let nodes = |more: &[&str]| planned(&dir, more)["redis"]["nodes"].as_u64().unwrap();
    assert_eq!(nodes(&["--rate", "1000"]), 1);
    assert!(nodes(&["--rate", "1000", "--node-memory", "256MiB"]) > 4);
    assert!(nodes(&["--rate", "500000"]) > nodes(&["--rate", "500000", "--cpu-use", "90"]));
}

#[test]
fn a_store_that_is_too_small_is_told_so_without_showing_its_password() {
    let args = ["plan", "--users", "1000000", "--rules", "rules.yaml", "--rate", "300000", "--store"];
    let ran = run_in(dir().path(), &[&args[..], &["redis://:hunter2@127.0.0.1:6379"]].concat());
    assert!(ran.starts_with("exit 0") && ran.contains("is not enough: 1 of"), "{ran}");
    assert!(!ran.contains("hunter2"), "{ran}");
}

#[test]
fn each_store_is_planned_by_its_own_figures() {
    let dir = dir();
    let plan = |store: &str| planned(&dir, &["--store", store, "--rate", "1000"]);
    for (store, name, calls) in [
        ("postgres://u:hunter2@db/app", "postgres", 2),
        ("memcached://one,two", "memcached", 3),
        ("dynamodb://limits?region=eu-west-1", "dynamodb", 2),
    ] {
        let plan = plan(store);
        assert_eq!(
            (&plan["store"], &plan[name]["calls_per_request"]),
            (&json!(name), &json!(calls)),
            "{plan}"
        );
        assert_eq!(plan["redis"], Value::Null, "{plan}");
        let each = format!("{name}_bytes_each");
        let sum: u64 = plan["counters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|counter| counter[each.as_str()].as_u64().unwrap_or(0) * counter["keys"].as_u64().unwrap())
            .sum();
        assert_eq!(plan[name]["bytes"], sum, "{plan}");
        assert_eq!(plan[name]["cores"].is_null(), name == "dynamodb", "nobody runs its servers: {plan}");
        assert_eq!(plan["store_servers"], if name == "memcached" { json!(2) } else { Value::Null });
        assert!(!plan.to_string().contains("hunter2"));
    }
    let text = |store: &str| {
        let args =
            ["plan", "--users", "1000000", "--rules", "rules.yaml", "--node-memory", "256MiB", "--store"];
        run_in(dir.path(), &[&args[..], &[store]].concat())
    };
    let of_postgres = text("postgres://u@db/app");
    assert!(of_postgres.contains("BYTES (POSTGRESQL)") && of_postgres.contains("\nPostgreSQL memory  "));
    assert!(of_postgres.contains("bench stores") && !of_postgres.contains("Redis"), "{of_postgres}");
    let of_memcached = text("memcached://one,two");
    assert!(of_memcached.contains("is not enough: 2 of") && of_memcached.contains("name more of them"));
}

#[test]
fn mistakes_name_the_flag_and_a_way_out() {
    let dir = dir();
    let plan = |more: &[&str]| run_in(dir.path(), &[&["plan", "--rules", "rules.yaml"], more].concat());
    for (ran, expected) in [
        (plan(&["--users", "0"]), "--users"),
        (plan(&["--users", "5", "--store", "redis:/x"]), "--store"),
        (plan(&["--users", "5", "--keys", "per-usr=3"]), "did you mean `per-user`?"),
        (plan(&["--users", "5", "--keys", "per-user"]), "such as per-tenant=300"),
        (plan(&["--users", "5", "--rate", "none"]), "such as 20000"),
        (plan(&["--users", "5", "--node-memory", "8"]), "such as 512MiB or 8GB"),
        (run_in(dir.path(), &["plan", "--users", "5", "--rules", "none.yaml"]), "none.yaml"),
    ] {
        assert!(!ran.starts_with("exit 0") && ran.contains(expected), "{expected}: {ran}");
    }
}

/// Has `users` users spend all that `limit` allows.
async fn spend_all(store: &dyn Store, limit: &Limit, users: usize) {
    let scope = Scope::new(&[b"api", b"per-user", b"a limit", b"algorithm"]);
    for user in 0..users {
        let key = format!("{user:08}").into_bytes();
        let (requests, hits) = match limit {
            Limit::Concurrency(limit) => (limit.limit(), 1),
            _ => (1, limit.quota()),
        };
        let lease = |number: u64| LeaseId((number << 40 | 0xff).try_into().unwrap());
        let ask = |number| Ask { lease: Some(lease(number)), ..Ask::hits(hits) };
        let touch = |number| Touch { limit, ask: ask(number), group: Group::ENFORCED };
        let cell = CellKey { scope: &scope, key: &key, tag: &key };
        let spends: Vec<[Spend<'_>; 1]> =
            (1..=requests).map(|number| [Spend { cell, touch: touch(number) }]).collect();
        let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
        let outcomes = store.decide(&batch).answer().await.unwrap();
        assert!(outcomes.iter().all(|outcome| outcome.is_admitted()));
    }
}

/// What `users` users take in a real Redis who spend all that `limit` allows, in bytes each.
async fn really_takes(limit: &Limit, users: usize) -> f64 {
    let redis = Redis::start();
    let config = RedisConfig::default().timeout(PATIENCE);
    let store = RedisStore::new(&redis.url().parse().unwrap(), &config).unwrap();
    let used = || redis.info("used_memory").unwrap().parse::<f64>().unwrap();
    let before = used();
    spend_all(&store, limit, users).await;
    (used() - before) / users as f64
}

/// The same in a real PostgreSQL.
async fn takes_in_postgres(limit: &Limit, users: usize) -> f64 {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let store =
        PostgresStore::new(&url.parse().unwrap(), &PostgresConfig::default().timeout(PATIENCE)).unwrap();
    spend_all(&store, limit, users).await;
    let told = postgres.query(&url, "SELECT pg_total_relation_size('tidegate.cells')");
    told.trim().parse::<f64>().unwrap() / users as f64
}

/// The same in a real Memcached: what it counts of its items.
async fn takes_in_memcached(limit: &Limit, users: usize) -> f64 {
    let memcached = Memcached::start();
    let url = Memcached::url_of(&[&memcached]);
    let store =
        MemcachedStore::new(&url.parse().unwrap(), &MemcachedConfig::default().timeout(PATIENCE)).unwrap();
    spend_all(&store, limit, users).await;
    memcached.statistic("bytes") as f64 / users as f64
}

/// A limit of each form, by the rule of [`RULES`] that has it.
fn one_of_each_form() -> [(&'static str, Limit); 3] {
    let hour = Micros::from_secs(3_600);
    [
        ("per-user", Limit::SlidingWindow(SlidingWindow::new(1000, hour).unwrap())),
        ("log", Limit::SlidingLog(SlidingLog::new(100, hour, Micros::ZERO, RefusedHits::Forget).unwrap())),
        ("uploads", Limit::Concurrency(Concurrency::new(50, hour, RefusedHits::Forget).unwrap())),
    ]
}

#[tokio::test]
async fn the_bytes_of_a_counter_are_those_of_a_real_redis() {
    let plan = planned(&dir(), &[]);
    for (rule, limit) in one_of_each_form() {
        let expected = counter(&plan, rule)[0]["redis_bytes_each"].as_f64().unwrap();
        let real = really_takes(&limit, 4_000).await;
        // Redis's tables double as they grow, so a user costs more or less with their number.
        assert!((0.8..1.25).contains(&(expected / real)), "{rule}: {expected} planned, {real} measured");
    }
}

#[tokio::test]
async fn the_bytes_of_a_counter_are_at_least_those_of_a_real_postgres_and_memcached() {
    let dir = dir();
    let of = |plan: &Value, rule, name: &str| counter(plan, rule)[0][name].as_f64().unwrap();
    let in_postgres = planned(&dir, &["--store", "postgres://u@h/d"]);
    let in_memcached = planned(&dir, &["--store", "memcached://h"]);
    for (rule, limit) in one_of_each_form() {
        // A hit that comes by itself takes more than one of a burst: here all come at once.
        let most = if rule == "per-user" { 1.6 } else { 6.0 };
        for (expected, real) in [
            (of(&in_postgres, rule, "postgres_bytes_each"), takes_in_postgres(&limit, 2_000).await),
            (of(&in_memcached, rule, "memcached_bytes_each"), takes_in_memcached(&limit, 2_000).await),
        ] {
            assert!((0.9..most).contains(&(expected / real)), "{rule}: {expected} planned, {real} measured");
        }
    }
}
