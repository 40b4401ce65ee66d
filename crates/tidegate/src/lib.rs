//! Rate limiting in your own process: with counters in memory, or shared by a fleet on Redis.
//!
//! # One limit per user
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = tidegate::in_memory("
//!     domain: api
//!     rules:
//!       - { name: per-user, key: [user], limits: [2/minute] }
//! ")?;
//! let per_user = limiter.prepare("api", ["user"])?;
//! assert!(per_user.check_blocking(&["ann"])?.is_allowed());
//! assert!(per_user.check_blocking(&["ann"])?.is_allowed());
//! let refused = per_user.check_blocking(&["ann"])?;
//! assert!(!refused.is_allowed() && refused.retry_after().is_some());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! A [`Prepared`] check is the fastest: its attributes are named once. In async code, await [`Prepared::check`].
//!
//! # Requests with different attributes
//!
//! An [`Ask`] names its attributes each time, and its answer is a whole [`Decision`]. Rules can be code, too:
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tidegate::Ask;
//! use tidegate::rules::{Rule, Rules, TokenBucket};
//!
//! let search = Rule::new("search").matches("path", "/search").key("user").limit(TokenBucket::per_second(1).burst(2));
//! let limiter = tidegate::in_memory(Rules::new("api").rule(search))?;
//! let ask = Ask::new("api").with("path", "/search").with("user", 42);
//! assert!(ask.check_blocking(&limiter)?.is_allowed() && ask.check_blocking(&limiter)?.is_allowed());
//! assert_eq!(ask.check_blocking(&limiter)?.rule(), Some("search"));
//! assert!(!ask.check_blocking(&limiter)?.is_allowed());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! # A cost that is known later
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tidegate::block_on(async {
//! use tidegate::Ask;
//!
//! let limiter = tidegate::in_memory("{ domain: llm, rules: [{ name: tokens, key: [user], limits: [1000/h] }] }")?;
//! let prompt = Ask::new("llm").with("user", "ann").cost(600);
//! let mut spend = prompt.spend(&limiter).await?;
//! assert!(spend.is_allowed());
//! assert!(!prompt.check(&limiter).await?.is_allowed(), "600 of 1000 are set aside");
//! spend.settle(250).await?;
//! assert!(prompt.check(&limiter).await?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! # How many at once
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let sleep = |_| std::future::pending(); // or: use tokio::time::sleep;
//! # tidegate::block_on(async {
//! use tidegate::Ask;
//!
//! let rules = "{ domain: jobs, rules: [{ name: at-once, limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }] }";
//! let (limiter, job) = (tidegate::in_memory(rules)?, Ask::new("jobs"));
//! let lease = job.check(&limiter).await?.into_lease().expect("there is room for one");
//! assert!(!job.check(&limiter).await?.is_allowed());
//! lease.around(async { /* the work */ }, sleep).await?;
//! assert!(job.check(&limiter).await?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! # Other limits while requests are decided, and a clock of a test's own
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::{sync::Arc, time::Duration};
//! use tidegate::{Ask, ManualClock, Setup};
//!
//! let rules = |limit: &str| format!("{{ domain: d, rules: [{{ name: r, limits: [{limit}] }}] }}");
//! let clock = Arc::new(ManualClock::default());
//! let limiter = Setup::new(rules("1/minute")).clock(clock.clone()).in_memory()?;
//! let one = Ask::new("d");
//! assert!(one.check_blocking(&limiter)?.is_allowed() && !one.check_blocking(&limiter)?.is_allowed());
//! limiter.replace_rules(rules("2/minute"))?;
//! assert!(one.check_blocking(&limiter)?.is_allowed() && !one.check_blocking(&limiter)?.is_allowed());
//! clock.advance(Duration::from_secs(60));
//! assert!(one.check_blocking(&limiter)?.is_allowed());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! What was counted stays wherever a rule keeps its key, and a limit its algorithm and window; [`RuleSet::changes_since`] names the
//! others. The rule language, as text and as code, is in [`rules`]. A [`Limiter`] is cheap to clone, and ends with its last clone.
//!
//! # Where to look
//!
//! | To | use |
//! |---|---|
//! | limit an axum, tonic, hyper or tower service | `RateLimitLayer`; what rules know of a request is in `middleware::identity` |
//! | decide as fast as possible | [`Limiter::prepare`] |
//! | decide in a handler, a job or a client | [`Ask::check`], or [`Ask::check_blocking`] on a plain thread |
//! | wait until a request may go | [`Ask::until_ready`] |
//! | refund what a failed request spent, or charge what it used | [`Ask::spend`]: [`Spend::refund`], [`Spend::settle`]; `RateLimitLayer::refund_when` |
//! | limit how many run at once | a `concurrency` limit, and the [`Lease`] of a [`Checked`] or [`Spend`]: [`Lease::around`] |
//! | test with a clock that you set | [`Setup::clock`] with a [`ManualClock`] |
//! | observe decisions and store failures | [`Setup::observer`]: `TracingObserver`, or an [`Observer`] of your own |
//! | see rule warnings | [`Setup::deny_warnings`], `TracingObserver`, or [`RuleSet::warnings`] |
//! | keep counters elsewhere, or with other bounds | [`Setup::on_store`], with your own [`Store`]: [`store`] has a complete example |
//! | shut down cleanly | [`Limiter::shutdown`] |
//!
//! # Dropped checks
//!
//! The future of a check can be dropped at any time, as a server does when its client hangs up. If the store was not called
//! yet, nothing is spent. If it was, the hits stay spent: otherwise a client that hangs up early would never be counted. A
//! lease that such a call returns is released.
//!
//! # Features
//!
//! | Feature | Gives | Brings along |
//! |---|---|---|
//! | `memory` (default) | counters in this process: [`in_memory`] | no async runtime, few crates |
//! | `redis` | counters shared by a fleet: `on_redis`, on one Redis, Sentinel, Cluster or shards | tokio, redis |
//! | `redis-tls` | the same over TLS: `rediss://` | rustls |
//! | `postgres`, `postgres-tls` | counters in PostgreSQL (`Setup::on_shared_store`) | tokio, tokio-postgres |
//! | `memcached` | the same in Memcached | tokio |
//! | `dynamodb` | the same in DynamoDB; run against emulators, never against AWS | tokio, hyper, rustls |
//! | `tower` | `middleware::RateLimitLayer`, for any tower service over HTTP | http, tokio's `sync` |
//! | `axum` | the same, reading axum's peer addresses and nested paths | axum |
//! | `tonic` | the same, reading tonic's peer addresses | tonic |
//! | `jwt` | attributes from claims of verified JSON Web Tokens | jsonwebtoken |
//! | `tracing` | `TracingObserver`, which logs changes in the store's state and rule warnings | tracing |
//! | `conformance` | `store::conformance`, the test suite for your own [`Store`] | |

mod ask;
mod attribute;
mod checked;
#[cfg(feature = "redis")]
mod redis;
mod setup;
#[cfg(any(feature = "redis", feature = "postgres", feature = "memcached", feature = "dynamodb"))]
mod shared;
mod skipped;
mod spend;
#[cfg(feature = "tracing")]
mod tracing_observer;

pub use ask::Ask;
pub use attribute::AttributeValue;
pub use checked::Checked;
#[cfg(feature = "redis")]
pub use redis::{OnRedisError, on_redis, on_redis_with};
pub use setup::{Setup, compile};
#[cfg(any(feature = "redis", feature = "postgres", feature = "memcached", feature = "dynamodb"))]
pub use shared::SharedStoreError;
pub use spend::{Lease, Spend};
pub use tidegate_core::{Hits, Micros, Outcome, Timestamp};
pub use tidegate_limiter::{
    BlockingError, BreakerConfig, CheckRequest, Decision, DescriptorAsk, Health, LeaseError, LeaseToken,
    Limiter, LimiterConfig, Patience, Prepared, PreparedError, QueueBounds, RefundError, RemoteConfig,
    Report, Runtime, Source, SpentAt, Task, Unsettled, Verdict, block_on,
};
#[cfg(any(
    feature = "redis",
    feature = "postgres",
    feature = "memcached",
    feature = "dynamodb",
    feature = "tower"
))]
pub use tidegate_limiter::{TokioHandle, TokioRuntime};
pub use tidegate_rules::{
    Coordination, Descriptor, Diagnostics, Format, IntoRules, OnMissingKey, OnStoreFailure, RuleSet,
    Source as RuleSource, UnknownDomain, load,
};
pub use tidegate_store::{Clock, ManualClock, MemoryConfig, MemoryStore, Store, StoreError, SystemClock};
#[cfg(feature = "dynamodb")]
#[doc(inline)]
pub use tidegate_store_dynamodb as dynamodb;
#[cfg(feature = "memcached")]
#[doc(inline)]
pub use tidegate_store_memcached as memcached;
#[cfg(feature = "postgres")]
#[doc(inline)]
pub use tidegate_store_postgres as postgres;
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

