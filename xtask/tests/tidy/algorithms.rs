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
