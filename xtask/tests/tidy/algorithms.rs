//! What depends on the algorithm lives with it: elsewhere a limit is asked, not taken apart.

use crate::expect_none;
use crate::files::sources;

/// Who knows the algorithms: where they are, where they are kept, where they are written down, and where the traffic that they
/// would have met is modelled.
const MAY_KNOW: &[&str] =
    &["tidegate-core", "tidegate-store", "tidegate-store-redis", "tidegate-rules", "tidegate-replay"];

#[test]
fn no_other_crate_takes_a_limit_apart() {
    let mut violations = Vec::new();
    for file in sources().iter().filter(|file| file.is_rust() && !file.is_generated()) {
        let inside = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        let Some((krate, _)) = inside.filter(|(krate, _)| !MAY_KNOW.contains(krate)) else { continue };
        let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        let apart = code.lines().enumerate().filter(|(_, line)| takes_apart(line));
        violations
            .extend(apart.map(|(number, line)| format!("{krate}: {}:{}: {line}", file.path, number + 1)));
    }
    expect_none(&violations, "ask the limit itself: add a method to `Limit` in tidegate-core");
}

/// Whether a line has a pattern of an algorithm: making a limit is no pattern.
fn takes_apart(line: &str) -> bool {
    let algorithms =
        ["TokenBucket", "FixedWindow", "SlidingWindow", "SlidingLog", "LeakyBucket", "Concurrency"];
    let after = algorithms.iter().find_map(|name| line.split_once(&format!("Limit::{name}(")));
    let Some((before, after)) = after else { return false };
    let is_tested = ["matches!(", "let "].iter().any(|word| before.trim_end().ends_with(word.trim_end()));
    is_tested || before.contains("matches!(") || after.contains("=>") || before.trim_start().starts_with('|')
}

#[test]
fn no_match_over_the_algorithms_has_an_arm_for_all_others() {
    let mut violations = Vec::new();
    for file in sources().iter().filter(|file| file.is_rust() && file.path.contains("/src/")) {
        let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        let found = arms_for_all_others(code);
        violations.extend(found.iter().map(|number| format!("{}:{number}", file.path)));
    }
    expect_none(
        &violations,
        "name the algorithms, or ask the limit: a new one must not be taken for an old one",
    );
}

/// The numbers of the lines with an arm for whatever is not named, in a match with an arm for an algorithm.
fn arms_for_all_others(code: &str) -> Vec<usize> {
    let lines: Vec<&str> = code.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let takes_all = |line: &str| {
        let pattern = line.trim_start().split(" =>").next().unwrap_or_default();
        let is_name =
            |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        line.contains(" =>") && pattern.trim_matches(['(', ')']).split(", ").all(is_name)
    };
    let is_algorithm = |line: &str| {
        let pattern = line.split(" =>").next().unwrap_or_default();
        ["Limit::", "Algorithm::"]
            .iter()
            .any(|of| pattern.split(of).skip(1).any(|rest| rest.starts_with(char::is_uppercase)))
    };
    let others = lines.iter().enumerate().filter(|(_, line)| takes_all(line));
    let in_such_a_match = others.filter(|(at, line)| {
        let depth = indent(line);
        let arms = lines[..*at].iter().rev().filter(|line| !line.trim().is_empty());
        let mut arms = arms.take_while(|line| indent(line) >= depth).filter(|line| indent(line) == depth);
        arms.any(|line| is_algorithm(line))
    });
    in_such_a_match.map(|(at, _)| at + 1).collect()
}

#[test]
fn an_arm_for_all_others_is_found_beside_an_algorithm() {
    let body = |arm: &str| {
        format!(
            "match limit {{\n    Limit::SlidingLog(log) => {{\n        log\n    }}\n    {arm} => x,\n}}\n"
        )
    };
    for arm in ["_", "other", "(_, _)"] {
        assert_eq!(arms_for_all_others(&body(arm)), [5], "{arm}");
    }
    for arm in ["Limit::Concurrency(_)", "_ if is_idle", "None"] {
        assert!(arms_for_all_others(&body(arm)).is_empty(), "{arm}");
    }
    assert!(arms_for_all_others("match n {\n    0 => Limit::SlidingLog(log),\n    _ => x,\n}\n").is_empty());
}

#[test]
fn patterns_are_told_from_making_a_limit() {
    for line in [
        "        Limit::Concurrency(limit) => limit.ttl(),",
        "    if let Limit::LeakyBucket(bucket) = limit {",
        "    matches!(limit, Limit::SlidingLog(log) if log.is_long())",
        "        | Limit::FixedWindow(_)",
    ] {
        assert!(takes_apart(line), "{line}");
    }
    for line in ["let limit = Limit::TokenBucket(bucket);", "Guesses { limit: Limit::TokenBucket(bucket) }"] {
        assert!(!takes_apart(line), "{line}");
    }
}
