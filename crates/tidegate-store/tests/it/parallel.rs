use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Ask, FixedWindow, Group, Hits, Limit, Micros, Scope, Timestamp, Touch};
use tidegate_store::{CellKey, ManualClock, MemoryConfig, MemoryStore, Reply, Request, Spend, Store};

fn window(limit: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(limit, Micros::from_secs(60)).expect("a fine window"))
}

/// Whether a request over these cells passes.
fn passes(store: &MemoryStore<ManualClock>, cells: &[(&Scope, &[u8], &Limit)]) -> bool {
    let spends: Vec<Spend<'_>> = cells
        .iter()
        .map(|(scope, key, limit)| Spend {
            cell: CellKey { scope, key, tag: key },
            touch: Touch { limit, ask: Ask::hits(1), group: Group::ENFORCED },
        })
        .collect();
    let Reply::Now(Ok(outcomes)) = store.decide(&[Request::once(&spends)]) else { panic!("memory answers") };
    outcomes.iter().all(tidegate_core::Outcome::is_admitted)
}

#[test]
fn threads_that_share_a_key_get_exactly_the_limit_together() {
    let store = MemoryStore::with_clock(MemoryConfig::default(), ManualClock::at(Timestamp::from_micros(1)));
    let (scope, limit) = (Scope::new(&[b"a"]), window(1_000));
    let passed = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                for _ in 0..500 {
                    passed
                        .fetch_add(u64::from(passes(&store, &[(&scope, b"key", &limit)])), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 1_000);
}

#[test]
fn requests_over_the_same_cells_in_any_order_neither_deadlock_nor_overspend() {
    let store = MemoryStore::with_clock(MemoryConfig::default(), ManualClock::at(Timestamp::from_micros(1)));
    let scopes: Vec<Scope> = (0..4u8).map(|i| Scope::new(&[&[i]])).collect();
    let limits: Vec<Limit> = [300, 500, 700, 900].map(window).into();
    let passed = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for turn in 0..4usize {
            let (store, scopes, limits, passed) = (&store, &scopes, &limits, &passed);
            threads.spawn(move || {
                for _ in 0..400 {
                    let cells: Vec<_> = (0..4)
                        .map(|i| (i + turn) % 4)
                        .map(|i| (&scopes[i], &b"key"[..], &limits[i]))
                        .collect();
                    passed.fetch_add(u64::from(passes(store, &cells)), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 300);
    // What the narrow cell refused was not spent from the wide one.
    let spent: u64 = (0..2_000).map(|_| u64::from(passes(&store, &[(&scopes[3], b"key", &limits[3])]))).sum();
    assert_eq!(spent, 900 - 300);
}

#[test]
fn a_cell_that_is_set_again_and_again_is_never_found_empty() {
    let store = MemoryStore::with_clock(MemoryConfig::default(), ManualClock::at(Timestamp::from_micros(1)));
    let (scope, limit) = (Scope::new(&[b"a"]), window(1));
    let set = || store.set(CellKey { scope: &scope, key: b"key", tag: b"key" }, &limit, Hits::ONE);
    set();
    std::thread::scope(|threads| {
        let setting = threads.spawn(|| (0..20_000).for_each(|_| set()));
        while !setting.is_finished() {
            assert!(!passes(&store, &[(&scope, b"key", &limit)]));
        }
    });
}
