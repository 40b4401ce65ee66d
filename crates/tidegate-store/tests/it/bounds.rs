use tidegate_core::{
    Ask, Concurrency, FixedWindow, Group, LeaseId, Limit, Micros, Outcome, Rate, RefusedHits, Scope,
    SlidingLog, SlidingWindow, Timestamp, TokenBucket, Touch,
};
use tidegate_store::{CellKey, ManualClock, MemoryConfig, MemoryStore, Reply, Request, Spend, Store};

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn store(max_cells: usize, max_log_bytes: usize) -> MemoryStore<ManualClock> {
    MemoryStore::with_clock(
        MemoryConfig::new().max_cells(max_cells).max_log_bytes(max_log_bytes),
        ManualClock::at(START),
    )
}

fn ask(store: &MemoryStore<ManualClock>, limit: &Limit, key: u64) -> Outcome {
    ask_for(store, limit, key, 1)
}

fn ask_for(store: &MemoryStore<ManualClock>, limit: &Limit, key: u64, hits: u64) -> Outcome {
    let scope = Scope::new(&[limit.algorithm().family().as_bytes()]);
    let key = key.to_be_bytes();
    let lease = Some(LeaseId(std::num::NonZeroU64::MIN));
    let touch = Touch { limit, ask: Ask { lease, ..Ask::hits(hits) }, group: Group::ENFORCED };
    let spends = [Spend { cell: CellKey { scope: &scope, key: &key, tag: &key }, touch }];
    let Reply::Now(Ok(outcomes)) = store.decide(&[Request::once(&spends)]) else { panic!("memory answers") };
    outcomes[0]
}

fn minute_window(limit: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(limit, Micros::from_secs(60)).expect("a fine window"))
}

fn hour_log(limit: u64) -> Limit {
    let log = SlidingLog::new(limit, Micros::from_secs(3_600), Micros::ZERO, RefusedHits::Forget);
    Limit::SlidingLog(log.expect("a fine log"))
}

/// What `CL.THROTTLE key (burst - 1) 1 315360000` makes: a bucket that takes ten years a hit to refill.
fn ten_year_bucket(burst: u64) -> Limit {
    let rate = Rate::new(1, Micros::from_secs(315_360_000)).expect("a fine rate");
    Limit::TokenBucket(TokenBucket::new(rate, burst).expect("a fine bucket"))
}

/// Brings each of `keys` to its limit and over it.
fn spend_all(store: &MemoryStore<ManualClock>, limit: &Limit, keys: std::ops::Range<u64>) {
    for key in keys {
        assert!(ask_for(store, limit, key, limit.quota()).is_admitted());
        assert!(!ask(store, limit, key).is_admitted());
    }
}

