//! A database that is unavailable, at startup and during work.

use std::time::Duration;

use sqlx::Connection as _;
use tidegate_rulestore::{Error, PublishError, RuleStore};
use tidegate_testkit::{Fault, FaultProxy, Postgres};

use crate::world::{Database, publish, run, set};

/// Long enough for a database's answer, on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

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
        // The first query may find a connection that died with the server.
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
fn nothing_is_acknowledged_that_a_file_would_take_along_which_is_no_longer_in_its_place() {
    run(async {
        let database = Database::sqlite();
        let store = database.store().await;
        publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
        let path = database.url.strip_prefix("sqlite:").unwrap();
        let aside = format!("{path}.aside");
        for replaced in [false, true] {
            std::fs::rename(path, &aside).unwrap();
            if replaced {
                std::fs::copy(&aside, path).unwrap();
            }
            let refused = publish(&store, 1, &set(&[("api", "two")]), "").await;
            assert!(matches!(refused, Err(PublishError::Store(Error::Replaced { .. }))), "{refused:?}");
            assert!(matches!(store.head().await, Err(Error::Replaced { .. })));
            assert_eq!(std::path::Path::new(path).exists(), replaced, "no empty one takes its place");
            std::fs::rename(&aside, path).unwrap();
        }
        assert_eq!(publish(&store, 1, &set(&[("api", "two")]), "").await.unwrap().number, 2);
    });
}

#[test]
fn tables_that_somebody_holds_locked_are_an_error_and_no_hang() {
    let url = Postgres::shared().new_database();
    run(async {
        let store = RuleStore::open(&url.parse().unwrap()).unwrap().answering_within(SHORT);
        store.migrate().await.unwrap();
        let mut other = sqlx::PgConnection::connect(&url).await.unwrap();
        let tables = "head, documents, key_overrides, override_changes";
        let lock = format!("BEGIN; LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE");
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut other).await.unwrap();
        let now = tidegate_rules::Timestamp::from_micros(1);
        let asked = async {
            let (head, documents, changes, overrides) = tokio::join!(
                store.head(),
                store.documents(1),
                store.override_changes((0, 0), 1),
                store.all_overrides(now)
            );
            [head.is_err(), documents.is_err(), changes.is_err(), overrides.is_err()]
        };
        let failed = tokio::time::timeout(Duration::from_secs(30), asked).await.expect("no hang");
        assert_eq!(failed, [true; 4]);
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        assert_eq!(store.head().await.unwrap().version, 0);
    });
}

/// How many sessions wait in a statement that begins like this.
async fn waiting(watcher: &mut sqlx::PgConnection, statement: &str) -> i64 {
    let count = "SELECT COUNT(*) FROM pg_stat_activity WHERE state = 'active' AND wait_event IS NOT NULL \
        AND datname = current_database() AND pid <> pg_backend_pid() AND query LIKE $1";
    let row = sqlx::query(count).bind(format!("{statement}%")).fetch_one(watcher).await.unwrap();
    sqlx::Row::get(&row, 0)
}

/// A new database behind a proxy: its address there, and its own.
fn behind_a_proxy() -> (FaultProxy, String, String) {
    let proxy = FaultProxy::start(Postgres::shared().addr());
    let url = Postgres::shared().new_database_at(proxy.addr());
    let direct = url.replace(&proxy.addr().to_string(), &Postgres::shared().addr().to_string());
    (proxy, url, direct)
}

/// A store with a short timeout, and a connection that observes its server.
async fn impatient(url: &str, direct: &str) -> (RuleStore, sqlx::PgConnection) {
    let store = RuleStore::open(&url.parse().unwrap()).unwrap().answering_within(SHORT);
    store.migrate().await.unwrap();
    (store, sqlx::PgConnection::connect(direct).await.unwrap())
}

