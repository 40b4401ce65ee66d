//! What a caller learns when a call fails, and what is left in the table.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, Group, Limit, Micros, Outcome, RefusedHits, Scope, SlidingLog, Touch};
use tidegate_store::{CellKey, Request, Spend, Store, StoreError};
use tidegate_store_dynamodb::{DynamoDbConfig, DynamoDbStore, Login};
use tidegate_testkit::{Fault, FaultProxy, Moto};

use crate::subject::{left, limit, patient, ready, spend, store};

fn why(error: &StoreError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The one line that a look gives.
async fn refused(url: &str) -> String {
    let error = store(url, &patient()).look().await.unwrap_err();
    let line = why(&error);
    assert!(!line.contains('\n'), "{line}");
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_over_several_items_in_any_order_all_get_on() {
    let server = Moto::start();
    let url = server.url("limits");
    let first = ready(&url, &patient()).await;
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let one = Arc::new(store(&url, &patient().timeout(Duration::from_secs(60))));
            tokio::spawn(async move {
                let keys = ["key0", "key1", "key2", "key3"];
                for round in 0..5 {
                    let mut own = keys;
                    own.rotate_left((task + round) % 4);
                    spend(&one, &limit(1_000), &own).await.expect("it gets on");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(left(&first, &limit(1_000), "key3").await, 1_000 - 4 * 5);
}

#[tokio::test]
async fn a_request_that_one_key_refuses_spends_from_none() {
    let server = Moto::start();
    let one = ready(&server.url("limits"), &patient()).await;
    assert!(spend(&one, &limit(1), &["spent"]).await.unwrap()[0].is_admitted());
    for other in ["a", "b", "c"] {
        assert!(!spend(&one, &limit(1), &["spent", other]).await.unwrap()[0].is_admitted());
        assert_eq!(left(&one, &limit(1), other).await, 1);
    }
}

#[tokio::test]
async fn a_request_over_more_keys_than_a_transaction_has_is_too_large() {
    let server = Moto::start();
    let one = ready(&server.url("limits"), &patient()).await;
    let keys: Vec<String> = (0..101).map(|number| number.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let error = spend(&one, &limit(1), &keys).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error:?}");
    assert_eq!(why(&error), "a request over 101 keys: DynamoDB changes 100 at once");
    assert!(spend(&one, &limit(1), &keys[..100]).await.unwrap().iter().all(|told| told.is_admitted()));
}

#[tokio::test]
async fn what_is_too_large_fails_alone_in_its_batch() {
    let server = Moto::start();
    let one = ready(&server.url("limits"), &patient()).await;
    let (ten, logs) = (limit(10), [(); 5].map(|()| log(100_000)));
    let (scope, keys) = (Scope::new(&[b"faults"]), (0..101).map(|number| number.to_string()));
    let keys: Vec<String> = keys.collect();
    let scopes: Vec<Scope> = (0..5).map(|number| Scope::new(&[&[number]])).collect();
    let spend = |scope, limit, key: &'static [u8], hits| Spend {
        cell: CellKey { scope, key, tag: key },
        touch: Touch { limit, ask: Ask::hits(hits), group: Group::ENFORCED },
    };
    let [first, last] = [b"first".as_slice(), b"last"].map(|key| [spend(&scope, &ten, key, 1)]);
    let many: Vec<Spend<'_>> = keys
        .iter()
        .map(|key| Spend {
            cell: CellKey { scope: &scope, key: key.as_bytes(), tag: key.as_bytes() },
            touch: first[0].touch,
        })
        .collect();
    let long: Vec<Spend<'_>> =
        scopes.iter().zip(&logs).map(|(scope, log)| spend(scope, log, b"k", 100_000)).collect();
    let batch = [&first[..], &many, &long, &last].map(Request::once);
    let told = one.decide(&batch).answer().await.unwrap();
    let passed: Vec<u32> = told.per_request(&batch).map(|told| told.passed()).collect();
    assert_eq!(passed, [1, 0, 0, 1]);
    let large: Vec<usize> = told.too_large.iter().map(|(number, _)| *number).collect();
    assert_eq!(large, [1, 2], "{:?}", told.too_large);
    assert!(told.too_large[1].1.contains("409088 is the most"), "{:?}", told.too_large);
    assert_eq!((left(&one, &ten, "first").await, left(&one, &ten, "last").await), (9, 9));
    assert_eq!(left(&one, &ten, "100").await, 10, "the request over many keys spent nothing");
}

#[tokio::test]
async fn throttling_is_overload_and_applies_nothing() {
    let server = Moto::start();
    let one = ready(&server.url("limits"), &patient()).await;
    for code in ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"] {
        server.refuse(400, code, 1);
        let error = spend(&one, &limit(10), &["a"]).await.unwrap_err();
        assert!(error.is_certainly_not_applied() && error.is_late(), "{code}: {error:?}");
        // The prober takes a server that says so for one that is there.
        server.refuse(400, code, 1);
        one.probe(0).answer().await.unwrap();
    }
    assert_eq!(left(&one, &limit(10), "a").await, 10);
}

#[tokio::test]
async fn a_key_that_aws_does_not_know_is_named_in_one_line() {
    let server = Moto::start();
    let one = ready(&server.url("limits"), &patient()).await;
    server.refuse(400, "UnrecognizedClientException", 1);
    let error = spend(&one, &limit(10), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
    assert_eq!(
        why(&error),
        "UnrecognizedClientException: as the test asked (the key comes from the configuration)"
    );
}

#[tokio::test]
async fn an_inner_error_leaves_a_read_without_effect() {
    let server = Moto::start();
    let one = ready(&server.url("limits"), &patient()).await;
    server.refuse(500, "InternalServerError", 1);
    let error = spend(&one, &limit(10), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
}

#[tokio::test]
async fn a_missing_table_and_a_wrong_region_say_what_to_run() {
    let server = Moto::start();
    let created = server.url("limits");
    ready(&created, &patient()).await;
    let plain = created.replace("&create=true", "");
    assert!(store(&plain, &patient()).look().await.is_ok(), "it is there");
    for (url, table, region) in [
        (plain.replace("limits", "other"), "other", "eu-west-1"),
        (plain.replace("eu-west-1", "us-east-1"), "limits", "us-east-1"),
    ] {
        let line = refused(&url).await;
        let begins = format!(
            "there is no table `{table}` in {region}: add `&create=true` to the url, or run `aws dynamodb create-table"
        );
        assert!(line.starts_with(&begins), "{line}");
        let error = spend(&store(&url, &patient()), &limit(1), &["a"]).await.unwrap_err();
        assert!(error.is_certainly_not_applied() && why(&error).starts_with(&begins), "{error:?}");
    }
}

#[tokio::test]
async fn a_table_with_another_key_is_named_in_one_line() {
    let server = Moto::start();
    server.create_table("orders", "id");
    let line = refused(&server.url("orders")).await;
    assert!(
        line.starts_with("the table `orders` has the key \"id\", and needs one key, `k`, of type S"),
        "{line}"
    );
    let error = spend(&store(&server.url("orders"), &patient()), &limit(1), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
}

#[tokio::test]
async fn what_is_no_dynamodb_is_named_in_one_line() {
    let memcached = tidegate_testkit::Memcached::start();
    let url = format!("dynamodb://limits?region=eu-west-1&endpoint=http://{}", memcached.addr());
    let one = store(&url, &patient().timeout(Duration::from_secs(2)));
    let error = spend(&one, &limit(1), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_has_certainly_applied_nothing() {
    let one = store("dynamodb://limits?region=r&endpoint=http://127.0.0.1:1", &patient());
    let error = spend(&one, &limit(1), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied() && !error.is_late(), "{error:?}");
}

#[tokio::test]
async fn a_read_whose_answer_is_lost_is_certainly_not_applied() {
    let server = Moto::start();
    let proxy = FaultProxy::start(server.addr());
    let behind = server.url("limits").replace(&server.addr().to_string(), &proxy.addr().to_string());
    let one = ready(&behind, &patient().timeout(Duration::from_secs(1))).await;
    proxy.set(Fault::DropReplies);
    let error = spend(&one, &limit(10), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
    proxy.resume();
    assert_eq!(left(&ready(&server.url("limits"), &patient()).await, &limit(10), "a").await, 10);
}

#[tokio::test]
async fn write_whose_answer_is_lost_is_in_doubt_and_counts() {
    let server = Moto::start();
    let proxy = FaultProxy::start(server.addr());
    let behind = server.url("limits").replace(&server.addr().to_string(), &proxy.addr().to_string());
    let one = ready(&behind, &patient()).await;
    for (call, keys) in [(&b"PutItem"[..], &["a"][..]), (b"TransactWriteItems", &["a", "b"])] {
        spend(&one, &limit(10), keys).await.unwrap();
        let before = left(&one, &limit(10), "a").await;
        proxy.set(Fault::LoseReplyTo(call));
        let error = spend(&one, &limit(10), keys).await.unwrap_err();
        assert!(matches!(error, StoreError::FateUnknown { .. }), "{error:?}");
        proxy.resume();
        assert_eq!(left(&one, &limit(10), "a").await, before - 1, "it was stored, and not sent again");
    }
}

#[tokio::test]
async fn a_provisioned_table_is_used_as_it_is() {
    let server = Moto::start();
    let told = server.call(
        "CreateTable",
        &serde_json::json!({
            "TableName": "provisioned",
            "AttributeDefinitions": [{ "AttributeName": "k", "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": "k", "KeyType": "HASH" }],
            "ProvisionedThroughput": { "ReadCapacityUnits": 50, "WriteCapacityUnits": 50 },
        }),
    );
    assert_eq!(told.status, 200, "{}", told.text());
    let url = server.url("provisioned").replace("&create=true", "");
    let one = store(&url, &patient());
    let report = one.look().await.unwrap();
    assert!(report.warnings[0].contains("update-time-to-live"), "{report:?}");
    assert!(spend(&one, &limit(1), &["a", "b"]).await.unwrap().iter().all(Outcome::is_admitted));
    assert!(!spend(&one, &limit(1), &["a"]).await.unwrap()[0].is_admitted());
}

#[tokio::test]
async fn a_key_that_would_need_more_than_an_item_is_told_so_and_changes_nothing() {
    let server = Moto::start();
    let one = ready(&server.url("limits"), &patient()).await;
    let logs: Vec<Limit> = (0..5).map(|_| log(100_000)).collect();
    let error = fill(&one, &logs).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error:?}");
    assert!(why(&error).contains("409088 is the most"), "{error:?}");
    assert_eq!(fill(&one, &logs[..1]).await.unwrap()[0].remaining, 0, "nothing was spent before");
}

/// A log of so many hits.
fn log(hits: u64) -> Limit {
    let window = Micros::from_secs(86_400);
    Limit::SlidingLog(SlidingLog::new(hits, window, Micros::ZERO, RefusedHits::Forget).unwrap())
}

/// Spends all that these limits of one key have.
async fn fill(store: &DynamoDbStore, limits: &[Limit]) -> Result<Vec<Outcome>, StoreError> {
    let scopes: Vec<Scope> = (0..limits.len() as u8).map(|number| Scope::new(&[&[number]])).collect();
    let touch = |limit| Touch { limit, ask: Ask::hits(100_000), group: Group::ENFORCED };
    let spends: Vec<Spend<'_>> = limits
        .iter()
        .zip(&scopes)
        .map(|(limit, scope)| Spend { cell: CellKey { scope, key: b"k", tag: b"k" }, touch: touch(limit) })
        .collect();
    store.decide(&[Request::once(&spends)]).answer().await.map(|told| told.into_iter().collect())
}

#[test]
fn a_configuration_shows_no_secret() {
    let login = Login::Key { id: "id".to_owned(), secret: "hunter2".to_owned() };
    assert!(!format!("{login:?} {:?}", DynamoDbConfig::default().login(login.clone())).contains("hunter2"));
}
