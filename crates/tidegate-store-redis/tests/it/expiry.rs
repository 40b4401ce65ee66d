//! Keys expire by themselves: not before their quota is back, and not long after.

use std::num::NonZeroU64;
use std::time::Duration;

use tidegate_core::{
    Ask, Concurrency, FixedWindow, Group, LeakyBucket, LeaseId, Limit, Micros, Rate, RefusedHits, SlidingLog,
    SlidingWindow, TokenBucket, Touch,
};
use tidegate_store::{Request, Spend, Store};
use tidegate_store_redis::RedisStore;
use tidegate_testkit::resp::Value;
use tidegate_testkit::{Redis, eventually};

use crate::subject::{Target, ask, patient, store};

/// One of each, over about `span`.
pub(crate) fn every_limit(span: Micros) -> Vec<Limit> {
    let rate = Rate::new(10, span).unwrap();
    let log = |limit| SlidingLog::new(limit, span, Micros::ZERO, RefusedHits::Forget).unwrap();
    let leases = |limit| Concurrency::new(limit, span, RefusedHits::Forget).unwrap();
    vec![
        Limit::TokenBucket(TokenBucket::new(rate, 10).unwrap()),
        Limit::LeakyBucket(LeakyBucket::new(rate, span).unwrap()),
        Limit::FixedWindow(FixedWindow::new(10, span).unwrap()),
        Limit::SlidingWindow(SlidingWindow::new(10, span).unwrap()),
        Limit::SlidingLog(log(10)),
        Limit::SlidingLog(log(5_000)),
        Limit::Concurrency(leases(10)),
        Limit::Concurrency(leases(5_000)),
    ]
}

/// Takes three leases or spends three hits, one request after the other: what is told of the last.
pub(crate) async fn use_it(store: &RedisStore, target: &Target) -> Micros {
    let mut reset_after = Micros::ZERO;
    for number in 1..=3 {
        let lease = Some(LeaseId(NonZeroU64::new(number).unwrap()));
        let ask_for = Ask { lease, ..Ask::hits(1) };
        let touch = Touch { limit: &target.limit, ask: ask_for, group: Group::ENFORCED };
        let outcomes = ask(store, &[Spend { cell: target.cell(), touch }]).await.unwrap();
        assert!(outcomes[0].is_admitted());
        reset_after = outcomes[0].reset_after;
    }
    reset_after
}

pub(crate) fn keys(redis: &Redis) -> Vec<Vec<u8>> {
    let bytes = |value: &Value| match value {
        Value::Bulk(bytes) => bytes.clone(),
        other => panic!("a key is a string, not {other:?}"),
    };
    redis.cmd(&["KEYS", "*"]).array().iter().map(bytes).collect()
}

#[tokio::test]
async fn every_key_expires_after_its_quota_is_back_and_soon_after() {
    for span in [Micros::from_millis(10), Micros::from_secs(60), Micros::from_secs(86_400)] {
        for limit in every_limit(span) {
            let redis = Redis::start();
            let store = store(&redis.url(), &patient());
            let target = Target::new("rule", "42", limit);
            let reset_after = use_it(&store, &target).await;
            let keys = keys(&redis);
            assert_eq!(keys.len(), 1, "{:?}", target.limit);
            let ttl = redis.cmd(&[&b"PTTL"[..], &keys[0]]).int();
            // Read a little later than it was set; a busy machine may make that seconds.
            let earliest = i64::try_from(reset_after.get() / 1_000).unwrap() - 5_000;
            // Twice as long or a minute more, whichever is less, at least five seconds, whole seconds, and part of one. Windows
            // of a day end for everybody at once: their expiries are spread over an hour.
            let spread = if span > Micros::from_secs(600) { 3_600_000 } else { 60_000 };
            let latest = i64::try_from(reset_after.get() / 1_000).unwrap() + spread + 2_000;
            assert!(ttl > 0 && ttl >= earliest && ttl <= latest, "{:?}: {ttl} ms", target.limit);
        }
    }
}

