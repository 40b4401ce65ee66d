//! Calls to a remote store: their number and duration, and the calls that the local layer saved.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tidegate_limiter::{LateCall, Overload, Source, StoreCall};

use super::Lane;
use super::durations::{self, Durations};
use super::lanes::Lanes;
use crate::exposition::counter;

/// One lane's counters of the store.
#[derive(Default)]
pub(super) struct StoreSide {
    /// In the order of [`StoreCall::ALL`].
    pub(super) durations: [Durations; StoreCall::ALL.len()],
    pub(super) batches: BatchSizes,
    pub(super) deny_cache_hits: AtomicU64,
    /// By reason, in the order of [`Overload::ALL`].
    pub(super) overloads: [AtomicU64; Overload::ALL.len()],
    late_answers: AtomicU64,
    late_losses: AtomicU64,
    given_back: AtomicU64,
    /// In the order of [`FALLBACKS`].
    fallbacks: [AtomicU64; FALLBACKS.len()],
    pub(super) hits_repaid: AtomicU64,
    server_calls: AtomicU64,
    /// In the order of [`SERVER_ERRORS`]; the last one counts reasons that are not listed.
    server_errors: [AtomicU64; SERVER_ERRORS.len()],
}

const FALLBACKS: [Source; 3] = [Source::FallbackOpen, Source::FallbackClosed, Source::FallbackLocal];

/// Why a server of the store failed a call. A reason that is not listed counts as `other`: labels come only from this source
/// code.
const SERVER_ERRORS: [&str; 11] = [
    "timeout",
    "unreachable",
    "connection_lost",
    "overload",
    "loading",
    "read_only",
    "out_of_memory",
    "cluster",
    "no_replicas",
    "not_allowed",
    "other",
];

impl StoreSide {
    pub(super) fn fell_back(&self, source: Source) {
        if let Some(place) = FALLBACKS.iter().position(|known| *known == source) {
            self.fallbacks[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn late_call(&self, end: LateCall) {
        match end {
            LateCall::Answered { given_back } => {
                self.late_answers.fetch_add(1, Ordering::Relaxed);
                self.given_back.fetch_add(given_back, Ordering::Relaxed);
            }
            LateCall::Lost => drop(self.late_losses.fetch_add(1, Ordering::Relaxed)),
        }
    }

    pub(super) fn server_called(&self, failure: Option<&str>) {
        self.server_calls.fetch_add(1, Ordering::Relaxed);
        if let Some(reason) = failure {
            let place = SERVER_ERRORS.iter().position(|known| *known == reason);
            let place = place.unwrap_or(SERVER_ERRORS.len() - 1);
            self.server_errors[place].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Upper bounds of the buckets.
const SIZES: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Requests per call to the store.
#[derive(Default)]
pub(super) struct BatchSizes {
    buckets: [AtomicU64; SIZES.len() + 1],
    sum: AtomicU64,
}

impl BatchSizes {
    pub(super) fn record(&self, requests: usize) {
        let requests = requests as u64;
        let bucket = SIZES.partition_point(|size| *size < requests);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(requests, Ordering::Relaxed);
    }
}

/// Writes the metrics of a remote store; none before the first call.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, lanes: &Lanes<Lane>) -> fmt::Result {
    let total = |count: &dyn Fn(&StoreSide) -> &AtomicU64| -> u64 {
        lanes.iter().map(|lane| count(&lane.store).load(Ordering::Relaxed)).sum()
    };
    let help = "From a call to the store being sent to its answer or its end, by what was asked.";
    let series = StoreCall::ALL.into_iter().map(|call| {
        (call.name(), lanes.iter().map(|lane| &lane.store.durations[call as usize]).collect::<Vec<_>>())
    });
    durations::encode_family(encoder, ("store_duration", help, "op"), series)?;

    let help = "Requests that one call to the store carried.";
    let family = encoder.encode_descriptor("coalesced_batch_size", help, None, MetricType::Histogram)?;
    encode_sizes(family, lanes)?;

    let help = "Calls to servers of the store: round trips.";
    counter(encoder, "store_calls", help, total(&|store| &store.server_calls))?;
    let help = "Calls that a server of the store failed, by what it said or why it could not.";
    let mut family = encoder.encode_descriptor("store_call_failures", help, None, MetricType::Counter)?;
    for (place, reason) in SERVER_ERRORS.into_iter().enumerate() {
        let failures = total(&|store| &store.server_errors[place]);
        ConstCounter::new(failures).encode(family.encode_family(&[("reason", reason)])?)?;
    }

    let help = "Requests refused here because the store had refused them a moment ago.";
    counter(encoder, "deny_cache_hits", help, total(&|store| &store.deny_cache_hits))?;
    let help = "Requests that could not wait for a store that has not failed, by why: no room, or no time; or that waited too long, because this node lagged.";
    let mut family = encoder.encode_descriptor("overloads", help, None, MetricType::Counter)?;
    for why in Overload::ALL {
        let requests = total(&|store| &store.overloads[why as usize]);
        ConstCounter::new(requests).encode(family.encode_family(&[("reason", why.name())])?)?;
    }
    let help = "Calls to the store that ended after everybody was let go who waited for them: `answered`, so that what they spent could be given back, or `lost`.";
    let mut family = encoder.encode_descriptor("late_store_calls", help, None, MetricType::Counter)?;
    let ends =
        [("answered", total(&|store| &store.late_answers)), ("lost", total(&|store| &store.late_losses))];
    for (end, calls) in ends {
        ConstCounter::new(calls).encode(family.encode_family(&[("end", end)])?)?;
    }
    let help = "Requests whose hits were given back: the store had let them pass after they were let go.";
    counter(encoder, "late_requests_given_back", help, total(&|store| &store.given_back))?;
    let help =
        "Requests decided, in part at least, by what their rules say for a store that does not answer.";
    let mut family = encoder.encode_descriptor("fallbacks", help, None, MetricType::Counter)?;
    for (place, source) in FALLBACKS.into_iter().enumerate() {
        let requests = total(&|store| &store.fallbacks[place]);
        ConstCounter::new(requests).encode(family.encode_family(&[("source", source.name())])?)?;
    }
    let help = "Hits spent here while the store was away, and charged there once it was back.";
    counter(encoder, "hits_repaid", help, total(&|store| &store.hits_repaid))
}

fn encode_sizes(
    mut family: prometheus_client::encoding::MetricEncoder<'_>,
    lanes: &Lanes<Lane>,
) -> fmt::Result {
    let ends = SIZES.iter().map(|size| *size as f64).chain([f64::INFINITY]);
    let sizes = || lanes.iter().map(|lane| &lane.store.batches);
    let counts = (0..=SIZES.len())
        .map(|bucket| sizes().map(|sizes| sizes.buckets[bucket].load(Ordering::Relaxed)).sum());
    let buckets: Vec<(f64, u64)> = ends.zip(counts).collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    let sum: u64 = sizes().map(|sizes| sizes.sum.load(Ordering::Relaxed)).sum();
    family.encode_histogram::<NoLabelSet>(sum as f64, count, &buckets, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_number_themselves_as_their_list_does() {
        assert!(StoreCall::ALL.into_iter().enumerate().all(|(place, call)| call as usize == place));
        assert!(Overload::ALL.into_iter().enumerate().all(|(place, why)| why as usize == place));
    }
}
