//! Histograms of answer times, by transport and by store call. Recording a batch costs two additions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::family::Histogram;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Upper bounds of the buckets, in nanoseconds: from a decision in memory, through a Redis round trip and the 10 ms default
/// store timeout, to Envoy's default timeout of 20 ms, and beyond.
pub(super) const BOUNDS_NS: [u64; 17] = [
    5 * US,
    10 * US,
    25 * US,
    50 * US,
    100 * US,
    250 * US,
    500 * US,
    MS,
    2_500 * US,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    250 * MS,
    1_000 * MS,
    5_000 * MS,
];

/// The durations that one lane recorded for one transport, or for one kind of call.
#[derive(Default)]
pub(super) struct Durations {
    /// Requests per bucket, not cumulative; the last one is for durations above the last bound.
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Durations {
    /// Records `requests` that took this long each.
    pub(super) fn record(&self, took: Duration, requests: u64) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(took)].fetch_add(requests, Ordering::Relaxed);
        // Wraps after 584 years of accumulated answer time.
        self.sum_ns.fetch_add(ns.wrapping_mul(requests), Ordering::Relaxed);
    }
}

/// The bucket for a request that took this long.
pub(super) fn bucket_of(took: Duration) -> usize {
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    BOUNDS_NS.partition_point(|bound| *bound < ns)
}

/// Requests per bucket, for comparison with an earlier reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading([u64; BOUNDS_NS.len() + 1]);

impl Reading {
    pub(super) fn of<'d>(durations: impl Iterator<Item = &'d Durations>) -> Self {
        let mut reading = Reading::default();
        durations.for_each(|one| reading.add(one));
        reading
    }

    fn add(&mut self, durations: &Durations) {
        for (sum, bucket) in self.0.iter_mut().zip(&durations.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
    }

    /// A reading with these counts; missing ones are zero.
    #[must_use]
    pub fn of_counts(counts: &[u64]) -> Self {
        let mut reading = Reading::default();
        reading.0.iter_mut().zip(counts).for_each(|(own, count)| *own = *count);
        reading
    }

    /// Requests per bucket.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// The increase since `before`.
    #[must_use]
    pub fn since(&self, before: &Reading) -> Reading {
        let mut more = self.clone();
        more.0.iter_mut().zip(&before.0).for_each(|(now, then)| *now = now.saturating_sub(*then));
        more
    }

    /// The time within which this part of the requests was answered, in microseconds, with the precision of the buckets;
    /// `None` without requests.
    #[must_use]
    pub fn quantile_us(&self, part: f64) -> Option<f64> {
        let all: u64 = self.0.iter().sum();
        let rank = (all as f64 * part).ceil().max(1.0);
        let mut below = 0.0;
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if below + count >= rank {
                let from = if bucket == 0 { 0 } else { BOUNDS_NS[bucket - 1] };
                let to = BOUNDS_NS.get(bucket).copied().unwrap_or(from);
                let within = (rank - below) / count;
                return Some((from as f64 + within * (to as f64 - from as f64)) / 1e3);
            }
            below += count;
        }
        None
    }
}

/// The sum over all lanes; none if it is empty.
pub(super) fn histogram<'d>(of_lanes: impl Iterator<Item = &'d Durations>) -> Option<Histogram> {
    let (mut counts, mut sum_ns) = (Reading::default(), 0u64);
    for lane in of_lanes {
        counts.add(lane);
        sum_ns = sum_ns.wrapping_add(lane.sum_ns.load(Ordering::Relaxed));
    }
    let bounds = BOUNDS_NS.iter().map(|ns| seconds(*ns)).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts.0).collect();
    let histogram = Histogram { sum: seconds(sum_ns), buckets, exemplars: Vec::new() };
    (histogram.count() > 0).then_some(histogram)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
