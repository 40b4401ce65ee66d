//! Rates hold over the long run: a caller that always comes back at `retry_after` gets what it was promised.

use tidegate_core::{Ask, Cell, LeakyBucket, Limit, Micros, Rate, TokenBucket};

use crate::generate::START;

/// Drives `limit` as hard as it allows for `hits` hits, and says how long that took.
fn drive(limit: &Limit, hits: u64) -> Micros {
    let mut cell = Cell::Vacant;
    let mut now = START;
    let mut passed = 0;
    // Spend the burst first: what follows is the rate alone.
    while limit.decide(&mut cell, now, Ask::hits(1)).is_admitted() {}
    while passed < hits {
        let outcome = limit.decide(&mut cell, now, Ask::hits(1));
        match outcome.retry_after() {
            Some(wait) => now = now + wait,
            None => passed += 1,
        }
    }
    now - START
}

/// Asserts that `limit` gives `rate` within 0.1 %, and not more than it.
fn check(limit: &Limit, rate: Rate) {
    let hits = 20_000;
    let took = drive(limit, hits).get() as f64;
    let promised = rate.period().get() as f64 / rate.count() as f64 * hits as f64;
    let error = took / promised - 1.0;
    assert!((-0.0001..0.001).contains(&error), "{error:+.6} for {rate:?}");
}

#[test]
fn rates_from_one_a_day_to_ten_million_a_second_hold_within_a_thousandth() {
    let day = Micros::from_secs(86_400);
    let second = Micros::from_secs(1);
    let rates = [
        (1, day),
        (7, day),
        (999_983, day),
        (123_456_789, day),
        (1, second),
        (3, second),
        (7, second),
        (1_000, second),
        (600_000, second),
        (999_983, second),
        (10_000_000, second),
        (9_999_991, second),
        (100, Micros::from_secs(60)),
        (17, Micros::from_millis(333)),
    ];
    for (count, period) in rates {
        let rate = Rate::new(count, period).unwrap();
        check(&Limit::TokenBucket(TokenBucket::new(rate, 1.max(count / 1_000)).unwrap()), rate);
        // Small enough a burst to be spent, large enough that time is counted in microseconds and hits are not lost.
        check(&Limit::TokenBucket(TokenBucket::new(rate, 10.max(count / 100_000)).unwrap()), rate);
        check(
            &Limit::LeakyBucket(
                LeakyBucket::new(rate, Micros::new(period.get() * 3 / count.min(1_000))).unwrap(),
            ),
            rate,
        );
    }
}

#[test]
fn a_burst_too_large_to_count_in_microseconds_is_counted_coarsely_but_within_a_thousandth() {
    let rate = Rate::new(9_999_991, Micros::from_secs(86_400)).unwrap();
    let limit = Limit::TokenBucket(TokenBucket::new(rate, 9_999_991).unwrap());
    let mut cell = Cell::Vacant;
    assert!(limit.decide(&mut cell, START, Ask::hits(9_999_991)).is_admitted());
    let half_a_day = START + Micros::from_secs(43_200);
    let back = limit.look(&cell, half_a_day, Ask::look()).remaining;
    let promised = 9_999_991 / 2;
    assert!(back <= promised && back > promised - promised / 1_000, "{back} of {promised}");
}

#[test]
fn a_bucket_that_cannot_be_counted_says_what_to_change() {
    let rate = Rate::new(3, Micros::from_secs(86_400)).unwrap();
    let error = TokenBucket::new(rate, 1 << 50).unwrap_err();
    assert_eq!(error.field, "burst");
    assert!(error.to_string().contains("cannot be counted exactly"), "{error}");
}
