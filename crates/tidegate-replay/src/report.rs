//! What a replay found, as plain data: the same for people, programs and the dashboard.

use serde::Serialize;

/// What a replay found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How the log was written.
    pub format: &'static str,
    /// What became of its lines.
    pub lines: Lines,
    /// The first request, in seconds since the Unix epoch.
    pub from_s: u64,
    /// The last.
    pub to_s: u64,
    /// Requests played, those that a line of a sample stands for included.
    pub requests: u64,
    /// Requests refused.
    pub refused: Counts,
    /// Requests that the log says were refused when they happened; none where it does not say.
    pub refused_in_log: Option<u64>,
    /// Requests that are decided otherwise here than when they happened; none where the log does not say how they were.
    pub decided_otherwise: Option<Otherwise>,
    /// Requests that the rules compared with decide otherwise here than was decided when they happened: how far the log, played
    /// again, is from what happened. None where there are no such rules, or the log does not say.
    pub before_otherwise: Option<Otherwise>,
    /// Why the numbers are an estimate, and what would make them exact; none where they are not one.
    pub estimate: Option<String>,
    /// Why nobody can tell what some rules would have done, and what would make it known. Their numbers say nothing.
    pub unknown: Option<String>,
    /// Requests that are refused now and were not before.
    pub newly_refused: Option<u64>,
    /// Requests that were refused before and are not now.
    pub newly_admitted: Option<u64>,
    /// All requests over time.
    pub timeline: Timeline,
    /// Each rule, in the order of domains and names.
    pub rules: Vec<RuleReport>,
    /// What a reader should know before relying on the numbers.
    pub notes: Vec<String>,
}

/// Requests that are decided otherwise than when they happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Otherwise {
    /// They were refused then.
    pub admitted_now: u64,
    /// They were admitted then.
    pub refused_now: u64,
}

/// What became of the lines of a log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Lines {
    /// Lines that are not empty.
    pub read: u64,
    /// Lines played.
    pub played: u64,
    /// Lines that tell of what changed limits beside a decision: releases, renewals, refunds, charges, resets.
    pub events: u64,
    /// Lines that could not be read.
    pub bad: u64,
    /// Lines of a domain that the rules do not have.
    pub unknown_domain: u64,
    /// Lines that are earlier than the one before them: decided at that one's time.
    pub out_of_order: u64,
    /// By how much at most, in microseconds.
    pub most_out_of_order_us: u64,
    /// The first of those that could not be read.
    pub examples: Vec<BadLineExample>,
}

/// A line that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct BadLineExample {
    /// Its number, from 1.
    pub line: u64,
    /// Why.
    pub why: String,
    /// How it begins.
    pub text: String,
}

/// A number under the new rules, and under those that they are compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Under the new rules.
    pub now: u64,
    /// Under the others; none without any.
    pub before: Option<u64>,
}

impl Counts {
    /// How much more it is now.
    #[must_use]
    pub fn difference(&self) -> Option<i64> {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.before.map(|before| signed(self.now) - signed(before))
    }
}

/// Counts over time, in buckets of equal width.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// When the first bucket begins, in seconds since the Unix epoch.
    pub start_s: u64,
    /// How wide each is, in seconds.
    pub width_s: u64,
    /// Requests, those refused now, those refused before.
    pub buckets: Vec<[u64; 3]>,
}

/// What one rule did.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// Its domain.
    pub domain: String,
    /// Its name.
    pub rule: String,
    /// Whether it is in both sets of rules.
    pub change: RuleChange,
    /// Whether it never refuses: what is counted here is what it would have refused.
    pub shadow: bool,
    /// Whether nobody can tell what it would have done, because the log hashes what it matches on: its numbers say nothing.
    pub unknown: bool,
    /// The attributes of its key.
    pub key: Vec<String>,
    /// Requests that it counted.
    pub requests: u64,
    /// Requests that it let pass uncounted, because an attribute of its key was missing.
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
    /// Numbers of callers are estimates from one in this many; 1 where they are exact.
    pub sampled_one_in: u64,
    /// Who is refused first, in the order of time.
    pub hit_first: Vec<CallerReport>,
    /// Who is refused most.
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

/// What one rule did to one caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallerReport {
    /// The caller's key: names and values.
    pub caller: String,
    /// Its requests.
    pub requests: u64,
    /// Those refused.
    pub refused: Counts,
    /// When the first one was, in microseconds since the Unix epoch.
    pub first_refused_us: Option<u64>,
}

/// What callers ask of one limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    /// Its name within the rule.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// Its number; the largest one, where tiers differ.
    pub quota: u64,
    /// Its window in microseconds, where that is a span.
    pub window_us: Option<u64>,
    /// How many callers have which peak: the limit that each would have needed not to be refused.
    pub peaks: Vec<Peak>,
    /// How many windows (or busy times of a bucket) asked for how much. A limit of L refuses about the sum of what lies
    /// above L.
    pub runs: Vec<Peak>,
    /// The limit to consider; none where no caller was seen.
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
    /// In percent: how sure one may be that callers like these have their 99.9th percentile within the limit. With few callers
    /// the busiest of them may not be the busiest that there are.
    pub confidence_percent: u64,
    /// Callers above it.
    pub above: u64,
    /// The busiest of those, with their peaks.
    pub busiest: Vec<(String, u64)>,
}
