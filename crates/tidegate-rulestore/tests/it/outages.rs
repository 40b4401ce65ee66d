//! A database that is away, at the start and during work.

use std::time::Duration;

use sqlx::Connection as _;
use tidegate_rulestore::{Error, PublishError, RuleStore};
use tidegate_testkit::{Fault, FaultProxy, Postgres};

use crate::world::{publish, run, set};

#[test]
fn a_server_that_dies_and_comes_back_has_everything_that_was_acknowledged() {
    let mut server = Postgres::start();
    let url = server.new_database();
    run(async {
        let store = RuleStore::open(&url.parse().unwrap()).unwrap();
        store.migrate().await.unwrap();
        publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
        server.kill();
        assert!(matches!(store.head().await, Err(Error::Unavailable { .. })));
        let away = publish(&store, 1, &set(&[("api", "two")]), "").await;
        assert!(matches!(away, Err(PublishError::Store(Error::Unavailable { .. }))), "{away:?}");
        server.start_again();
        // The first question may find a connection that died with the server.
        let mut head = store.head().await;
        for _ in 0..5 {
            if head.is_err() {
                head = store.head().await;
            }
        }
        assert_eq!(head.unwrap().version, 1);
        assert_eq!(publish(&store, 1, &set(&[("api", "two")]), "").await.unwrap().number, 2);
    });
}

#[test]
fn a_server_that_is_away_at_the_start_is_an_error_within_seconds_and_no_hang() {
    let proxy = FaultProxy::start(Postgres::shared().addr());
    let url = Postgres::shared().new_database_at(proxy.addr());
    proxy.set(Fault::Refuse);
    run(async {
        let store = RuleStore::open(&url.parse().unwrap()).unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(10), store.migrate()).await.expect("no hang");
        assert!(matches!(asked, Err(Error::Unavailable { .. })), "{asked:?}");
        proxy.set(Fault::None);
        store.migrate().await.unwrap();
    });
}

#[test]
fn tables_that_somebody_holds_locked_are_an_error_and_no_hang() {
    let url = Postgres::shared().new_database();
    run(async {
        let store = RuleStore::open(&url.parse().unwrap()).unwrap();
        store.migrate().await.unwrap();
        let mut other = sqlx::PgConnection::connect(&url).await.unwrap();
        let tables = "head, documents, key_overrides, override_changes";
        let lock = format!("BEGIN; LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE");
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut other).await.unwrap();
        let now = tidegate_rules::Timestamp::from_micros(1);
        let (head, documents, changes, overrides) = tokio::join!(
            store.head(),
            store.documents(1),
            store.override_changes(0, 1),
            store.all_overrides(now)
        );
        assert!(head.is_err() && documents.is_err() && changes.is_err() && overrides.is_err());
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        assert_eq!(store.head().await.unwrap().version, 0);
    });
}
