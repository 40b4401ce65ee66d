//! Equal requests decided as one are decided as they would be one after another.

use std::mem::discriminant;

use proptest::prelude::*;
use tidegate_core::{
    Ask, Cell, Fold, Group, Hits, Limit, Micros, Outcome, Over, RefusedHits, SlidingLog, Stance, Timestamp,
    Touch, decide_fold, decide_request,
};

use crate::generate::{START, any_limit};

/// A cell with a past: what was asked of it, how long before the fold.
#[derive(Clone, Debug)]
struct Past {
    limit: Limit,
    group: Group,
    hits: u64,
    over: Over,
    asked: Vec<(u64, u64)>,
}

fn any_past() -> impl Strategy<Value = Past> {
    let hits = prop_oneof![4 => Just(1), 2 => 0..6u64, 1 => 0..400u64, 1 => Just(u64::MAX)];
    let over = prop_oneof![2 => Just(Over::Refuse), 1 => Just(Over::Cap), 1 => Just(Over::Debt), 1 => Just(Over::Charge)];
    (any_limit(), hits, over, proptest::collection::vec((0..1_000u64, 0..8u64), 0..6))
        .prop_map(|(limit, hits, over, asked)| Past { limit, group: Group::ENFORCED, hits, over, asked })
}

/// The limits of some rules, and their penalties.
fn any_rules() -> impl Strategy<Value = Vec<Past>> {
    let stance =
        prop_oneof![3 => Just(Stance::Enforced), 1 => Just(Stance::AnyOf), 2 => Just(Stance::Shadow)];
    let rule = (
        stance,
        proptest::collection::vec(any_past(), 1..3),
        prop_oneof![Just(None), (0..5u64).prop_map(Some)],
    );
    proptest::collection::vec(rule, 1..4).prop_map(|rules| {
        let (mut all, mut penalties) = (vec![], vec![]);
        for (number, (stance, pasts, penalty)) in rules.into_iter().enumerate() {
            let group = Group::new(u16::try_from(number).unwrap(), stance);
            let penalty = penalty.filter(|_| {
                stance != Stance::AnyOf && pasts.iter().all(|past| past.touch().over() != Over::Charge)
            });
            all.extend(pasts.into_iter().map(|past| Past { group, ..past }));
            penalties.extend(penalty.map(|turn| {
                let log =
                    SlidingLog::new(1, Micros::from_secs(60), Micros::ZERO, RefusedHits::Forget).unwrap();
                // One of five has started already.
                let asked = if turn == 0 { vec![(1, 1)] } else { vec![] };
                let (limit, group) = (Limit::SlidingLog(log), group.penalty());
                Past { limit, group, hits: 0, over: Over::Refuse, asked }
            }));
        }
        all.extend(penalties);
        all
    })
}

impl Past {
    fn touch(&self) -> Touch<'_> {
        Touch { limit: &self.limit, ask: Ask::hits(self.hits).over(self.over), group: self.group }
    }

    fn cell(&self) -> Cell {
        let mut cell = Cell::Vacant;
        let span = crate::generate::scale(&self.limit);
        let mut asked = self.asked.clone();
        asked.sort_unstable_by(|a, b| b.cmp(a));
        for (turn, (before, hits)) in asked.into_iter().enumerate() {
            let then =
                START.back(Micros::new(u64::try_from(u128::from(span) * u128::from(before) / 900).unwrap()));
            self.limit.decide(&mut cell, then, crate::generate::ask(hits, turn));
        }
        cell
    }
}

fn one_by_one(pasts: &[Past], cells: &mut [Cell], now: Timestamp, count: u32) -> (u32, Vec<Vec<Outcome>>) {
    let mut told = vec![vec![]; pasts.len()];
    let mut passed = 0;
    for _ in 0..count {
        let mut outcomes = vec![];
        let touches = pasts.iter().map(Past::touch).enumerate();
        passed += u32::from(decide_request(touches, cells, now, |outcome| outcomes.push(outcome)));
        told.iter_mut().zip(outcomes).for_each(|(told, outcome)| told.push(outcome));
    }
    (passed, told)
}

