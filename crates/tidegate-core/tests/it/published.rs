//! How much too much and how much too little each algorithm admits: the table of docs/guides/choosing.md.

use tidegate_core::{
    Ask, Cell, Concurrency, FixedWindow, LeakyBucket, Limit, Micros, Rate, RefusedHits, SlidingLog,
    SlidingWindow, Timestamp, TokenBucket,
};

const MINUTE: Micros = Micros::from_secs(60);
/// A whole minute, and so the start of a window.
const START: u64 = 1_800_000_000_000_000;

fn limits_of(per_minute: u64) -> [Limit; 5] {
    let rate = Rate::new(per_minute, MINUTE).unwrap();
    [
        Limit::SlidingWindow(SlidingWindow::new(per_minute, MINUTE).unwrap()),
        Limit::TokenBucket(TokenBucket::new(rate, 1).unwrap()),
        Limit::FixedWindow(FixedWindow::new(per_minute, MINUTE).unwrap()),
        Limit::SlidingLog(SlidingLog::new(per_minute, MINUTE, Micros::ZERO, RefusedHits::Forget).unwrap()),
        Limit::LeakyBucket(LeakyBucket::new(rate, MINUTE).unwrap()),
    ]
}

/// Asks at each of `times` (microseconds from the start of a window); answers when it passed, delays included.
fn admitted(limit: &Limit, times: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut cell = Cell::Vacant;
    let mut passed = Vec::new();
    for time in times {
        let outcome = limit.decide(&mut cell, Timestamp::from_micros(START + time), Ask::hits(1));
        if outcome.is_admitted() {
            passed.push(time + outcome.delay().get());
        }
    }
    passed
}

/// The most that passed within any minute, its end not included.
fn fullest_minute(passed: &[u64]) -> usize {
    let within =
        |from: &u64| passed.iter().filter(|time| (*from..*from + MINUTE.get()).contains(time)).count();
    passed.iter().map(within).max().unwrap_or(0)
}

/// An hour of traffic evenly spaced at exactly the limit, beginning within a window.
fn even_hour(per_minute: u64) -> impl Iterator<Item = u64> {
    (0..60 * per_minute).map(move |n| 17 + (n * MINUTE.get()).div_ceil(per_minute))
}

#[test]
fn even_traffic_at_the_limit_passes_whole_in_all_but_the_sliding_window() {
    for per_minute in [1, 2, 5, 10, 100] {
        for limit in limits_of(per_minute) {
            let passed = admitted(&limit, even_hour(per_minute)).len() as u64;
            if !matches!(limit, Limit::SlidingWindow(_)) {
                assert_eq!(passed, 60 * per_minute, "{limit:?}");
            }
        }
    }
}

#[test]
fn the_sliding_window_loses_at_most_a_hit_per_window_of_even_traffic_and_never_more_than_half() {
    for (per_minute, least) in [(1, 30), (2, 60), (5, 240), (10, 540), (100, 5_940), (1_000, 59_940)] {
        let limit = Limit::SlidingWindow(SlidingWindow::new(per_minute, MINUTE).unwrap());
        let passed = admitted(&limit, even_hour(per_minute)).len();
        assert!(passed >= least, "{passed} of {} passed at {per_minute}/minute", 60 * per_minute);
        assert!(passed <= least + 60, "{passed} at {per_minute}/minute: publish the better figure");
    }
}

#[test]
fn the_sliding_window_may_refuse_a_caller_who_did_nothing_for_a_minute() {
    let limit = Limit::SlidingWindow(SlidingWindow::new(100, MINUTE).unwrap());
    // A hundred at the start of a window; a minute later nothing is left of them, and still the counter refuses.
    let mut cell = Cell::Vacant;
    assert!(limit.decide(&mut cell, Timestamp::from_micros(START), Ask::hits(100)).is_admitted());
    let a_minute_later = Timestamp::from_micros(START + MINUTE.get() + 1);
    assert!(!limit.look(&cell, a_minute_later, Ask::look()).is_admitted());
}

#[test]
fn the_sliding_window_has_a_hit_again_after_a_window_and_its_part_of_the_next_and_all_after_two() {
    for per_minute in [1, 2, 7, 100, 1_000] {
        let limit = Limit::SlidingWindow(SlidingWindow::new(per_minute, MINUTE).unwrap());
        for burst_at in [0, 1, MINUTE.get() / 3, MINUTE.get() - 1] {
            let mut cell = Cell::Vacant;
            let burst = Timestamp::from_micros(START + burst_at);
            assert!(limit.decide(&mut cell, burst, Ask::hits(per_minute)).is_admitted());
            // The rest of the burst's window, then until one of its hits has faded, or all of them.
            let end = MINUTE.get() - burst_at;
            for (hits, longest) in
                [(1, end + MINUTE.get().div_ceil(per_minute)), (per_minute, end + MINUTE.get())]
            {
                let wait = limit.look(&cell, burst, Ask::hits(hits)).retry_after().unwrap().get();
                assert!(wait <= longest, "{wait} us for {hits} of {per_minute} after a burst at {burst_at}");
                let then = Timestamp::from_micros(START + burst_at + longest);
                assert!(
                    limit.look(&cell, then, Ask::hits(hits)).is_admitted(),
                    "{hits} of {per_minute} at {burst_at}"
                );
            }
        }
    }
}

