//! Takes one request from descriptor to decision.
//!
//! [`Limiter::check`] is the whole path: rules say which cells a request touches, the store decides, a failure policy
//! answers where the store does not, and observers hear of it. It knows no transport and no concrete store.

mod decision;
mod direct;
mod failure;
mod lease;
mod limiter;
mod observer;
mod plan;
mod replay;
mod request;
mod snapshot;

pub use decision::{Decision, DescriptorDecision, LimitReport, Report, ReportKind, Source};
pub use direct::Direct;
pub use lease::{LeaseToken, LeaseTokenError};
pub use limiter::{LeaseError, Limiter, LimiterConfig, RefundError};
pub use observer::{NoObserver, Observer, RuleResult, RuleWatcher, Transport};
pub use replay::{FirstTime, ReplayBounds, ReplayCache, ReplayError, RequestId};
pub use request::{CheckRequest, DescriptorAsk, LimitOverride, Patience};
pub use snapshot::Snapshot;
