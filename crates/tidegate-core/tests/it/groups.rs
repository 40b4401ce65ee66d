//! The rules of a request, against a model that asks each rule by itself.

use proptest::prelude::*;
use tidegate_core::{
    Ask, Cell, FixedWindow, Group, Limit, Micros, Outcome, RefusedHits, SlidingLog, Stance, Touch,
    decide_request,
};

use crate::generate::START;

const PENALTY: Micros = Micros::from_secs(300);

#[derive(Clone, Debug)]
struct Rule {
    stance: Stance,
    limits: Vec<Limit>,
    penalty: Option<Limit>,
}

fn log(limit: u64, window: Micros) -> Limit {
    Limit::SlidingLog(SlidingLog::new(limit, window, Micros::ZERO, RefusedHits::Forget).unwrap())
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let stance = prop_oneof![Just(Stance::Enforced), Just(Stance::AnyOf), Just(Stance::Shadow)];
    let minute = Micros::from_secs(60);
    let limit = (0..9u64).prop_map(move |limit| match limit % 2 {
        0 => Limit::FixedWindow(FixedWindow::new(limit, minute).unwrap()),
        _ => log(limit, minute),
    });
    let penalty = prop_oneof![Just(None), Just(Some(log(1, PENALTY)))];
    (stance, proptest::collection::vec(limit, 1..4), penalty).prop_map(|(stance, limits, penalty)| {
        let penalty = penalty.filter(|_| stance != Stance::AnyOf);
        Rule { stance, limits, penalty }
    })
}

/// The limits of all rules, then their penalties.
fn touches(rules: &[Rule], hits: u64) -> Vec<Touch<'_>> {
    let group = |number: usize, rule: &Rule| Group::new(u16::try_from(number).unwrap(), rule.stance);
    let limits = rules.iter().enumerate().flat_map(|(number, rule)| {
        let group = group(number, rule);
        rule.limits.iter().map(move |limit| Touch { limit, ask: Ask::hits(hits), group })
    });
    let penalties = rules.iter().enumerate().filter_map(|(number, rule)| {
        let group = group(number, rule).penalty();
        Some(Touch { limit: rule.penalty.as_ref()?, ask: Ask::look(), group })
    });
    limits.chain(penalties).collect()
}

/// What should happen: which limits admit, whether the request passes, and the cells after it.
fn model(touches: &[Touch<'_>], cells: &[Cell]) -> (Vec<bool>, bool, Vec<Cell>) {
    let fits: Vec<bool> = touches
        .iter()
        .zip(cells)
        .map(|(touch, cell)| touch.limit.look(cell, START, touch.ask).is_admitted())
        .collect();
    let of = |wanted: fn(&Group) -> bool| {
        touches.iter().zip(&fits).filter(move |(touch, _)| wanted(&touch.group)).map(|(_, fits)| *fits)
    };
    let is_any_of = |group: &Group| group.stance == Stance::AnyOf;
    let passes = of(|group| group.stance == Stance::Enforced).all(|fits| fits)
        && (of(is_any_of).next().is_none() || of(is_any_of).any(|fits| fits));
    let rule_fits =
        |number: u16| touches.iter().zip(&fits).all(|(touch, fits)| touch.group.number != number || *fits);
    let mut after = cells.to_vec();
    let mut admitted = fits.clone();
    for (place, touch) in touches.iter().enumerate() {
        let number = touch.group.number;
        let spends = passes
            && match touch.group.stance {
                Stance::Enforced => true,
                Stance::AnyOf => fits[place],
                Stance::Shadow => rule_fits(number),
            };
        let limit_refuses = touches.iter().zip(&fits).any(|(other, fits)| {
            other.group.number == number && !other.group.is_penalty && !fits && other.ask.hits.get() > 0
        });
        if touch.group.is_penalty {
            if limit_refuses && fits[place] {
                touch.limit.decide(&mut after[place], START, Ask::hits(1));
                admitted[place] = false;
            }
        } else if spends {
            touch.limit.decide(&mut after[place], START, touch.ask);
        }
    }
    (admitted, passes, after)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn each_rule_spends_from_all_its_limits_or_from_none_and_a_refusal_starts_its_own_penalty(
        rules in proptest::collection::vec(any_rule(), 1..5),
        costs in proptest::collection::vec(0..5u64, 1..12),
    ) {
        let mut cells = vec![Cell::Vacant; touches(&rules, 1).len()];
        for hits in costs {
            let touches = touches(&rules, hits);
            let (admitted, passes, after) = model(&touches, &cells);
            let mut told: Vec<Outcome> = vec![];
            let decided =
                decide_request(touches.iter().copied().enumerate(), &mut cells, START, |one| told.push(one));
            prop_assert_eq!(decided, passes);
            prop_assert_eq!(told.iter().map(Outcome::is_admitted).collect::<Vec<_>>(), admitted);
            prop_assert_eq!(&cells, &after);
        }
    }
}

#[test]
fn a_wait_of_any_length_starts_a_penalty() {
    // A wait of 99,999 us once stood for quota that others hold for a moment.
    let (limit, penalty) = (log(1, Micros::new(99_999)), log(1, PENALTY));
    let rule = Rule { stance: Stance::Enforced, limits: vec![limit], penalty: Some(penalty) };
    let mut cells = vec![Cell::Vacant; 2];
    let mut last = vec![];
    for _ in 0..2 {
        last.clear();
        let touches = touches(std::slice::from_ref(&rule), 1);
        decide_request(touches.into_iter().enumerate(), &mut cells, START, |one| last.push(one));
    }
    assert_eq!(last[0].retry_after(), Some(Micros::new(99_999)));
    assert_eq!(last[1].retry_after(), Some(PENALTY));
}
