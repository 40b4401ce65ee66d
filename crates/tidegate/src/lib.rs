//! Decides, in your own process, whether one more request may pass: alone in memory, or together with a fleet on Redis.
//!
//! From rules to a decision:
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = tidegate::in_memory("
//!     domain: api
//!     rules:
//!       - { name: per-user, key: [user], limits: [2/minute] }
//! ")?;
//! let alice = tidegate::Ask::new("api").with("user", "alice");
//! assert!(alice.check_blocking(&limiter)?.allowed);
//! assert!(alice.check_blocking(&limiter)?.allowed);
//! assert!(!alice.check_blocking(&limiter)?.allowed);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! In async code it is [`Ask::check`], with `.await`; [`Ask::spend`] gives what was spent as a value, to be refunded, charged
//! or settled later.
//!
//! Rules are text (YAML or JSON) or code, in the same language: see [`rules`]. They can change while the program runs:
//! [`Limiter::replace_rules`] with what [`compile`] makes of them keeps what was counted wherever a rule keeps its key, and a
//! limit its algorithm and window; [`RuleSet::changes_since`] names the others. A [`Limiter`] is cheap to clone, and ends with
//! its last clone.
//!
//! # Where to look
//!
//! | To | use |
//! |---|---|
//! | limit an axum, tonic, hyper or tower service | `RateLimitLayer`; what rules know of a request is in `middleware::identity` |
//! | decide in a handler, a job or a client | [`Ask::check`], or [`Ask::check_blocking`] on a plain thread |
//! | give back what a failed request has spent, or charge what it took | [`Ask::spend`]: [`Spend::refund`], [`Spend::settle`]; `RateLimitLayer::refund_when` |
//! | let so many run at once | a `concurrency` limit, and the [`Lease`] of a [`Checked`] or [`Spend`] |
//! | test by a clock that stands still | [`in_memory_with`] a [`ManualClock`] |
//! | hear of decisions and of a lost store | [`Setup::observer`]: `TracingObserver`, or an [`Observer`] of your own |
//! | hear of rules that may not be meant so | [`Setup::deny_warnings`], `TracingObserver`, or [`RuleSet::warnings`] |
//! | keep counters elsewhere, or bound them otherwise | [`Setup::on_store`], with a [`Store`] of your own: a whole one is in [`store`] |
//! | stop in order | [`Limiter::shutdown`] |
//!
//! # Answers that nobody waits for
//!
//! The future of a check can be dropped at any moment, as a server does when its client hangs up. What the store has not been
//! asked yet is not spent. What it has been asked stays spent, though nobody hears the answer: else who hangs up in time would
//! ask for nothing. A lease that it brings is given back.
//!
//! # Features
//!
//! | Feature | Gives | Brings along |
//! |---|---|---|
//! | `memory` (default) | counters in this process: [`in_memory`] | no async runtime, few crates |
//! | `redis` | counters shared by a fleet: `on_redis`, on one Redis, Sentinel, Cluster or shards | tokio, redis |
//! | `redis-tls` | the same over TLS: `rediss://` | rustls |
//! | `tower` | `middleware::RateLimitLayer`, for whatever speaks tower and HTTP | http, tokio's `sync` |
//! | `axum` | the same, knowing axum's peers and nested paths | axum |
//! | `tonic` | the same, knowing tonic's peers | tonic |
//! | `jwt` | claims of verified JSON Web Tokens as identity | jsonwebtoken |
//! | `tracing` | `TracingObserver`, which logs what happens between limiter and store | tracing |
//! | `conformance` | `store::conformance`, the suite that tells whether a [`Store`] of your own is one; for tests | |

mod ask;
mod blocking;
mod checked;
#[cfg(feature = "redis")]
mod redis;
mod setup;
mod skipped;
mod spend;
#[cfg(feature = "tracing")]
mod tracing_observer;

pub use ask::Ask;
pub use blocking::{BlockingError, block_on};
pub use checked::Checked;
#[cfg(feature = "redis")]
pub use redis::{OnRedisError, on_redis, on_redis_with};
pub use setup::{IntoRules, Setup, compile};
pub use spend::{Lease, Spend};
pub use tidegate_core::{Hits, Micros, Outcome, Timestamp};
pub use tidegate_limiter::{
    BreakerConfig, CheckRequest, Decision, DescriptorAsk, Health, LeaseError, LeaseToken, Limiter,
    LimiterConfig, Patience, QueueBounds, RefundError, RemoteConfig, Report, Runtime, Source, SpentAt, Task,
    Unsettled,
};
#[cfg(any(feature = "redis", feature = "tower"))]
pub use tidegate_limiter::{TokioHandle, TokioRuntime};
pub use tidegate_rules::{
    Coordination, Descriptor, Diagnostics, Format, OnMissingKey, OnStoreFailure, RuleSet,
    Source as RuleSource, UnknownDomain, load,
};
pub use tidegate_store::{Clock, ManualClock, MemoryConfig, MemoryStore, Store, StoreError, SystemClock};
#[cfg(feature = "redis")]
pub use tidegate_store_redis::{RedisConfig, RedisStore, StoreUrl, TimeSource};
#[cfg(feature = "tower")]
#[doc(inline)]
pub use tidegate_tower as middleware;
#[cfg(feature = "tower")]
pub use tidegate_tower::RateLimitLayer;
#[cfg(feature = "tracing")]
pub use tracing_observer::TracingObserver;

pub use observe::{NoObserver, Observer};
#[doc = include_str!("rules.md")]
pub mod rules {
    pub use tidegate_core::Over;
    pub use tidegate_rules::code::*;
    pub use tidegate_rules::{Coordination, OnMissingKey, OnStoreFailure, Priority};
}

/// What an [`Observer`] hears: everything that its methods take.
pub mod observe {
    pub use tidegate_limiter::{
        BreakerState, Decided, LateCall, NoObserver, Observer, Overload, RequestResult, RuleHits, RuleResult,
        RuleWatcher, Settled, Settlement, Source, StoreCall, TraceContext, Traced, Transport,
    };
    pub use tidegate_rules::{
        Autopilot, Match, Mode, OnHangup, Priority, Rule, RuleLimit, RuleSet, Share, Variant,
    };
    pub use tidegate_store::StoreError;
}

/// What a limiter, a decision, rules or a store say of themselves when they are asked: the types that their methods take and
/// give.
pub mod inspect {
    pub use tidegate_limiter::{
        CellUsage, Claim, ClaimError, DescriptorDecision, FirstTime, LeaseTokenError, LimitOverride,
        LimitReport, NodeHealth, RemoteStats, Report, ReportKind, RequestId, Snapshot, SpentToken,
        SpentTokenError, Usage,
    };
    pub use tidegate_rules::{
        Colour, Diagnostic, Explanation, LimitExplanation, LoadError, LostCounters, Matches, OverrideEffect,
        OverrideProblem, RuleChanges, RuleExplanation, RuleOutcome, RuntimeOverride, Severity,
    };
    pub use tidegate_store::MemoryStats;
}

/// What a [`RedisConfig`] and a [`StoreUrl`] are made of, and what is wrong with one that cannot be used.
///
/// ```
/// use tidegate::redis_config::{Credentials, TlsFiles};
///
/// let config = tidegate::RedisConfig::default().tls(TlsFiles::default().ca("ca.pem"));
/// let config = config.sentinel_credentials(Credentials::default());
/// let setup = tidegate::Setup::new("{ domain: d, rules: [{ name: r, limits: [1/minute] }] }").redis(config);
/// ```
#[cfg(feature = "redis")]
pub mod redis_config {
    pub use tidegate_store_redis::{
        ConfigError, Credentials, Endpoint, Observer, Operation, Reason, TlsFiles, Topology, Transport,
        UrlError,
    };
}

#[doc = include_str!("store.md")]
pub mod store {
    pub use tidegate_core::{
        Algorithm, Ask, Cell, Charge, Fold, Hits, LeaseId, Limit, Micros, Outcome, Scope, Stance, Timestamp,
        Touch, Verdict, decide_fold, decide_request,
    };
    #[cfg(feature = "conformance")]
    #[doc(inline)]
    pub use tidegate_store::conformance;
    pub use tidegate_store::{
        BatchOutcomes, BoxError, CellCharge, CellKey, LeaseRef, Outcomes, Record, Refund, RefundId, Reply,
        Request, RequestOutcomes, Spend, Stamped, Store, StoreError,
    };
}

/// Turns requests away, by how critical they are, while a service has more to do than it can.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::shed::{Capacity, Priority, Shedder, ShedderConfig};
///
/// let config = ShedderConfig::new(Capacity::Workers(10.try_into()?));
/// let shedder = Shedder::new(config, Arc::new(tidegate::SystemClock::new()));
/// let busy: Vec<_> = (0..7).map(|_| shedder.enter(Priority::P2)).collect::<Result<_, _>>()?;
/// assert!(shedder.enter(Priority::P3).is_err() && shedder.enter(Priority::P2).is_ok());
/// drop(busy);
/// assert!(shedder.enter(Priority::P3).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod shed {
    pub use tidegate_limiter::{
        Capacity, Classes, Gradient2Config, LevelConfig, LevelConfigError, Percent, Permit, Reason, Shed,
        ShedStats, Shedder, ShedderConfig, Thresholds, Utilization,
    };
    pub use tidegate_rules::Priority;
}

/// A limiter that enforces `rules` with counters in this process's memory.
///
/// # Errors
/// With every mistake in the rules, each with its line and a hint.
#[cfg(feature = "memory")]
pub fn in_memory(rules: impl IntoRules) -> Result<Limiter, Diagnostics> {
    Setup::new(rules).in_memory()
}

/// The same by `clock`, such as one that a test sets:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{sync::Arc, time::Duration};
///
/// let clock = Arc::new(tidegate::ManualClock::default());
/// let limiter = tidegate::in_memory_with("{ domain: d, rules: [{ name: r, limits: [1/minute] }] }", clock.clone())?;
/// let one = tidegate::Ask::new("d");
/// assert!(one.check_blocking(&limiter)?.allowed && !one.check_blocking(&limiter)?.allowed);
/// clock.advance(Duration::from_secs(60));
/// assert!(one.check_blocking(&limiter)?.allowed);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// With every mistake in the rules, each with its line and a hint.
#[cfg(feature = "memory")]
pub fn in_memory_with(
    rules: impl IntoRules,
    clock: std::sync::Arc<dyn Clock>,
) -> Result<Limiter, Diagnostics> {
    Setup::new(rules).clock(clock).in_memory()
}
