//! Key overrides cost callers without one next to nothing, however many there are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_limiter::{CheckRequest, DescriptorAsk, Limiter, LimiterConfig};
use tidegate_metrics::Metrics;
use tidegate_rules::{Format, OverrideEffect, RuleSet, RuntimeOverride, Source};
use tidegate_store::{MemoryConfig, MemoryStore};
use tidegate_testkit::in_three_tries;
use tokio::runtime::Runtime;

const RULES: &str = "domain: api\nrules: [{ name: per-user, key: [user], limits: [1000000/minute] }]\n";
const OVERRIDES: usize = 100_000;
const CHECKS: usize = 4_000;

fn limiter(overrides: usize) -> Limiter {
    let rules = RuleSet::compile(&[Source::new("rules.yaml", RULES)], Format::Native).unwrap();
    let one = |number: usize| RuntimeOverride {
        domain: "api".into(),
        rule: Some("per-user".into()),
        when: vec![("user".into(), format!("special-{number}"))],
        effect: if number.is_multiple_of(2) {
            OverrideEffect::Ban
        } else {
            OverrideEffect::Limits("[5/minute]".into())
        },
        until: None,
    };
    let (rules, problems) = rules.with_overrides(&(0..overrides).map(one).collect::<Vec<_>>());
    assert_eq!(problems, []);
    let cells = Arc::new(MemoryStore::new(MemoryConfig::new().max_cells(100_000).max_log_bytes(1 << 20)));
    Limiter::new(LimiterConfig::new(rules, cells, Arc::new(Metrics::new())))
}

fn allowed(runtime: &Runtime, limiter: &Limiter, user: &str) -> bool {
    let entries = [("user", user.as_bytes())];
    let descriptors = [DescriptorAsk::one(&entries)];
    let request = CheckRequest::new("api", &descriptors);
    runtime.block_on(limiter.check(&request)).unwrap().allowed
}

/// The best of several rounds: other load on the machine only adds.
#[expect(clippy::disallowed_methods, reason = "it measures how long checks take")]
fn cost(runtime: &Runtime, limiter: &Limiter) -> Duration {
    let round = |_| {
        let start = Instant::now();
        (0..CHECKS).for_each(|user| assert!(allowed(runtime, limiter, &user.to_string())));
        start.elapsed()
    };
    (0..5).map(round).min().unwrap()
}

#[test]
fn a_hundred_thousand_overrides_do_not_slow_the_check_of_somebody_else() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (none, many) = (limiter(0), limiter(OVERRIDES));
    assert!(!allowed(&runtime, &many, "special-99998") && allowed(&runtime, &many, "special-99999"));
    in_three_tries(|| {
        let (without, with) = (cost(&runtime, &none), cost(&runtime, &many));
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        let per_check = |round: Duration| round / u32::try_from(CHECKS).unwrap();
        println!(
            "a check takes {:?} with {OVERRIDES} overrides, {:?} without: {ratio:.2}x",
            per_check(with),
            per_check(without)
        );
        if ratio < 1.5 { Ok(()) } else { Err(format!("{ratio:.2}x")) }
    });
}
