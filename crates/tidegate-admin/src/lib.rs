//! The control plane, for operators: metrics, the admin API and the dashboard.
//!
//! [`Metrics`] observes the limiter's decisions, [`Exposition`] combines them with other sources (the store, the
//! connections, the process) into Prometheus text, and [`Admin`] serves it on a listener of its own. Only [`Metrics`] runs
//! on the data plane's threads; there it takes no locks, looks nothing up and never waits.
//!
//! No client's key ever becomes a label: labels come only from rule files and from this source code.

mod alerts;
mod api;
mod classic;
mod control;
mod dashboard;
mod edge;
mod exposition;
mod jobs;
mod listener;
mod low_priority;
mod metrics;
mod pages;
mod process;
mod reference;

pub use tidegate_decisions::{Clear, DecisionLog, DecisionLogConfig, FileConfig};

pub use alerts::{AlertDesk, AlertStats};
pub use control::{
    Alone, CHANGES_BESIDE, CallerWatch, ChangesSince, CompileFailure, ConfiguredToken, Control,
    ControlConfig, Fleet, FleetAnswer, FleetError, FleetQuestion, Heard, HistoryChunk, HistoryRow,
    LastSecond, MOST_ANSWER_BYTES, NEWEST_FORMAT, NodeNote, NoteFuture, PublishedSet, Resolution, RuleSource,
    WHOLE_SET, without_replaced,
};
pub use exposition::{CertificateEnd, Exposition, Format, ListenerConnections, StoreUsage, UpstreamCounts};
pub use listener::{Admin, BindError};
pub use low_priority::at_low_priority;
pub use metrics::{MOST_RULE_SERIES, Metrics};
pub use reference::reference;
