//! Calls to a remote store: their number and duration, and the calls that the local layer saved.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_limiter::{LateCall, Overload, Source, StoreCall};

use super::Lane;
use super::durations::{self, Durations};
use super::lanes::Lanes;
use crate::family::{Families, Histogram};

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

/// Adds the metrics of a remote store.
pub(super) fn describe(lanes: &Lanes<Lane>, families: &mut Families) {
    let total = |count: &dyn Fn(&StoreSide) -> &AtomicU64| -> u64 {
        lanes.iter().map(|lane| count(&lane.store).load(Ordering::Relaxed)).sum()
    };
    let help = "Duration of calls to the store, by operation.";
    let family = families.histograms("store_duration_seconds", help);
    for call in StoreCall::ALL {
        let of_lanes = lanes.iter().map(|lane| &lane.store.durations[call as usize]);
        if let Some(histogram) = durations::histogram(of_lanes) {
            family.add([("op", call.name().into())], histogram);
        }
    }
    let family = families.histograms("coalesced_batch_size", "Requests per call to the store.");
    family.add([], sizes(lanes));
    families.counter("store_calls", "Round trips to store servers.", total(&|store| &store.server_calls));
    let help = "Calls that a store server failed, by reason.";
    let failures = SERVER_ERRORS.into_iter().enumerate();
    let failures = failures.map(|(index, reason)| (reason, total(&|store| &store.server_errors[index])));
    families.counters_by("reason", ("store_call_failures", help), failures);
    let help = "Requests refused by the deny cache, because the store had refused the same a moment ago.";
    families.counter("deny_cache_hits", help, total(&|store| &store.deny_cache_hits));
    let help = "Requests that could not wait for a store that has not failed: the queue was full, the deadline was near, or this node lagged.";
    let overloads = Overload::ALL.map(|why| (why.name(), total(&|store| &store.overloads[why as usize])));
    families.counters_by("reason", ("overloads", help), overloads);
    let help = "Calls to the store that ended after their requests were decided without them: `answered`, so that their hits could be refunded, or `lost`.";
    let ends =
        [("answered", total(&|store| &store.late_answers)), ("lost", total(&|store| &store.late_losses))];
    families.counters_by("end", ("late_store_calls", help), ends);
    let help = "Requests whose hits were refunded because the store admitted them too late.";
    families.counter("late_requests_given_back", help, total(&|store| &store.given_back));
    let help = "Requests decided, at least in part, by a failure policy because the store failed.";
    let fallbacks = FALLBACKS.into_iter().enumerate();
    let fallbacks = fallbacks.map(|(index, source)| (source.name(), total(&|store| &store.fallbacks[index])));
    families.counters_by("source", ("fallbacks", help), fallbacks);
    let help = "Hits spent on this node while the store was unavailable, and charged to it later.";
    families.counter("hits_repaid", help, total(&|store| &store.hits_repaid));
}

fn sizes(lanes: &Lanes<Lane>) -> Histogram {
    let bounds = SIZES.iter().map(|size| *size as f64).chain([f64::INFINITY]);
    let batches = || lanes.iter().map(|lane| &lane.store.batches);
    let count = |bucket: usize| -> u64 {
        batches().map(|sizes: &BatchSizes| sizes.buckets[bucket].load(Ordering::Relaxed)).sum()
    };
    let sum: u64 = batches().map(|sizes| sizes.sum.load(Ordering::Relaxed)).sum();
    Histogram {
        sum: sum as f64,
        buckets: bounds.zip((0..=SIZES.len()).map(count)).collect(),
        exemplars: Vec::new(),
    }
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