/// Redis deletes expired keys in steps that block it, so the end of a minute must not be the end of every caller's key.
#[tokio::test]
async fn windows_of_many_callers_expire_spread_over_a_minute() {
    const CALLERS: usize = 200_000;
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let limit = Limit::FixedWindow(FixedWindow::new(10, Micros::from_secs(60)).unwrap());
    let targets: Vec<Target> =
        (0..CALLERS).map(|caller| Target::new("rule", &caller.to_string(), limit.clone())).collect();
    for batch in targets.chunks(100) {
        let spends: Vec<[Spend<'_>; 1]> = batch.iter().map(|target| [target.spend(1)]).collect();
        let requests: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
        store.decide(&requests).answer().await.unwrap();
    }
    // How many keys expire in each second, counted by Redis.
    let count = "local seconds = {} \
                 for _, key in ipairs(redis.call('KEYS', '*')) do \
                   local second = math.floor(redis.call('PEXPIRETIME', key) / 1000) \
                   seconds[second] = (seconds[second] or 0) + 1 \
                 end \
                 local counts = {} \
                 for _, count in pairs(seconds) do counts[#counts + 1] = count end \
                 return counts";
    let counts: Vec<i64> = redis.cmd(&["EVAL", count, "0"]).array().iter().map(Value::int).collect();
    assert_eq!(counts.iter().sum::<i64>(), CALLERS as i64);
    // Spread evenly, a second has a sixtieth of them.
    let most = counts.iter().max().copied().unwrap_or_default();
    assert!(most < CALLERS as i64 / 20, "{most} of {CALLERS} keys expire in one second");
}

#[tokio::test]
async fn a_server_that_nobody_asks_any_more_is_empty_after_a_while() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    for limit in every_limit(Micros::from_millis(10)) {
        use_it(&store, &Target::new(&format!("{limit:?}"), "42", limit)).await;
    }
    eventually("all keys have expired", Duration::from_secs(60), || redis.cmd(&["DBSIZE"]).int() == 0);
}

#[tokio::test]
async fn a_rate_that_was_lowered_makes_what_was_spent_last_longer() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let second = Micros::from_secs(1);
    let bucket =
        |count| Limit::TokenBucket(TokenBucket::new(Rate::new(count, second).unwrap(), 1_000).unwrap());
    let fast = Target::new("rule", "42", bucket(1_000));
    ask(&store, &[fast.spend(1_000)]).await.unwrap();
    let before = redis.cmd(&[&b"PTTL"[..], &keys(&redis)[0]]).int();
    assert!(before < 10_000, "a second, and what is added to it: {before} ms");
    let slow = Target { limit: bucket(1), ..fast };
    assert!(!ask(&store, &[slow.spend(1_000)]).await.unwrap()[0].is_admitted());
    let after = redis.cmd(&[&b"PTTL"[..], &keys(&redis)[0]]).int();
    assert!(after > 900_000, "a thousand seconds, less what has passed: {after} ms");
}

#[tokio::test]
async fn a_refund_of_all_leaves_no_key() {
    use tidegate_core::Hits;
    use tidegate_store::Refund;
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    // A lease is released, a slot of a leaky bucket kept.
    let refundable = |limit: &Limit| !matches!(limit, Limit::Concurrency(_) | Limit::LeakyBucket(_));
    for limit in every_limit(Micros::from_secs(60)).into_iter().filter(refundable) {
        let target = Target::new("rule", "42", limit);
        use_it(&store, &target).await;
        let refund = Refund {
            cell: target.cell(),
            limit: &target.limit,
            hits: Hits::new(3),
            age: Micros::ZERO,
            id: None,
        };
        store.refund(&[refund]).answer().await.unwrap();
        assert_eq!(redis.cmd(&["DBSIZE"]).int(), 0, "{:?}", target.limit);
    }
}

#[tokio::test]
async fn a_record_expires_also_after_it_was_replaced() {
    use tidegate_store::Record;
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let (one, minute) = (Record { name: b"name", value: b"one" }, Micros::from_secs(60));
    let lives = || redis.cmd(&[&b"PTTL"[..], &keys(&redis)[0]]).int();
    assert_eq!(store.put_record(one, Micros::from_secs(600)).answer().await.unwrap(), None);
    assert!((540_000..=600_000).contains(&lives()), "{}", lives());
    assert!(store.replace_record(one, Some(b"two"), minute).answer().await.unwrap());
    assert!((1..=60_000).contains(&lives()), "{}", lives());
}
