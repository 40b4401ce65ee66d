use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::{Ask, FixedWindow, Group, Hits, Limit, Micros, Scope, Touch};
use tidegate_limiter::{CheckRequest, DescriptorAsk};
use tidegate_rules::Descriptor;
use tidegate_store::conformance::Broken;
use tidegate_store::{CellKey, Request, Spend, StoreError};

use crate::world::{World, at_once};

const EVERY_KIND: &str = "
domain: api
rules:
  - { name: tight, key: [user], limits: [2/hour, 3/day] }
  - { name: trial, key: [user], limits: [1/hour], shadow: true }
  - { name: plan, key: [user], tiers: { on: plan, default: free, free: [100/hour], pro: unlimited } }
  - { name: by-device, key: [device], limits: [100/hour] }
  - { name: by-card, match: { path: /pay }, key: [card], on_missing_key: refuse, limits: [100/hour] }
";

#[test]
fn every_decision_is_counted_by_rule_result_and_source() {
    let world = World::new(&[EVERY_KIND]);
    let mut told = BTreeMap::new();
    let requests: &[&[(&str, &str)]] = &[
        &[("user", "1")],
        &[("user", "1"), ("plan", "pro")],
        &[("user", "1"), ("device", "7")],
        &[("user", "2"), ("path", "/pay")],
        &[("user", "2"), ("path", "/pay"), ("card", "9")],
        &[("user", "1")],
    ];
    for attributes in requests {
        // The oracle: the callers' answers, once per rule; a rule refuses if one of its limits does.
        let decision = world.check(attributes);
        let mut said: BTreeMap<String, &str> = BTreeMap::new();
        for report in decision.reports() {
            let rule = decision.rule_of(report).expect("a rule").name().to_owned();
            let so_far = said.entry(rule).or_insert(report.result().name());
            if report.is_refusal() {
                *so_far = report.result().name();
            }
        }
        for (rule, result) in said {
            *told.entry((rule, result, decision.source.name())).or_insert(0.0) += 1.0;
        }
    }
    let scrape = world.scrape();
    let counted: BTreeMap<_, f64> = scrape
        .all("tidegate_decisions_total")
        .filter(|(_, count)| *count > 0.0)
        .inspect(|(labels, _)| assert_eq!(labels["domain"], "api"))
        .map(|(labels, count)| ((labels["rule"].clone(), &*labels["result"], &*labels["source"]), count))
        .collect();
    assert_eq!(counted, told);
    let results: std::collections::BTreeSet<_> = told.keys().map(|(_, result, _)| *result).collect();
    assert_eq!(results.len(), 6, "not every kind of result came up: {results:?}");
}

#[test]
fn requests_are_counted_once_whatever_rules_they_match() {
    let world = World::new(&[EVERY_KIND]);
    let requests: &[&[(&str, &str)]] = &[
        &[("user", "1")],
        &[("user", "1")],
        &[("user", "1"), ("device", "7")],
        &[("user", "2"), ("path", "/pay")],
        &[("user", "1")],
    ];
    let mut answered = BTreeMap::new();
    for attributes in requests {
        // The oracle: what the caller was told.
        let decision = world.check(attributes);
        let result = if decision.allowed { "allowed" } else { "refused" };
        *answered.entry((result.to_owned(), decision.source.name().to_owned())).or_insert(0.0) += 1.0;
    }
    let scrape = world.scrape();
    let counted: BTreeMap<_, f64> = scrape
        .all("tidegate_requests_total")
        .filter(|(_, count)| *count > 0.0)
        .inspect(|(labels, _)| assert_eq!(labels["domain"], "api"))
        .map(|(labels, count)| ((labels["result"].clone(), labels["source"].clone()), count))
        .collect();
    assert_eq!(counted, answered);
    assert!(answered.len() > 1, "both results came up: {answered:?}");
}

#[test]
fn rules_of_one_name_in_two_domains_are_counted_apart() {
    let rules = |domain: &str| format!("{{ domain: {domain}, rules: [{{ name: same, limits: [9/hour] }}] }}");
    let world = World::new(&[&rules("web"), &rules("mail")]);
    let _ = world.check_in("web", &[]);
    let _ = world.check_in("mail", &[]);
    let _ = world.check_in("mail", &[]);
    let scrape = world.scrape();
    let allowed = |domain: &str| {
        let labels = [("domain", domain), ("rule", "same"), ("result", "allowed"), ("source", "store")];
        scrape.get("tidegate_decisions_total", &labels)
    };
    assert_eq!((allowed("web"), allowed("mail")), (Some(1.0), Some(2.0)));
}

