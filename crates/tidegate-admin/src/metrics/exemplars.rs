//! Exemplars: one trace per histogram bucket, so that a slow bucket leads to a slow request.
//!
//! Only requests of sampled traces come here, and none of them waits: if the table is locked, the request leaves no
//! exemplar. The library's encoder cannot write exemplars from outside, so they are inserted into its text.

use std::fmt::Write as _;

use parking_lot::Mutex;
use tidegate_limiter::{Traced, Transport};

use super::durations::{BOUNDS_NS, bucket_of};

/// The last trace of each transport and bucket.
#[derive(Default)]
pub(super) struct Exemplars(Mutex<[[Option<Exemplar>; BOUNDS_NS.len() + 1]; Transport::ALL.len()]>);

#[derive(Clone, Copy)]
struct Exemplar {
    trace_id: u128,
    seconds: f64,
    at_seconds: f64,
}

impl Exemplars {
    pub(super) fn note(&self, request: &Traced<'_>) {
        let Some(mut table) = self.0.try_lock() else { return };
        let bucket = bucket_of(request.took);
        let at_seconds = request.began.as_micros() as f64 / 1e6 + request.took.as_secs_f64();
        let (trace_id, seconds) = (request.context.trace_id, request.took.as_secs_f64());
        table[request.transport as usize][bucket] = Some(Exemplar { trace_id, seconds, at_seconds });
    }

    /// `text` with each exemplar appended to the sample of its bucket.
    pub(super) fn add_to(&self, text: &str) -> String {
        let table = *self.0.lock();
        let mut annotated = String::with_capacity(text.len() + 1024);
        for line in text.lines() {
            annotated.push_str(line);
            let labels = line.strip_prefix(BUCKETS).and_then(|rest| rest.split_once('}'));
            let found = labels.and_then(|(labels, _)| {
                let transport =
                    Transport::ALL.into_iter().find(|one| has(labels, "transport", one.name()))?;
                let bound = value(labels, "le")?;
                let bucket = match bound {
                    "+Inf" => BOUNDS_NS.len(),
                    bound => BOUNDS_NS.iter().position(|ns| is_bound(*ns, bound))?,
                };
                table[transport as usize][bucket]
            });
            if let Some(Exemplar { trace_id, seconds, at_seconds }) = found {
                let _ = write!(annotated, " # {{trace_id=\"{trace_id:032x}\"}} {seconds} {at_seconds:.3}");
            }
            annotated.push('\n');
        }
        annotated
    }
}

const BUCKETS: &str = "tidegate_decision_duration_seconds_bucket{";

fn is_bound(ns: u64, text: &str) -> bool {
    text.parse::<f64>().is_ok_and(|seconds| (seconds * 1e9).round() as u64 == ns)
}

/// The value of a label. Assumes no quotes or commas in it, which holds for our labels.
fn value<'l>(labels: &'l str, name: &str) -> Option<&'l str> {
    labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
}

fn has(labels: &str, name: &str, wanted: &str) -> bool {
    value(labels, name) == Some(wanted)
}
