//! Takes one request from descriptor to decision.
//!
//! [`Limiter::check`] is the whole path: rules select the cells a request touches, the store decides, a failure policy
//! answers where the store does not, and observers are notified. The crate knows no transport and no concrete store.

mod answer;
mod blocking;
mod cell;
mod cell_hash;
mod charge;
mod check;
mod config;
mod decision;
mod deny_cache;
mod health;
mod home;
mod idempotency;
mod lease;
mod leases;
mod lifecycle;
mod limiter;
mod local;
mod mistyped;
mod node_clock;
mod observer;
mod prepared;
mod refund;
mod remote;
mod request;
mod rule_watcher;
mod runtime;
mod shared_observer;
mod snapshot;
mod source;
mod spent;
mod take;
mod trace;
mod usage;

pub use blocking::{BlockingError, block_on, wait_for};
pub use check::Direct;
pub use config::{HomeConfig, LimiterConfig, RemoteConfig};
pub use decision::{Decision, DescriptorDecision, LimitReport, OVERRIDE, Report, ReportKind};
pub use health::{Health, NodeHealth, RemoteStats};
pub use home::HomeStatus;
pub use idempotency::{Claim, ClaimError, FirstTime, RequestId};
pub use lease::{LeaseToken, LeaseTokenError};
pub use leases::LeaseError;
pub use limiter::{Limiter, Unsettled};
pub use local::ShareStats;
pub use mistyped::Mistyped;
pub use observer::{
    BreakerState, Decided, LateCall, NoObserver, Observer, Overload, Settled, Settlement, SpentBefore,
    StoreCall,
};
pub use prepared::{Prepared, PreparedError, Verdict};
pub use refund::{RefundError, SpentAt};
pub use remote::breaker::BreakerConfig;
pub use remote::{LATE_CALLS_HEARD_FOR, QueueBounds};
pub use request::{CheckRequest, DescriptorAsk, Incurred, LimitOverride, Patience};
pub use rule_watcher::{RequestResult, RuleHits, RuleResult, RuleWatcher};
pub use runtime::{Runtime, Task};
#[cfg(feature = "tokio")]
pub use runtime::{TokioHandle, TokioRuntime, prober_thread};
pub use snapshot::Snapshot;
pub use source::Source;
pub use spent::{SpentText, SpentToken, SpentTokenError};
pub use take::Take;
pub use tidegate_shed::{
    Capacity, Classes, Gradient2, Gradient2Config, LevelConfig, LevelConfigError, Percent, Permit, Reason,
    Shed, ShedLevel, ShedMachine, ShedStats, Shedder, ShedderConfig, Thresholds, Utilization,
};
pub use trace::{TRACEPARENT, TraceContext, Traced, Transport};
pub use usage::{CellUsage, Usage};