/// So that `increase()` sees the first refusal: it needs a zero to start from.
#[test]
fn a_rule_that_has_refused_nobody_says_so() {
    let world = World::new(&["{ domain: api, rules: [{ name: quiet, limits: [9/hour] }] }"]);
    assert_eq!(world.decisions("quiet", "refused"), Some(0.0));
    assert_eq!(world.decisions("quiet", "allowed"), Some(0.0));
    assert_eq!(world.decisions("quiet", "shadow_refused"), None, "48 lines a rule would be too many");
}

#[test]
fn a_reload_goes_on_counting() {
    let world = World::new(&["{ domain: api, rules: [{ name: kept, limits: [9/hour] }] }"]);
    let _ = world.check(&[]);
    world.replace_rules(&[
        "{ domain: api, rules: [{ name: new, limits: [9/hour] }, { name: kept, limits: [8/hour] }] }",
    ]);
    let _ = world.check(&[]);
    assert_eq!(world.decisions("kept", "allowed"), Some(2.0));
    assert_eq!(world.decisions("new", "allowed"), Some(1.0));
}

#[test]
fn a_rule_that_is_taken_out_and_put_back_goes_on_counting() {
    let rules = "{ domain: api, rules: [{ name: seasonal, limits: [9/hour] }] }";
    let world = World::new(&[rules]);
    let _ = world.check(&[]);
    world.replace_rules(&["{ domain: api, rules: [] }"]);
    let _ = world.check(&[]);
    assert_eq!(
        world.decisions("seasonal", "allowed"),
        Some(1.0),
        "a count that vanishes is a count that went back"
    );
    world.replace_rules(&[rules]);
    let _ = world.check(&[]);
    assert_eq!(world.decisions("seasonal", "allowed"), Some(2.0));
}

#[test]
fn requests_that_no_rule_is_for_are_counted() {
    let world = World::new(&["{ domain: api, rules: [{ name: a, match: { path: /a }, limits: [9/hour] }] }"]);
    let _ = world.check(&[("path", "/b")]);
    let _ = world.check(&[("path", "/c")]);
    let asks = [DescriptorAsk::one(&[])];
    let unknown = CheckRequest::new("nowhere", &asks);
    at_once(world.limiter.check(&unknown)).expect_err("no such domain");
    let scrape = world.scrape();
    assert_eq!(scrape.get("tidegate_no_rule_matched_total", &[]), Some(2.0));
    assert_eq!(scrape.get("tidegate_unknown_domain_total", &[]), Some(1.0));
}

#[test]
fn who_only_looks_is_counted_apart_from_decisions() {
    let world = World::new(&["{ domain: api, rules: [{ name: one, key: [user], limits: [1/hour] }] }"]);
    let _ = world.check(&[("user", "a")]);
    let entries: [(&str, &[u8]); 1] = [("user", b"a")];
    for _ in 0..7 {
        at_once(world.limiter.usage("api", Descriptor { entries: &entries })).expect("a known domain");
        let asks = [DescriptorAsk::one(&entries).cost(Hits::ZERO)];
        let _ = at_once(world.limiter.check(&CheckRequest::new("api", &asks))).expect("a known domain");
    }
    let scrape = world.scrape();
    let decided = |result: &str| {
        let labels = [("domain", "api"), ("rule", "one"), ("result", result), ("source", "store")];
        scrape.get("tidegate_decisions_total", &labels).unwrap_or(0.0)
    };
    assert_eq!([decided("allowed"), decided("refused")], [1.0, 0.0]);
    assert_eq!(scrape.get("tidegate_looks_total", &[]), Some(14.0));
}

#[test]
fn limits_that_the_caller_brought_along_are_counted_apart_from_rules() {
    let world = World::new(&["{ domain: api, rules: [{ name: direct, limits: [9/hour] }] }"]);
    let limit = Limit::FixedWindow(FixedWindow::new(2, Micros::from_secs(60)).unwrap());
    let scope = Scope::new(&[b"theirs"]);
    let touch = Touch { limit: &limit, ask: Ask::hits(1), group: Group::ENFORCED };
    let spends = [Spend { cell: CellKey { scope: &scope, key: b"k", tag: b"k" }, touch }];
    for _ in 0..3 {
        at_once(world.limiter.decide_direct(&[Request::once(&spends)]).answer());
    }
    let scrape = world.scrape();
    let said = |result: &str| {
        let labels = [("domain", ""), ("rule", "direct"), ("result", result), ("source", "store")];
        scrape.get("tidegate_decisions_total", &labels)
    };
    assert_eq!((said("allowed"), said("refused")), (Some(2.0), Some(1.0)));
    assert_eq!(world.decisions("direct", "allowed"), Some(0.0), "the rule of that name said nothing");
}

