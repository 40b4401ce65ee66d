//! The control plane: what operators look at and change. Metrics, the admin API and the dashboard.
//!
//! [`Metrics`] hears what the limiter decides, [`Exposition`] puts that and what others can tell (the store, the
//! connections, the process) into Prometheus' words, and [`Admin`] serves it on a listener of its own. None of it runs
//! on the data plane's threads but [`Metrics`], which there takes no lock, looks nothing up and waits for nobody.
//!
//! No client's key ever becomes a label: labels come from rule files and from this source code alone.

mod alerts;
mod api;
mod classic;
mod control;
mod dashboard;
mod exposition;
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
