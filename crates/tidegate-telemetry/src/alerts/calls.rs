//! How slow the store is: spans of calls, of which one with a hiccup says nothing.

use std::collections::VecDeque;

use tidegate_metrics::{Families, Histogram, Series};

use super::shares::{IN_A_ROW, SPAN_S};

/// The fewest calls of a span; with fewer it lasts longer, up to a minute.
const LEAST_CALLS: f64 = 20.0;
const LONGEST_SPAN_S: u64 = 60;
/// Of few calls, chance makes this many slow.
const BY_CHANCE: f64 = 2.0;

/// The last whole spans of calls to the store.
#[derive(Debug, Default)]
pub struct CallSpans {
    began: Option<(u64, Histogram)>,
    p99_us: VecDeque<f64>,
}

impl CallSpans {
    /// Counts the calls until `now_s`, and returns the p99 that each of the last three spans had at least; `None` before
    /// there are three.
    pub fn step(&mut self, now_s: u64, families: &Families) -> Option<f64> {
        let calls = store_calls(families);
        match &self.began {
            Some((from_s, before)) if now_s.abs_diff(*from_s) >= SPAN_S => {
                let p99_us = calls.and_then(|calls| p99_us(calls, before));
                if p99_us.is_some() || now_s.abs_diff(*from_s) >= LONGEST_SPAN_S {
                    self.end_span(p99_us);
                    self.began = Some((now_s, calls.cloned().unwrap_or_default()));
                }
            }
            Some(_) => {}
            None => self.began = Some((now_s, calls.cloned().unwrap_or_default())),
        }
        let is_full = self.p99_us.len() >= IN_A_ROW as usize;
        self.p99_us.iter().copied().reduce(f64::min).filter(|_| is_full)
    }

    fn end_span(&mut self, p99_us: Option<f64>) {
        match p99_us {
            Some(p99_us) => self.p99_us.push_back(p99_us),
            None => self.p99_us.clear(),
        }
        if self.p99_us.len() > IN_A_ROW as usize {
            self.p99_us.pop_front();
        }
    }
}

/// The upper bound of the bucket with the p99 of the calls since `before`; `None` of too few.
fn p99_us(now: &Histogram, before: &Histogram) -> Option<f64> {
    let then = |index: usize| before.buckets.get(index).map_or(0, |(_, count)| *count);
    let counts = now.buckets.iter().enumerate().map(|(index, (_, count))| count.saturating_sub(then(index)));
    let counts: Vec<u64> = counts.collect();
    let all = Some(counts.iter().sum::<u64>() as f64).filter(|all| *all >= LEAST_CALLS)?;
    let mut below = 0;
    let index = counts.iter().position(|count| {
        below += count;
        below as f64 >= all - (all * 0.01).max(BY_CHANCE)
    })?;
    let bound = |index: usize| now.buckets[index].0 * 1e6;
    Some(if bound(index).is_finite() { bound(index) } else { bound(index.saturating_sub(1)) })
}

/// The durations of decisions by the store, since the process started.
fn store_calls(families: &Families) -> Option<&Histogram> {
    let mut durations = families.series("tidegate_store_duration_seconds").iter();
    durations.find(|one| one.label("op") == Some("decide")).and_then(Series::histogram)
}

#[cfg(test)]
mod tests {
    use tidegate_metrics::Value;

    use super::*;

    /// The p99 after each of these seconds, in which so many calls took 1 ms and so many 90 ms.
    fn steps(calls: impl Fn(u64) -> [u64; 2], seconds: u64) -> Vec<Option<f64>> {
        let (mut spans, mut sums) = (CallSpans::default(), [0, 0]);
        let step = |now_s| {
            let [fast, slow] = calls(now_s);
            sums = [sums[0] + fast, sums[1] + slow];
            let buckets = vec![(0.001, sums[0]), (0.1, sums[1]), (f64::INFINITY, 0)];
            let histogram = Histogram { buckets, ..Histogram::default() };
            let mut families = Families::default();
            let family = families.histograms("store_duration_seconds", "");
            family.add([("op", "decide".into())], Value::from(histogram));
            spans.step(now_s, &families)
        };
        (0..seconds).map(step).collect()
    }

    #[test]
    fn one_slow_second_in_three_spans_is_no_slow_store() {
        let hiccup = |now_s| if now_s == 25 { [0, 75] } else { [75, 0] };
        let p99 = steps(hiccup, 120);
        assert!(p99[..30].iter().all(Option::is_none), "three spans are not over");
        assert!(p99[30..].iter().all(|p99| *p99 == Some(1_000.0)), "{p99:?}");
    }

    #[test]
    fn a_store_that_is_slow_for_three_spans_is_slow_until_it_was_fast_for_one() {
        let slow = |now_s| if (10..60).contains(&now_s) { [70, 5] } else { [75, 0] };
        let p99 = steps(slow, 120);
        let slow: Vec<usize> = (0..120).filter(|now_s| p99[*now_s] == Some(100_000.0)).collect();
        assert_eq!(slow, (40..70).collect::<Vec<_>>(), "{p99:?}");
    }

    #[test]
    fn of_few_calls_two_slow_ones_are_chance_and_too_few_are_not_judged() {
        let p99 = steps(|now_s| if now_s % 10 < 2 { [3, 1] } else { [3, 0] }, 60);
        assert_eq!(p99[59], Some(1_000.0));
        assert_eq!(steps(|now_s| [0, u64::from(now_s % 6 == 0)], 300)[299], None, "ten a minute");
        assert_eq!(steps(|now_s| [0, u64::from(now_s % 2 == 0)], 300)[299], Some(100_000.0), "thirty are");
    }
}
