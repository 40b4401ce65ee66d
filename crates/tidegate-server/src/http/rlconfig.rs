//! `/rlconfig`: the limits in force as envoyproxy/ratelimit lists them, for its users' scripts and eyes.

use std::fmt::Write as _;

use tidegate_rules::{Mode, Rule, RuleSet};

use crate::rls::unit_of_window;

/// One line per limit; hidden rules are left out, as everywhere that callers can look.
pub(super) fn text(rules: &RuleSet) -> String {
    let mut text = String::new();
    for rule in rules.rules().filter(|rule| rule.is_visible() && rule.is_enabled() && !rule.is_carrier()) {
        write_rule(rule, &mut text);
    }
    text
}

fn write_rule(rule: &Rule, text: &mut String) {
    let is_shadow = rule.mode() == Mode::Shadow;
    let name = format!("{}.{}", rule.domain(), rule.name());
    for (of, limits) in rule.limit_sets() {
        let of = if of.is_empty() { String::new() } else { format!(" ({of})") };
        // Writing to a String cannot fail.
        for limit in limits {
            let (unit, times) = unit_of_window(limit.limit.quota_window());
            let times = if times > 1 { format!(" unit_multiplier={times}") } else { String::new() };
            let (unit, count) = (unit.as_str_name(), limit.limit.quota());
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