#[test]
fn failures_of_the_store_are_counted_by_what_they_mean() {
    let rules = "{ domain: api, rules: [{ name: a, on_store_failure: open, limits: [9/hour] }] }";
    let late = || StoreError::TimedOut { endpoint: "far".into(), waited: Duration::from_millis(10) };
    let world = World::on(Arc::new(Broken(late)), &[rules]);
    for _ in 0..3 {
        let _ = world.check(&[]);
    }
    let scrape = world.scrape();
    let errors = |reason: &str| scrape.get("tidegate_store_errors_total", &[("reason", reason)]);
    assert_eq!(["not_applied", "fate_unknown", "timed_out"].map(errors), [Some(0.0), Some(0.0), Some(3.0)]);
    let labels = [("domain", "api"), ("rule", "a"), ("result", "allowed"), ("source", "fallback_open")];
    assert_eq!(scrape.get("tidegate_decisions_total", &labels), Some(3.0));
}

#[test]
fn no_clients_key_ever_becomes_a_label() {
    let world = World::new(&[EVERY_KIND]);
    let _ = world.check(&[("user", "alice@example.com"), ("device", "alice-phone"), ("path", "/alice")]);
    assert!(!world.text().contains("alice"));
}

#[test]
fn names_from_rule_files_are_escaped() {
    let native = r#"{ domain: 'a "quoted" \ domain', rules: [{ name: 'per "user"\n', limits: [9/hour] }] }"#;
    let envoy = "{ domain: envoy, descriptors: [{ key: k, value: \"line\\nbreak, } = \\\"\", \
                 rate_limit: { unit: hour, requests_per_unit: 9 } }] }";
    let scrape = World::new(&[native, envoy]).scrape();
    let names: Vec<_> = scrape
        .all("tidegate_decisions_total")
        .filter(|(labels, _)| labels["result"] == "allowed")
        .map(|(labels, _)| (&*labels["domain"], &*labels["rule"]))
        .collect();
    assert_eq!(names, [("a \"quoted\" \\ domain", "per \"user\"\\n"), ("envoy", "k_line\nbreak, } = \"")]);
}

#[test]
fn a_scrape_while_others_decide_never_sees_a_count_go_back_and_none_is_lost() {
    const EACH: u32 = 20_000;
    let world = World::new(&["{ domain: api, rules: [{ name: busy, key: [user], limits: [10/hour] }] }"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let decider = |user: &'static str| {
            let world = &world;
            move || (0..EACH).for_each(|_| drop(world.check(&[("user", user)])))
        };
        let deciders = [scope.spawn(decider("1")), scope.spawn(decider("2"))];
        let scraper = scope.spawn(|| {
            let mut last = 0.0;
            while !done.load(Ordering::Relaxed) {
                let sum = world.scrape().sum("tidegate_decisions_total");
                assert!(sum >= last, "{last} then {sum}");
                last = sum;
            }
        });
        deciders.into_iter().for_each(|decider| decider.join().expect("decided"));
        done.store(true, Ordering::Relaxed);
        scraper.join().expect("scraped");
    });
    assert_eq!(world.decisions("busy", "allowed"), Some(20.0));
    assert_eq!(world.decisions("busy", "refused"), Some(f64::from(2 * EACH - 20)));
}

#[test]
fn the_two_sides_of_an_experiment_are_counted_apart() {
    let rules = "
domain: api
rules:
  - { name: r, key: [user], limits: [1/hour], experiment: { split: 50%, limits: [2/hour] } }
  - { name: plain, key: [user], limits: [9/hour] }
";
    let world = World::new(&[rules]);
    let mut passed = 0.0;
    for user in 0..100 {
        let allowed = (0..3).filter(|_| world.check(&[("user", &user.to_string())]).allowed).count();
        passed += allowed as f64;
    }
    let scrape = world.scrape();
    let count = |variant: &str, result: &str| -> f64 {
        let of =
            |labels: &BTreeMap<String, String>| labels["variant"] == variant && labels["result"] == result;
        let series = scrape.all("tidegate_experiment_decisions_total");
        series
            .inspect(|(labels, _)| assert_eq!(labels["rule"], "r"))
            .filter(|(labels, _)| of(labels))
            .map(|(_, count)| count)
            .sum()
    };
    // Of three requests each, one passes on one side and two on the other.
    assert_eq!(count("control", "refused"), 2.0 * count("control", "allowed"));
    assert_eq!(2.0 * count("experiment", "refused"), count("experiment", "allowed"));
    assert_eq!(count("control", "allowed") + count("experiment", "allowed"), passed);
    assert!(count("control", "allowed") > 20.0 && count("experiment", "allowed") > 40.0);
}