/// The argument types of [`Observer`]'s methods.
pub mod observe {
    pub use tidegate_limiter::{
        BreakerState, Decided, LateCall, NoObserver, Observer, Overload, RequestResult, RuleHits, RuleResult,
        RuleWatcher, Settled, Settlement, Source, StoreCall, TraceContext, Traced, Transport,
    };
    pub use tidegate_rules::{
        Autopilot, Match, Mode, OnHangup, Policy, Priority, Rule as CompiledRule, RuleLimit, RuleSet, Share,
        Variant,
    };
    pub use tidegate_store::StoreError;
}

/// Types that the methods of limiters, decisions, rules and stores take and return.
pub mod inspect {
    pub use tidegate_limiter::{
        CellUsage, Claim, ClaimError, DescriptorDecision, FirstTime, LeaseTokenError, LimitOverride,
        LimitReport, NodeHealth, RemoteStats, Report, ReportKind, RequestId, Snapshot, SpentToken,
        SpentTokenError, Usage,
    };
    pub use tidegate_rules::{
        Colour, Diagnostic, Explanation, Flags, FollowedFlag, LimitExplanation, LoadError, LostCounters,
        Matches, OverrideEffect, OverrideProblem, RuleChanges, RuleExplanation, RuleOutcome, RuntimeOverride,
        Severity,
    };
    pub use tidegate_store::MemoryStats;
}

