//! What both stores promise and once did not keep, each on a real Redis and in memory.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use tidegate_core::{
    Ask, Concurrency, FixedWindow, Group, Hits, LeakyBucket, LeaseId, Limit, Micros, Outcome, Over, Rate,
    RefusedHits, SlidingLog, SlidingWindow, Timestamp, TokenBucket, Touch, Verdict,
};
use tidegate_store::{LeaseRef, ManualClock, MemoryConfig, MemoryStore, Refund, Request, Spend, Store};
use tidegate_testkit::resp::Value;
use tidegate_testkit::{Redis, ShardedRedis};

use crate::subject::{Target, Timed, a_bucket, a_day, ask, patient, store};

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const SECOND: Micros = Micros::from_secs(1);

/// Runs `test` on a Redis and in memory, each with a clock that the test sets.
async fn on_both(test: impl AsyncFn(&dyn Store, &ManualClock)) {
    let redis = Redis::start();
    let timed = Timed::new(&redis.url());
    test(&timed.store, &timed.clock).await;
    let clock = Arc::new(ManualClock::at(START));
    test(&MemoryStore::with_clock(MemoryConfig::default(), Arc::clone(&clock)), &clock).await;
}

async fn decide(store: &dyn Store, target: &Target, ask: Ask) -> Outcome {
    let touch = Touch { limit: &target.limit, ask, group: Group::ENFORCED };
    let spends = [Spend { cell: target.cell(), touch }];
    store.decide(&[Request::once(&spends)]).answer().await.unwrap()[0]
}

fn lease(number: u64) -> LeaseId {
    LeaseId(NonZeroU64::new(number).unwrap())
}

fn leasing(number: u64) -> Ask {
    Ask { lease: Some(lease(number)), ..Ask::hits(1) }
}

fn concurrency(limit: u64, ttl: Micros, refused: RefusedHits) -> Limit {
    Limit::Concurrency(Concurrency::new(limit, ttl, refused).unwrap())
}

fn log(limit: u64, min_interval: Micros, refused: RefusedHits) -> Limit {
    Limit::SlidingLog(SlidingLog::new(limit, Micros::from_secs(10), min_interval, refused).unwrap())
}

