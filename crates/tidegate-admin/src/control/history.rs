//! Recent history for charts: per second for 15 minutes, per minute for a day. Bounded.
//!
//! Counters are read once a second; requests record nothing here. A second without a reading is a gap, not zero.

use std::collections::BTreeMap;

use serde::Serialize;

use tidegate_metrics::{Reading, Totals};

/// How far back each resolution goes.
const SECONDS: usize = 900;
const MINUTES: usize = 1_440;
const SECONDS_A_MINUTE: u64 = 60;

/// The most rules with a history of their own, about 37 kB each once used; the others share one.
const MOST_RULES: usize = 1_000;

/// Answer times in one second or minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Latencies {
    pub(crate) decision_p50_us: Option<f64>,
    pub(crate) decision_p99_us: Option<f64>,
    pub(crate) store_p50_us: Option<f64>,
    pub(crate) store_p99_us: Option<f64>,
}

impl Latencies {
    /// The latencies of these decisions and store calls.
    pub(crate) fn of(decisions: &Reading, calls: &Reading) -> Self {
        Latencies {
            decision_p50_us: decisions.quantile_us(0.5),
            decision_p99_us: decisions.quantile_us(0.99),
            store_p50_us: calls.quantile_us(0.5),
            store_p99_us: calls.quantile_us(0.99),
        }
    }
}

/// A rule: its domain and name. The requests of a domain, whatever rules they matched, have an empty name.
pub(crate) type SeriesKey = (String, String);

/// All recent history of this node.
pub(crate) struct History {
    last: BTreeMap<SeriesKey, Totals>,
    rules: BTreeMap<SeriesKey, Ring>,
    /// Which slots have a reading; the others are gaps.
    read: Slots<Latencies>,
    rates: Totals,
}

/// One rule's slots.
struct Ring {
    seconds: Vec<Totals>,
    minutes: Vec<Totals>,
}

impl Default for Ring {
    fn default() -> Self {
        Ring { seconds: vec![Totals::default(); SECONDS], minutes: vec![Totals::default(); MINUTES] }
    }
}

/// The reading in each slot, and the time it stands for.
struct Slots<T> {
    seconds: Vec<Option<(u64, T)>>,
    minutes: Vec<Option<(u64, T)>>,
}

/// A range of equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The first second.
    pub(crate) from_s: u64,
    /// One past the last second.
    pub(crate) to_s: u64,
    /// A second, a minute, or a multiple.
    pub(crate) step_s: u64,
}

/// One rule's rates per second over a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Series {
    pub(crate) domain: String,
    pub(crate) rule: String,
    pub(crate) allowed: Vec<Option<f64>>,
    pub(crate) refused: Vec<Option<f64>>,
    pub(crate) shadow_refused: Vec<Option<f64>>,
    pub(crate) fallback: Vec<Option<f64>>,
    /// Only of requests; empty for a rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) shed: Vec<Option<f64>>,
}

impl Series {
    /// A rule, or requests, without data in a window.
    pub(crate) fn empty(name: &SeriesKey, window: Window) -> Self {
        let unknown: Vec<Option<f64>> = window.steps().map(|_| None).collect();
        let shed = if name.1.is_empty() { unknown.clone() } else { Vec::new() };
        Series {
            domain: name.0.clone(),
            rule: name.1.clone(),
            allowed: unknown.clone(),
            refused: unknown.clone(),
            shadow_refused: unknown.clone(),
            fallback: unknown,
            shed,
        }
    }
}

impl Series {
    pub(crate) fn key(&self) -> SeriesKey {
        (self.domain.clone(), self.rule.clone())
    }

    /// Whether this is a domain's requests, not a rule's checks.
    pub(crate) fn is_of_requests(&self) -> bool {
        self.rule.is_empty()
    }

    /// The sum of all. A step without data for any of them is a gap.
    pub(crate) fn total(all: &[Series]) -> Self {
        let sum = |of: fn(&Series) -> &Vec<Option<f64>>| {
            let steps = all.iter().map(|series| of(series).len()).max().unwrap_or_default();
            let at = |step: usize| {
                let known = all.iter().filter_map(|series| of(series).get(step).copied().flatten());
                known.fold(None, |sum: Option<f64>, value| Some(sum.unwrap_or_default() + value))
            };
            (0..steps).map(at).collect()
        };
        Series {
            allowed: sum(|series| &series.allowed),
            refused: sum(|series| &series.refused),
            shadow_refused: sum(|series| &series.shadow_refused),
            fallback: sum(|series| &series.fallback),
            shed: sum(|series| &series.shed),
            ..Series::default()
        }
    }

