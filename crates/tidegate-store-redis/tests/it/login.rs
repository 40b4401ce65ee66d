//! TLS, users, passwords, databases.

use tidegate_core::Micros;
use tidegate_fleet::{
    Answered, FleetStore as _, Over, Published, PublishedRevision, Publishing, StoredQuestion,
};
use tidegate_store::Store;
use tidegate_store_redis::{RedisConfig, RedisStore, TlsFiles};
use tidegate_testkit::Redis;

use crate::subject::{Target, a_day, ask, left, patient, spend, store, url};

/// What a user must be allowed, as the guide for operators lists it.
const RIGHTS: &str = "~tidegate:* +evalsha +eval +script|load +unlink +ping +info +time +get +mget +set +del +exists \
    +strlen +getrange +setrange +append +expireat +pexpire +pttl +zadd +zcard +zcount +zrange +zrangebyscore +zrem \
    +zremrangebyscore +zscore +dbsize +randomkey +hset +hget +hmget +hgetall +hdel +hexists \
    +hlen +hkeys";

#[tokio::test]
async fn a_connection_is_encrypted_where_the_url_says_so() {
    let redis = Redis::builder().tls().start();
    let tls = TlsFiles::default().ca(redis.certificates().ca.clone());
    let store = store(&redis.tls_url(), &patient().tls(tls));
    assert!(spend(&store, &Target::new("rule", "42", a_day(1))).await.unwrap());
}

#[tokio::test]
async fn a_server_whose_certificate_nobody_trusts_is_not_used() {
    let redis = Redis::builder().tls().start();
    let stranger = Redis::builder().tls().start();
    let tls = TlsFiles::default().ca(stranger.certificates().ca.clone());
    let store = store(&redis.tls_url(), &patient().tls(tls));
    let error = spend(&store, &Target::new("rule", "42", a_day(1))).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
    assert!(format!("{error:?}").contains("certificate"), "{error:?}");
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_the_server_asks() {
    let redis = Redis::builder().tls().start();
    assert_eq!(redis.cmd(&["CONFIG", "SET", "tls-auth-clients", "yes"]).text(), "OK");
    let files = redis.certificates();
    let anonymous = TlsFiles::default().ca(files.ca.clone());
    let known = anonymous.clone().identity(files.cert.clone(), files.key.clone());
    let target = Target::new("rule", "42", a_day(1));
    let stranger = store(&redis.tls_url(), &patient().tls(anonymous));
    spend(&stranger, &target).await.unwrap_err();
    let store = store(&redis.tls_url(), &patient().tls(known));
    assert!(spend(&store, &target).await.unwrap());
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let redis = Redis::builder().tls().start();
    let missing = TlsFiles::default().ca("/no/such/file");
    let mut half = TlsFiles::default();
    half.certificate = Some(redis.certificates().cert.clone());
    for (tls, field) in [(missing, "tls.ca"), (half, "tls.certificate")] {
        let config = RedisConfig::default().tls(tls);
        let error = RedisStore::new(&url(&redis.tls_url()), &config).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
}

#[tokio::test]
async fn a_user_with_no_more_rights_than_needed_can_do_all_there_is() {
    use tidegate_store::conformance;
    let redis = Redis::builder().user("limiter", "p%40ss", RIGHTS).start();
    let at = redis.url().replace("p%40ss", "p%2540ss");
    conformance::check(&crate::subject::Timed::new(&at), 0..50).await;
    let store = store(&at, &patient());
    let reports = store.check_servers().await;
    assert!(reports[0].to_string().contains("Redis"), "{}", reports[0]);
    store.with_heartbeat().announce(b"a note".to_vec());
    assert_eq!(store.heartbeat(1, Micros::from_secs(5)).answer().await.unwrap(), 1);
    assert_eq!(store.notes().await.unwrap()[0].note, b"a note");
    let revision = PublishedRevision {
        lineage: "a".to_owned(),
        revision: 1,
        mark: "m".to_owned(),
        ..PublishedRevision::default()
    };
    let published = Published { set: b"rules".to_vec(), changes: b"none".to_vec(), format: 1 };
    assert_eq!(store.publish(&revision, &published, Over::Older).await.unwrap(), Publishing::Stored);
    assert!(store.publish_changes(&revision, b"none", (b"some", 2)).await.unwrap());
    assert!(
        !store.publish_changes(&revision, b"none", (b"others", 2)).await.unwrap(),
        "somebody else was first"
    );
    assert_eq!(
        store.published().await.unwrap().unwrap(),
        Published { changes: b"some".to_vec(), format: 2, ..published }
    );
    assert_eq!(store.published_changes().await.unwrap(), (b"some".to_vec(), 2));
    assert!(store.put_question(&StoredQuestion { id: 7, text: b"who?".to_vec() }).await.unwrap());
    assert_eq!(store.answer_question(7, b"a", b"I").await.unwrap(), Answered::Kept);
    assert_eq!(store.answers(7).await.unwrap()[0].1.as_ref().unwrap(), b"I");
    store.forget_question(7).await.unwrap();
    assert!(store.estimate_keys().await.unwrap().iter().sum::<u64>() > 0);
}

#[tokio::test]
async fn a_user_without_rights_to_hashes_still_counts_as_alive() {
    let few: Vec<&str> = RIGHTS.split_whitespace().filter(|right| !right.starts_with("+h")).collect();
    let redis = Redis::builder().user("limiter", "pass", &few.join(" ")).start();
    let store = store(&redis.url(), &patient());
    store.with_heartbeat().announce(b"a note".to_vec());
    assert_eq!(store.heartbeat(1, Micros::from_secs(5)).answer().await.unwrap(), 1);
}

#[test]
fn the_guide_for_operators_grants_these_rights() {
    let guide = include_str!("../../../../docs/operate/stores.md");
    for right in RIGHTS.split_whitespace() {
        assert!(guide.contains(right), "{right}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_no_connection() {
    let redis = Redis::builder().user("limiter", "right", RIGHTS).start();
    let store = store(&redis.url().replace("right", "wrong"), &patient());
    let error = spend(&store, &Target::new("rule", "42", a_day(1))).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
}

#[tokio::test]
async fn prefixes_and_databases_keep_fleets_apart() {
    let redis = Redis::start();
    let target = Target::new("rule", "42", a_day(5));
    let mine = store(&redis.url(), &patient());
    let other_prefix = store(&redis.url(), &patient().key_prefix("other".to_owned()));
    let other_database = store(&format!("{}/3", redis.url()), &patient());
    ask(&mine, &[target.spend(3)]).await.unwrap();
    for store in [&other_prefix, &other_database] {
        assert_eq!(left(store, &target).await, 5);
    }
    assert_eq!(left(&mine, &target).await, 2);
}
