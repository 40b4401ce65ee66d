//! How much may have been spent from a cell at some moment, at most.

use std::collections::BTreeMap;
use std::time::Duration;

use super::View;
use crate::history::{Answer, Asked, History, LeaseWhat, Source, What};
use crate::limit::{Limit, Rate};

/// What a failure policy admitted reaches the store later, once the store is back.
const SETTLED: Duration = Duration::from_secs(15);
/// A request that nobody answered in time may still be on its way to the store.
const UNDER_WAY: Duration = Duration::from_secs(5);

/// What a refused request took on another server is given back about a round trip later.
const PUT_BACK: Duration = Duration::from_millis(500);

/// Spends, sorted both by when they began and by when at the latest they were over.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// When it was asked for, and the sum of all costs up to and with it.
    begun: Vec<(Duration, u64)>,
    /// When at the latest it was spent, and the sum of all costs up to and with it.
    ended: Vec<(Duration, u64)>,
}

struct Spend {
    sent: Duration,
    latest: Duration,
    cost: u64,
}

impl Ledger {
    /// Everything that may be on the books of `cell`: hits when they were spent, leases until they ended.
    pub(super) fn of_state(view: &View<'_>, cell: usize) -> Self {
        let mut spends = spends(view, cell);
        match view.history.cells[cell].limit {
            Limit::Concurrency { ttl, .. } => hold(view, cell, ttl, &mut spends),
            _ => rebase(view, cell, &mut spends),
        }
        Self::from(spends)
    }

    /// Everything that may have changed `cell`.
    pub(super) fn of_changes(view: &View<'_>, cell: usize) -> Self {
        let mut spends = spends(view, cell);
        for call in &view.history.lease_calls {
            // Whose cell it is, nobody knows here: any cell's leases may have changed.
            let of_leases = matches!(view.history.cells[cell].limit, Limit::Concurrency { .. });
            spends.extend(of_leases.then_some(Spend { sent: call.sent, latest: call.received, cost: 1 }));
        }
        Self::from(spends)
    }

    fn from(spends: Vec<Spend>) -> Self {
        let sums = |mut pairs: Vec<(Duration, u64)>| {
            pairs.sort_unstable();
            let mut sum = 0;
            pairs.iter_mut().for_each(|(_, cost)| {
                sum += *cost;
                *cost = sum;
            });
            pairs
        };
        Ledger {
            begun: sums(spends.iter().map(|spend| (spend.sent, spend.cost)).collect()),
            ended: sums(spends.iter().map(|spend| (spend.latest, spend.cost)).collect()),
        }
    }

    /// The most that may have been spent between two moments.
    pub(super) fn most_between(&self, from: Duration, until: Duration) -> u64 {
        let begun = self.begun.partition_point(|(sent, _)| *sent <= until);
        self.begun_sum(begun) - self.ended_before(from)
    }

    /// The largest backlog of a bucket that drains at `rate`, for a decision between two moments, in hits times the
    /// microseconds of the period.
    pub(super) fn largest_backlog(&self, rate: Rate, from: Duration, until: Duration) -> i128 {
        let (period, count) = (micros(rate.period), i128::from(rate.count));
        let begun = i128::from(self.begun_sum(self.begun.partition_point(|(sent, _)| *sent <= until)));
        // It was empty at some moment, and since then has only what was spent after it.
        let since = |moment: Duration, ended: u64| count * micros(moment) - period * i128::from(ended);
        let points = self.ended.partition_point(|(latest, _)| *latest <= from);
        let earlier = (0..points).map(|point| since(self.ended[point].0, self.ended_sum(point)));
        let best = earlier.chain([since(from, self.ended_before(from))]).max();
        begun * period - count * micros(from) + best.expect("there is at least one")
    }

    fn ended_before(&self, moment: Duration) -> u64 {
        self.ended_sum(self.ended.partition_point(|(latest, _)| *latest < moment))
    }

    fn begun_sum(&self, places: usize) -> u64 {
        places.checked_sub(1).map_or(0, |last| self.begun[last].1)
    }

    fn ended_sum(&self, places: usize) -> u64 {
        places.checked_sub(1).map_or(0, |last| self.ended[last].1)
    }
}

fn micros(span: Duration) -> i128 {
    i128::try_from(span.as_micros()).unwrap_or(i128::MAX)
}

fn spends(view: &View<'_>, cell: usize) -> Vec<Spend> {
    let limit = &view.history.cells[cell].limit;
    let spend = |asked: &Asked| {
        let cost = match limit {
            Limit::Concurrency { .. } => asked.cost.min(1),
            _ => asked.cost,
        };
        let by = |span: Duration, times: u64| {
            Some(Spend { sent: asked.sent, latest: asked.received + span, cost: cost * times })
        };
        match &asked.answer {
            Answer::Admitted { source, .. } if source.is_exact() => by(Duration::ZERO, 1),
            // Once by a call that came too late for an answer, and once when debts are settled.
            Answer::Admitted { .. } => by(SETTLED, 2),
            Answer::Lost => by(UNDER_WAY, 1),
            Answer::Refused { source, .. } if !source.is_exact() => by(UNDER_WAY, 1),
            Answer::Refused { .. } if limit.counts_refused() => by(Duration::ZERO, 1),
            // What other servers took for it may not be back yet, and stays taken if its node dies.
            Answer::Refused { .. } if dies_after(view.history, asked) => by(Duration::ZERO, 1),
            Answer::Refused { .. } => None,
        }
    };
    view.touching[cell].iter().copied().filter(|asked| asked.cost > 0).filter_map(spend).collect()
}

fn dies_after(history: &History, asked: &Asked) -> bool {
    let mut troubles = history.troubles_in(asked.sent, asked.received + PUT_BACK);
    history.reserves && troubles.any(|trouble| trouble.what == What::NodeDied)
}

/// A lease counts until it was surely given back, or surely over.
fn hold(view: &View<'_>, cell: usize, ttl: Duration, spends: &mut [Spend]) {
    let mut ends: BTreeMap<Duration, Vec<Duration>> = BTreeMap::new();
    for asked in &view.touching[cell] {
        let Answer::Admitted { lease: Some(lease), .. } = &asked.answer else { continue };
        let calls = || view.calls_of(lease).iter();
        let renewed = calls().filter(|call| call.what == LeaseWhat::Renew).map(|call| call.received).max();
        let over = renewed.unwrap_or_default().max(asked.received) + ttl;
        let released = calls()
            .filter(|call| call.what == LeaseWhat::Release && call.was_held.is_some())
            .map(|call| call.received);
        ends.entry(asked.received).or_default().push(released.min().unwrap_or(over).min(over));
    }
    for spend in spends {
        let end = ends.get_mut(&spend.latest).and_then(Vec::pop);
        spend.latest = end.unwrap_or(spend.latest + ttl);
    }
}

/// After a clock went back, what was spent before counts as spent when the store was next asked for the cell: a refusal that a
/// node remembered does not reach it.
fn rebase(view: &View<'_>, cell: usize, spends: &mut [Spend]) {
    for trouble in view.history.troubles.iter().filter(|trouble| trouble.what == What::SteppedBack) {
        let later = view.touching[cell].iter().filter(|asked| asked.sent >= trouble.from);
        let at_the_store = later.filter(|asked| asked.source() != Some(Source::DenyCache));
        let Some(first) = at_the_store.map(|asked| asked.received).min() else { continue };
        spends.iter_mut().for_each(|spend| spend.latest = spend.latest.max(first));
    }
}
