//! A Redis whose clock was ahead by a year, and came back: what nodes told it then does not stay for a year.

use std::num::NonZeroU64;
use std::sync::Arc;

use tidegate_core::{Ask, Group, LeaseId, Micros, Timestamp, Touch};
use tidegate_fleet::{FleetStore as _, StoredQuestion};
use tidegate_store::{ManualClock, Record, Spend, Store as _};
use tidegate_store_redis::{RedisStore, TimeSource};
use tidegate_testkit::{Redis, SteppedClock, resp};

use crate::expiry::{every_limit, keys, use_it};
use crate::subject::{Target, ask, eventually, patient, store};

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const YEAR: Micros = Micros::from_secs(365 * 86_400);
const TTL: Micros = Micros::from_secs(5);
const DEAD: u64 = 1;
const ALIVE: u64 = 2;

/// A store on this Redis by a clock that is ahead by a year.
fn ahead(redis: &Redis) -> (RedisStore, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(NOW + YEAR));
    let time = TimeSource::Given(Arc::clone(&clock) as Arc<_>);
    (store(&redis.url(), &patient().time(time)), clock)
}

#[tokio::test]
async fn dead_nodes_are_forgotten_after_the_clock_came_back() {
    let redis = Redis::start();
    let (store, clock) = ahead(&redis);
    store.with_heartbeat().announce(b"{}".to_vec());
    assert_eq!(store.heartbeat(DEAD, TTL).answer().await.unwrap(), 1);
    clock.set(NOW);
    assert_eq!(store.heartbeat(ALIVE, TTL).answer().await.unwrap(), 2, "it may be alive");
    assert!(store.notes().await.unwrap().iter().all(|note| !note.lost));
    clock.advance(Micros::from_secs(6));
    assert_eq!(store.heartbeat(ALIVE, TTL).answer().await.unwrap(), 1);
    let lost: Vec<u64> =
        store.notes().await.unwrap().iter().filter(|note| note.lost).map(|note| note.member).collect();
    assert_eq!(lost, [DEAD]);
}

/// As if it had been written a year ahead.
fn live_for_a_year(redis: &Redis, pattern: &str) {
    let resp::Value::Array(keys) = redis.cmd(&["KEYS", pattern]) else { panic!("a list") };
    let [resp::Value::Bulk(key)] = &keys[..] else { panic!("one key: {keys:?}") };
    redis.cmd(&[b"EXPIRE".as_slice(), key, b"31536000"]);
}

#[tokio::test]
async fn records_written_a_year_ahead_end_as_others_do() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let lease = Record { name: b"lease", value: b"of a dead node" };
    assert_eq!(store.put_record(lease, TTL).answer().await.unwrap(), None);
    live_for_a_year(&redis, "*lease*");
    let other = Record { name: b"lease", value: b"another" };
    assert!(store.put_record(other, TTL).answer().await.unwrap().is_some(), "it is held so far");
    let resp::Value::Array(keys) = redis.cmd(&["KEYS", "*lease*"]) else { panic!("a list") };
    let resp::Value::Bulk(key) = &keys[0] else { panic!("a key") };
    let resp::Value::Int(left_ms) = redis.cmd(&[b"PTTL".as_slice(), key]) else { panic!("a time") };
    assert!(left_ms <= 5_000, "{left_ms} ms");
}

#[tokio::test]
async fn questions_asked_a_year_ahead_leave_room() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let question = |id| StoredQuestion { id, text: b"who?".to_vec() };
    for id in 0..16 {
        assert!(store.put_question(&question(id)).await.unwrap());
    }
    live_for_a_year(&redis, "*questions");
    assert!(!store.put_question(&question(16)).await.unwrap(), "there are too many");
    let resp::Value::Array(keys) = redis.cmd(&["KEYS", "*questions"]) else { panic!("a list") };
    let resp::Value::Bulk(key) = &keys[0] else { panic!("a key") };
    let resp::Value::Int(left_ms) = redis.cmd(&[b"PTTL".as_slice(), key]) else { panic!("a time") };
    assert!(left_ms <= 10_000, "{left_ms} ms");
}

/// Redis's own clock: what it wrote a year ahead ends with the next hit's time.
#[tokio::test]
async fn counters_written_a_year_ahead_end_as_others_do() {
    const YEAR_S: i64 = 365 * 86_400;
    let clock = SteppedClock::new();
    let redis = Redis::builder().clock(&clock).start();
    let store = store(&redis.url(), &patient());
    let limits = every_limit(Micros::from_secs(60)).into_iter();
    let targets: Vec<Target> = limits.map(|limit| Target::new(&format!("{limit:?}"), "42", limit)).collect();
    clock.set_ahead_of_the_machine(YEAR_S);
    for target in &targets {
        use_it(&store, target).await;
    }
    clock.set_ahead_of_the_machine(0);
    let lease = Some(LeaseId(NonZeroU64::new(9).unwrap()));
    for target in &targets {
        let touch =
            Touch { limit: &target.limit, ask: Ask { lease, ..Ask::hits(1) }, group: Group::ENFORCED };
        let again = [Spend { cell: target.cell(), touch }];
        eventually("it decides", async || ask(&store, &again).await).await;
    }
    let left_ms = |key: &Vec<u8>| redis.cmd(&[b"PTTL".as_slice(), key]).int();
    let left_ms: Vec<i64> = keys(&redis).iter().map(left_ms).collect();
    assert_eq!(left_ms.len(), targets.len());
    assert!(left_ms.iter().all(|left| (0..=300_000).contains(left)), "{left_ms:?}");
}
