//! What a caller learns when a call fails, and what is left in the database.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, FixedWindow, Group, Limit, Micros, Outcome, Scope, Touch};
use tidegate_store::{CellKey, Request, Spend, Store, StoreError};
use tidegate_store_postgres::{PostgresConfig, PostgresStore};
use tidegate_testkit::{Fault, FaultProxy, Postgres};

use crate::subject::{patient, store};

pub(crate) fn limit(count: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(count, Micros::from_secs(86_400)).unwrap())
}

/// Spends one hit of each of these keys.
pub(crate) async fn spend(
    store: &PostgresStore,
    limit: &Limit,
    keys: &[&str],
) -> Result<Vec<Outcome>, StoreError> {
    let scope = Scope::new(&[b"faults"]);
    let touch = Touch { limit, ask: Ask::hits(1), group: Group::ENFORCED };
    let spends: Vec<Spend<'_>> = keys
        .iter()
        .map(|key| Spend { cell: CellKey { scope: &scope, key: key.as_bytes(), tag: key.as_bytes() }, touch })
        .collect();
    store.decide(&[Request::once(&spends)]).answer().await.map(|told| told.into_iter().collect())
}

pub(crate) async fn left(store: &PostgresStore, limit: &Limit, key: &str) -> u64 {
    let scope = Scope::new(&[b"faults"]);
    let touch = Touch { limit, ask: Ask::look(), group: Group::ENFORCED };
    let spends = [Spend { cell: CellKey { scope: &scope, key: key.as_bytes(), tag: b"" }, touch }];
    store.decide(&[Request::once(&spends)]).answer().await.unwrap()[0].remaining
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_over_the_same_rows_in_any_order_never_wait_for_each_other_in_a_circle() {
    let url = Postgres::shared().new_database();
    let one = Arc::new(store(&url, &patient().connections(8)));
    let keys: Vec<String> = (0..12).map(|number| format!("key{number}")).collect();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (one, keys) = (one.clone(), keys.clone());
            tokio::spawn(async move {
                let limit = limit(1_000_000);
                for round in 0..40 {
                    let mut own: Vec<&str> = keys.iter().map(String::as_str).collect();
                    own.rotate_left((task * 5 + round) % 12);
                    // Rows that nobody has created yet are among them each time.
                    let fresh = format!("fresh{round}");
                    own.push(&fresh);
                    spend(&one, &limit, &own).await.expect("no deadlock");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(left(&one, &limit(1_000_000), "key3").await, 1_000_000 - 8 * 40);
    assert_eq!(left(&one, &limit(1_000_000), "fresh7").await, 1_000_000 - 8);
}

#[tokio::test]
async fn a_refused_request_leaves_no_row() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let one = store(&url, &patient());
    assert!(spend(&one, &limit(1), &["spent"]).await.unwrap()[0].is_admitted());
    let refused = spend(&one, &limit(1), &["spent", "never seen"]).await.unwrap();
    assert_eq!(refused.iter().map(Outcome::is_admitted).collect::<Vec<_>>(), [false, true]);
    assert_eq!(left(&one, &limit(1), "never seen").await, 1);
    assert_eq!(postgres.query(&url, "SELECT count(*) FROM tidegate.cells").trim(), "1");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_has_certainly_applied_nothing() {
    let one = store("postgres://u@127.0.0.1:1/d", &PostgresConfig::default().timeout(Duration::from_secs(5)));
    let error = spend(&one, &limit(1), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied() && !error.is_late(), "{error:?}");
}

#[tokio::test]
async fn a_lock_held_elsewhere_makes_a_call_too_late_and_certainly_not_applied() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let (one, quick) = (store(&url, &patient()), store(&url, &patient().timeout(Duration::from_millis(300))));
    spend(&one, &limit(10), &["held"]).await.unwrap();
    // The quick one has its connection before it meets the lock.
    while spend(&quick, &limit(10), &["other"]).await.is_err() {}
    let (client, driver) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(driver);
    client.batch_execute("BEGIN; SELECT 1 FROM tidegate.cells FOR UPDATE").await.unwrap();
    let error = spend(&quick, &limit(10), &["held"]).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLate { .. }), "{error:?}");
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(left(&one, &limit(10), "held").await, 9);
}

#[tokio::test]
async fn a_lock_whose_answer_is_lost_is_certainly_not_applied() {
    let postgres = Postgres::shared();
    let proxy = FaultProxy::start(postgres.addr());
    let url = postgres.new_database_at(proxy.addr());
    let quick = store(&url, &patient().timeout(Duration::from_millis(500)));
    let all = limit(10);
    while spend(&quick, &all, &["a"]).await.is_err() {}
    let before = left(&quick, &all, "a").await;
    proxy.set(Fault::DropReplies);
    let error = spend(&quick, &all, &["a"]).await.unwrap_err();
    // No commit was sent.
    assert!(error.is_certainly_not_applied(), "{error:?}");
    proxy.resume();
    let direct = store(&url.replace(&proxy.addr().to_string(), &postgres.addr().to_string()), &patient());
    assert_eq!(left(&direct, &all, "a").await, before);
}

#[tokio::test]
async fn commit_whose_answer_is_lost_is_in_doubt_and_counts() {
    let postgres = Postgres::shared();
    let proxy = FaultProxy::start(postgres.addr());
    let url = postgres.new_database_at(proxy.addr());
    let one = store(&url, &patient());
    spend(&one, &limit(10), &["a"]).await.unwrap();
    proxy.set(Fault::LoseReplyTo(b"COMMIT\0"));
    let error = spend(&one, &limit(10), &["a"]).await.unwrap_err();
    assert!(matches!(error, StoreError::FateUnknown { .. }), "{error:?}");
    let direct = store(&url.replace(&proxy.addr().to_string(), &postgres.addr().to_string()), &patient());
    // The look waits for the row until the commit has ended.
    assert_eq!(left(&direct, &limit(10), "a").await, 8, "it was committed");
    proxy.resume();
    assert_eq!(left(&one, &limit(10), "a").await, 8, "it was not sent again");
}

/// The answer to the lock comes later than the server lets a transaction stand still.
#[tokio::test]
async fn transaction_that_was_held_for_too_long_starts_again() {
    let postgres = Postgres::shared();
    let proxy = FaultProxy::start(postgres.addr());
    let one = store(&postgres.new_database_at(proxy.addr()), &patient());
    spend(&one, &limit(10), &["a"]).await.unwrap();
    proxy.set(Fault::Delay(Duration::from_millis(700)));
    let asked = tokio::spawn(async move {
        let told = spend(&one, &limit(10), &["a"]).await;
        (one, told)
    });
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    proxy.resume();
    let (one, told) = asked.await.unwrap();
    assert!(told.unwrap()[0].is_admitted());
    assert_eq!(left(&one, &limit(10), "a").await, 8, "it was applied once");
}

#[tokio::test]
async fn user_with_only_the_later_rights_decides_sweeps_and_looks() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    spend(&store(&url, &patient()), &limit(10), &["a"]).await.unwrap();
    // As docs/operate/stores.md lists them, and no more.
    postgres.run(
        &url,
        "CREATE ROLE later LOGIN; REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM PUBLIC; \
         GRANT USAGE ON SCHEMA tidegate TO later; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tidegate TO later; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tidegate TO later",
    );
    let one = store(&url.replace("postgres@", "later@"), &patient());
    assert_eq!(spend(&one, &limit(10), &["a"]).await.unwrap()[0].remaining, 8);
    assert_eq!(one.sweep().await.unwrap(), 0);
    one.look().await.unwrap();
    assert_eq!(one.heartbeat(1, Micros::from_secs(60)).answer().await.unwrap(), 1);
    postgres.run(&url, "REVOKE UPDATE ON tidegate.cells FROM later");
    let error = one.look().await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "a look tries to write: {error:?}");
}

