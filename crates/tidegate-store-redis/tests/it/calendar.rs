//! Whose time counts: Redis's, whatever the clocks of the nodes show.

use std::sync::Arc;

use tidegate_core::{FixedWindow, Limit, Micros, Timestamp};
use tidegate_store::{Clock, ManualClock, SystemClock};
use tidegate_store_redis::RedisStore;
use tidegate_testkit::Redis;

use crate::subject::{Target, a_bucket, ask, patient, spend, store};

/// A store on a node whose clock is off by `ahead` microseconds.
fn on_a_node(redis: &Redis, ahead: i64) -> RedisStore {
    let now = SystemClock::new().now().as_micros().saturating_add_signed(ahead);
    let node_clock = Arc::new(ManualClock::at(Timestamp::from_micros(now)));
    store(&redis.url(), &patient().node_clock(node_clock))
}

/// Days of uneven length around now.
fn a_calendar(limit: u64) -> Limit {
    let now = SystemClock::new().now();
    let day = 86_400_000_000_u64;
    let days = (0..400_u64).map(|number| {
        let since = Micros::new(number * day + (number % 3) * 3_600_000_000);
        now.back(Micros::new(200 * day + day / 2)) + since
    });
    Limit::FixedWindow(FixedWindow::calendar(limit, days.collect()).unwrap())
}

#[tokio::test]
async fn nodes_whose_clocks_differ_by_hours_spend_from_the_same_calendar_window() {
    let redis = Redis::start();
    let target = Target::new("rule", "42", a_calendar(4));
    let hour = 3_600_000_000;
    // The last is off by more windows than a plan holds.
    let offs = [0, hour, -hour, 40 * hour, -400 * hour];
    let mut admitted = Vec::new();
    for off in offs {
        admitted.push(spend(&on_a_node(&redis, off), &target).await.unwrap());
    }
    assert_eq!(admitted, [true, true, true, true, false]);
}

#[tokio::test]
async fn nodes_whose_clocks_differ_by_an_hour_are_told_the_same() {
    let redis = Redis::start();
    let (early, late) = (on_a_node(&redis, -3_600_000_000), on_a_node(&redis, 3_600_000_000));
    let target = Target::new("rule", "42", a_bucket(10));
    for expected in (0..10).rev() {
        let store = if expected % 2 == 0 { &early } else { &late };
        let outcomes = ask(store, &[target.spend(1)]).await.unwrap();
        assert_eq!((outcomes[0].is_admitted(), outcomes[0].remaining), (true, expected));
    }
    for store in [&early, &late] {
        assert!(!spend(store, &target).await.unwrap());
    }
}