/// Spans may be up to a microsecond longer, never shorter; all else is the same.
fn is_told(given: Outcome, alone: Outcome) -> bool {
    let (delay, reset) = (given.delay(), given.reset_after);
    let near = |given: Micros, alone: Micros| alone <= given && given <= alone + Micros::ONE;
    discriminant(&given.verdict) == discriminant(&alone.verdict)
        && given.spent_of(Hits::ONE) == alone.spent_of(Hits::ONE)
        && given.remaining == alone.remaining
        && given.retry_after() == alone.retry_after()
        && near(delay, alone.delay())
        && near(reset, alone.reset_after)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_fold_decides_as_its_requests_would_one_after_another(
        pasts in any_rules(),
        count in prop_oneof![4 => 1..40u32, 1 => 1..300u32],
        step_back in prop_oneof![9 => Just(0), 1 => 0..2_000_000u64],
    ) {
        let now = START.back(Micros::new(step_back));
        let mut alone: Vec<Cell> = pasts.iter().map(Past::cell).collect();
        let mut folded = alone.clone();
        let (passed, told) = one_by_one(&pasts, &mut alone, now, count);

        let mut folds: Vec<Fold> = vec![];
        let touches = pasts.iter().map(Past::touch).enumerate();
        let fold_passed = decide_fold(touches, &mut folded, now, count, |fold| folds.push(fold));

        prop_assert_eq!(fold_passed, passed);
        for ((past, fold), told) in pasts.iter().zip(&folds).zip(&told) {
            for place in 0..count {
                let given = fold.at(place, &past.limit, past.touch().ask.hits);
                // Where refused requests count, all refused are told what the last of them is; and all charges that go
                // over, what the last of those is.
                // The penalty of a rule with such a limit starts with the first that is refused, not with the first that
                // finds it full.
                let is_of_rule = |other: &&Past| other.group.number == past.group.number;
                let rule_counts = pasts.iter().filter(is_of_rule).any(|other| other.limit.counts_refused());
                if past.group.is_penalty && rule_counts {
                    prop_assert!(fold.last.is_admitted() == told[count as usize - 1].is_admitted());
                    continue;
                }
                let counted = past.limit.counts_refused() && place >= fold.spent();
                let charged = (fold.admitted..fold.spent()).contains(&place);
                let same_as = if counted { count - 1 } else if charged { fold.spent() - 1 } else { place };
                if !counted {
                    prop_assert_eq!(discriminant(&given.verdict), discriminant(&told[place as usize].verdict));
                }
                let alone = told[same_as as usize];
                prop_assert!(is_told(given, alone), "place {place} of {count}: {given:?}, alone {alone:?}");
            }
        }
        for ((past, one), other) in pasts.iter().zip(&alone).zip(&folded) {
            let all = |cell: &Cell| past.limit.look(cell, now, Ask::hits(past.limit.quota()));
            prop_assert_eq!(past.limit.look(one, now, Ask::look()), past.limit.look(other, now, Ask::look()));
            prop_assert_eq!(all(one), all(other));
            // The count of a sliding window has a bound that is applied when it is read: charges beyond it leave no trace.
            let is_bounded_late = matches!(past.limit, Limit::SlidingWindow(_)) && past.over == Over::Charge;
            if past.limit.is_counter() && !is_bounded_late {
                prop_assert_eq!(one, other);
            }
        }
    }
}

#[test]
fn a_fold_of_four_billion_costs_no_more_than_one_of_two() {
    let limits = [
        Limit::FixedWindow(tidegate_core::FixedWindow::new(7, Micros::from_secs(60)).unwrap()),
        Limit::SlidingLog(
            SlidingLog::new(7, Micros::from_secs(60), Micros::ZERO, RefusedHits::Count).unwrap(),
        ),
        Limit::Concurrency(
            tidegate_core::Concurrency::new(7, Micros::from_secs(60), RefusedHits::Count).unwrap(),
        ),
    ];
    for limit in &limits {
        let touch = Touch { limit, ask: Ask::hits(1), group: Group::ENFORCED };
        let mut cells = [Cell::Vacant];
        let mut fold = None;
        let passed =
            decide_fold([(0, touch)].into_iter(), &mut cells, START, u32::MAX, |told| fold = Some(told));
        let all = if matches!(limit, Limit::Concurrency(_)) { u32::MAX } else { 7 };
        assert_eq!((passed, fold.unwrap().admitted), (all, all));
    }
}
