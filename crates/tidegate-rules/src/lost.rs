//! Which counters start empty when one rule set replaces another, and how to keep them.
//!
//! A cell is named by its scope and its key. So nothing is guessed here: where a rule's limits have other scopes, or the rule
//! another key, what was counted is not read any more. A limit that is only added or removed loses nothing.

use tidegate_core::{Algorithm, Limit, Micros, RefusedHits, SlidingLog, SlidingWindow};

use crate::algorithms::shown;
use crate::diagnostics::MOST_FINDINGS;
use crate::rule::{Rule, RuleLimit};
use crate::ruleset::RuleSet;

/// A rule whose counters start empty with a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostCounters {
    /// The domain of the rule.
    pub domain: String,
    /// Its name.
    pub rule: String,
    /// What starts empty, and why.
    pub message: String,
    /// How to make the change and keep them.
    pub hint: String,
}

impl RuleSet {
    /// The counters that start empty where this set replaces `before`: the first hundred.
    pub(crate) fn counters_lost_since(&self, before: &RuleSet) -> Vec<LostCounters> {
        let counting = |rule: &&Rule| rule.is_enabled();
        let old: std::collections::BTreeMap<_, _> =
            before.written().filter(counting).map(|rule| ((rule.domain(), rule.name()), rule)).collect();
        let mut lost: Vec<LostCounters> = Vec::new();
        for rule in self.written().filter(counting) {
            if let Some(old) = old.get(&(rule.domain(), rule.name())) {
                lost.extend(of_rule(old, rule));
            }
            if lost.len() >= MOST_FINDINGS {
                break;
            }
        }
        lost.truncate(MOST_FINDINGS);
        lost
    }
}

/// What a rule loses by becoming `new`.
fn of_rule(old: &Rule, new: &Rule) -> Vec<LostCounters> {
    let lost = |why: String, hint: String| LostCounters {
        domain: new.domain().to_owned(),
        rule: new.name().to_owned(),
        message: format!("counters of `{}` start empty: {why}", new.name()),
        hint,
    };
    if old.key() != new.key() && old.limits().next().is_some() {
        let [old, new] = [old, new].map(|rule| format!("[{}]", rule.key().join(", ")));
        let hint = format!("to keep them, keep `key: {old}`, and count by {new} in a rule of its own");
        return vec![lost(format!("the key {old} becomes {new}"), hint)];
    }
    let mut all = Vec::new();
    for (group, limits) in new.limit_sets() {
        let Some((_, before)) = old.limit_sets().find(|(name, _)| *name == group) else { continue };
        let of = if group.is_empty() { group } else { format!("{group}: ") };
        for (old, new) in replaced(before, limits) {
            let why = format!("{of}{} becomes {}", named(old), named(new));
            all.push(lost(why, way_out(old, new)));
        }
    }
    all
}

/// The limits whose cells are not read any more, each with the one in its place: in its slot, or else the next new one.
fn replaced<'l>(old: &'l [RuleLimit], new: &'l [RuleLimit]) -> Vec<(&'l RuleLimit, &'l RuleLimit)> {
    let without = |these: &'l [RuleLimit], those: &[RuleLimit]| -> Vec<&'l RuleLimit> {
        these.iter().filter(|one| !those.iter().any(|other| other.scope == one.scope)).collect()
    };
    let (gone, mut begun) = (without(old, new), without(new, old));
    let mut pairs = Vec::new();
    let (in_place, moved): (Vec<&RuleLimit>, Vec<&RuleLimit>) =
        gone.into_iter().partition(|old| begun.iter().any(|new| new.slot() == old.slot()));
    for old in in_place.into_iter().chain(moved) {
        let place = begun.iter().position(|new| new.slot() == old.slot());
        if let Some(place) = place.or((!begun.is_empty()).then_some(0)) {
            pairs.push((old, begun.remove(place)));
        }
    }
    pairs
}

/// A limit with its algorithm, which `100/minute` does not show, or with its calendar.
fn named(one: &RuleLimit) -> String {
    if let Limit::FixedWindow(window) = &one.limit
        && window.window().is_none()
    {
        return format!("{} of {}", one.name, window.limit());
    }
    format!("{} {}", one.limit.algorithm().name(), shown(&one.limit))
}

