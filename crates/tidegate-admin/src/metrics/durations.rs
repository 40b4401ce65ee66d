//! How long transports took to answer, and the store: a histogram into which a batch is recorded by two additions.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use tidegate_limiter::Transport;

use super::Lane;
use super::lanes::Lanes;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Upper ends of the buckets, in nanoseconds. From a decision in memory, over a round trip to Redis and the 10 ms after
/// which a store is given up, to the 20 ms after which Envoy gives *us* up, and beyond.
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

/// The durations that one lane saw on one transport, or of one kind of call.
#[derive(Default)]
pub(super) struct Durations {
    /// How many fell into each bucket, not into those before it too; the last is for all above the last bound.
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Durations {
    /// Notes `requests` that took this long each.
    pub(super) fn record(&self, took: Duration, requests: u64) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(took)].fetch_add(requests, Ordering::Relaxed);
        // Wraps after 584 years spent answering.
        self.sum_ns.fetch_add(ns.wrapping_mul(requests), Ordering::Relaxed);
    }
}

/// The bucket that counts a request which took this long.
pub(super) fn bucket_of(took: Duration) -> usize {
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    BOUNDS_NS.partition_point(|bound| *bound < ns)
}

/// How many requests took how long, to be compared with an earlier reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading([u64; BOUNDS_NS.len() + 1]);

impl Reading {
    pub(super) fn of<'d>(durations: impl Iterator<Item = &'d Durations>) -> Self {
        let mut reading = Reading::default();
        for one in durations {
            for (sum, bucket) in reading.0.iter_mut().zip(&one.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
        }
        reading
    }

    /// One of these counts; those that are missing are zero.
    pub(crate) fn of_counts(counts: &[u64]) -> Self {
        let mut reading = Reading::default();
        reading.0.iter_mut().zip(counts).for_each(|(own, count)| *own = *count);
        reading
    }

    /// How many fell into each bucket.
    pub(crate) fn counts(&self) -> &[u64] {
        &self.0
    }

    /// What was added since `before`.
    pub(crate) fn since(&self, before: &Reading) -> Reading {
        let mut more = self.clone();
        more.0.iter_mut().zip(&before.0).for_each(|(now, then)| *now = now.saturating_sub(*then));
        more
    }

    /// The time within which this part of the requests was answered, in microseconds, as precise as the
    /// buckets are; none if there was no request.
    pub(crate) fn quantile_us(&self, part: f64) -> Option<f64> {
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

/// Tells of every transport that has answered something.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, lanes: &Lanes<Lane>) -> fmt::Result {
    let help = "From the whole request being there to the answer being ready, by transport.";
    let series = Transport::ALL.into_iter().map(|transport| {
        let of_lanes = lanes.iter().map(|lane| &lane.durations[transport as usize]);
        (transport.name(), of_lanes.collect::<Vec<_>>())
    });
    encode_family(encoder, ("decision_duration", help, "transport"), series)
}

/// Writes a family of histograms, told apart by one label, without those that have seen nothing.
pub(super) fn encode_family<'d>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, label): (&str, &str, &'static str),
    series: impl Iterator<Item = (&'static str, Vec<&'d Durations>)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (value, of_lanes) in series {
        let bounds = BOUNDS_NS.iter().map(|ns| seconds(*ns)).chain([f64::INFINITY]);
        let counts = (0..=BOUNDS_NS.len())
            .map(|bucket| of_lanes.iter().map(|lane| lane.buckets[bucket].load(Ordering::Relaxed)).sum());
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // Not a counter of its own: it must agree with the buckets, and a scrape races with those who record.
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        if count > 0 {
            let sum_ns = of_lanes.iter().map(|lane| lane.sum_ns.load(Ordering::Relaxed)).sum();
            family.encode_family(&[(label, value)])?.encode_histogram::<NoLabelSet>(
                seconds(sum_ns),
                count,
                &buckets,
                None,
            )?;
        }
    }
    Ok(())
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
