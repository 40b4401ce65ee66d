//! Several hosts, connections and what is in their way: a failover, TLS, a full disk.

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::StoreError;
use tidegate_store_postgres::TlsFiles;
use tidegate_testkit::{Certificates, Postgres, eventually};

use crate::faults::{left, limit, spend};
use crate::subject::{patient, store};

/// Makes new sessions of this server read-only, as those of a replica are, or lets them write.
fn set_read_only(server: &Postgres, url: &str, is_read_only: &str) {
    server.run(url, &format!("ALTER SYSTEM SET default_transaction_read_only = {is_read_only}"));
    server.run(url, "SELECT pg_reload_conf()");
    let shown = || server.query(url, "SHOW default_transaction_read_only").trim() == is_read_only;
    eventually("new sessions know", Duration::from_secs(20), shown);
}

#[tokio::test]
async fn of_two_hosts_the_one_that_takes_writes_decides_also_after_they_have_swapped() {
    let (one, other) = (Postgres::start(), Postgres::start());
    let [first, second] = [&one, &other].map(Postgres::new_database);
    let both = first.replace(&one.addr().to_string(), &format!("{},{}", one.addr(), other.addr()));
    set_read_only(&one, &first, "on");
    let store = store(&both, &patient());
    spend(&store, &limit(10), &["a"]).await.unwrap();
    assert_eq!(other.query(&second, "SELECT count(*) FROM tidegate.cells").trim(), "1");
    set_read_only(&other, &second, "on");
    set_read_only(&one, &first, "off");
    other.run(
        &second,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidegate'",
    );
    let mut lost = 0;
    while let Err(error) = spend(&store, &limit(10), &["a"]).await {
        assert!(error.is_certainly_not_applied(), "{error:?}");
        lost += 1;
        assert!(lost < 20, "it does not find the other host: {error:?}");
    }
    assert_eq!(one.query(&first, "SELECT count(*) FROM tidegate.cells").trim(), "1");
    assert_eq!(left(&store, &limit(10), "a").await, 9, "the new primary has a table of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_has_no_more_connections_than_it_may() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let one = Arc::new(store(&url, &patient().connections(3)));
    spend(&one, &limit(10), &["first"]).await.unwrap();
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let one = one.clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    spend(&one, &limit(10), &[&format!("{task} {round}")]).await.unwrap();
                }
            })
        })
        .collect();
    let mut most = 0;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidegate' AND datname = current_database()";
        let told = postgres.query(&url, count);
        most = most.max(told.trim().parse::<u32>().unwrap());
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(most, 3, "connections at once");
}

#[tokio::test]
async fn over_tls_the_certificate_is_checked() {
    let postgres = Postgres::start();
    let url = postgres.new_database();
    let encrypted = format!("{url}?sslmode=require");
    let plain = spend(&store(&encrypted, &patient()), &limit(10), &["a"]).await.unwrap_err();
    assert!(why(&plain).contains("TLS"), "{}", why(&plain));
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::for_loopback(dir.path());
    postgres.encrypt(&url, &certificates);
    let mut files = TlsFiles::default();
    files.ca = Some(certificates.ca);
    let one = store(&encrypted, &patient().tls(files));
    assert!(spend(&one, &limit(10), &["a"]).await.unwrap()[0].is_admitted());
    let seen = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'tidegate'";
    assert_eq!(postgres.query(&url, seen).trim(), "t");
    let unknown = spend(&store(&encrypted, &patient()), &limit(10), &["a"]).await.unwrap_err();
    assert!(why(&unknown).contains("certificate"), "{}", why(&unknown));
}

#[tokio::test]
async fn a_full_disk_is_named_with_a_way_out_and_nothing_is_applied() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let one = store(&url, &patient());
    spend(&one, &limit(10), &["a"]).await.unwrap();
    // What PostgreSQL says when it cannot extend a file, wherever the test runs.
    postgres.run(
        &url,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION \
         'could not extend file \"base/5/1\": No space left on device' USING ERRCODE = 'disk_full'; END $$; \
         CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON tidegate.cells FOR EACH ROW EXECUTE FUNCTION full_disk()",
    );
    let error = spend(&one, &limit(10), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
    let said = why(&error);
    assert!(said.contains("No space left on device (the server's disk is full: free some of it"), "{said}");
    postgres.run(&url, "DROP TRIGGER full_disk ON tidegate.cells");
    assert_eq!(left(&one, &limit(10), "a").await, 9);
}

fn why(error: &StoreError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
