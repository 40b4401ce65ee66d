//! The control plane, for operators: the admin API and the dashboard, on a listener of their own, together with
//! `/metrics` ([`Admin`]). Nothing here runs on the data plane's threads.

mod api;
mod control;
mod dashboard;
mod edge;
mod jobs;
mod listener;
mod log_metrics;
mod low_priority;
mod pages;
mod reference;

pub use tidegate_decisions::{Clear, DecisionLog, DecisionLogConfig, FileConfig};

pub use control::{
    Alone, CHANGES_BESIDE, CallerWatch, ChangesSince, CompileFailure, ConfiguredToken, ControlConfig,
    ControlPlane, EventCounts, Fleet, FleetAnswer, FleetError, HistoryChunk, HistoryRow, LastSecond,
    MOST_ANSWER_BYTES, NEWEST_FORMAT, NodeStatus, NoteFuture, PublishedSet, Resolution, RuleSource,
    RunningRules, StoreCost, StoreCosts, WHOLE_SET, heartbeat_of, without_replaced,
};
pub use listener::{Admin, BindError};
pub use log_metrics::DecisionLogMetrics;
pub use low_priority::at_low_priority;
pub use reference::reference;
