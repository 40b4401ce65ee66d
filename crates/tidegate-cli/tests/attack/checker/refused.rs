//! Nobody is refused by a store that is up while every limit had quota left.

use std::time::Duration;

use super::ledger::Ledger;
use super::{Kind, View, Violation};
use crate::history::{Asked, History, What};
use crate::limit::{Limit, ROUNDING};

/// How long a full concurrency limit may be remembered after a lease was given back.
const REMEMBERED: Duration = Duration::from_millis(50);
const MOST_SHOWN: usize = 3;

pub(super) fn check(view: &View<'_>) -> Vec<Violation> {
    let history = view.history;
    let ledgers: Vec<Ledger> = (0..history.cells.len()).map(|cell| Ledger::of_state(view, cell)).collect();
    let refused = history.asked.iter().filter(|asked| history.is_certainly_refused(asked));
    let wrongly = refused.filter(|asked| {
        !history.shapes[asked.shape].iter().any(|cell| may_refuse(history, &ledgers[*cell], *cell, asked))
    });
    wrongly.take(MOST_SHOWN).map(|asked| violation(history, asked)).collect()
}

fn violation(history: &History, asked: &Asked) -> Violation {
    let cells: Vec<&str> =
        history.shapes[asked.shape].iter().map(|cell| history.cells[*cell].name.as_str()).collect();
    Violation::new(Kind::WronglyRefused, format!("{} had quota left: {asked:?}", cells.join(" and ")))
}

/// Whether `cell` may have been out of quota at some moment at which `asked` may have been decided.
fn may_refuse(history: &History, ledger: &Ledger, cell: usize, asked: &Asked) -> bool {
    let cell = &history.cells[cell];
    // A look asks as a request of one hit would.
    let cost = asked.cost.max(1);
    cell.limits_in(asked.sent, asked.received).any(|limit| {
        cost > limit.capacity() || may_be_spent(history, ledger, limit, asked.sent, asked.received, cost)
    })
}

fn may_be_spent(
    history: &History,
    ledger: &Ledger,
    limit: &Limit,
    sent: Duration,
    received: Duration,
    cost: u64,
) -> bool {
    let back = |span: Duration| sent.saturating_sub(span + ROUNDING);
    let counted_refusal = if limit.counts_refused() { cost } else { 0 };
    let spent = |from: Duration| ledger.most_between(from, received).saturating_sub(counted_refusal);
    match *limit {
        Limit::TokenBucket { burst, rate } => {
            let room = i128::from(burst - cost) * rate.period.as_micros() as i128;
            ledger.largest_backlog(rate, back(Duration::ZERO), received) > room
        }
        Limit::LeakyBucket { rate } => ledger.largest_backlog(rate, back(Duration::ZERO), received) > 0,
        Limit::FixedWindow { limit, window } => spent(window_start(history, sent, window)) + cost > limit,
        Limit::SlidingWindow { limit, window } => {
            sliding(history, ledger, (limit, window), sent, received) + cost > limit
        }
        Limit::SlidingLog { limit, window, min_interval, .. } => {
            spent(back(window)) + cost > limit || (!min_interval.is_zero() && spent(back(min_interval)) > 0)
        }
        Limit::Concurrency { limit, .. } => spent(back(REMEMBERED)) + 1 > limit,
    }
}

/// When the window began that `at` is in; a whole window earlier if the store's clock was stepped.
fn window_start(history: &History, at: Duration, window: Duration) -> Duration {
    let stepped =
        |trouble: &crate::history::Trouble| matches!(trouble.what, What::SteppedOn(_) | What::SteppedBack);
    if history.troubles.iter().any(stepped) {
        return at.saturating_sub(window + ROUNDING);
    }
    let wall = history.epoch + at.saturating_sub(ROUNDING);
    let into =
        Duration::from_micros(u64::try_from(wall.as_micros() % window.as_micros()).unwrap_or(u64::MAX));
    at.saturating_sub(into + 2 * ROUNDING)
}

/// The previous window's hits, fading, and the current one's: at most this many, rounded up.
fn sliding(
    history: &History,
    ledger: &Ledger,
    limit: (u64, Duration),
    sent: Duration,
    received: Duration,
) -> u64 {
    let (_, window) = limit;
    let start = window_start(history, sent, window);
    let same = window_start(history, received, window) == start;
    if !same || start.is_zero() || start + window < received + ROUNDING {
        return ledger.most_between(sent.saturating_sub(2 * window + ROUNDING), received);
    }
    let current = ledger.most_between(start, received);
    let previous = ledger.most_between(start.saturating_sub(window), start + 2 * ROUNDING);
    let left = (window + start + 3 * ROUNDING).saturating_sub(sent).min(window);
    current + (previous as u128 * left.as_micros()).div_ceil(window.as_micros()) as u64 + 1
}
