//! Counters in a real PostgreSQL: exact over two nodes, and by policy while it is unavailable.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_testkit::{Postgres, in_three_tries};

use crate::redis_exact::{LIMIT, flood, flood_one_key};
use crate::redis_outage::{Memory, NOTICED, Outage, Reach};
use crate::redis_world::{BINARY, Node, PATIENT, alone, check, now, pass, tell};

const THOUSAND: &str =
    "- { name: one, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }";

#[test]
fn postgres_two_nodes_admit_exactly_a_thousand_of_eleven_hundred_with_sixty_four_in_flight() {
    let _alone = alone();
    let postgres = Postgres::start();
    let nodes = Node::pair(&postgres.new_database(), PATIENT, THOUSAND);
    assert_eq!(flood(&nodes.each_ref(), 8), [LIMIT; 8]);
}

/// Breaks a server under load in one way, and mends it.
fn outage(what: &str, memory: Memory, lasts: Duration, begin: fn(&mut Postgres), end: fn(&mut Postgres)) {
    let _alone = alone();
    let postgres = Mutex::new(Postgres::start());
    let with = |act: fn(&mut Postgres)| act(&mut postgres.lock().unwrap_or_else(PoisonError::into_inner));
    in_three_tries(|| {
        let url = postgres.lock().unwrap_or_else(PoisonError::into_inner).new_database();
        Outage { what, url, lasts, noticed: NOTICED, memory, reach: Reach::All }
            .run(|| with(begin), || with(end))
    });
}

/// Its table is unlogged: it comes back empty.
#[test]
fn postgres_that_is_killed_and_restarted() {
    let lasts = Duration::from_millis(1_500);
    outage("PostgreSQL killed", Memory::Lost, lasts, Postgres::kill, Postgres::start_again);
}

#[test]
fn postgres_that_stands_still_for_five_seconds() {
    let lasts = Duration::from_secs(5);
    outage("PostgreSQL stopped", Memory::Kept, lasts, Postgres::pause, Postgres::resume);
}

/// Committed transactions that took no longer than a decision, by the server's own count.
fn transactions(postgres: &Postgres, url: &str) -> f64 {
    let told = postgres.query(
        url,
        "SELECT pg_stat_force_next_flush(), sum(xact_commit + xact_rollback) FROM pg_stat_database WHERE datname = current_database()",
    );
    told.trim_start_matches('|').trim().parse().expect("a number")
}

#[test]
fn postgres_flood_of_one_key_costs_hardly_any_transactions() {
    let _alone = alone();
    let postgres = Postgres::start();
    let url = postgres.new_database();
    let node = Node::ready(&url, PATIENT, THOUSAND);
    let flood = flood_one_key(&node, || transactions(&postgres, &url));
    // One a second, and what a busy machine shifts between the two spans.
    assert!(flood < 3.0, "{flood} transactions a second for one key that is refused");
}

#[test]
fn postgres_rows_of_a_node_that_stops_between_lock_and_commit_are_free_again() {
    let _alone = alone();
    let postgres = Postgres::start();
    let url = postgres.new_database();
    let rules =
        "- { name: one, key: [user], limits: [{ algorithm: fixed_window, limit: 100000000, window: 1d }] }";
    let [mut stopped, other] = Node::pair(&url, PATIENT, rules);
    let ends = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (mut client, ends) = (stopped.client(), ends.clone());
            let one = ["TG.CHECK", "api", "COST", "1", "user", "a"].map(str::to_owned).to_vec();
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    client.pipeline(&vec![one.clone(); 16]);
                }
            })
        })
        .collect();
    let mut client = other.client();
    // Whether a stop falls between lock and commit is chance; so many in a row do not all miss.
    let held = (0..40).filter(|_| {
        pass(Duration::from_millis(30));
        stopped.server.process().pause();
        let held = postgres.query(
            &url,
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name = 'tidegate'",
        );
        let (began, answer) = (now(), check(&mut client, &[("user", "a")], 1));
        let took = began.elapsed();
        stopped.server.process().resume();
        assert!(answer.is_exact() && took < Duration::from_secs(3), "{answer:?} after {took:?}");
        held.trim() != "0"
    });
    let held = held.count();
    ends.store(true, Ordering::Relaxed);
    load.into_iter().for_each(|one| one.join().unwrap());
    tell!("{held} of 40 stops fell between lock and commit");
    assert!(held > 0, "no stop fell between lock and commit");
}

#[test]
fn postgres_that_cannot_be_used_is_named_in_one_line_before_serving() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    postgres.run(&url, "CREATE ROLE stranger LOGIN");
    let other = |from: &str, to: &str| url.replace(from, to);
    let database = url.rsplit('/').next().unwrap();
    postgres.run(&url, &format!("REVOKE CREATE ON DATABASE {database} FROM PUBLIC"));
    for (url, problem) in [
        (other("postgres@", "stranger@"), "permission denied for database"),
        (other("postgres@", "nobody@"), "role \"nobody\" does not exist"),
        (other(database, "elsewhere"), "database \"elsewhere\" does not exist"),
    ] {
        let line = refused(&url);
        assert!(line.contains("cannot be used") && line.contains(problem), "{line}");
    }
    postgres.run(&url, &format!("ALTER DATABASE {database} SET default_transaction_read_only = on"));
    let line = refused(&url);
    assert!(line.contains("read-only replica"), "{line}");
}

/// The first line of what a server says that requires the store at `url` and cannot have it.
fn refused(url: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("store: {{ url: '{url}', required: true }}\nlisten: {{ http: '127.0.0.1:0' }}\n");
    let path = dir.path().join("tidegate.yaml");
    std::fs::write(&path, config).unwrap();
    let done = Command::new(BINARY).arg("serve").arg("--config").arg(&path).output().unwrap();
    assert!(!done.status.success());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    said.lines().find(|line| line.starts_with("error")).unwrap_or(&said).to_owned()
}

#[test]
fn postgres_serves_again_after_its_tables_were_dropped() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let node = Node::ready(&url, PATIENT, THOUSAND);
    let mut client = node.client();
    assert!(check(&mut client, &[("user", "a")], 1).is_exact());
    postgres.run(&url, "DROP SCHEMA tidegate CASCADE");
    tidegate_testkit::eventually("it set up what is missing", crate::redis_world::PATIENCE, || {
        let answer = check(&mut client, &[("user", "b")], 1);
        answer.is_exact() && answer.allowed
    });
}
