//! Envoy's rate limit quota service, version 3: Envoys count, and this server lends each of them a part of the limit.
//!
//! An Envoy groups requests into buckets, and reports every five seconds what it allowed and denied in each. The answer is a rate
//! for each bucket and how long it is valid. Nothing is asked for a request. What is lent is *capacity* until a time, divided by
//! demand (`budget.rs`, on core's `Lender`), so all Envoys together stay within the limit, also while streams break.
//!
//! # What is promised
//!
//! The rates that all Envoys hold for one limit never sum to more than it. That takes one assumption: an assignment that was sent is
//! applied within `APPLIED_WITHIN` or never. Nothing in the protocol confirms one. So a rate counts as lent for that much longer
//! than Envoy may use it, and a smaller rate as applied only when a report has come that much later on the same stream.
//!
//! Envoy fills a token bucket anew whenever its numbers change. So a change of a share lets its holder pass one burst more, about a
//! second's worth of the share (`terms.rs`). While no share changes, nothing is over. A share that would change by a tenth or
//! less stays as it is.
//!
//! # One node of a fleet lends
//!
//! Whoever holds a record in the store (`commands/serve/lender.rs` in the binary) lends, for all domains, and the other nodes end
//! streams as unavailable, so that Envoy tries the next one. The division then is exact whatever the nodes know of each other, with no
//! message between them. It costs little: an Envoy sends one message in five seconds, however many requests it decides. The
//! alternatives are worse: a part of the limit for each node leaves unused what is lent to nodes with few Envoys, and is too much
//! whenever nodes count the fleet differently; leases in the store cost a call for each bucket, node and interval.
//!
//! A new lender, or a restarted one, does not know what is still lent. For [`LENT_FOR`] it *settles*: an Envoy that already had a bucket
//! keeps the rate that it proves to have used, and one with a new bucket gets no assignment, so its `no_assignment_behavior`
//! decides. An Envoy that had no assignment meanwhile may prove more than it held, at most the limit, for one lifetime.
//!
//! # What it does not do
//!
//! Requests that Envoy decides do not spend from the cells of the rule: who also checks requests of the same rule by another
//! protocol gives both a whole limit. Concurrency limits are not rates and are left out; so are penalties and `over`.

mod budget;
mod quotas;
mod session;
mod terms;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tidegate_core::Micros;

pub use crate::generated::envoy::service::rate_limit_quota::v3::{
    RateLimitQuotaResponse, RateLimitQuotaUsageReports,
    rate_limit_quota_response::{
        BucketAction,
        bucket_action::{AbandonAction, BucketAction as Action, QuotaAssignmentAction},
    },
    rate_limit_quota_service_client,
    rate_limit_quota_usage_reports::BucketQuotaUsage,
};
pub use crate::generated::envoy::r#type::v3::{
    RateLimitStrategy, TokenBucket,
    rate_limit_strategy::{BlanketRule, Strategy},
};
pub use quotas::{QuotaCounts, Quotas};
pub(crate) use session::QuotaSession;

/// The path of the only method, as sent in `:path`.
pub const STREAM_RATE_LIMIT_QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// How long an assignment is valid in Envoy, which reads whole seconds only. Two reports may be lost.
pub(crate) const VALID_FOR: Micros = Micros::from_secs(15);

/// How long an assignment takes to be applied, at most; less than the five seconds between two reports.
pub(crate) const APPLIED_WITHIN: Micros = Micros::from_secs(4);

/// How long a share counts as lent.
pub const LENT_FOR: Micros = Micros::from_secs(19);

/// The longest time that a report is about which proves what a bucket held: Envoy reports every five seconds, in whole ones.
pub(crate) const REPORTS_ABOUT: Micros = Micros::from_secs(7);

/// A bucket without requests for this long is abandoned. Nothing else removes it from Envoy.
pub(crate) const ABANDONED_AFTER: Micros = Micros::from_secs(60);

/// The most buckets of a stream. Beyond that they get no assignment.
pub const MAX_BUCKETS: usize = 20_000;

/// The most buckets of all streams.
pub const MAX_BUCKETS_IN_ALL: usize = 200_000;

/// The most streams.
pub const MAX_STREAMS: usize = 4_096;

/// The most buckets that share one limit. Beyond that they are denied.
pub const MAX_SHARES: usize = 1_024;

/// The size of a report.
pub(crate) const MAX_REPORT_BYTES: usize = 4 << 20;

/// Buckets of a report that are answered in one message.
pub(crate) const ANSWERED_AT_ONCE: usize = 256;

/// A bucket's name: attributes.
///
/// Its values are bytes where Envoy's file says string, which is the same on the wire: a client of Envoy may send any bytes in a
/// header, and its report must not be lost for them.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Message)]
pub struct BucketId {
    /// The attributes.
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub bucket: BTreeMap<String, Vec<u8>>,
}