    /// The sort key of rules: refusals, then shadow refusals, then traffic.
    pub(crate) fn refusals(&self) -> f64 {
        let sum = |column: &[Option<f64>]| column.iter().flatten().sum::<f64>();
        sum(&self.refused) + 1e-6 * sum(&self.shadow_refused) + 1e-12 * sum(&self.allowed)
    }
}

impl Window {
    /// The most steps in one answer.
    pub(crate) const MOST_STEPS: u64 = 2_000;

    pub(crate) fn fine(self) -> bool {
        self.step_s < SECONDS_A_MINUTE
    }

    pub(crate) fn steps(self) -> impl Iterator<Item = u64> {
        (self.from_s..self.to_s).step_by(usize::try_from(self.step_s.max(1)).unwrap_or(usize::MAX))
    }
}

impl History {
    pub(crate) fn new() -> Self {
        let (last, rules) = (BTreeMap::new(), BTreeMap::new());
        let read = Slots { seconds: vec![None; SECONDS], minutes: vec![None; MINUTES] };
        History { last, rules, read, rates: Totals::default() }
    }

    /// Records the current counters, and returns the increase of each.
    pub(crate) fn record(
        &mut self,
        now_s: u64,
        totals: Vec<(SeriesKey, Totals)>,
        latencies: Latencies,
    ) -> Vec<(SeriesKey, Totals)> {
        let mut added = Vec::new();
        let (second, minute) = (slot(now_s, SECONDS), slot(now_s / SECONDS_A_MINUTE, MINUTES));
        let new_minute = self.read.minutes[minute].is_none_or(|(of, _)| of != now_s / SECONDS_A_MINUTE);
        for ring in self.rules.values_mut() {
            ring.seconds[second] = Totals::default();
            if new_minute {
                ring.minutes[minute] = Totals::default();
            }
        }
        self.rates = Totals::default();
        for (name, now) in totals {
            let before = self.last.insert(name.clone(), now).unwrap_or_default();
            let more = now.since(before);
            if more == Totals::default() {
                continue;
            }
            if name.1.is_empty() {
                self.rates = self.rates.plus(more);
            }
            added.push((name.clone(), more));
            let full =
                self.rules.len() >= MOST_RULES && !name.1.is_empty() && !self.rules.contains_key(&name);
            let name = if full { (String::new(), "others".to_owned()) } else { name };
            let ring = self.rules.entry(name).or_default();
            ring.seconds[second] = ring.seconds[second].plus(more);
            ring.minutes[minute] = ring.minutes[minute].plus(more);
        }
        self.read.seconds[second] = Some((now_s, latencies));
        self.read.minutes[minute] = Some((now_s / SECONDS_A_MINUTE, latencies));
        added
    }

    /// Requests in the last second: those that passed, and those that were refused or shed.
    pub(crate) fn last_rates(&self) -> (f64, f64) {
        (self.rates.allowed as f64, (self.rates.refused + self.rates.shed) as f64)
    }

    /// The rates of the rules that `wanted` selects, over a window.
    pub(crate) fn series(&self, window: Window, wanted: impl Fn(&SeriesKey) -> bool) -> Vec<Series> {
        let one = |(name, ring): (&SeriesKey, &Ring)| {
            let mut series = Series { domain: name.0.clone(), rule: name.1.clone(), ..Series::default() };
            for start in window.steps() {
                let sum = self.sum(ring, window, start);
                let rate =
                    |count: fn(Totals) -> u64| sum.map(|(sum, span_s)| count(sum) as f64 / span_s as f64);
                series.allowed.push(rate(|sum| sum.allowed));
                series.refused.push(rate(|sum| sum.refused));
                series.shadow_refused.push(rate(|sum| sum.shadow_refused));
                series.fallback.push(rate(|sum| sum.fallback));
                if series.is_of_requests() {
                    series.shed.push(rate(|sum| sum.shed));
                }
            }
            series
        };
        self.rules.iter().filter(|(name, _)| wanted(name)).map(one).collect()
    }

    /// Answer times over a window.
    pub(crate) fn latencies(&self, window: Window) -> Vec<Latencies> {
        let at = |start| self.read_at(window, start).unwrap_or_default();
        window.steps().map(at).collect()
    }

    /// A rule's decisions in one step, and the number of seconds with a reading; `None` if there are none.
    fn sum(&self, ring: &Ring, window: Window, start: u64) -> Option<(Totals, u64)> {
        let end = (start + window.step_s).min(window.to_s);
        let (unit, slots, read) = match window.fine() {
            true => (1, &ring.seconds, &self.read.seconds),
            false => (SECONDS_A_MINUTE, &ring.minutes, &self.read.minutes),
        };
        let mut found = None;
        for number in start / unit..end.div_ceil(unit) {
            let place = slot(number, slots.len());
            if read[place].is_some_and(|(of, _)| of == number) {
                let (sum, span_s) = found.unwrap_or((Totals::default(), 0));
                found = Some((sum.plus(slots[place]), span_s + unit));
            }
        }
        found
    }