/// How to change the number and keep what was counted.
fn way_out(old: &RuleLimit, new: &RuleLimit) -> String {
    let (before, after) = (old.limit.algorithm(), new.limit.algorithm());
    if before == after || old.limit.period() != new.limit.period() {
        return "to keep them, change only the number".to_owned();
    }
    let (limit, window) = (new.limit.quota(), new.limit.period());
    let counts_hits =
        matches!(before, Algorithm::SlidingLog | Algorithm::SlidingWindow | Algorithm::FixedWindow);
    let Some(window) = window.filter(|_| counts_hits) else {
        return format!("to keep them, keep `algorithm: {}`", before.name());
    };
    let Some(algorithm) = counting(before, limit, window) else {
        return format!("they cannot be kept: no {} counts up to {limit}", before.name());
    };
    // A limit without a name of its own is called after its algorithm.
    let is_named = new.slot() == new.name;
    let name = if is_named { format!("name: {}, ", new.name) } else { String::new() };
    let algorithm = algorithm.name();
    format!("to keep them, write {{ {name}algorithm: {algorithm}, limit: {limit}, window: {window} }}")
}

/// The algorithm that goes on from the cells of `before` with this limit: itself, or the other sliding one.
fn counting(before: Algorithm, limit: u64, window: Micros) -> Option<Algorithm> {
    let fits_a_log = || SlidingLog::new(limit, window, Micros::ZERO, RefusedHits::Forget).is_ok();
    match before {
        Algorithm::SlidingLog if fits_a_log() => Some(before),
        Algorithm::SlidingLog | Algorithm::SlidingWindow => {
            SlidingWindow::new(limit, window).is_ok().then_some(Algorithm::SlidingWindow)
        }
        Algorithm::TokenBucket | Algorithm::FixedWindow | Algorithm::LeakyBucket | Algorithm::Concurrency => {
            Some(before)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Source;
    use crate::ruleset::Format;

    fn rules(rule: &str) -> RuleSet {
        let source = Source::new("rules.yaml", format!("domain: api\nrules:\n- {{ name: r, {rule} }}\n"));
        RuleSet::compile(&[source], Format::Native).unwrap()
    }

    /// What is said, and the way out, of a rule `before` that becomes `after`.
    fn lost(before: &str, after: &str) -> Vec<(String, String)> {
        let lost = rules(after).changes_since(&rules(before)).lost;
        lost.into_iter().map(|one| (one.message, one.hint)).collect()
    }

    #[track_caller]
    fn check(before: &str, after: &str, why: &str, hint: &str) {
        let message = format!("counters of `r` start empty: {why}");
        assert_eq!(lost(before, after), [(message, hint.to_owned())]);
    }

    #[test]
    fn a_change_of_the_number_loses_nothing() {
        for (before, after) in [
            ("limits: [50/minute]", "limits: [100/minute]"),
            ("limits: [200/minute]", "limits: [5000/minute]"),
            ("limits: [100/minute]", "limits: [{ algorithm: sliding_log, limit: 200, window: 1m }]"),
            ("limits: [100/minute]", "limits: [200/minute]"),
            ("limits: [200/minute, 5000/day]", "limits: [100/minute, 90/day]"),
            ("limits: [{ name: a, limit: 5, window: 1m }]", "limits: [{ name: a, limit: 500, window: 1m }]"),
            ("limits: [100/minute]", "limits: [{ algorithm: sliding_window, limit: 100, window: 1m }]"),
            ("limits: [100/minute]", "limits: [100/minute, 5000/day]"),
            ("limits: [100/minute, 5000/day]", "limits: [100/minute]"),
            ("limits: [100/minute]", "limits: unlimited"),
            ("limits: [100/minute]", "shadow: true, limits: [90/minute]"),
            ("limits: [100/minute], enabled: false", "limits: [200/hour]"),
        ] {
            assert_eq!(lost(before, after), [], "{before} -> {after}");
        }
    }

    #[test]
    fn another_algorithm_says_how_to_change_the_number_and_keep_what_was_counted() {
        let fixed = |count: u64| format!("{{ algorithm: fixed_window, limit: {count}, window: 1m }}");
        check(
            "limits: [100/minute, 5000/day]",
            &format!("limits: [{}, 5000/day]", fixed(200)),
            "sliding_log 100/1m becomes fixed_window 200/1m",
            "to keep them, write { algorithm: sliding_log, limit: 200, window: 1m }",
        );
        check(
            "limits: [100/minute]",
            &format!("limits: [{}]", fixed(200_000)),
            "sliding_log 100/1m becomes fixed_window 200000/1m",
            "to keep them, write { algorithm: sliding_window, limit: 200000, window: 1m }",
        );
        check(
            &format!("limits: [{}]", fixed(5)),
            "limits: [500/minute]",
            "fixed_window 5/1m becomes sliding_window 500/1m",
            "to keep them, write { algorithm: fixed_window, limit: 500, window: 1m }",
        );
        check(
            "limits: [100/minute]",
            &format!("limits: [{}]", fixed(5_000_000_000)),
            "sliding_log 100/1m becomes fixed_window 5000000000/1m",
            "they cannot be kept: no sliding_log counts up to 5000000000",
        );
    }

    #[test]
    fn the_way_out_keeps_the_counters() {
        for (before, after) in [
            ("100/minute", "{ algorithm: fixed_window, limit: 200, window: 1m }"),
            ("100/minute", "{ algorithm: fixed_window, limit: 200000, window: 1m }"),
            ("200/90s", "{ algorithm: fixed_window, limit: 10, window: 90s }"),
            (
                "{ name: a, limit: 5, window: 1m }",
                "{ name: a, algorithm: fixed_window, limit: 5, window: 1m }",
            ),
            ("{ algorithm: fixed_window, limit: 100, window: 1h }", "7/hour"),
        ] {
            let [before, after] = [before, after].map(|limit| format!("limits: [{limit}]"));
            let (_, hint) = lost(&before, &after).pop().expect("it loses its counters");
            let written = hint.strip_prefix("to keep them, write ").expect("a limit to write");
            assert_eq!(lost(&before, &format!("limits: [{written}]")), [], "{written}");
        }
    }

    #[test]
    fn a_tier_of_which_another_has_the_algorithm_is_named() {
        let fixed = |count: u64| format!("{{ algorithm: fixed_window, limit: {count}, window: 1m }}");
        let tiers = |free: &str| {
            format!("tiers: {{ on: plan, default: free, free: [{free}], pro: [{}] }}", fixed(900))
        };
        check(
            &tiers("100/m"),
            &tiers(&fixed(200)),
            "free: sliding_log 100/1m becomes fixed_window 200/1m",
            "to keep them, write { algorithm: sliding_log, limit: 200, window: 1m }",
        );
    }

    #[test]
    fn another_window_calendar_algorithm_or_key_is_said() {
        let only_the_number = "to keep them, change only the number";
        check(
            "limits: [9/minute]",
            "limits: [9/hour]",
            "sliding_log 9/1m becomes sliding_log 9/1h",
            only_the_number,
        );
        let month =
            |tz: &str| format!("limits: [{{ algorithm: fixed_window, limit: 9, window: month, tz: {tz} }}]");
        let calendar = "fixed_window/month@Europe/Paris of 9 becomes fixed_window/month@Europe/Rome of 9";
        check(&month("Europe/Paris"), &month("Europe/Rome"), calendar, only_the_number);
        check(
            "limits: [{ algorithm: token_bucket, rate: 9/m }]",
            "limits: [9/m]",
            "token_bucket 9/1m burst 9 becomes sliding_log 9/1m",
            "to keep them, keep `algorithm: token_bucket`",
        );
        check(
            "key: [user], limits: [9/m]",
            "key: [user, path], limits: [9/m]",
            "the key [user] becomes [user, path]",
            "to keep them, keep `key: [user]`, and count by [user, path] in a rule of its own",
        );
    }

    #[test]
    fn a_thousand_rules_are_not_all_listed() {
        let many = |limit: &str| {
            let all: String =
                (0..1_000).map(|n| format!("- {{ name: r{n}, limits: [{limit}] }}\n")).collect();
            let source = Source::new("rules.yaml", format!("domain: api\nrules:\n{all}"));
            RuleSet::compile(&[source], Format::Native).unwrap()
        };
        assert_eq!(many("100/hour").changes_since(&many("100/minute")).lost.len(), MOST_FINDINGS);
    }
}
