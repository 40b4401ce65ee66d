//! A limit may change from one sliding algorithm to the other while cells live. The references here keep the whole history and
//! count from the definitions, in 128-bit integers.

use proptest::prelude::*;
use tidegate_core::{Ask, Cell, Limit, Micros, RefusedHits, SlidingLog, SlidingWindow, Timestamp};

use crate::generate::{START, Step, any_period};

fn log(limit: u64, window: Micros) -> Limit {
    Limit::SlidingLog(SlidingLog::new(limit, window, Micros::ZERO, RefusedHits::Forget).unwrap())
}

fn window(limit: u64, window: Micros) -> Limit {
    Limit::SlidingWindow(SlidingWindow::new(limit, window).unwrap())
}

/// Every admitted hit: when, and how many.
#[derive(Clone, Debug, Default)]
struct Admitted(Vec<(u128, u64)>);

impl Admitted {
    fn play(&mut self, limit: &Limit, cell: &mut Cell, steps: &[Step], mut now: Timestamp) -> Timestamp {
        for step in steps {
            now = now + step.wait;
            if limit.decide(cell, now, Ask::hits(step.hits)).is_admitted() {
                self.0.push((now.as_micros().into(), step.hits));
            }
        }
        now
    }

    fn between(&self, from: u128, until: u128) -> u128 {
        let hits = self.0.iter().filter(|(at, _)| (from..=until).contains(at));
        hits.map(|(_, hits)| u128::from(*hits)).sum()
    }

    /// What a log counts: the hits within the window before `now`.
    fn in_log(&self, window: u128, now: u128) -> u128 {
        self.between(now + 1 - window, now)
    }

    /// What a counter estimates, rounded up: the current window's hits, and the part of the previous one's that has not faded.
    fn in_window(&self, window: u128, now: u128) -> u128 {
        let start = now - now % window;
        let previous = self.between(start - window, start - 1);
        (previous * (window - (now - start))).div_ceil(window) + self.between(start, now)
    }
}

fn any_steps(window: Micros, most: u64) -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![2 => Just(0), 2 => 0..=window.get() / 50, 2 => 0..=window.get()];
    let step = (wait, 1..=most).prop_map(|(wait, hits)| Step { wait: Micros::new(wait), hits });
    proptest::collection::vec(step, 1..40)
}

/// A window, a number for the log and one for the counter, and what was asked before the change.
fn any_change() -> impl Strategy<Value = (Micros, u64, u64, Vec<Step>)> {
    (any_period(), 1..120u64, 1..1_000u64).prop_flat_map(|(span, few, many)| {
        any_steps(span, few.min(many)).prop_map(move |steps| (span, few, many, steps))
    })
}

