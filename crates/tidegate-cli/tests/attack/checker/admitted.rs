//! Never more admitted in any window than published.

use std::time::Duration;

use super::grants::beyond;
use super::{Kind, View, Violation};
use crate::history::{Answer, Asked, History, What};
use crate::limit::{Limit, ROUNDING};

/// One violation at most: where a bound breaks, it breaks in a thousand windows.
pub(super) fn check(view: &View<'_>, cell: usize) -> Vec<Violation> {
    let history = view.history;
    let mut admitted: Vec<&Asked> =
        view.touching[cell].iter().copied().filter(|asked| counts(asked)).collect();
    admitted.sort_by_key(|asked| asked.received);
    let mut violations: Vec<Violation> = in_any_window(view, cell, &admitted).into_iter().collect();
    violations.extend(in_a_fixed_window(view, cell, &admitted));
    violations.extend(numbers(history, cell, &admitted));
    violations
}

/// What a policy of `open` lets pass while the store is away is not promised to be few.
fn counts(asked: &Asked) -> bool {
    matches!(&asked.answer, Answer::Admitted { source, .. } if !source.is_unbounded())
}

/// Takes every request as the first of a window, and counts those that were surely decided in it.
fn in_any_window(view: &View<'_>, cell: usize, by_end: &[&Asked]) -> Option<Violation> {
    let history = view.history;
    let costs = history.largest_cost();
    for from in by_end.iter().map(|asked| asked.sent) {
        let mut total = 0;
        for asked in by_end.iter().filter(|asked| asked.sent >= from) {
            let until = asked.received;
            total += asked.cost;
            let limits = history.cells[cell].limits_in(from, until);
            let most = limits.map(|limit| limit.most_in(until - from, costs)).collect::<Option<Vec<u64>>>();
            // Beyond the limit's own window nothing is promised.
            let Some(most) = most else { break };
            let most = most.into_iter().max()?;
            if total <= most {
                continue;
            }
            let most = most + beyond(view, cell, from, until);
            if total > most {
                let name = &history.cells[cell].name;
                let what =
                    format!("{name}: {total} admitted from {from:?} to {until:?}, at most {most} may be");
                return Some(Violation::new(Kind::TooMany, what));
            }
        }
    }
    None
}

/// In a window of the clock, a fixed window admits its limit and no more.
fn in_a_fixed_window(view: &View<'_>, cell: usize, admitted: &[&Asked]) -> Option<Violation> {
    let history = view.history;
    let Limit::FixedWindow { limit, window } = history.cells[cell].limit else { return None };
    if !history.cells[cell].earlier.is_empty() || has_stepped(history) {
        return None;
    }
    let window_of = |at: Duration| (history.epoch + at).as_micros() / window.as_micros();
    let mut counts = std::collections::BTreeMap::<u128, u64>::new();
    for asked in admitted {
        let (first, last) =
            (window_of(asked.sent.saturating_sub(ROUNDING)), window_of(asked.received + ROUNDING));
        if first == last {
            *counts.entry(first).or_default() += asked.cost;
        }
    }
    let (begins, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let from = Duration::from_micros(u64::try_from(begins * window.as_micros()).unwrap_or(u64::MAX))
        .saturating_sub(history.epoch);
    let most = limit + beyond(view, cell, from, from + window);
    (count > most).then(|| {
        let name = &history.cells[cell].name;
        Violation::new(
            Kind::TooMany,
            format!("{name}: {count} admitted in one fixed window, at most {most} may be"),
        )
    })
}

fn has_stepped(history: &History) -> bool {
    history.troubles.iter().any(|trouble| matches!(trouble.what, What::SteppedOn(_) | What::SteppedBack))
}

/// Two requests of one hit that were admitted in one window cannot both have left as much, unless hits were given back between
/// them: those that the store spent for requests that had stopped waiting.
fn numbers(history: &History, cell: usize, admitted: &[&Asked]) -> Option<Violation> {
    let alone = |asked: &&&Asked| history.shapes[asked.shape] == [cell];
    let Limit::FixedWindow { limit, .. } = history.cells[cell].limit else { return None };
    if !history.troubles.is_empty() || !history.cells[cell].earlier.is_empty() {
        return None;
    }
    let nobody_was_late =
        history.asked.iter().all(|asked| asked.source().is_none_or(|source| source.is_exact()));
    let mut seen = std::collections::BTreeMap::new();
    for asked in admitted.iter().filter(alone) {
        let Answer::Admitted { remaining, .. } = asked.answer else { continue };
        let name = &history.cells[cell].name;
        if asked.cost > 0 && remaining + asked.cost > limit {
            let what = format!("{name}: {remaining} left of {limit} after spending {}", asked.cost);
            return Some(Violation::new(Kind::WrongNumbers, what));
        }
        if asked.cost == 0 {
            continue;
        }
        let window = crossed(history, cell, asked);
        if let Some(window) = window
            && nobody_was_late
            && seen.insert((window, remaining), asked.sent).is_some()
        {
            let what = format!("{name}: two admitted requests were both told that {remaining} are left");
            return Some(Violation::new(Kind::WrongNumbers, what));
        }
    }
    None
}

/// The fixed window that a request was surely decided in.
fn crossed(history: &History, cell: usize, asked: &Asked) -> Option<u128> {
    let Limit::FixedWindow { window, .. } = history.cells[cell].limit else { return None };
    let window_of = |at: Duration| (history.epoch + at).as_micros() / window.as_micros();
    let (first, last) =
        (window_of(asked.sent.saturating_sub(ROUNDING)), window_of(asked.received + ROUNDING));
    (first == last).then_some(first)
}
