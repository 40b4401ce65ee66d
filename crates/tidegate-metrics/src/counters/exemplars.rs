//! Exemplars: one trace per histogram bucket, so that a slow bucket leads to a slow request.
//!
//! Only requests of sampled traces come here, and none of them waits: if the table is locked, the request leaves no
//! exemplar.

use parking_lot::Mutex;
use tidegate_limiter::{Traced, Transport};

use super::durations::{BOUNDS_NS, bucket_of};
use crate::family::Exemplar;

/// The last trace of each transport and bucket.
#[derive(Default)]
pub(super) struct Exemplars(Mutex<[[Option<Exemplar>; BOUNDS_NS.len() + 1]; Transport::ALL.len()]>);

impl Exemplars {
    pub(super) fn note(&self, request: &Traced<'_>) {
        let Some(mut table) = self.0.try_lock() else { return };
        let bucket = bucket_of(request.took);
        let at_seconds = request.began.as_micros() as f64 / 1e6 + request.took.as_secs_f64();
        let (trace_id, value) = (request.context.trace_id, request.took.as_secs_f64());
        table[request.transport as usize][bucket] = Some(Exemplar { trace_id, value, at_seconds });
    }

    /// The exemplars of a transport, by bucket.
    pub(super) fn of(&self, transport: Transport) -> Vec<(usize, Exemplar)> {
        let known = self.0.lock()[transport as usize];
        known.into_iter().enumerate().filter_map(|(bucket, one)| Some((bucket, one?))).collect()
    }
}