proptest! {
    #[test]
    fn a_log_that_becomes_a_counter_leaves_what_was_left((span, few, many, steps) in any_change(), rest in 0..100u64) {
        let (mut admitted, mut cell) = (Admitted::default(), Cell::Vacant);
        let now = admitted.play(&log(few, span), &mut cell, &steps, START) + Micros::new(span.get() * rest / 100);
        let used = admitted.in_log(span.get().into(), now.as_micros().into());
        let new = window(many, span);
        let left = u128::from(many).saturating_sub(used);
        prop_assert_eq!(u128::from(new.look(&cell, now, Ask::look()).remaining), left);
        // The same where it is decided, and not only looked at.
        let decided = new.decide(&mut cell, now, Ask::hits(1));
        prop_assert_eq!(decided.is_admitted(), left > 0);
        prop_assert_eq!(u128::from(decided.remaining), left.saturating_sub(1));
    }

    #[test]
    fn a_counter_that_becomes_a_log_leaves_what_was_left((span, few, many, steps) in any_change(), rest in 0..100u64) {
        let (mut admitted, mut cell) = (Admitted::default(), Cell::Vacant);
        let now = admitted.play(&window(many, span), &mut cell, &steps, START) + Micros::new(span.get() * rest / 100);
        let used = admitted.in_window(span.get().into(), now.as_micros().into());
        let new = log(few, span);
        let left = u128::from(few).saturating_sub(used);
        prop_assert_eq!(u128::from(new.look(&cell, now, Ask::look()).remaining), left);
        let decided = new.decide(&mut cell, now, Ask::hits(1));
        prop_assert_eq!(decided.is_admitted(), left > 0);
        prop_assert_eq!(u128::from(decided.remaining), left.saturating_sub(1));
    }

    /// Who refuses says when to come again, and keeps to it.
    #[test]
    fn who_is_refused_by_a_changed_limit_is_admitted_when_told((span, few, many, steps) in any_change()) {
        for (old, new) in [(log(few, span), window(many, span)), (window(many, span), log(few, span))] {
            let (mut admitted, mut cell) = (Admitted::default(), Cell::Vacant);
            let now = admitted.play(&old, &mut cell, &steps, START);
            let refused = new.decide(&mut cell, now, Ask::hits(1));
            if let Some(wait) = refused.retry_after() {
                prop_assert!(!new.decide(&mut cell.clone(), (now + wait).back(Micros::ONE), Ask::hits(1)).is_admitted());
                prop_assert!(new.decide(&mut cell, now + wait, Ask::hits(1)).is_admitted());
            }
        }
    }

    /// A counter cannot tell when exactly its hits were; no hit of its current window leaves the log too early.
    #[test]
    fn a_log_from_a_counter_admits_no_more_than_its_limit(
        (span, few, many, steps) in any_change(), later in any_steps(Micros::from_secs(1), 20), part in 1..100u64
    ) {
        let (mut admitted, mut cell) = (Admitted::default(), Cell::Vacant);
        let changed = admitted.play(&window(many, span), &mut cell, &steps, START);
        let start = u128::from(changed.as_micros() - changed.as_micros() % span.get());
        let (new, mut now) = (log(few, span), changed);
        new.decide(&mut cell, now, Ask::look());
        for step in later {
            now = now + Micros::new(step.wait.get() * span.get() / 1_000_000 * part / 100);
            if new.decide(&mut cell, now, Ask::hits(step.hits)).is_admitted() {
                let now = u128::from(now.as_micros());
                admitted.0.push((now, step.hits));
                let in_window = admitted.between((now + 1 - u128::from(span.get())).max(start), now);
                prop_assert!(in_window <= u128::from(few), "{in_window} of {few}");
            }
        }
    }

    /// As on nodes that do not all have the new rules yet.
    #[test]
    fn rules_that_take_turns_never_count_more_and_forget_within_two_windows(
        (span, few, many, steps) in any_change(), waits in proptest::collection::vec(0..=100u64, 1..30)
    ) {
        let turns = [log(few.max(many), span), window(few.max(many), span)];
        let (mut admitted, mut cell) = (Admitted::default(), Cell::Vacant);
        let mut now = admitted.play(&turns[0], &mut cell, &steps, START);
        let mut left = turns[1].look(&cell, now, Ask::look()).remaining;
        let start = now.back(Micros::new(now.as_micros() % span.get()));
        for (turn, wait) in waits.iter().enumerate() {
            now = now + Micros::new(wait * span.get() / 400);
            let outcome = turns[turn % 2].decide(&mut cell, now, Ask::look());
            prop_assert!(outcome.remaining >= left, "{} after {left}", outcome.remaining);
            left = outcome.remaining;
        }
        let over = (start + span + span).max(now);
        for limit in turns {
            prop_assert_eq!(limit.look(&cell, over, Ask::look()).remaining, limit.quota());
        }
    }

    /// Numbers whose product is not exact are rounded so that nothing is forgiven, by at most a millionth of a window.
    #[test]
    fn a_huge_counter_that_becomes_a_log_forgives_nothing(
        spent in 1..=u64::from(u32::MAX), span in 1..=10 * 365 * 86_400_000_000u64, elapsed in 0..1_000_000u64
    ) {
        let first = Timestamp::from_micros(START.as_micros().next_multiple_of(span));
        let (limit, span) = (100_000, Micros::new(span));
        let mut cell = Cell::Vacant;
        prop_assert!(window(u32::MAX.into(), span).decide(&mut cell, first, Ask::hits(spent)).is_admitted());
        let into = u128::from(span.get()) * u128::from(elapsed) / 1_000_000;
        let now = first + span + Micros::new(u64::try_from(into).unwrap());
        let used = |into: u128| (u128::from(spent) * (u128::from(span.get()) - into)).div_ceil(u128::from(span.get()));
        let left = u128::from(log(limit, span).look(&cell, now, Ask::look()).remaining);
        prop_assert!(left <= u128::from(limit).saturating_sub(used(into)));
        let a_bit_earlier = into.saturating_sub(u128::from(span.get()) / 1_000_000 + 1);
        prop_assert!(left >= u128::from(limit).saturating_sub(used(a_bit_earlier)));
    }

    #[test]
    fn a_log_that_becomes_a_counter_of_a_long_window_forgives_nothing(
        spent in 1..=100_000u64, span in 1..=10 * 365 * 86_400_000_000u64, left_of_window in 1..=1_000_000u64, many in 1..=1_000_000u64
    ) {
        let first = Timestamp::from_micros(START.as_micros().next_multiple_of(span));
        let span = Micros::new(span);
        let mut cell = Cell::Vacant;
        let hit_at = (first + span).back(Micros::ONE);
        prop_assert!(log(100_000, span).decide(&mut cell, hit_at, Ask::hits(spent)).is_admitted());
        let now = (first + span + span).back(Micros::new(left_of_window.min(span.get())));
        let used = if now.since(hit_at) < span { spent } else { 0 };
        let left = window(many, span).look(&cell, now, Ask::look()).remaining;
        prop_assert_eq!(left, many.saturating_sub(used));
    }
}

#[test]
fn sixty_of_a_hundred_leave_a_hundred_and_forty_of_two_hundred_and_back() {
    let minute = Micros::from_secs(60);
    let (few, many) = (log(100, minute), window(200, minute));
    let mut cell = Cell::Vacant;
    assert_eq!(few.decide(&mut cell, START, Ask::hits(60)).remaining, 40);
    assert_eq!(many.decide(&mut cell, START, Ask::look()).remaining, 140);
    assert_eq!(many.decide(&mut cell, START, Ask::hits(30)).remaining, 110);
    assert_eq!(few.decide(&mut cell, START, Ask::look()).remaining, 10);
}
