//! What every algorithm promises, whatever the history.

use proptest::prelude::*;
use tidegate_core::{
    Ask, Cell, Charge, Group, Hits, Limit, Micros, Rate, RefusedHits, SlidingLog, Timestamp, TokenBucket,
    Touch,
};

use crate::generate::{START, Step, any_limit, any_limit_and_history, ask, scale};

/// Plays a history; tells of each request that passed, when, and how much it spent.
fn play(limit: &Limit, cell: &mut Cell, history: &[Step]) -> (Timestamp, Vec<(Timestamp, u64)>) {
    let mut now = START;
    let mut passed = vec![];
    for (turn, step) in history.iter().enumerate() {
        now = now + step.wait;
        if limit.decide(cell, now, ask(step.hits, turn)).is_admitted() {
            passed.push((now, step.hits));
        }
    }
    (now, passed)
}

/// The published bound on hits within any window of `span`.
fn bound(limit: &Limit, span: Micros, largest_cost: u64) -> Option<u128> {
    let per = |rate: Rate| {
        (u128::from(span.get()) * u128::from(rate.count())).div_ceil(u128::from(rate.period().get()))
    };
    match limit {
        Limit::TokenBucket(limit) => Some(u128::from(limit.burst()) + per(limit.rate())),
        Limit::LeakyBucket(limit) => Some(u128::from(largest_cost) + per(limit.rate())),
        Limit::FixedWindow(limit) => {
            limit.window().filter(|window| span <= *window).map(|_| 2 * u128::from(limit.limit()))
        }
        Limit::SlidingWindow(limit) => (span <= limit.window()).then(|| 2 * u128::from(limit.limit())),
        Limit::SlidingLog(limit) => (span <= limit.window()).then(|| u128::from(limit.limit())),
        Limit::Concurrency(_) => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_window_admits_more_than_the_published_bound((limit, history) in any_limit_and_history()) {
        let mut now = START;
        let mut cell = Cell::Vacant;
        // A leaky bucket's hits count when they go, not when they are told to wait.
        let mut gone: Vec<(Timestamp, u64)> = vec![];
        for (turn, step) in history.iter().enumerate() {
            now = now + step.wait;
            let outcome = limit.decide(&mut cell, now, ask(step.hits, turn));
            if outcome.is_admitted() {
                gone.push((now + outcome.delay(), step.hits));
            }
        }
        let largest = gone.iter().map(|(_, hits)| *hits).max().unwrap_or(0);
        for (first, (from, _)) in gone.iter().enumerate() {
            let mut sum = 0u128;
            for (to, hits) in &gone[first..] {
                sum += u128::from(*hits);
                // The window [from, to] has this length, ends included; half-open windows are one microsecond longer.
                let span = *to - *from + Micros::ONE;
                if let Some(most) = bound(&limit, span, largest) {
                    prop_assert!(sum <= most, "{} hits in {} from {:?}, at most {}", sum, span, limit, most);
                }
            }
        }
    }

    #[test]
    fn a_refusal_changes_nothing((limit, history) in any_limit_and_history(), hits in any::<u64>()) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let before: Vec<_> = (0..4).map(|i| limit.look(&cell, now + Micros::new(i * scale(&limit) / 3), Ask::look())).collect();
        if !limit.decide(&mut cell, now, ask(hits, 99)).is_admitted() {
            let after: Vec<_> = (0..4).map(|i| limit.look(&cell, now + Micros::new(i * scale(&limit) / 3), Ask::look())).collect();
            prop_assert_eq!(before, after);
        }
    }

    #[test]
    fn a_look_spends_nothing((limit, history) in any_limit_and_history()) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let first = limit.decide(&mut cell, now, Ask::look());
        let second = limit.decide(&mut cell, now, Ask::look());
        prop_assert_eq!(first, second);
    }

    #[test]
    fn retry_after_is_the_earliest_admission((limit, history) in any_limit_and_history(), hits in 0..60u64) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let asked = ask(hits, 99);
        let Some(retry_after) = limit.look(&cell, now, asked).retry_after() else { return Ok(()) };
        prop_assert!(retry_after > Micros::ZERO);
        let then = now + retry_after;
        let just_before = now + retry_after.saturating_sub(Micros::ONE);
        prop_assert!(limit.look(&cell, then, asked).is_admitted(), "refused at {:?} after {}", limit, retry_after);
        prop_assert!(!limit.look(&cell, just_before, asked).is_admitted(), "admitted before {} by {:?}", retry_after, limit);
    }

    #[test]
    fn what_can_never_pass_has_no_retry_after(limit in any_limit(), more in 1..u64::MAX / 2) {
        let hits = limit.quota().saturating_add(more);
        let outcome = limit.decide(&mut Cell::Vacant, START, ask(hits, 0));
        // A request takes one lease however much it costs.
        if !matches!(limit, Limit::Concurrency(_)) {
            prop_assert!(!outcome.is_admitted());
            prop_assert_eq!(outcome.retry_after(), None);
        }
    }

    #[test]
    fn the_full_quota_is_back_at_reset_and_not_before((limit, history) in any_limit_and_history()) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let reset_after = limit.look(&cell, now, Ask::look()).reset_after;
        let at_reset = limit.look(&cell, now + reset_after, Ask::look());
        prop_assert_eq!(at_reset.remaining, limit.quota());
        // A fixed window says when it ends, whether or not anything was spent in it.
        if !matches!(limit, Limit::FixedWindow(_)) && reset_after > Micros::ZERO {
            let before = limit.look(&cell, now + reset_after.saturating_sub(Micros::ONE), Ask::look());
            prop_assert!(before.reset_after > Micros::ZERO);
        }
    }

    #[test]
    fn reset_and_remaining_do_not_wobble((limit, history) in any_limit_and_history(), part in 0..100u64) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let first = limit.look(&cell, now, Ask::look());
        let later = now + Micros::new(first.reset_after.get() * part / 100);
        let second = limit.look(&cell, later, Ask::look());
        prop_assert!(second.remaining >= first.remaining);
        if second.reset_after > Micros::ZERO && !matches!(limit, Limit::FixedWindow(_)) {
            prop_assert_eq!(later + second.reset_after, now + first.reset_after);
        }
    }

    #[test]
    fn what_is_refunded_at_once_can_be_spent_again((limit, history) in any_limit_and_history(), hits in 1..20u64) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let before = limit.look(&cell, now, Ask::look()).remaining;
        let spent = limit.decide(&mut cell, now, Ask::hits(hits)).is_admitted();
        if spent && !matches!(limit, Limit::LeakyBucket(_) | Limit::Concurrency(_)) {
            limit.refund(&mut cell, now, Hits::new(hits), Micros::ZERO);
            prop_assert_eq!(limit.look(&cell, now, Ask::look()).remaining, before);
        }
    }

    #[test]
    fn a_log_whose_hits_are_refunded_late_admits_no_more_than_its_limit_of_those_that_were_not(
        limit in 1..12u64,
        steps in proptest::collection::vec((0..700u64, 1..6u64, 0..8usize, any::<bool>(), 0..300u64), 1..80),
    ) {
        let window = Micros::new(1_000);
        let log = SlidingLog::new(limit, window, Micros::ZERO, RefusedHits::Forget).unwrap();
        let (limit, mut cell, mut now) = (Limit::SlidingLog(log), Cell::Vacant, START);
        let mut kept: Vec<(Timestamp, u64)> = vec![];
        for (wait, hits, which, refunds, too_old) in steps {
            now = now + Micros::new(wait);
            if limit.decide(&mut cell, now, Ask::hits(hits)).is_admitted() {
                kept.push((now, hits));
            }
            let in_window = |from: Timestamp| {
                kept.iter().filter(|(at, _)| *at >= from && at.since(from) < window).map(|(_, hits)| hits).sum::<u64>()
            };
            for (from, _) in &kept {
                prop_assert!(in_window(*from) <= limit.quota(), "{kept:?}");
            }
            if refunds && let Some(place) = kept.len().checked_sub(which + 1) {
                let (taken, hits) = kept.remove(place);
                // Whoever measures an age may tell too much of it, never too little.
                limit.refund(&mut cell, now, Hits::new(hits), now.since(taken) + Micros::new(too_old));
            }
        }
    }

    #[test]
    fn a_refund_never_gives_more_than_the_quota((limit, history) in any_limit_and_history(), hits in any::<u64>()) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        limit.refund(&mut cell, now, Hits::new(hits), Micros::ZERO);
        prop_assert!(limit.look(&cell, now, Ask::look()).remaining <= limit.quota());
    }

    #[test]
    fn a_charge_takes_what_it_can_and_no_more((limit, history) in any_limit_and_history(), hits in any::<u64>()) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let before = limit.look(&cell, now, Ask::look()).remaining;
        limit.charge(&mut cell, now, Charge::now(Hits::new(hits)));
        let after = limit.look(&cell, now, Ask::look());
        // A sliding window may owe for the previous window on top; only leases are not charged.
        prop_assert!(after.remaining <= before);
        if hits >= limit.quota() && !matches!(limit, Limit::Concurrency(_)) {
            prop_assert_eq!(after.remaining, 0);
        }
    }

    #[test]
    fn a_clock_that_steps_back_locks_nobody_out_for_longer_than_the_quota_takes(
        (limit, history) in any_limit_and_history(),
        back in prop_oneof![0..1_000_000u64, 0..10_000_000_000_000u64, Just(u64::MAX)],
    ) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let stepped = now.back(Micros::new(back.min(1_700_000_000_000_000)));
        let wait = limit.look(&cell, stepped, ask(1, 99)).retry_after().unwrap_or(Micros::ZERO);
        let longest = match &limit {
            // The calendar's window around the new time, whichever it is.
            Limit::FixedWindow(limit) => limit.window_around(stepped).1.since(stepped),
            // A full previous window after a full current one.
            Limit::SlidingWindow(limit) => limit.window() + limit.window(),
            Limit::Concurrency(limit) => limit.ttl(),
            limit => limit.quota_window().unwrap(),
        };
        prop_assert!(wait <= longest, "locked out for {} by {:?}", wait, limit);
        // And deciding there works like anywhere else.
        let outcome = limit.decide(&mut cell, stepped, ask(1, 99));
        prop_assert_eq!(outcome.retry_after().unwrap_or(Micros::ZERO), wait);
    }

    #[test]
    fn a_clock_that_steps_back_refuses_nobody_for_longer_than_it_says(
        (limit, history) in any_limit_and_history(),
        back in prop_oneof![0..1_000_000u64, 0..10_000_000_000u64],
        hits in 0..30u64,
    ) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let stepped = now.back(Micros::new(back));
        let touch = Touch { limit: &limit, ask: ask(hits, 99), group: Group::ENFORCED };
        let Some(retry_after) = touch.decide_alone(&mut cell, stepped).retry_after() else { return Ok(()) };
        prop_assert!(touch.decide_alone(&mut cell, stepped + retry_after).is_admitted(), "by {limit:?}");
    }

    #[test]
    fn who_waits_as_long_as_it_is_told_is_admitted_where_refused_requests_count(
        limit in prop_oneof![
            crate::generate::any_sliding_log().prop_map(Limit::SlidingLog),
            crate::generate::any_concurrency().prop_map(Limit::Concurrency),
        ],
        waits in proptest::collection::vec(0..100u64, 1..60),
        hits in 1..4u64,
    ) {
        let mut cell = Cell::Vacant;
        let mut now = START;
        for (turn, wait) in waits.into_iter().enumerate() {
            now = now + Micros::new(scale(&limit) * wait / 400);
            let touch = Touch { limit: &limit, ask: ask(hits, turn), group: Group::ENFORCED };
            let outcome = touch.decide_alone(&mut cell, now);
            if let Some(retry_after) = outcome.retry_after() {
                let then = now + retry_after;
                prop_assert!(limit.look(&cell, then, touch.ask).is_admitted(), "after {retry_after} by {limit:?}");
                prop_assert!(!limit.look(&cell, then.back(Micros::ONE), touch.ask).is_admitted());
            }
        }
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_back((limit, history) in any_limit_and_history(), back in 0..1_000_000_000u64) {
        let mut cell = Cell::Vacant;
        let (now, _) = play(&limit, &mut cell, &history);
        let remaining = limit.look(&cell, now, Ask::look()).remaining;
        let stepped = limit.look(&cell, now.back(Micros::new(back)), Ask::look()).remaining;
        // A sliding window's previous count weighs more the earlier in its window it is read, never less, and leases
        // that had run out were dropped or not.
        if !matches!(limit, Limit::SlidingWindow(_)) {
            prop_assert!(stepped <= remaining, "{stepped} after, {remaining} before, {:?}", limit);
        }
    }

    #[test]
    fn time_far_ahead_brings_the_full_quota_back((limit, history) in any_limit_and_history()) {
        let mut cell = Cell::Vacant;
        play(&limit, &mut cell, &history);
        let far = limit.decide(&mut cell, Timestamp::MAX.back(Micros::from_secs(20 * 365 * 86_400)), Ask::look());
        prop_assert_eq!(far.remaining, limit.quota());
    }

    #[test]
    fn no_number_or_time_makes_an_algorithm_panic(
        limit in any_limit(),
        times in proptest::collection::vec(any::<u64>(), 1..20),
        hits in proptest::collection::vec(prop_oneof![any::<u64>(), Just(u64::MAX), Just(0), 0..5u64], 20),
    ) {
        let mut cell = Cell::Vacant;
        for (turn, micros) in times.into_iter().enumerate() {
            let now = Timestamp::from_micros(micros);
            let outcome = limit.decide(&mut cell, now, ask(hits[turn], turn));
            prop_assert!(outcome.remaining <= limit.quota());
            limit.note_refused(&mut cell, now, ask(hits[turn], turn), 1);
            limit.refund(&mut cell, now, Hits::new(hits[19 - turn.min(19)] / 2), Micros::new(micros / 3));
            let (hits, overdraft) = (Hits::new(hits[turn] / 3), Hits::new(hits[19 - turn.min(19)]));
            limit.charge(&mut cell, now, Charge { hits, age: Micros::new(micros / 7), overdraft });
        }
    }

    #[test]
    fn a_sixteen_byte_cell_holds_the_largest_limits(burst in 1..(1u64 << 53), count in 1..(1u64 << 53), period in 1..100_000_000_000u64) {
        let rate = Rate::new(count, Micros::new(period)).unwrap();
        // Some of these do not fit the exact arithmetic, and say so.
        let Ok(bucket) = TokenBucket::new(rate, burst) else { return Ok(()) };
        let limit = Limit::TokenBucket(bucket);
        let mut cell = Cell::Vacant;
        let outcome = limit.decide(&mut cell, START, Ask::hits(burst));
        prop_assert!(outcome.is_admitted() && outcome.remaining == 0);
        prop_assert_eq!(limit.look(&cell, START, Ask::look()).remaining, 0);
    }
}
