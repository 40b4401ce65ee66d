//! Counts of upstream failures by reason. Names come from the configuration, so there are few.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Timestamp;

use crate::ProxyShared;

/// Why a server of an upstream did not answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// It could not be reached.
    Unreachable,
    /// It did not take the connection in time.
    ConnectTimeout,
    /// It was reached, but TLS or HTTP could not be negotiated.
    Handshake,
    /// It closed the connection before it answered.
    BrokeOff,
    /// It did not answer in time.
    AnswerTimeout,
}

impl UpstreamFailure {
    /// All reasons.
    pub const ALL: [UpstreamFailure; 5] = [
        UpstreamFailure::Unreachable,
        UpstreamFailure::ConnectTimeout,
        UpstreamFailure::Handshake,
        UpstreamFailure::BrokeOff,
        UpstreamFailure::AnswerTimeout,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            UpstreamFailure::Unreachable => "unreachable",
            UpstreamFailure::ConnectTimeout => "connect_timeout",
            UpstreamFailure::Handshake => "handshake",
            UpstreamFailure::BrokeOff => "broke_off",
            UpstreamFailure::AnswerTimeout => "answer_timeout",
        }
    }
}

/// The counts of one upstream.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    answered: AtomicU64,
    /// By reason, in the order of [`UpstreamFailure::ALL`].
    failures: [AtomicU64; UpstreamFailure::ALL.len()],
}

impl Counts {
    pub(crate) fn answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, why: UpstreamFailure) {
        self.failures[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The outcomes of requests to one upstream since the process started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamStats {
    /// Its name.
    pub upstream: String,
    /// Requests that one of its servers answered, with any status.
    pub answered: u64,
    /// Failed attempts by reason; a request may be tried on several servers.
    pub failures: [(&'static str, u64); UpstreamFailure::ALL.len()],
    /// The number of its servers.
    pub servers: u64,
    /// The number of healthy servers.
    pub well: u64,
}

/// Reads the counts of every upstream of a proxy.
#[derive(Clone)]
pub struct UpstreamReader(pub(crate) Arc<ProxyShared>);

impl UpstreamReader {
    /// The counts, as of `now`.
    #[must_use]
    pub fn read(&self, now: Timestamp) -> Vec<UpstreamStats> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let stats = self.0.groups.iter().map(|group| UpstreamStats {
            upstream: group.name.clone(),
            answered: read(&group.counts.answered),
            failures: UpstreamFailure::ALL
                .map(|why| (why.name(), read(&group.counts.failures[why as usize]))),
            servers: group.targets().len() as u64,
            well: group.well(now) as u64,
        });
        stats.collect()
    }
}

impl std::fmt::Debug for UpstreamReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamReader")
    }
}
