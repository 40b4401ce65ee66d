//! A limit's number may change while cells live: what was spent stays spent.

use proptest::prelude::*;
use tidegate_core::{
    Ask, Cell, FixedWindow, Limit, Micros, Rate, RefusedHits, SlidingLog, SlidingWindow, TokenBucket,
};

use crate::generate::START;

/// The same limit with another number.
fn with_number(kind: usize, number: u64) -> Limit {
    let minute = Micros::from_secs(60);
    match kind {
        0 => Limit::TokenBucket(TokenBucket::new(Rate::new(number, minute).unwrap(), number).unwrap()),
        1 => Limit::FixedWindow(FixedWindow::new(number, minute).unwrap()),
        2 => Limit::SlidingWindow(SlidingWindow::new(number, minute).unwrap()),
        _ => Limit::SlidingLog(SlidingLog::new(number, minute, Micros::ZERO, RefusedHits::Forget).unwrap()),
    }
}

proptest! {
    #[test]
    fn raising_or_lowering_a_limit_keeps_what_was_spent(kind in 0..4usize, old in 1..1_000u64, new in 1..1_000u64, spent in 0..1_000u64) {
        let spent = spent.min(old);
        let mut cell = Cell::Vacant;
        if spent > 0 {
            prop_assert!(with_number(kind, old).decide(&mut cell, START, Ask::hits(spent)).is_admitted());
        }
        let left = with_number(kind, new).look(&cell, START, Ask::look()).remaining;
        prop_assert_eq!(left, new.saturating_sub(spent));
    }

    #[test]
    fn a_unit_that_must_change_rounds_what_was_spent_up(spent in 1..1_000u64) {
        let day = Micros::from_secs(86_400);
        let fine = Limit::TokenBucket(TokenBucket::new(Rate::new(1_000, day).unwrap(), 1_000).unwrap());
        let coarse = Limit::TokenBucket(TokenBucket::new(Rate::new(50_000_000, day).unwrap(), 50_000_000).unwrap());
        let mut cell = Cell::Vacant;
        prop_assert!(fine.decide(&mut cell, START, Ask::hits(spent)).is_admitted());
        let a_moment_later = START + Micros::ONE;
        let left = coarse.look(&cell, a_moment_later, Ask::look()).remaining;
        prop_assert!((50_000_000 - spent..=50_000_000 - spent + 579).contains(&left), "{left}");
    }
}
