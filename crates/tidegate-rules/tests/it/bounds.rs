//! Bounds on what one document may ask for: a mistake with a hint, never a long wait or a full memory.

use std::cell::Cell;

use tidegate_rules::{Format, RuleSet, Source};

#[track_caller]
fn refused(text: String, message: &str) {
    let wrong =
        RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native).expect_err("it is too much");
    let found: Vec<_> = wrong.iter().map(|one| &*one.message).collect();
    assert!(found.contains(&message), "{found:?}");
    assert!(wrong.iter().all(|one| !one.hint.is_empty()));
}

fn names(count: usize) -> String {
    (0..count).map(|at| format!("a{at}")).collect::<Vec<_>>().join(", ")
}

fn rule(fields: &str) -> String {
    format!("domain: api\nrules:\n  - {{ name: r, {fields} }}\n")
}

#[test]
fn key_of_many_attributes_is_refused() {
    let key = |count| rule(&format!("limits: [1/s], key: [{}]", names(count)));
    assert!(RuleSet::compile(&[Source::new("a", key(32))], Format::Native).is_ok());
    refused(key(33), "the key names 33 attributes, more than 32");
}

#[test]
fn match_on_many_attributes_is_refused() {
    let on = (0..65).map(|at| format!("a{at}: x")).collect::<Vec<_>>().join(", ");
    refused(rule(&format!("limits: [1/s], match: {{ {on} }}")), "match names 65 attributes, more than 64");
}

#[test]
fn document_of_many_rules_is_refused() {
    let rules = "  - { name: r, limits: [1/s] }\n".repeat(100_001);
    refused(format!("domain: api\nrules:\n{rules}"), "the document has 100001 rules, more than 100000");
}

#[test]
fn overrides_times_tiers_are_bounded() {
    let tiers: String = (0..1_000).map(|at| format!(", t{at}: [1/s]")).collect();
    let own = vec!["{ when: { a: b }, limits: [2/h] }"; 1_001].join(", ");
    let text = rule(&format!("tiers: {{ on: p, default: t0{tiers} }}, key_overrides: [{own}]"));
    refused(text, "these overrides, one per tier, are 1001000 sets of limits, more than 1000000");
}

#[test]
fn long_text_counts_when_it_is_repeated() {
    let long = "x".repeat(64 * 1_000);
    let rules = "  - { name: r, match: { path: *long }, limits: [1/s] }\n".repeat(110);
    let text = format!("domain: api\ndefaults: {{ owner: &long {long} }}\nrules:\n{rules}");
    refused(text, "aliases repeat more than 100000 values");
}

#[test]
fn rules_after_many_warnings_apply() {
    let rules: String = (0..300)
        .map(|at| format!("  - {{ name: r{at}, match: {{ method: get }}, limits: [1/s] }}\n"))
        .collect();
    let source = Source::new("rules.yaml", format!("domain: api\nrules:\n{rules}"));
    let rules = RuleSet::compile(&[source], Format::Native).unwrap();
    assert_eq!(rules.rules().count(), 300);
    assert_eq!(rules.warnings().unwrap().iter().count(), 100);
}

#[test]
fn mistake_after_many_warnings_is_shown() {
    let mut rules: String = (0..300)
        .map(|at| format!("  - {{ name: r{at}, match: {{ method: get }}, limits: [1/s] }}\n"))
        .collect();
    rules.push_str("  - { name: bad, limits: [1/fortnight] }\n");
    rules.push_str("  - { name: late, match: { method: get }, limits: [1/s] }\n");
    let source = Source::new("rules.yaml", format!("domain: api\nrules:\n{rules}"));
    let wrong = RuleSet::compile(&[source], Format::Native).expect_err("it is too much");
    assert_eq!(wrong.iter().next().unwrap().line, 303);
}

#[test]
fn compiling_ends_when_nobody_waits() {
    let rules: String = (0..20_000).map(|at| format!("  - {{ name: r{at}, limits: [1/s] }}\n")).collect();
    let source = [Source::new("rules.yaml", format!("domain: api\nrules:\n{rules}"))];
    for looks in [1, 40, 10_000] {
        let left = Cell::new(looks);
        let looked = Cell::new(0);
        let wanted = || {
            looked.set(looked.get() + 1);
            left.set(left.get() - 1_i64);
            left.get() > 0
        };
        let wrong = RuleSet::compile_while(&wanted, &[(&source, Format::Native)], None).unwrap_err();
        assert!(wrong.to_string().contains("nobody waits for it"), "{wrong}");
        assert!(looked.get() < looks + 8, "it looked {} times, of which {looks} said yes", looked.get());
    }
}
