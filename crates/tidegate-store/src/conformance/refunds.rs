//! Refunds with an ID: applied once per cell, however often they are sent.

use std::hash::{BuildHasher, RandomState};

use tidegate_core::{
    Ask, FixedWindow, Group, Hits, Limit, Micros, Rate, RefusedHits, Scope, SlidingLog, SlidingWindow,
    Timestamp, TokenBucket, Touch,
};

use super::Subject;
use crate::contract::{CellKey, Refund, RefundId, Request, Spend, Store};

const QUOTA: u64 = 10;
const HOUR: Micros = Micros::from_secs(3_600);

/// # Panics
/// When a repeated refund is applied again, or a different one is not.
pub(super) async fn check(subject: &dyn Subject) {
    if !subject.keeps_records() {
        return;
    }
    subject.set_time(Timestamp::from_micros(1_800_000_000_000_000));
    for limit in limits() {
        check_limit(subject.store(), &limit).await;
    }
}

fn limits() -> [Limit; 4] {
    let rate = Rate::new(QUOTA, HOUR).expect("a rate");
    let log = SlidingLog::new(QUOTA, HOUR, Micros::ZERO, RefusedHits::Forget).expect("a log");
    [
        Limit::TokenBucket(TokenBucket::new(rate, QUOTA).expect("a bucket")),
        Limit::FixedWindow(FixedWindow::new(QUOTA, HOUR).expect("a window")),
        Limit::SlidingWindow(SlidingWindow::new(QUOTA, HOUR).expect("a window")),
        Limit::SlidingLog(log),
    ]
}

async fn check_limit(store: &dyn Store, limit: &Limit) {
    // Two cells, on two servers if there are several.
    let scope = Scope::new(&[b"refunds", limit.algorithm().name().as_bytes()]);
    let [one, two] = [&b"one"[..], b"two"].map(|key| CellKey { scope: &scope, key, tag: key });
    for cell in [one, two] {
        store.reset(cell, limit).answer().await.expect("the store answers");
        assert_eq!(left(store, cell, limit, 6).await, 4, "{limit:?}");
    }
    let refund = |cell, id| Refund { cell, limit, hits: Hits::new(2), age: Micros::ZERO, id };
    // Unique to this run: the store may still remember earlier IDs.
    let run = RandomState::new().hash_one(limit.algorithm().name());
    let id = |number: u64| Some(RefundId::new((u128::from(run) << 64 | u128::from(number)).to_le_bytes()));
    // The first attempt reached only one cell.
    give_back(store, &[refund(one, id(1))]).await;
    for _ in 0..2 {
        give_back(store, &[refund(one, id(1)), refund(two, id(1))]).await;
        assert_eq!((left(store, one, limit, 0).await, left(store, two, limit, 0).await), (6, 6), "{limit:?}");
    }
    give_back(store, &[refund(one, id(2)), refund(two, None)]).await;
    give_back(store, &[refund(one, id(2)), refund(two, None)]).await;
    assert_eq!((left(store, one, limit, 0).await, left(store, two, limit, 0).await), (8, 10), "{limit:?}");
}

async fn give_back(store: &dyn Store, refunds: &[Refund<'_>]) {
    store.refund(refunds).answer().await.expect("the store answers");
}

async fn left(store: &dyn Store, cell: CellKey<'_>, limit: &Limit, hits: u64) -> u64 {
    let touch = Touch { limit, ask: Ask::hits(hits), group: Group::ENFORCED };
    let spends = [Spend { cell, touch }];
    let batch = [Request::once(&spends)];
    store.decide(&batch).answer().await.expect("the store answers")[0].remaining
}
