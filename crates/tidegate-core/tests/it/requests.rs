//! Requests over several limits: all or nothing, in order.

use proptest::prelude::*;
use tidegate_core::{
    Ask, Cell, FixedWindow, Group, Limit, Micros, Outcome, RefusedHits, SlidingLog, Stance, Touch,
    decide_in_order, decide_request,
};

use crate::generate::{START, any_limit, ask};

fn window(limit: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(limit, Micros::from_secs(60)).unwrap())
}

fn enforced(limit: &Limit, hits: u64) -> Touch<'_> {
    Touch { limit, ask: Ask::hits(hits), group: Group::ENFORCED }
}

fn decide(touches: &[Touch<'_>], cells: &mut [Cell]) -> (bool, Vec<Outcome>) {
    let mut outcomes = vec![];
    let passes =
        decide_request(touches.iter().copied().enumerate(), cells, START, |outcome| outcomes.push(outcome));
    (passes, outcomes)
}

#[test]
fn one_refusal_leaves_every_cell_unspent_and_says_what_is_left_of_the_others() {
    let (wide, narrow) = (window(10), window(2));
    let mut cells = [Cell::Vacant, Cell::Vacant];
    let (passes, outcomes) = decide(&[enforced(&wide, 3), enforced(&narrow, 3)], &mut cells);
    assert!(!passes);
    assert_eq!(cells, [Cell::Vacant, Cell::Vacant]);
    assert_eq!((outcomes[0].is_admitted(), outcomes[0].remaining), (true, 10));
    assert_eq!((outcomes[1].is_admitted(), outcomes[1].remaining), (false, 2));
}

#[test]
fn a_shadow_refusal_stops_nothing_and_spends_nothing_of_its_own() {
    let (wide, narrow) = (window(10), window(2));
    let mut cells = [Cell::Vacant, Cell::Vacant];
    let shadow = Touch { group: Group::new(1, Stance::Shadow), ..enforced(&narrow, 3) };
    let (passes, outcomes) = decide(&[enforced(&wide, 3), shadow], &mut cells);
    assert!(passes);
    assert_eq!((outcomes[0].remaining, outcomes[1].is_admitted(), outcomes[1].remaining), (7, false, 2));
    assert_eq!(cells[1], Cell::Vacant);
}

#[test]
fn a_request_refused_elsewhere_counts_where_refused_requests_count() {
    let banned = window(0);
    let log = SlidingLog::new(5, Micros::from_secs(60), Micros::ZERO, RefusedHits::Count).unwrap();
    let log = Limit::SlidingLog(log);
    let mut cells = [Cell::Vacant, Cell::Vacant];
    let (passes, _) = decide(&[enforced(&banned, 1), enforced(&log, 1)], &mut cells);
    assert!(!passes);
    assert_eq!(log.look(&cells[1], START, Ask::look()).remaining, 4);
}

proptest! {
    #[test]
    fn a_request_spends_from_every_cell_or_from_none(
        limits in proptest::collection::vec(any_limit(), 1..5),
        costs in proptest::collection::vec(0..30u64, 30),
    ) {
        let mut cells = vec![Cell::Vacant; limits.len()];
        for (turn, hits) in costs.into_iter().enumerate() {
            let touches: Vec<Touch<'_>> =
                limits.iter().map(|limit| Touch { limit, ask: ask(hits, turn), group: Group::ENFORCED }).collect();
            let alone: Vec<bool> =
                touches.iter().zip(&cells).map(|(touch, cell)| touch.limit.look(cell, START, touch.ask).is_admitted()).collect();
            let before = cells.clone();
            let (passes, outcomes) = decide(&touches, &mut cells);
            prop_assert_eq!(passes, alone.iter().all(|admitted| *admitted));
            for ((outcome, alone), limit) in outcomes.iter().zip(alone).zip(&limits) {
                // A cell may have become full by noting the refusal, and says so.
                let noted = !passes && limit.counts_refused();
                prop_assert!(outcome.is_admitted() == alone || noted);
            }
            for (index, limit) in limits.iter().enumerate() {
                let changed = cells[index] != before[index];
                prop_assert!(!changed || passes || limit.counts_refused());
            }
        }
    }

    #[test]
    fn a_list_of_requests_is_the_same_requests_one_by_one(
        limits in proptest::collection::vec(any_limit(), 1..4),
        list in proptest::collection::vec((0..4usize, 0..4usize, 0..8u64), 1..40),
    ) {
        let touches: Vec<Vec<(usize, Touch<'_>)>> = list
            .iter()
            .enumerate()
            .map(|(turn, (first, second, hits))| {
                let mut places = vec![first % limits.len(), second % limits.len()];
                places.dedup();
                let touch = |place: usize| Touch { limit: &limits[place], ask: ask(*hits, turn), group: Group::ENFORCED };
                places.into_iter().map(|place| (place, touch(place))).collect()
            })
            .collect();

        let mut together = vec![Cell::Vacant; limits.len()];
        let mut list_outcomes = vec![];
        let requests: Vec<&[(usize, Touch<'_>)]> = touches.iter().map(Vec::as_slice).collect();
        let list_passes = decide_in_order(&requests, &mut together, START, |outcome| list_outcomes.push(outcome));

        let mut single = vec![Cell::Vacant; limits.len()];
        let mut single_outcomes = vec![];
        let mut single_passes = vec![];
        for request in &touches {
            single_passes.push(decide_request(request.iter().copied(), &mut single, START, |outcome| single_outcomes.push(outcome)));
        }
        prop_assert_eq!(list_passes, single_passes);
        prop_assert_eq!(list_outcomes, single_outcomes);
        prop_assert_eq!(together, single);
    }
}