#[tokio::test]
async fn what_has_ended_is_swept_and_nothing_else() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let one = store(&url, &patient());
    spend(&one, &limit(10), &["lasting"]).await.unwrap();
    postgres.run(
        &url,
        "INSERT INTO tidegate.cells SELECT gen_random_uuid(), 'x', 1000 FROM generate_series(1, 2000)",
    );
    let mut deleted = 0;
    while deleted < 2_000 {
        // As if a second had passed since the last piece.
        postgres.run(&url, "UPDATE tidegate.sweeps SET at = 0");
        deleted += one.sweep().await.unwrap();
    }
    assert_eq!(one.sweep().await.unwrap(), 0, "at most once a second");
    assert_eq!(postgres.query(&url, "SELECT count(*) FROM tidegate.cells").trim(), "1");
    assert_eq!(left(&one, &limit(10), "lasting").await, 9);
}

#[tokio::test]
async fn updates_stay_in_their_pages() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let one = store(&url, &patient());
    for _ in 0..300 {
        spend(&one, &limit(1_000), &["a"]).await.unwrap();
    }
    let share = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'cells'";
    let told = tidegate_testkit::poll(Duration::from_secs(20), || {
        let told = postgres.query(&url, share);
        let (all, hot) = told.trim().split_once('|').map(|(all, hot)| (all.to_owned(), hot.to_owned()))?;
        (all.parse::<u64>().ok()? >= 300).then_some((all, hot))
    });
    let (all, hot) = told.expect("the server counts its updates");
    assert_eq!(all, hot, "every update is a HOT update");
}