    fn read_at(&self, window: Window, start: u64) -> Option<Latencies> {
        let (unit, read) = match window.fine() {
            true => (1, &self.read.seconds),
            false => (SECONDS_A_MINUTE, &self.read.minutes),
        };
        let numbers = start / unit..(start + window.step_s).min(window.to_s).div_ceil(unit);
        let mut found =
            numbers.filter_map(|number| read[slot(number, read.len())].filter(|(of, _)| *of == number));
        found.next_back().map(|(_, latencies)| latencies)
    }
}

fn slot(number: u64, slots: usize) -> usize {
    usize::try_from(number % slots as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str) -> SeriesKey {
        ("api".into(), name.into())
    }

    fn totals(allowed: u64, refused: u64) -> Totals {
        Totals { allowed, refused, ..Totals::default() }
    }

    fn window(from_s: u64, to_s: u64, step_s: u64) -> Window {
        Window { from_s, to_s, step_s }
    }

    #[test]
    fn each_second_has_what_was_added_in_it_and_a_gap_is_no_zero() {
        let mut history = History::new();
        history.record(1_000, vec![(rule("a"), totals(10, 1))], Latencies::default());
        history.record(1_001, vec![(rule("a"), totals(15, 1))], Latencies::default());
        history.record(1_003, vec![(rule("a"), totals(15, 3))], Latencies::default());
        let series = history.series(window(999, 1_004, 1), |_| true);
        assert_eq!(series[0].allowed, [None, Some(10.0), Some(5.0), None, Some(0.0)]);
        assert_eq!(series[0].refused, [None, Some(1.0), Some(0.0), None, Some(2.0)]);
    }

    #[test]
    fn minutes_are_rates_too_and_outlive_seconds() {
        let mut history = History::new();
        for second in 0..2_000 {
            history.record(
                60_000 + second,
                vec![(rule("a"), totals(5 * (second + 1), 0))],
                Latencies::default(),
            );
        }
        let series = history.series(window(60_000, 60_120, 60), |_| true);
        assert_eq!(series[0].allowed, [Some(5.0), Some(5.0)]);
        let seconds = history.series(window(60_000, 60_002, 1), |_| true);
        assert_eq!(seconds[0].allowed, [None, None], "their slots were used again");
    }

    #[test]
    fn a_slot_that_is_used_again_begins_at_nothing() {
        let mut history = History::new();
        history.record(5, vec![(rule("a"), totals(10, 0))], Latencies::default());
        history.record(5 + SECONDS as u64, vec![(rule("a"), totals(11, 0))], Latencies::default());
        let later = 5 + SECONDS as u64;
        assert_eq!(history.series(window(later, later + 1, 1), |_| true)[0].allowed, [Some(1.0)]);
    }

    #[test]
    fn rules_beyond_the_bound_share_one_history() {
        let mut history = History::new();
        let all = (0..MOST_RULES + 10).map(|number| (rule(&format!("{number:05}")), totals(1, 0))).collect();
        history.record(1, all, Latencies::default());
        let series = history.series(window(1, 2, 1), |_| true);
        assert_eq!(series.len(), MOST_RULES + 1);
        assert_eq!(series[0].allowed, [Some(10.0)]);
    }

    #[test]
    fn a_total_has_every_rule_and_keeps_gaps() {
        let series = |allowed: &[Option<f64>], refused: f64| Series {
            allowed: allowed.to_vec(),
            refused: vec![Some(refused)],
            ..Series::default()
        };
        let all = [series(&[Some(1.0), None, None], 2.0), series(&[Some(2.0), Some(4.0), None], 5.0)];
        let total = Series::total(&all);
        assert_eq!((total.allowed, total.refused), (vec![Some(3.0), Some(4.0), None], vec![Some(7.0)]));
        assert!(all[1].refusals() > all[0].refusals());
    }

    #[test]
    fn a_count_that_went_down_is_no_traffic() {
        let mut history = History::new();
        history.record(1, vec![(rule("a"), totals(10, 0))], Latencies::default());
        history.record(2, vec![(rule("a"), totals(3, 0))], Latencies::default());
        assert_eq!(history.series(window(2, 3, 1), |_| true)[0].allowed, [Some(0.0)]);
    }
}