/// How many of `keys`, all over their limit, would pass after all.
fn freed(store: &MemoryStore<ManualClock>, limit: &Limit, keys: std::ops::Range<u64>) -> usize {
    keys.filter(|key| ask(store, limit, *key).is_admitted()).count()
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
fn a_one_hit_flood_of_25_times_the_bound_frees_nobody_over_the_limit() {
    // Four in five cells are over their limit: a search of a few cells would often see no other.
    let store = store(2_500, 1 << 20);
    let limit = minute_window(5);
    spend_all(&store, &limit, 0..2_000);
    for key in 10_000..10_000 + 25 * 2_500 {
        ask(&store, &limit, key);
    }
    assert_eq!((freed(&store, &limit, 0..2_000), store.stats().evicted_spent), (0, 0));
}

#[test]
fn a_one_hit_flood_on_a_limit_of_one_frees_nobody_who_was_refused_while_others_can_go() {
    let store = store(2_000, 1 << 20);
    let limit = minute_window(1);
    spend_all(&store, &limit, 0..400);
    // Each of these is at its limit after one hit, too, but was never refused.
    for key in 10_000..10_000 + 25 * 2_000 {
        ask(&store, &limit, key);
    }
    assert_eq!(freed(&store, &limit, 0..400), 0);
}

#[test]
fn a_one_hit_flood_of_cells_of_ten_years_frees_nobody_who_was_refused_and_fell_silent_since() {
    let store = store(8_000, 1 << 20);
    let limit = minute_window(5);
    spend_all(&store, &limit, 0..3_000);
    // Rounds in which nobody asks.
    (0..3).for_each(|_| store.sweep(1));
    for key in 10_000..10_000 + 4 * 8_000 {
        ask(&store, &ten_year_bucket(1), key);
    }
    assert_eq!(freed(&store, &limit, 0..3_000), 0);
}

#[test]
fn the_memory_of_logs_is_one_bound_for_all_shards() {
    // The defaults: 610 shards. A log of 100,000 hits takes 400 kB: the 610th part of 512 MiB would hold two, and 200 of them
    // hash to some shards thrice.
    let store = store(10_000_000, 512 << 20);
    let limit = hour_log(100_000);
    spend_all(&store, &limit, 0..200);
    let stats = store.stats();
    assert!(stats.bytes > 80_000_000, "{} bytes", stats.bytes);
    assert_eq!((stats.evicted_spent, freed(&store, &limit, 0..200)), (0, 0));
}

#[test]
fn at_the_bound_of_memory_unspent_logs_go_before_spent_ones_whatever_their_shard() {
    let store = store(1_000_000, 8 << 20);
    let limit = hour_log(1_000);
    spend_all(&store, &limit, 0..1_000);
    for key in 10_000..60_000 {
        ask_for(&store, &limit, key, 60);
    }
    let stats = store.stats();
    assert!(stats.evicted_in_use > 30_000, "{stats:?}");
    assert_eq!((stats.evicted_spent, freed(&store, &limit, 0..1_000)), (0, 0));
}

#[test]
fn unspent_counters_go_before_spent_logs() {
    let store = store(16_000, 64 << 20);
    let (log, counter) = (hour_log(3), minute_window(5));
    spend_all(&store, &log, 0..8_001);
    for key in 0..40_000 {
        ask(&store, &counter, key);
    }
    assert_eq!((freed(&store, &log, 0..8_001), store.stats().evicted_spent), (0, 0));
}

#[test]
fn buckets_that_take_ten_years_to_refill_do_not_push_out_live_counters() {
    for burst in [1, 16] {
        let store = store(2_000, 1 << 20);
        let (live, far) = (minute_window(5), ten_year_bucket(burst));
        for key in (0..100).flat_map(|key| [key; 3]) {
            ask(&store, &live, key);
        }
        for key in 0..25 * 2_000 {
            ask(&store, &far, key);
        }
        let forgotten = (0..100).filter(|key| ask(&store, &live, *key).remaining != 1).count();
        assert_eq!(forgotten, 0, "by buckets of {burst}");
    }
}

#[test]
fn a_store_full_of_callers_at_their_limit_still_counts_new_ones() {
    let store = store(10_000, 1 << 20);
    let limit = minute_window(2);
    spend_all(&store, &limit, 0..20_000);
    assert!(store.stats().evicted_spent > 9_000, "{:?}", store.stats());
    for key in 50_000..50_100 {
        ask(&store, &limit, key);
    }
    let counted = (50_000..50_100).filter(|key| ask(&store, &limit, *key).remaining == 0).count();
    assert_eq!(counted, 100);
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

#[test]
fn a_clock_that_leaps_by_decades_neither_frees_a_caller_nor_keeps_idle_cells() {
    let store = MemoryStore::with_clock(MemoryConfig::new(), ManualClock::default());
    // Ahead to today, back behind where the store began, and ahead to where seconds no longer fit 31 bits.
    for year in [57, 1, 90, 20, 55] {
        store.clock().set(Timestamp::from_micros(year * 31_556_952_000_000));
        let before = store.stats().dropped_idle;
        assert!(ask(&store, &minute_window(1), 0).is_admitted());
        for key in 1..5_000 {
            ask(&store, &minute_window(1), key);
        }
        assert!(!ask(&store, &minute_window(1), 0).is_admitted(), "{year} years after 1970");
        store.clock().advance(Micros::from_secs(200));
        for _ in 0..10 {
            store.sweep(1);
        }
        assert!(store.stats().dropped_idle - before >= 5_000, "{year} years after 1970");
    }
}

#[test]
fn a_log_that_becomes_a_counter_frees_its_memory() {
    // Room for four logs of sixty hits.
    let store = store(1_000, 1_024);
    let (few, hour) = (hour_log(100), Micros::from_secs(3_600));
    let many = Limit::SlidingWindow(SlidingWindow::new(200, hour).expect("a fine window"));
    for key in 0..50 {
        assert_eq!(ask_for(&store, &few, key, 60).remaining, 40);
        assert_eq!(ask(&store, &many, key).remaining, 139);
    }
    let stats = store.stats();
    assert_eq!((stats.cells, stats.evicted_in_use, stats.evicted_spent), (50, 0, 0));
}
