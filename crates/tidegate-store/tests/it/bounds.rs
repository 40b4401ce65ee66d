use tidegate_core::{
    Ask, Concurrency, FixedWindow, LeaseId, Limit, Micros, Outcome, RefusedHits, Scope, SlidingLog, Stance,
    Timestamp, Touch,
};
use tidegate_store::{CellKey, ManualClock, MemoryConfig, MemoryStore, Reply, Request, Spend, Store};

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn store(max_cells: usize, max_log_bytes: usize) -> MemoryStore<ManualClock> {
    MemoryStore::with_clock(MemoryConfig { max_cells, max_log_bytes }, ManualClock::at(START))
}

fn ask(store: &MemoryStore<ManualClock>, limit: &Limit, key: u64) -> Outcome {
    let scope = Scope::new(&[limit.algorithm().name().as_bytes()]);
    let key = key.to_be_bytes();
    let lease = Some(LeaseId(std::num::NonZeroU64::MIN));
    let touch = Touch { limit, ask: Ask { lease, ..Ask::hits(1) }, stance: Stance::Enforced };
    let spends = [Spend { cell: CellKey { scope: &scope, key: &key, tag: &key }, touch }];
    let Reply::Now(Ok(outcomes)) = store.decide(&[Request { spends: &spends }]) else {
        panic!("memory answers")
    };
    outcomes[0]
}

fn minute_window(limit: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(limit, Micros::from_secs(60)).expect("a fine window"))
}

#[test]
fn a_flood_of_new_keys_stays_within_the_bound_and_is_counted() {
    let store = store(10_000, 1 << 20);
    let limit = minute_window(5);
    for key in 0..100_000 {
        ask(&store, &limit, key);
    }
    let stats = store.stats();
    assert!(stats.cells <= 10_000, "{} cells", stats.cells);
    assert_eq!(stats.evicted_in_use + stats.evicted_spent, 100_000 - stats.cells as u64);
}

#[test]
fn a_caller_over_its_limit_is_not_freed_by_a_flood_of_others() {
    let store = store(10_000, 1 << 20);
    let limit = minute_window(5);
    for _ in 0..6 {
        ask(&store, &limit, u64::MAX);
    }
    for key in 0..100_000 {
        ask(&store, &limit, key);
    }
    assert!(!ask(&store, &limit, u64::MAX).is_admitted());
}

#[test]
fn logs_stay_within_their_memory() {
    let store = store(100_000, 1 << 20);
    let limit =
        SlidingLog::new(100, Micros::from_secs(60), Micros::ZERO, RefusedHits::Forget).expect("a fine log");
    let limit = Limit::SlidingLog(limit);
    for key in 0..5_000 {
        for _ in 0..100 {
            ask(&store, &limit, key);
        }
    }
    let bytes = store.stats().bytes;
    assert!(bytes < (1 << 20) + 5_000 * 100, "{bytes} bytes");
}

#[test]
fn a_full_log_of_a_hundred_hits_takes_four_bytes_a_hit_and_little_more() {
    let store = store(100_000, 1 << 30);
    let limit = SlidingLog::new(100, Micros::from_secs(3_600), Micros::ZERO, RefusedHits::Forget)
        .expect("a fine log");
    let limit = Limit::SlidingLog(limit);
    for key in 0..2_000 {
        for _ in 0..100 {
            ask(&store, &limit, key);
        }
    }
    let each = store.stats().bytes / 2_000;
    assert!(each <= 500, "{each} bytes a log");
}

#[test]
fn what_is_idle_is_swept_and_its_memory_comes_back() {
    let store = store(1_000_000, 1 << 30);
    let limits = [
        minute_window(5),
        Limit::SlidingLog(
            SlidingLog::new(5, Micros::from_secs(60), Micros::ZERO, RefusedHits::Forget).expect("a fine log"),
        ),
        Limit::Concurrency(
            Concurrency::new(5, Micros::from_secs(60), RefusedHits::Forget).expect("a fine limit"),
        ),
    ];
    for key in 0..20_000 {
        for limit in &limits {
            ask(&store, limit, key);
        }
    }
    assert_eq!(store.stats().cells, 60_000);
    let full = store.stats().bytes;
    store.clock().advance(Micros::from_secs(200));
    for _ in 0..40 {
        store.sweep(10);
    }
    let stats = store.stats();
    assert_eq!((stats.cells, stats.dropped_idle), (0, 60_000));
    assert!(stats.bytes < full / 10, "{} of {full} bytes left", stats.bytes);
}
