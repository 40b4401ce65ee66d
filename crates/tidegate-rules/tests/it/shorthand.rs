//! What `100/minute` means: what people read in it.

use tidegate_core::{Algorithm, Ask, Cell, Limit, Micros, Timestamp};

use crate::harness::{NOW, native};

fn limit_of(written: &str) -> Limit {
    let rules = native(&format!("{{ domain: api, rules: [{{ name: r, limits: [{written}] }}] }}"));
    let rule = rules.rules().next().expect("there is one");
    rule.limits().next().expect("there is one").limit.clone()
}

/// An hour of traffic, evenly spaced at exactly the limit: how much of it passes.
fn even_hour(limit: &Limit, per_minute: u64) -> u64 {
    let mut cell = Cell::Vacant;
    let at = |n: u64| Timestamp::from_micros(NOW.as_micros() + 17 + (n * 60_000_000).div_ceil(per_minute));
    (0..60 * per_minute).filter(|n| limit.decide(&mut cell, at(*n), Ask::hits(1)).is_admitted()).count()
        as u64
}

#[test]
fn a_shorthand_is_exact_up_to_a_hundred_hits_and_a_counter_above() {
    for (written, algorithm) in [
        ("1/minute", Algorithm::SlidingLog),
        ("100/day", Algorithm::SlidingLog),
        ("{ limit: 100, window: 1m }", Algorithm::SlidingLog),
        ("101/minute", Algorithm::SlidingWindow),
        ("{ limit: 101, window: 1m }", Algorithm::SlidingWindow),
        // A ban has nothing to log.
        ("0/minute", Algorithm::SlidingWindow),
    ] {
        assert_eq!(limit_of(written).algorithm(), algorithm, "{written}");
    }
}

#[test]
fn traffic_at_exactly_a_small_limit_passes_whole() {
    for per_minute in [1, 2, 5, 10, 100] {
        let limit = limit_of(&format!("{per_minute}/minute"));
        assert_eq!(even_hour(&limit, per_minute), 60 * per_minute, "{per_minute}/minute");
    }
}

#[test]
fn traffic_at_exactly_a_larger_limit_loses_less_than_a_hundredth() {
    for per_minute in [101, 150, 1_000] {
        let passed = even_hour(&limit_of(&format!("{per_minute}/minute")), per_minute);
        assert!(
            passed * 100 >= 60 * per_minute * 99,
            "{passed} of {} at {per_minute}/minute",
            60 * per_minute
        );
    }
}

#[test]
fn after_the_one_hit_of_a_minute_retry_after_is_a_minute() {
    let limit = limit_of("1/minute");
    let mut cell = Cell::Vacant;
    assert!(limit.decide(&mut cell, NOW, Ask::hits(1)).is_admitted());
    let refused = limit.decide(&mut cell, NOW, Ask::hits(1));
    assert_eq!(refused.retry_after(), Some(Micros::from_secs(60)));
    assert!(limit.decide(&mut cell, NOW + Micros::from_secs(60), Ask::hits(1)).is_admitted());
}