#[tokio::test]
async fn a_client_that_waits_as_long_as_it_is_told_is_admitted_where_refused_requests_count() {
    let limits = [
        log(3, Micros::ZERO, RefusedHits::Count),
        log(3, SECOND, RefusedHits::Count),
        log(2_000, SECOND, RefusedHits::Count),
        concurrency(3, Micros::from_secs(5), RefusedHits::Count),
    ];
    on_both(async |store, clock| {
        for (number, limit) in limits.iter().enumerate() {
            let target = Target::new(&format!("counting {number}"), "42", limit.clone());
            let mut now = START;
            let mut refused = 0;
            for turn in 1..40 {
                clock.set(now);
                let outcome = decide(store, &target, leasing(turn)).await;
                now = match outcome.retry_after() {
                    None => now + Micros::from_millis(100),
                    Some(retry_after) => {
                        refused += 1;
                        clock.set(now + retry_after);
                        let again = decide(store, &target, leasing(100 + turn)).await;
                        assert!(again.is_admitted(), "waited {retry_after}, then {again:?} by {limit:?}");
                        now + retry_after
                    }
                };
            }
            assert!(refused > 3, "{limit:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_steps_back_locks_nobody_out_for_longer_than_it_says() {
    let rate = Rate::new(1, SECOND).unwrap();
    let five = Micros::from_secs(5);
    let limits = [
        Limit::TokenBucket(TokenBucket::new(rate, 5).unwrap()),
        Limit::LeakyBucket(LeakyBucket::new(rate, five).unwrap()),
        Limit::FixedWindow(FixedWindow::new(5, five).unwrap()),
        Limit::SlidingWindow(SlidingWindow::new(5, five).unwrap()),
        Limit::SlidingLog(SlidingLog::new(5, five, Micros::ZERO, RefusedHits::Forget).unwrap()),
        Limit::SlidingLog(SlidingLog::new(2_000, five, SECOND, RefusedHits::Count).unwrap()),
        concurrency(5, five, RefusedHits::Count),
    ];
    on_both(async |store, clock| {
        for (number, limit) in limits.iter().enumerate() {
            let target = Target::new(&format!("stepping {number}"), "42", limit.clone());
            clock.set(START);
            let mut turn = 0;
            while decide(store, &target, leasing(turn + 1)).await.is_admitted() {
                turn += 1;
            }
            let mut now = START.back(Micros::from_secs(30));
            clock.set(now);
            // A counter remembers a full window until a fifth of the next one is over, also where no clock steps.
            let longest = if matches!(limit, Limit::SlidingWindow(_)) { five + SECOND } else { five };
            // However often it asks again, each time as late as it was told.
            for _ in 0..3 {
                let outcome = decide(store, &target, leasing(1_000)).await;
                let Some(retry_after) = outcome.retry_after() else { break };
                assert!(retry_after <= longest, "{retry_after} by {limit:?}");
                now = now + retry_after;
                clock.set(now);
                assert!(decide(store, &target, leasing(1_000)).await.is_admitted(), "by {limit:?}");
            }
            assert!(now > START.back(Micros::from_secs(30)), "{limit:?} refused nobody");
        }
    })
    .await;
}

#[tokio::test]
async fn releasing_a_lease_taken_before_a_ttl_change_ends_nobody_elses() {
    on_both(async |store, clock| {
        let old = Target::new("leases", "42", concurrency(3, SECOND, RefusedHits::Forget));
        let new = Target { limit: concurrency(3, Micros::from_secs(60), RefusedHits::Forget), ..old.clone() };
        clock.set(START);
        assert!(decide(store, &old, leasing(1)).await.is_admitted());
        assert!(decide(store, &new, leasing(2)).await.is_admitted());
        assert!(decide(store, &new, leasing(3)).await.is_admitted());
        // Under the limit that its token was made for, and one that nobody holds.
        for (id, held) in [(1, true), (99, false)] {
            let lease = LeaseRef { cell: old.cell(), limit: &old.limit, id: lease(id) };
            assert_eq!(store.release(lease).answer().await.unwrap().value, held);
        }
        clock.set(START + Micros::from_secs(30));
        assert_eq!(decide(store, &new, Ask::look()).await.remaining, 1, "two are still held");
        for id in [2, 3] {
            let lease = LeaseRef { cell: new.cell(), limit: &new.limit, id: lease(id) };
            assert!(store.renew(lease).answer().await.unwrap().value);
        }
    })
    .await;
}

/// Microseconds that a script took on average since the last time, by Redis's own account.
fn script_us(redis: &Redis) -> f64 {
    let info = redis.cmd(&["INFO", "commandstats"]).text();
    redis.cmd(&["CONFIG", "RESETSTAT"]);
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap();
    let mean = line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")).unwrap();
    mean.parse().unwrap()
}

/// What the server has spent so far. Time in which it did not run, on a machine that is busy, does not count.
fn cpu_us(redis: &Redis) -> f64 {
    let info = redis.cmd(&["INFO", "cpu"]).text();
    let seconds = |field| info.lines().find_map(|line| line.strip_prefix(field)?.trim().parse::<f64>().ok());
    1e6 * (seconds("used_cpu_user:").unwrap() + seconds("used_cpu_sys:").unwrap())
}

/// Every key has a time to live.
fn assert_all_expire(redis: &Redis) {
    for key in redis.cmd(&["KEYS", "*"]).array() {
        let Value::Bulk(key) = key else { panic!("a key is a string") };
        assert!(redis.cmd(&[&b"PTTL"[..], key]).int() > 0, "{key:?}");
    }
}

#[tokio::test]
async fn twenty_thousand_leases_cost_what_ten_do_and_always_expire() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let target = Target::new("many", "42", concurrency(20_000, Micros::from_secs(600), RefusedHits::Forget));
    let mut next = 0;
    for _ in 0..40 {
        let touches: Vec<[Spend<'_>; 1]> = (0..500)
            .map(|_| {
                next += 1;
                let touch = Touch { limit: &target.limit, ask: leasing(next), group: Group::ENFORCED };
                [Spend { cell: target.cell(), touch }]
            })
            .collect();
        let batch: Vec<Request<'_>> = touches.iter().map(|spends| Request::once(spends)).collect();
        assert!(store.decide(&batch).answer().await.unwrap().iter().all(Outcome::is_admitted));
    }
    redis.cmd(&["CONFIG", "RESETSTAT"]);
    for id in 1..=100 {
        let lease = LeaseRef { cell: target.cell(), limit: &target.limit, id: lease(id) };
        assert!(store.release(lease).answer().await.unwrap().value);
        assert!(decide(&store, &target, leasing(30_000 + id)).await.is_admitted());
    }
    let mean = script_us(&redis);
    assert!(mean < 500.0, "{mean} us, where a conversion took 65,000");
    // A limit that was raised or lowered, counts refused requests or no longer does, finds the same leases.
    for (limit, left) in [(100_000, 80_000), (20, 0), (400, 0), (20_001, 1)] {
        for refused in [RefusedHits::Forget, RefusedHits::Count] {
            let changed =
                Target { limit: concurrency(limit, Micros::from_secs(600), refused), ..target.clone() };
            assert_eq!(decide(&store, &changed, Ask::look()).await.remaining, left);
            assert_all_expire(&redis);
        }
    }
}

#[tokio::test]
async fn a_flood_on_a_full_concurrency_cell_costs_microseconds() {
    for refused in [RefusedHits::Forget, RefusedHits::Count] {
        let redis = Redis::start();
        let store = store(&redis.url(), &patient());
        let target = Target::new("full", "42", concurrency(500, Micros::from_secs(60), refused));
        for number in 1..=500 {
            assert!(decide(&store, &target, leasing(number)).await.is_admitted());
        }
        for number in 501..=1_100 {
            assert!(!decide(&store, &target, leasing(number)).await.is_admitted());
        }
        redis.cmd(&["CONFIG", "RESETSTAT"]);
        for number in 1_101..=1_300 {
            assert!(!decide(&store, &target, leasing(number)).await.is_admitted());
        }
        let mean = script_us(&redis);
        assert!(mean < 500.0, "{mean} us, where it took 8,000 and more, {refused:?}");
        assert_all_expire(&redis);
    }
}

#[tokio::test]
async fn reservations_on_a_large_counting_log_keep_only_what_changed() {
    let sharded = ShardedRedis::start(2);
    let store = store(&sharded.url(), &patient());
    let limit = SlidingLog::new(50_000, Micros::from_secs(600), Micros::ZERO, RefusedHits::Count).unwrap();
    let target = Target::new("log", "42", Limit::SlidingLog(limit));
    assert!(ask(&store, &[target.spend(50_000)]).await.unwrap()[0].is_admitted());
    let home = store.node_of(&target.key);
    let mut others = (0..).map(|number| Target::new("other", &format!("o-{number}"), a_day(10)));
    let other = others.find(|other| store.node_of(&other.key) != home).unwrap();
    let node = &sharded.nodes()[home];
    let memory = || -> u64 {
        let info = node.cmd(&["INFO", "memory"]).text();
        info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap()
    };
    let before = memory();
    node.cmd(&["CONFIG", "RESETSTAT"]);
    for _ in 0..300 {
        assert!(!ask(&store, &[target.spend(1), other.spend(1)]).await.unwrap()[0].is_admitted());
    }
    let added = memory().saturating_sub(before);
    assert!(added < 2 << 20, "{added} bytes for 300 requests, where each took 400,000");
    let mean = script_us(node);
    assert!(mean < 1_000.0, "{mean} us");
}

#[tokio::test]
async fn a_refund_goes_into_the_window_that_was_charged() {
    let window = Micros::from_secs(60);
    let limits = [
        Limit::FixedWindow(FixedWindow::new(10, window).unwrap()),
        Limit::SlidingWindow(SlidingWindow::new(10, window).unwrap()),
    ];
    on_both(async |store, clock| {
        for limit in &limits {
            let target = Target::new("refund", "42", limit.clone());
            clock.set(START);
            assert!(decide(store, &target, Ask::hits(10)).await.is_admitted());
            // Two windows later nothing of the first counts any more.
            clock.set(START + window + window);
            assert!(decide(store, &target, Ask::hits(10)).await.is_admitted());
            let refund = |age| [Refund { cell: target.cell(), limit, hits: Hits::new(10), age, id: None }];
            store.refund(&refund(window + window)).answer().await.unwrap();
            assert_eq!(decide(store, &target, Ask::look()).await.remaining, 0, "{limit:?}");
            store.refund(&refund(Micros::ZERO)).answer().await.unwrap();
            assert_eq!(decide(store, &target, Ask::look()).await.remaining, 10, "{limit:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_a_million_equal_requests_is_one_cheap_call() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    for limit in [a_day(100), log(100, Micros::ZERO, RefusedHits::Count)] {
        let target = Target::new("flood", "42", limit);
        let spends = [target.spend(1)];
        let batch = [Request { spends: &spends, count: NonZeroU32::new(1_000_000).unwrap() }];
        let told = store.decide(&batch).answer().await.unwrap();
        let told = told.per_request(&batch).next().unwrap();
        assert_eq!(told.passed(), 100);
        assert_eq!(told.at(0).next().unwrap().remaining, 99);
        assert_eq!(told.at(99).next().unwrap().remaining, 0);
        assert!(!told.at(100).next().unwrap().is_admitted());
        // Often enough that one pause of a busy machine does not show.
        for _ in 0..200 {
            store.decide(&batch).answer().await.unwrap();
        }
    }
    let mean = script_us(&redis);
    assert!(mean < 2_000.0, "{mean} us");
}

#[tokio::test]
async fn million_equal_charges_are_one_cheap_call() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    for limit in [a_day(100), log(100, Micros::ZERO, RefusedHits::Count), a_bucket(100)] {
        let target = Target::new("charges", "42", limit);
        let touch = Touch { ask: Ask::hits(7).over(Over::Charge), ..target.spend(7).touch };
        let spends = [Spend { touch, ..target.spend(7) }];
        let batch = [Request { spends: &spends, count: NonZeroU32::new(1_000_000).unwrap() }];
        let told = store.decide(&batch).answer().await.unwrap();
        let told = told.per_request(&batch).next().unwrap();
        assert_eq!((told.passed(), told.spent()), (14, 1_000_000), "{:?}", target.limit);
        assert_eq!(told.at(13).next().unwrap().remaining, 2);
        for place in [14, 999_999] {
            let verdict = told.at(place).next().unwrap().verdict;
            assert!(matches!(verdict, Verdict::Overdrawn { .. }), "{verdict:?} at {place}");
        }
        for _ in 0..200 {
            store.decide(&batch).answer().await.unwrap();
        }
    }
    let mean = script_us(&redis);
    assert!(mean < 2_000.0, "{mean} us");
}

#[tokio::test]
async fn a_call_that_notes_refusals_weighs_what_it_costs() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let hour = Micros::from_secs(3_600);
    let us_per_weight = async |refused| {
        let limit = Limit::Concurrency(Concurrency::new(500, hour, refused).unwrap());
        let target = Target::new(&format!("{refused:?}"), "42", limit);
        let spend = |number| {
            let touch = Touch { limit: &target.limit, ask: leasing(number), group: Group::ENFORCED };
            [Spend { cell: target.cell(), touch }]
        };
        let spends: Vec<[Spend<'_>; 1]> = (1..=500 + 30).map(spend).collect();
        let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
        for some in batch[..500].chunks(25) {
            store.decide(some).answer().await.unwrap();
        }
        let before = cpu_us(&redis);
        for _ in 0..100 {
            let told = store.decide(&batch[500..]).answer().await.unwrap();
            assert!(told.iter().all(|outcome| !outcome.is_admitted()));
        }
        let weight: u64 = batch[500..].iter().map(Request::store_us).sum();
        (cpu_us(&redis) - before) / 100.0 / weight as f64
    };
    let plain = us_per_weight(RefusedHits::Forget).await;
    let noting = us_per_weight(RefusedHits::Count).await;
    assert!(
        noting < 1.5 * plain,
        "{noting} us of Redis for each one planned, {plain} where nothing is noted"
    );
}

#[tokio::test]
async fn a_request_over_ninety_six_limits_holds_redis_for_less_than_two_milliseconds() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let targets: Vec<Target> =
        (0..96).map(|number| Target::new(&format!("rule {number}"), "42", a_day(1_000))).collect();
    let spends: Vec<Spend<'_>> = targets.iter().map(|target| target.spend(1)).collect();
    assert!(Request::once(&spends).store_us() < 1_000, "{} us", Request::once(&spends).store_us());
    let mut calls = Vec::new();
    for _ in 0..100 {
        assert!(ask(&store, &spends).await.unwrap().iter().all(Outcome::is_admitted));
        calls.push(script_us(&redis));
    }
    // Redis measures by the clock on the wall: on a busy machine most calls wait for a core, but not all of them.
    let quickest = calls.into_iter().fold(f64::INFINITY, f64::min);
    assert!(quickest < 2_000.0, "{quickest} us");
}
