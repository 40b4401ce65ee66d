//! Who waits as long as told is admitted, if nobody else asked; and nobody was admitted earlier.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ledger::Ledger;
use super::{Kind, View, Violation};
use crate::history::{Answer, Asked, History, Source};
use crate::limit::{Limit, ROUNDING};

const MOST_SHOWN: usize = 3;
/// How long a node may repeat a refusal without asking again.
const REMEMBERED: Duration = Duration::from_secs(1);

pub(super) fn check(view: &View<'_>) -> Vec<Violation> {
    let history = view.history;
    let mut shapes: BTreeMap<usize, Vec<&Asked>> = BTreeMap::new();
    history.asked.iter().for_each(|asked| shapes.entry(asked.shape).or_default().push(asked));
    let ledgers: Vec<Ledger> = (0..history.cells.len()).map(|cell| Ledger::of_changes(view, cell)).collect();
    let largest_cost = history.largest_cost();
    let longest_way = history.asked.iter().map(|asked| asked.received - asked.sent).max().unwrap_or_default();
    let mut violations = Vec::new();
    for (shape, mut asked) in shapes {
        asked.sort_by_key(|asked| asked.sent);
        let cells = &history.shapes[shape];
        let shape = Shape { history, ledgers: &ledgers, cells, asked: &asked, largest_cost, longest_way };
        let wrong = asked.iter().filter_map(|refused| shape.judge(refused));
        violations.extend(wrong.take(MOST_SHOWN));
        violations.extend(shape.admitted_too_early());
    }
    violations
}

struct Shape<'h> {
    history: &'h History,
    ledgers: &'h [Ledger],
    cells: &'h [usize],
    /// By when they were sent.
    asked: &'h [&'h Asked],
    largest_cost: u64,
    longest_way: Duration,
}

impl Shape<'_> {
    fn judge(&self, refused: &Asked) -> Option<Violation> {
        let Answer::Refused { source, retry_after, .. } = refused.answer else { return None };
        if !source.is_exact() {
            return None;
        }
        let Some(retry_after) = retry_after else { return self.never_fits(refused) };
        self.too_long(refused, retry_after).or_else(|| self.too_short(refused, retry_after))
    }

    /// No time to try again means that no time will do.
    fn never_fits(&self, refused: &Asked) -> Option<Violation> {
        let limits = self.limits(refused.sent, refused.received);
        let fits = limits.iter().all(|limit| refused.cost <= limit.capacity());
        fits.then(|| self.violation(format!("could be admitted later, and is not told when: {refused:?}")))
    }

    fn too_long(&self, refused: &Asked, retry_after: Duration) -> Option<Violation> {
        let longest = self
            .limits(refused.sent, refused.received)
            .iter()
            .map(|limit| limit.longest_wait(self.largest_cost))
            .max()?;
        (retry_after > longest + ROUNDING).then(|| {
            self.violation(format!(
                "no wait is longer than {longest:?}, but told was {retry_after:?}: {refused:?}"
            ))
        })
    }

    /// The first one that waited long enough, with nobody else in between, is admitted.
    fn too_short(&self, refused: &Asked, retry_after: Duration) -> Option<Violation> {
        let due = refused.received + retry_after;
        let next = self.asked.get(self.asked.partition_point(|asked| asked.sent < due))?;
        let cost = refused.cost.max(1);
        let alone = self.cells.iter().all(|cell| {
            let own = match self.history.cells[*cell].limit.counts_refused() {
                true => refused.cost + next.cost,
                false => 0,
            };
            self.ledgers[*cell].most_between(refused.sent, next.received) <= own
        });
        // What a node remembers may be a second old, and so from before the trouble.
        let age = if refused.source() == Some(Source::DenyCache) { REMEMBERED } else { Duration::ZERO };
        let since = refused.sent.saturating_sub(age);
        let calm = self.history.troubles_in(since, next.received).next().is_none();
        let unchanged = self
            .cells
            .iter()
            .all(|cell| self.history.cells[*cell].limits_in(refused.sent, next.received).count() == 1);
        (self.history.is_certainly_refused(next) && next.cost.max(1) <= cost && alone && calm && unchanged)
            .then(|| {
                self.violation(format!(
                    "waited {retry_after:?} as told and is refused again: {refused:?}, then {next:?}"
                ))
            })
    }

    /// Nobody is admitted before the moment at which an earlier refusal of no more hits said to come back.
    fn admitted_too_early(&self) -> Option<Violation> {
        let gives_back = |cell: &usize| matches!(self.history.cells[*cell].limit, Limit::Concurrency { .. });
        let changes = |cell: &usize| !self.history.cells[*cell].earlier.is_empty();
        if !self.history.troubles.is_empty()
            || self.cells.iter().any(|cell| gives_back(cell) || changes(cell))
            || self.lets_somebody_go()
        {
            return None;
        }
        let costs: std::collections::BTreeSet<u64> =
            self.asked.iter().map(|asked| asked.cost.max(1)).collect();
        costs.into_iter().find_map(|cost| self.too_early_at(cost))
    }

    /// What was spent for who was let go comes back, after others were refused by it.
    fn lets_somebody_go(&self) -> bool {
        let is_near =
            |asked: &Asked| self.history.shapes[asked.shape].iter().any(|cell| self.cells.contains(cell));
        let is_let_go =
            |asked: &Asked| matches!(&asked.answer, Answer::Refused { source, .. } if !source.is_exact());
        self.history.asked.iter().any(|asked| is_let_go(asked) && is_near(asked))
    }

    fn too_early_at(&self, cost: u64) -> Option<Violation> {
        let same = || self.asked.iter().filter(|asked| asked.cost.max(1) == cost);
        // When each refusal came, and until when it said to wait.
        let mut told: Vec<(Duration, Duration, &Asked)> = same()
            .filter(|asked| self.history.is_certainly_refused(asked))
            .filter_map(|asked| match asked.answer {
                Answer::Refused { source, retry_after: Some(wait), .. } => {
                    // What is remembered counts from when the store's answer came: later by a request's way at most.
                    let way = if source == Source::DenyCache { self.longest_way } else { Duration::ZERO };
                    Some((asked.received, (asked.sent + wait).saturating_sub(way), *asked))
                }
                _ => None,
            })
            .collect();
        told.sort_by_key(|(received, ..)| *received);
        let mut latest: Option<(Duration, &Asked)> = None;
        let mut next = 0;
        for admitted in same().filter(|asked| asked.is_admitted() && asked.cost > 0) {
            while let Some((received, until, refused)) = told.get(next)
                && *received <= admitted.sent
            {
                latest = latest.filter(|(before, _)| before > until).or(Some((*until, refused)));
                next += 1;
            }
            if let Some((until, refused)) = latest
                && admitted.received + ROUNDING < until
            {
                return Some(
                    self.violation(format!("admitted before the time told: {refused:?}, then {admitted:?}")),
                );
            }
        }
        None
    }

    fn limits(&self, from: Duration, until: Duration) -> Vec<&Limit> {
        self.cells.iter().flat_map(|cell| self.history.cells[*cell].limits_in(from, until)).collect()
    }

    fn violation(&self, what: String) -> Violation {
        let cells: Vec<&str> =
            self.cells.iter().map(|cell| self.history.cells[*cell].name.as_str()).collect();
        Violation::new(Kind::DishonestRetryAfter, format!("{}: {what}", cells.join(" and ")))
    }
}