/// The parts of a [`RedisConfig`] and a [`StoreUrl`], and their errors.
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
        ConfigError, Credentials, Endpoint, Observer as RedisObserver, Operation, Reason as FailureReason,
        TlsFiles, Topology, Transport as RedisTransport, UrlError,
    };
}

#[doc = include_str!("store.md")]
pub mod store {
    pub use tidegate_core::{
        Algorithm, Ask as CellAsk, Cell, Charge, Fold, Hits, LeaseId, Limit as CellLimit, Micros, Outcome,
        Scope, Stance, Timestamp, Touch, Verdict as CellVerdict, decide_fold, decide_request,
    };
    #[cfg(feature = "conformance")]
    #[doc(inline)]
    pub use tidegate_store::conformance;
    pub use tidegate_store::{
        BatchOutcomes, BoxError, CellCharge, CellKey, LeaseRef, Outcomes, Record, Refund, RefundId, Reply,
        Request, RequestOutcomes, Spend as CellSpend, Stamped, Store, StoreError,
    };
}

/// Load shedding: refuses the least critical requests first while a service is overloaded.
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

/// [`in_memory`] with a configuration: the bounds of what it holds.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = "{ domain: d, rules: [{ name: r, key: [user], limits: [1/minute] }] }";
/// let config = tidegate::MemoryConfig::default().max_cells(10_000);
/// let limiter = tidegate::in_memory_with(rules, &config)?;
/// assert!(tidegate::Ask::new("d").with("user", "ann").check_blocking(&limiter)?.is_allowed());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// With every mistake in the rules, each with its line and a hint.
#[cfg(feature = "memory")]
pub fn in_memory_with(rules: impl IntoRules, config: &MemoryConfig) -> Result<Limiter, Diagnostics> {
    Setup::new(rules).memory(*config).in_memory()
}
