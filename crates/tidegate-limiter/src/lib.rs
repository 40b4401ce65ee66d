//! Takes one request from descriptor to decision.
//!
//! [`Limiter::check`] is the whole path: rules say which cells a request touches, the store decides, a failure policy
//! answers where the store does not, and observers hear of it. It knows no transport and no concrete store.

mod breaker;
mod cell_hash;
mod config;
mod decision;
mod direct;
mod failure;
mod give_back;
mod health;
mod later;
mod layer;
mod lease;
mod limiter;
mod matched;
mod node_clock;
mod observer;
mod own;
mod plan;
mod recall;
mod remote;
mod replay;
mod request;
mod runtime;
mod shared;
mod shed;
mod snapshot;

pub use breaker::{BreakerConfig, BreakerState};
pub use config::{LimiterConfig, RemoteConfig};
pub use decision::{Decision, DescriptorDecision, LimitReport, Report, ReportKind, Source};
pub use direct::Direct;
pub use give_back::{LeaseError, RefundError};
pub use health::{Health, NodeHealth, RemoteStats};
pub use lease::{LeaseToken, LeaseTokenError};
pub use limiter::Limiter;
pub use observer::{NoObserver, Observer, RuleResult, RuleWatcher, StoreCall, Transport};
pub use remote::LaneBounds;
pub use replay::{FirstTime, ReplayBounds, ReplayCache, ReplayError, RequestId};
pub use request::{CheckRequest, DescriptorAsk, LimitOverride, Patience};
#[cfg(feature = "tokio")]
pub use runtime::TokioRuntime;
pub use runtime::{Runtime, Task};
pub use shed::{
    Capacity, Classes, Gradient2, Gradient2Config, LevelConfig, LevelConfigError, Percent, Place, Reason,
    Shed, ShedLevel, ShedMachine, ShedStats, Shedder, ShedderConfig, Thresholds, Utilization,
};
pub use snapshot::Snapshot;
