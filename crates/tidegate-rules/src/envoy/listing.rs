//! Limits as envoyproxy/ratelimit lists them under `/rlconfig`, for its users' scripts and eyes.

use std::fmt::Write as _;

use tidegate_core::Micros;

use crate::rule::{Mode, Rule};
use crate::ruleset::RuleSet;

/// The units of envoyproxy/ratelimit, longest first, in seconds.
const UNITS: [(u64, &str); 7] = [
    (31_536_000, "YEAR"),
    (2_592_000, "MONTH"),
    (604_800, "WEEK"),
    (86_400, "DAY"),
    (3_600, "HOUR"),
    (60, "MINUTE"),
    (1, "SECOND"),
];

/// A window in units of envoyproxy/ratelimit: the largest that divides it, and how often. `UNKNOWN` without a window, and for
/// one that is no whole number of seconds.
#[must_use]
pub fn envoy_unit(window: Option<Micros>) -> (&'static str, u64) {
    let window = window.map_or(0, Micros::get);
    let fits = |(seconds, _): &&(u64, &str)| window > 0 && window.is_multiple_of(seconds * 1_000_000);
    let Some((seconds, unit)) = UNITS.iter().find(fits) else { return ("UNKNOWN", 1) };
    (unit, window / (seconds * 1_000_000))
}

impl RuleSet {
    /// The limits as envoyproxy/ratelimit's `/rlconfig` lists them: one line per limit, without hidden rules.
    #[must_use]
    pub fn envoy_listing(&self) -> String {
        let mut text = String::new();
        for rule in self.rules().filter(|rule| rule.is_visible() && rule.is_enabled() && !rule.is_carrier()) {
            write_rule(rule, &mut text);
        }
        text
    }
}

fn write_rule(rule: &Rule, text: &mut String) {
    let is_shadow = rule.mode() == Mode::Shadow;
    let name = format!("{}.{}", rule.domain(), rule.name());
    for (of, limits) in rule.limit_sets() {
        let of = if of.is_empty() { String::new() } else { format!(" ({of})") };
        // Writing to a String cannot fail.
        for limit in limits {
            let (unit, times) = envoy_unit(limit.limit.quota_window());
            let times = if times > 1 { format!(" unit_multiplier={times}") } else { String::new() };
            let count = limit.limit.quota();
            let _ = writeln!(
                text,
                "{name}{of}: unit={unit}{times} requests_per_unit={count}, shadow_mode: {is_shadow}"
            );
        }
        if limits.is_empty() {
            let _ = writeln!(text, "{name}{of}: unlimited, shadow_mode: {is_shadow}");
        }
    }
}
