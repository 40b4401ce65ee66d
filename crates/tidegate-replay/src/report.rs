//! The report of a replay as plain data, for people, programs and the dashboard.

use serde::Serialize;

/// The result of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The format of the log.
    pub format: &'static str,
    /// Counts of its lines.
    pub lines: Lines,
    /// The first request, in seconds since the Unix epoch.
    pub from_s: u64,
    /// The last.
    pub to_s: u64,
    /// Requests replayed, including those that a line of a sample stands for.
    pub requests: u64,
    /// Requests refused.
    pub refused: Counts,
    /// Requests that were refused at the time according to the log; `None` if it does not say.
    pub refused_in_log: Option<u64>,
    /// Requests decided differently here than at the time; `None` if the log does not say.
    pub decided_otherwise: Option<Otherwise>,
    /// Requests that the rules compared with decide differently here than was decided at the time: how far the replay is from
    /// what happened. `None` without such rules, or if the log does not say.
    pub before_otherwise: Option<Otherwise>,
    /// Why the numbers are an estimate, and what would make them exact; `None` if they are exact.
    pub estimate: Option<String>,
    /// Why the effect of some rules cannot be determined, and what would change that. The numbers of those rules mean
    /// nothing.
    pub unknown: Option<String>,
    /// Requests that are refused now and were not before.
    pub newly_refused: Option<u64>,
    /// Requests that were refused before and are not now.
    pub newly_admitted: Option<u64>,
    /// All requests over time.
    pub timeline: Timeline,
    /// Each rule, in the order of domains and names.
    pub rules: Vec<RuleReport>,
    /// Caveats to know before relying on the numbers.
    pub notes: Vec<String>,
}

/// Requests decided differently than at the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Otherwise {
    /// Refused at the time.
    pub admitted_now: u64,
    /// Admitted at the time.
    pub refused_now: u64,
}

/// Counts of a log's lines.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Lines {
    /// Non-empty lines.
    pub read: u64,
    /// Lines replayed.
    pub played: u64,
    /// Events other than decisions: releases, renewals, refunds, charges, resets.
    pub events: u64,
    /// Unreadable lines.
    pub bad: u64,
    /// Lines of a domain that the rules do not have.
    pub unknown_domain: u64,
    /// Lines earlier than their predecessor: decided at the predecessor's time.
    pub out_of_order: u64,
    /// The largest such difference, in microseconds.
    pub most_out_of_order_us: u64,
    /// Lines earlier than one before them that were put in order.
    #[serde(skip_serializing_if = "is_zero")]
    pub reordered: u64,
    /// The largest such difference, in microseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub most_reordered_us: u64,
    /// The first unreadable lines.
    pub examples: Vec<BadLineExample>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// An unreadable line.
#[derive(Clone, Debug, Serialize)]
pub struct BadLineExample {
    /// Its number, from 1.
    pub line: u64,
    /// Why.
    pub why: String,
    /// Its beginning.
    pub text: String,
}

/// A number under the new rules, and under those compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Under the new rules.
    pub now: u64,
    /// Under those compared with; `None` if there are none.
    pub before: Option<u64>,
}

impl Counts {
    /// The increase under the new rules.
    #[must_use]
    pub fn difference(&self) -> Option<i64> {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.before.map(|before| signed(self.now) - signed(before))
    }
}

/// Counts over time, in buckets of equal width.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The start of the first bucket, in seconds since the Unix epoch.
    pub start_s: u64,
    /// The width of a bucket, in seconds.
    pub width_s: u64,
    /// Requests, refused now, refused before.
    pub buckets: Vec<[u64; 3]>,
}

/// One rule's results.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// Its domain.
    pub domain: String,
    /// Its name.
    pub rule: String,
    /// Whether it is in both sets of rules.
    pub change: RuleChange,
    /// Whether it never refuses: the counts are what it would have refused.
    pub shadow: bool,
    /// Whether its effect cannot be determined, because the log hashes what it matches on: its numbers mean nothing.
    pub unknown: bool,
    /// The attributes of its key.
    pub key: Vec<String>,
    /// Requests that it counted.
    pub requests: u64,
    /// Requests admitted without counting, because they lack an attribute of its key.
    pub skipped: u64,
    /// Requests that it refused.
    pub refused: Counts,
    /// Callers that it counted.
    pub callers: u64,
    /// Callers that it refused at least once.
    pub callers_refused: Counts,
    /// Callers that it refuses now and never did before.
    pub callers_newly_refused: Option<u64>,
    /// Callers that it refused before and never does now.
    pub callers_no_longer_refused: Option<u64>,
    /// Numbers of callers are estimated from one in this many; 1 if exact.
    pub sampled_one_in: u64,
    /// The callers refused first, in time order.
    pub hit_first: Vec<CallerReport>,
    /// The callers refused most.
    pub hit_most: Vec<CallerReport>,
    /// Its requests over time.
    pub timeline: Timeline,
    /// Each of its limits.
    pub limits: Vec<LimitReport>,
}

/// Whether a rule is in both sets of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleChange {
    /// There is nothing to compare with.
    Only,
    /// It is in both.
    Both,
    /// It is only in the new ones.
    Added,
    /// It is only in the others.
    Removed,
}

/// One rule's results for one caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallerReport {
    /// The caller's key: names and values.
    pub caller: String,
    /// Its requests.
    pub requests: u64,
    /// Refused requests.
    pub refused: Counts,
    /// The time of the first refusal, in microseconds since the Unix epoch.
    pub first_refused_us: Option<u64>,
}

/// The demand of callers on one limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    /// Its name within the rule.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// Its number; the largest one if tiers differ.
    pub quota: u64,
    /// Its window in microseconds; `None` for calendar windows.
    pub window_us: Option<u64>,
    /// Callers by peak: the limit that would have admitted all of a caller's requests.
    pub peaks: Vec<Peak>,
    /// Windows (or busy periods of a bucket) by demand. A limit of L refuses about the sum of what exceeds L.
    pub runs: Vec<Peak>,
    /// The suggested limit; `None` if no caller was seen.
    pub suggestion: Option<Suggestion>,
}

/// A number, and how often it occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// The number.
    pub value: u64,
    /// How often.
    pub count: u64,
}

/// The limit that 99.9 % of callers stay within.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// The limit.
    pub limit: u64,
    /// Callers seen.
    pub callers: u64,
    /// The confidence, in percent, that the 99.9th percentile of all such callers is within the limit. With few callers, the
    /// busiest one seen may not be the busiest of all.
    pub confidence_percent: u64,
    /// Callers above it.
    pub above: u64,
    /// The top callers above it, with their peaks.
    pub busiest: Vec<(String, u64)>,
}
