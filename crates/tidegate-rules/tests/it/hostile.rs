//! Whatever a file says, compiling it ends, and ends soon.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::Micros;
use tidegate_rules::{Format, RuleSet, Source, parse_duration, parse_rate};

use crate::harness::{found, native};

fn compile_all_ways(text: &str) {
    for format in [Format::Native, Format::EnvoyRatelimit] {
        if let Err(wrong) = RuleSet::compile(&[Source::new("hostile.yaml", text)], format) {
            assert!(!wrong.to_string().is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_compiles_or_is_refused(text in "\\PC{0,200}") {
        compile_all_ways(&text);
    }

    #[test]
    fn pieces_of_rule_files_in_any_order_compile_or_are_refused(pieces in vec(piece(), 0..40)) {
        compile_all_ways(&pieces.concat());
    }

    #[test]
    fn a_span_that_was_printed_reads_as_itself(micros in prop_oneof![any::<u64>(), 0..10_000_000_000_u64]) {
        // The largest spans print in microseconds, and their digits are all there.
        let span = Micros::new(micros);
        prop_assert_eq!(parse_duration(&span.to_string()), Ok(span));
    }

    #[test]
    fn any_text_is_a_quantity_or_refused(text in "\\PC{0,80}") {
        let _ = parse_duration(&text);
        let _ = parse_rate(&text);
    }
}

fn piece() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "domain: api\n",
        "rules:\n",
        "descriptors:\n",
        "  - name: a\n",
        "    limits: ",
        "[100/minute]",
        "\n",
        "    key: [",
        "user",
        "]\n",
        "{",
        "}",
        ", ",
        ": ",
        "- ",
        "    ",
        "&a ",
        "*a",
        "<<: *a\n",
        "'",
        "\"",
        "|\n",
        ">-\n",
        "# x\n",
        "    tiers: { on: p, default: a, a: unlimited }\n",
        "    match: { a: '*' }\n",
        "    overrides: [a]\n",
        "!!str ",
        "    rate_limit: { unit: day, requests_per_unit: 1 }\n",
        "  - key: k\n",
        "    value: '*'\n",
        "---\n",
        "...\n",
        "\t",
        "\u{feff}",
        "\r\n",
        "é",
        "0",
        "-1",
        "18446744073709551616",
        "null",
        "~",
        "%YAML 1.2\n",
        "? ",
        "\u{0}",
        "[",
        "month",
    ])
}

#[test]
fn aliases_that_multiply_are_stopped_early() {
    let mut text = String::from("a: &a [x, x, x, x, x, x, x, x, x, x]\n");
    for pair in "abcdefghijklmnop".as_bytes().windows(2) {
        let (from, to) = (char::from(pair[0]), char::from(pair[1]));
        let aliases = vec![format!("*{from}"); 10].join(", ");
        text.push_str(&format!("{to}: &{to} [{aliases}]\n"));
    }
    compile_all_ways(&text);
}

#[test]
fn a_value_made_to_be_slow_is_matched_at_once() {
    // A matcher that tries every split needs longer than the universe is old for this.
    let stars = "a*".repeat(40);
    let text =
        format!("{{ domain: api, rules: [{{ name: r, match: {{ p: '{stars}b' }}, limits: [1/s] }}] }}");
    let value = "a".repeat(100_000);
    assert!(found(&native(&text), &[("p", &value)]).is_empty());
}

#[test]
fn ten_thousand_attributes_are_read_once_each() {
    let rules = native("{ domain: api, rules: [{ name: r, match: { n9999: x }, limits: [1/s] }] }");
    let names: Vec<String> = (0..10_000).map(|number| format!("n{number}")).collect();
    let entries: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    assert_eq!(found(&rules, &entries), ["r 1"]);
}

#[test]
fn time_zones_cannot_fill_the_memory() {
    let zones: Vec<String> = jiff::tz::db().available().take(100).map(|zone| zone.to_string()).collect();
    let rules: String = zones
        .iter()
        .map(|zone| {
            format!("  - {{ name: '{zone}', limits: [{{ algorithm: fixed_window, limit: 1, window: year, tz: {zone} }}] }}\n")
        })
        .collect();
    let source = Source::new("zones.yaml", format!("domain: api\nrules:\n{rules}"));
    let wrong = RuleSet::compile(&[source], Format::Native).expect_err("there are too many");
    let first = wrong.iter().next().expect("at least one mistake");
    assert_eq!(first.message, "more than 64 different calendars in one set of rules");
}

#[test]
fn a_circle_through_every_rule_is_found_without_walking_it_for_each() {
    let rules: String = (0..20_000)
        .map(|number| {
            let next = (number + 1) % 20_000;
            format!("  - {{ name: r{number}, limits: [1/s], overrides: [r{next}] }}\n")
        })
        .collect();
    let source = Source::new("circle.yaml", format!("domain: api\nrules:\n{rules}"));
    let wrong = RuleSet::compile(&[source], Format::Native).expect_err("nothing would count");
    assert_eq!(wrong.iter().len(), 1);
}

#[test]
fn a_set_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<RuleSet>();
}
