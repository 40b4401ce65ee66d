//! Results: counts, and a histogram of latencies.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Latencies are capped at this. A request's timeout is shorter, but a severe backlog may be longer.
const LONGEST: Duration = Duration::from_secs(3600);
/// Three digits: 1.23 ms and 1.234 ms are not distinguished.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The outcome of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Allowed,
    Refused,
    Failed(Trouble),
}

/// Why a request got no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// No connection could be made.
    Connect,
    /// The connection ended before the answer.
    Lost,
    TimedOut,
    HttpStatus(u16),
    GrpcStatus(u16),
    /// An error of the Redis protocol.
    ErrorReply,
    /// A malformed answer.
    BadReply,
    /// Due, but every connection was busy until the run ended.
    NeverSent,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Connect => f.write_str("cannot connect"),
            Trouble::Lost => f.write_str("connection lost"),
            Trouble::TimedOut => f.write_str("timed out"),
            Trouble::HttpStatus(status) => write!(f, "http status {status}"),
            Trouble::GrpcStatus(status) => write!(f, "grpc status {status}"),
            Trouble::ErrorReply => f.write_str("error reply"),
            Trouble::BadReply => f.write_str("bad reply"),
            Trouble::NeverSent => f.write_str("never sent"),
        }
    }
}

/// The results of a run, or of one thread's part of it.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    /// At most one entry per status code.
    pub(super) troubles: BTreeMap<Trouble, u64>,
    /// The first error message of the server.
    pub(super) first_complaint: Option<String>,
    pub(super) last_answer: Option<Instant>,
    latency_ns: Histogram<u64>,
}

impl Tally {
    pub(super) fn new() -> Tally {
        let longest = LONGEST.as_nanos() as u64;
        let latency_ns = Histogram::new_with_max(longest, SIGNIFICANT_DIGITS).expect("fixed, valid bounds");
        Tally {
            allowed: 0,
            refused: 0,
            troubles: BTreeMap::new(),
            first_complaint: None,
            last_answer: None,
            latency_ns,
        }
    }

    /// Counts one request that was due at `due` and ended at `now`.
    pub(super) fn record(&mut self, outcome: Outcome, due: Instant, now: Instant) {
        let latency = now.saturating_duration_since(due);
        self.last_answer = Some(now);
        self.latency_ns.saturating_record(latency.as_nanos() as u64);
        match outcome {
            Outcome::Allowed => self.allowed += 1,
            Outcome::Refused => self.refused += 1,
            Outcome::Failed(trouble) => self.trouble(trouble),
        }
    }

    /// Counts an error without a request.
    pub(super) fn trouble(&mut self, trouble: Trouble) {
        *self.troubles.entry(trouble).or_default() += 1;
    }

    /// Counts requests that waited at least `waited` and were never sent.
    pub(super) fn never_sent(&mut self, count: u64, waited: Duration) {
        self.latency_ns.saturating_record_n(waited.as_nanos() as u64, count);
        *self.troubles.entry(Trouble::NeverSent).or_default() += count;
    }

    pub(super) fn complain(&mut self, complaint: impl FnOnce() -> String) {
        if self.first_complaint.is_none() {
            self.first_complaint = Some(complaint());
        }
    }

    pub(super) fn merge(&mut self, other: &Tally) {
        self.allowed += other.allowed;
        self.refused += other.refused;
        for (trouble, count) in &other.troubles {
            *self.troubles.entry(*trouble).or_default() += count;
        }
        if self.first_complaint.is_none() {
            self.first_complaint.clone_from(&other.first_complaint);
        }
        self.last_answer = self.last_answer.max(other.last_answer);
        self.latency_ns.add(&other.latency_ns).expect("all tallies have the same bounds");
    }

    /// Requests with a decision.
    pub(super) fn decided(&self) -> u64 {
        self.allowed + self.refused
    }

    pub(super) fn errors(&self) -> u64 {
        self.troubles.values().sum()
    }

    pub(super) fn latency_at(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency_ns.value_at_quantile(quantile))
    }

    pub(super) fn longest_latency(&self) -> Duration {
        Duration::from_nanos(self.latency_ns.max())
    }

    pub(super) fn mean_latency(&self) -> Duration {
        Duration::from_nanos(self.latency_ns.mean() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn record(tally: &mut Tally, outcome: Outcome, latency: Duration) {
        let due = clock::now();
        tally.record(outcome, due, due + latency);
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let mut one = Tally::new();
        record(&mut one, Outcome::Allowed, Duration::from_micros(100));
        one.complain(|| "first".to_owned());
        let mut other = Tally::new();
        record(&mut other, Outcome::Refused, Duration::from_micros(300));
        record(&mut other, Outcome::Failed(Trouble::TimedOut), Duration::from_secs(5));
        other.complain(|| "second".to_owned());
        one.merge(&other);
        assert_eq!((one.decided(), one.errors()), (2, 1));
        assert_eq!(one.first_complaint.as_deref(), Some("first"));
        assert!(one.longest_latency() >= Duration::from_secs(5));
    }

    #[test]
    fn quantiles_are_within_the_promised_digits() {
        let mut tally = Tally::new();
        for micros in 1..=1000 {
            record(&mut tally, Outcome::Allowed, Duration::from_micros(micros));
        }
        let p99 = tally.latency_at(0.99).as_nanos() as f64;
        assert!((p99 / 990_000.0 - 1.0).abs() < 0.001, "{p99}");
    }

    #[test]
    fn a_request_that_was_never_sent_still_counts_with_its_wait() {
        let mut tally = Tally::new();
        record(&mut tally, Outcome::Allowed, Duration::from_micros(10));
        tally.never_sent(999, Duration::from_secs(1));
        assert_eq!(tally.errors(), 999);
        assert!(tally.latency_at(0.5) >= Duration::from_millis(999));
    }
}
