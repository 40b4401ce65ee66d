//! The metrics of one process: [`Metrics`] counts what the limiter and the transports do, and [`Registry`] reads all
//! sources as [`Families`].
//!
//! `/metrics`, StatsD, OTLP and alerts read the same families, so they agree; no text that was written here is ever parsed
//! again. Only [`Metrics`] runs on the data plane's threads; there it takes no locks, looks nothing up and never waits.
//!
//! No client's key ever becomes a label: labels come only from rule files, the configuration and this source code.

mod counters;
mod family;
mod process;
mod registry;
mod sources;
mod text;

pub use counters::{ExperimentSide, MOST_RULE_SERIES, Metrics, Reading, Totals};
pub use family::{Exemplar, Families, Family, Histogram, Kind, Series, Text, Value};
pub use registry::{Describe, Registry};
pub use sources::{
    BusyRatio, CertificateEnd, FollowedFlags, KeyKinds, LentQuotas, ListenerConnections, LostExports,
    RefusedLogins, StoreUsage, UpstreamCounts, WithheldLines, XdsCounts,
};
pub use text::Format;