#[test]
fn the_log_and_the_fixed_window_refuse_only_when_the_last_minute_holds_the_whole_limit() {
    // Bursts of seven every 3.1 s: never in step with a window.
    let times: Vec<u64> = (0..2_000).map(|n| n / 7 * 3_100_000 + n % 7).collect();
    for limit in [&limits_of(100)[2], &limits_of(100)[3]] {
        let passed = admitted(limit, times.iter().copied());
        let refused: Vec<u64> = times.iter().copied().filter(|time| !passed.contains(time)).collect();
        assert!(!refused.is_empty());
        for at in refused {
            let since = at.saturating_sub(MINUTE.get());
            let held = passed.iter().filter(|time| **time <= at && **time + 1 > since).count();
            assert!(held >= 100, "refused with {held} in the last minute by {limit:?}");
        }
    }
}

#[test]
fn the_worst_minute_of_each_algorithm_is_the_published_one() {
    let last_instant = MINUTE.get() - 1;
    // A whole limit in the last instant of a window, then as fast as it will let pass.
    let packed =
        || std::iter::repeat_n(last_instant, 300).chain((last_instant + 1..2 * MINUTE.get()).step_by(10_000));
    let worst = |limit: &Limit| fullest_minute(&admitted(limit, packed()));
    let [sliding, _, fixed, log, leaky] = limits_of(100);
    let bucket = TokenBucket::new(Rate::new(100, MINUTE).unwrap(), 50).unwrap();
    assert_eq!(worst(&sliding), 199);
    assert_eq!(worst(&fixed), 200);
    assert_eq!(worst(&log), 100);
    // The 150th comes back with the minute's end.
    assert_eq!(worst(&Limit::TokenBucket(bucket)), 149);
    assert!(worst(&leaky) <= 101, "{}", worst(&leaky));
}

#[test]
fn a_concurrency_limit_holds_a_crashed_callers_place_until_its_ttl() {
    let limit = Limit::Concurrency(Concurrency::new(1, MINUTE, RefusedHits::Forget).unwrap());
    let ask = |id| Ask { lease: std::num::NonZeroU64::new(id).map(tidegate_core::LeaseId), ..Ask::hits(1) };
    let mut cell = Cell::Vacant;
    let at = |time: u64| Timestamp::from_micros(START + time);
    assert!(limit.decide(&mut cell, at(0), ask(1)).is_admitted());
    assert!(!limit.decide(&mut cell, at(MINUTE.get() - 1), ask(2)).is_admitted());
    assert!(limit.decide(&mut cell, at(MINUTE.get()), ask(2)).is_admitted());
}

#[test]
fn a_concurrency_limit_admits_never_more_at_once_and_never_less() {
    let (most, ttl) = (10, Micros::from_secs(1));
    let limit = Limit::Concurrency(Concurrency::new(most, ttl, RefusedHits::Forget).unwrap());
    let lease = |id| tidegate_core::LeaseId(std::num::NonZeroU64::new(id).unwrap());
    let mut cell = Cell::Vacant;
    // Who holds a place, and until when, counted by hand.
    let mut held: Vec<(u64, u64)> = Vec::new();
    let (mut random, mut time, mut fullest) = (7_u64, START, 0);
    for id in 1..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        time += (random >> 40) % 60_000;
        held.retain(|(_, until)| *until > time);
        let now = Timestamp::from_micros(time);
        if random >> 62 == 0 && !held.is_empty() {
            let (holder, _) = held.swap_remove((random >> 32) as usize % held.len());
            assert!(limit.release(&mut cell, now, lease(holder)));
        } else {
            let ask = Ask { lease: Some(lease(id)), ..Ask::hits(1) };
            let admitted = limit.decide(&mut cell, now, ask).is_admitted();
            assert_eq!(admitted, (held.len() as u64) < most, "{} are held at {time}", held.len());
            held.extend(admitted.then_some((id, time + ttl.get())));
        }
        fullest = fullest.max(held.len() as u64);
    }
    assert_eq!(fullest, most);
}
