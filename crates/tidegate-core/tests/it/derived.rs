//! Other limits made from a limit: the share of a node, and the stricter of two.

use tidegate_core::{
    Concurrency, FixedWindow, LeakyBucket, Limit, Micros, Rate, RefusedHits, SlidingLog, SlidingWindow,
    Timestamp, TokenBucket,
};

fn every_algorithm(number: u64) -> Vec<Limit> {
    let (second, rate) = (Micros::from_secs(1), Rate::new(number, Micros::from_secs(1)).unwrap());
    let boundaries = (0..5).map(|day| Timestamp::from_micros(day * 86_400_000_000)).collect();
    vec![
        Limit::TokenBucket(TokenBucket::new(rate, number).unwrap()),
        Limit::LeakyBucket(LeakyBucket::new(rate, second).unwrap()),
        Limit::FixedWindow(FixedWindow::new(number, second).unwrap()),
        Limit::FixedWindow(FixedWindow::calendar(number, boundaries).unwrap()),
        Limit::SlidingWindow(SlidingWindow::new(number, second).unwrap()),
        Limit::SlidingLog(SlidingLog::new(number, second, Micros::ZERO, RefusedHits::Count).unwrap()),
        Limit::Concurrency(Concurrency::new(number, second, RefusedHits::Forget).unwrap()),
    ]
}

#[test]
fn the_shares_of_a_fleet_add_up_to_less_than_the_limit_and_one_each() {
    for (number, fleet) in [(100, 1), (100, 3), (1, 7), (10, 10), (11, 10)] {
        for limit in every_algorithm(number) {
            let share = limit.divided(fleet);
            assert_eq!(share.algorithm(), limit.algorithm());
            assert_eq!(share.period(), limit.period());
            // A leaky bucket admits one more than drains within `max_delay`.
            let fits = (limit.quota()..limit.quota() + 2 * fleet).contains(&(share.quota() * fleet));
            assert!(fits, "{} x {fleet} of {limit:?}", share.quota());
        }
    }
}

#[test]
fn a_ban_stays_a_ban() {
    let ban = Limit::FixedWindow(FixedWindow::new(0, Micros::from_secs(1)).unwrap());
    assert_eq!(ban.divided(3).quota(), 0);
}

#[test]
fn of_two_buckets_the_slower_rate_and_the_smaller_burst_count() {
    let bucket = |count, burst| {
        let rate = Rate::new(count, Micros::from_secs(1)).unwrap();
        Limit::TokenBucket(TokenBucket::new(rate, burst).unwrap())
    };
    assert_eq!(bucket(1, 100).strictest(&bucket(50, 5)), Some(bucket(1, 5)));
}

#[test]
fn of_a_log_and_a_counter_the_log_counts_up_to_the_smaller_number() {
    let minute = Micros::from_secs(60);
    let log =
        |limit| Limit::SlidingLog(SlidingLog::new(limit, minute, Micros::ONE, RefusedHits::Forget).unwrap());
    let window = |limit| Limit::SlidingWindow(SlidingWindow::new(limit, minute).unwrap());
    assert_eq!(log(100).strictest(&window(900)), Some(log(100)));
    assert_eq!(window(50).strictest(&log(100)), Some(log(50)));
    assert_eq!(log(100).strictest(&window(0)), Some(window(0)));
}

#[test]
fn limits_of_different_cells_have_nothing_in_common() {
    let window = |seconds| Limit::FixedWindow(FixedWindow::new(5, Micros::from_secs(seconds)).unwrap());
    let sliding = Limit::SlidingWindow(SlidingWindow::new(5, Micros::from_secs(1)).unwrap());
    assert_eq!(window(1).strictest(&window(2)), None);
    assert_eq!(window(1).strictest(&sliding), None);
}