async fn until_waiting(watcher: &mut sqlx::PgConnection, statement: &str, count: i64) {
    let found = async {
        while waiting(watcher, statement).await < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.expect("it gets that far");
}

#[test]
fn a_server_that_stands_still_in_the_middle_of_a_publish_leaves_nothing_of_it_and_nobody_waiting() {
    let mut server = Postgres::start();
    let url = server.new_database();
    run(async {
        let store = RuleStore::open(&url.parse().unwrap()).unwrap().answering_within(SHORT);
        store.migrate().await.unwrap();
        publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
        let (mut holder, mut watcher) = (
            sqlx::PgConnection::connect(&url).await.unwrap(),
            sqlx::PgConnection::connect(&url).await.unwrap(),
        );
        let lock = "BEGIN; LOCK TABLE audit IN ACCESS EXCLUSIVE MODE";
        sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
        let one = store.clone();
        let late = tokio::spawn(async move { publish(&one, 1, &set(&[("api", "two")]), "").await });
        until_waiting(&mut watcher, "INSERT INTO audit", 1).await;
        server.pause();
        let late = tokio::time::timeout(Duration::from_secs(30), late).await.expect("no hang").unwrap();
        assert!(matches!(late, Err(PublishError::Store(Error::InDoubt { .. }))), "{late:?}");
        // More than there are connections: none of them may be lost for good.
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let store = store.clone();
            readers.spawn(async move { store.head().await.is_err() });
        }
        assert!(readers.join_all().await.into_iter().all(|failed| failed));
        server.resume();
        drop(holder);
        let mut head = store.head().await;
        for _ in 0..20 {
            if head.is_err() {
                head = store.head().await;
            }
        }
        assert_eq!(head.unwrap().version, 1);
        assert_eq!(store.documents(2).await.unwrap(), set(&[]));
        assert_eq!(publish(&store, 1, &set(&[("api", "two")]), "").await.unwrap().number, 2);
    });
}

#[test]
fn a_publish_whose_last_answer_is_lost_is_whole_and_who_asks_again_is_told() {
    let (proxy, url, direct) = behind_a_proxy();
    run(async {
        let (store, mut watcher) = impatient(&url, &direct).await;
        // The server takes long to commit.
        let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
            'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'; CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON versions \
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()";
        sqlx::raw_sql(slow).execute(&mut watcher).await.unwrap();
        for (on, fault) in [(0, Fault::DropReplies), (1, Fault::Refuse)] {
            let one = store.clone();
            let late = tokio::spawn(async move { publish(&one, on, &set(&[("api", "text")]), "").await });
            until_waiting(&mut watcher, "COMMIT", 1).await;
            proxy.set(fault);
            let late = late.await.unwrap();
            assert!(matches!(late, Err(PublishError::Store(Error::InDoubt { .. }))), "{late:?}");
            proxy.set(Fault::None);
            proxy.cut();
            // Wait for the other: it holds the row of the current state.
            let again = publish(&store, on, &set(&[("api", "text")]), "").await;
            assert!(matches!(again, Err(PublishError::Conflict { .. })), "{again:?}");
            assert_eq!(store.documents(on + 1).await.unwrap(), set(&[("api", "text")]));
        }
    });
}

#[test]
fn connections_that_a_network_lost_without_a_word_are_replaced() {
    let (proxy, url, direct) = behind_a_proxy();
    run(async {
        let (store, mut watcher) = impatient(&url, &direct).await;
        let mut holder = sqlx::PgConnection::connect(&direct).await.unwrap();
        sqlx::raw_sql("BEGIN; LOCK TABLE head").execute(&mut holder).await.unwrap();
        let mut readers = tokio::task::JoinSet::new();
        // As many as there are connections.
        for _ in 0..5 {
            let store = store.clone();
            readers.spawn(async move { store.head().await });
        }
        until_waiting(&mut watcher, "SELECT version, overrides", 5).await;
        proxy.set(Fault::Blackhole);
        assert!(readers.join_all().await.iter().all(Result::is_err));
        sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
        proxy.set(Fault::None);
        let heals = async {
            while store.head().await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), heals).await.expect("new ones take their place");
    });
}
