//! Ten times the text takes about ten times the work to compile, whatever the text says.
//!
//! Work is the thread's own CPU time, so that what else the machine does is not counted.

use std::fmt::Write as _;

use tidegate_rules::{Format, RuleSet, Source, outline};

/// Of the larger text. In a quadratic check it alone would take a hundred times as long as the smaller one.
const MANY: usize = 8_000;
const TIMES: usize = 10;
/// Far from ten and from a hundred.
const MOST_TIMES: u64 = 40;
/// The work below which a ratio says nothing.
const NOTHING_NS: u64 = 4_000_000;

/// The CPU time that this thread has used.
fn used_ns() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux machine");
    schedstat.split_whitespace().next().and_then(|used| used.parse().ok()).expect("nanoseconds first")
}

/// The least of some runs, because the first one also makes room in memory.
fn work_of(text: &str, format: Format, runs: usize) -> u64 {
    let source = [Source::new("rules.yaml", text)];
    let run = |_| {
        let before = used_ns();
        let _ = outline(text);
        drop(RuleSet::compile(&source, format));
        used_ns() - before
    };
    (0..runs).map(run).min().expect("at least one run")
}

#[track_caller]
fn check(what: &str, format: Format, text: impl Fn(usize) -> String) {
    let (small, large) = (work_of(&text(MANY / TIMES), format, 2), work_of(&text(MANY), format, 1));
    assert!(
        large < NOTHING_NS.max(small) * MOST_TIMES,
        "{what}: ten times the text takes {large} ns, not {small}"
    );
}

/// A list in brackets: `[a0, a1, …]`.
fn list(count: usize, item: impl Fn(usize) -> String) -> String {
    let items: Vec<String> = (0..count).map(item).collect();
    format!("[{}]", items.join(", "))
}

/// The fields of a mapping in braces.
fn map(count: usize, field: impl Fn(usize) -> String) -> String {
    let fields: Vec<String> = (0..count).map(field).collect();
    format!("{{ {} }}", fields.join(", "))
}

fn rule(fields: &str) -> String {
    format!("domain: api\nrules:\n  - {{ name: r, limits: [1/s], {fields} }}\n")
}

fn rules(count: usize, fields: impl Fn(usize) -> String) -> String {
    let mut text = String::from("domain: api\nrules:\n");
    for number in 0..count {
        writeln!(text, "  - {{ name: r{number}, {} }}", fields(number)).expect("a string takes it");
    }
    text
}

#[test]
fn lists_in_one_rule_take_linear_work() {
    let native = Format::Native;
    check("key", native, |n| rule(&format!("key: {}", list(n, |at| format!("a{at}")))));
    check("the same key", native, |n| rule(&format!("key: {}", list(n, |_| "a".into()))));
    check("overrides", native, |n| rule(&format!("overrides: {}", list(n, |at| format!("a{at}")))));
    check("match", native, |n| rule(&format!("match: {}", map(n, |at| format!("a{at}: x")))));
    check("patterns", native, |n| rule(&format!("match: {{ a: {} }}", list(n, |at| format!("'/{at}/*'")))));
    check("a pattern of stars", native, |n| rule(&format!("match: {{ a: '{}b' }}", "a*".repeat(n))));
    check("fields", native, |n| rule(&(0..n).map(|at| format!("f{at}: x, ")).collect::<String>()));
    check("limits", native, |n| rule(&format!("tiers: {{ on: a, b: {} }}", list(n, |at| format!("{at}/s")))));
    let tiers =
        |n| format!("tiers: {{ on: p, default: t0, {} }}", &map(n, |at| format!("t{at}: [1/s]"))[1..]);
    check("tiers", native, |n| format!("domain: api\nrules:\n  - {{ name: r, {} }}\n", tiers(n)));
    let owns = |n: usize, when: fn(usize) -> String| {
        let own = |at| format!("{{ when: {{ {} }}, limits: [9/s] }}", when(at));
        rule(&format!("key_overrides: {}", list(n, own)))
    };
    check("key overrides", native, |n| owns(n, |at| format!("a: v{at}")));
    check("key overrides by other attributes", native, |n| owns(n, |at| format!("a{at}: v")));
    check("key overrides of one key", native, |n| owns(n, |_| "a: v".into()));
}

#[test]
fn many_rules_take_linear_work() {
    let native = Format::Native;
    check("rules", native, |n| rules(n, |at| format!("key: [a{at}], limits: [1/s]")));
    check("rules of one name", native, |n| rules(n, |_| "limits: [1/s] } # {".into()).replace("r1", "r"));
    check("rules by path", native, |n| rules(n, |at| format!("match: {{ p: '/{at}/*' }}, limits: [1/s]")));
    check("all override one", native, |n| {
        rules(n, |at| if at == 0 { "limits: [1/s]".into() } else { "overrides: [r0], limits: [1/s]".into() })
    });
    check("each overrides the next", native, |n| {
        rules(n, |at| format!("overrides: [r{}], limits: [1/s]", (at + 1).min(n - 1)))
    });
    check("one circle", native, |n| rules(n, |at| format!("overrides: [r{}], limits: [1/s]", (at + 1) % n)));
    check("many circles", native, |n| {
        rules(n, |at| format!("overrides: [r{}, r0], limits: [1/s]", (at + 1) % n))
    });
    check("unknown rules", native, |n| rules(n, |at| format!("overrides: [x{at}], limits: [1/s]")));
    check("unknown fields", native, |n| rules(n, |at| format!("limts{at}: [1/s]")));
    check("warnings", native, |n| rules(n, |_| "match: { method: get }, limits: [1/s]".into()));
    let document = |at: usize, domain: usize| {
        format!("---\ndomain: d{domain}\nrules: [{{ name: r{at}, limits: [1/s] }}]\n")
    };
    check("documents", native, |n| (0..n).map(|at| document(at, at)).collect());
    check("documents of one domain", native, |n| (0..n).map(|at| document(at, 0)).collect());
}

#[test]
fn syntax_takes_linear_work() {
    let native = Format::Native;
    for piece in [
        "[", "- ", "? ", "{a: ", "&a ", "!!str ", "\"", "'a", "# x\n", "\n", "a: ", "|\n ", "---\n", "*a ",
        "\t",
    ] {
        check(piece, native, |n| piece.repeat(n));
        check(piece, native, |n| rule(&format!("description: {}", piece.repeat(n))));
    }
    check("aliases", native, |n| rule(&format!("description: &a x, key: {}", list(n, |_| "*a".into()))));
    check("anchors", native, |n| rule(&format!("key: {}", list(n, |at| format!("&a{at} x{at}")))));
    check("merges", native, |n| {
        rules(n, |at| if at == 0 { "<<: &m { limits: [1/s] }".into() } else { "<<: *m".into() })
    });
}

#[test]
fn envoy_files_take_linear_work() {
    let envoy = Format::EnvoyRatelimit;
    let file = |descriptors: String| format!("domain: api\ndescriptors: {descriptors}\n");
    let limit = "rate_limit: { unit: second, requests_per_unit: 1 }";
    check("descriptors", envoy, |n| file(list(n, |at| format!("{{ key: k{at}, {limit} }}"))));
    check("values", envoy, |n| file(list(n, |at| format!("{{ key: k, value: v{at}*, {limit} }}"))));
    check("the same", envoy, |n| file(list(n, |_| format!("{{ key: k, {limit} }}"))));
    check("replaces", envoy, |n| {
        let replaces = list(n, |at| format!("{{ name: n{at} }}"));
        file(format!(
            "[{{ key: k, rate_limit: {{ unit: second, requests_per_unit: 1, name: n, replaces: {replaces} }} }}]"
        ))
    });
    check("unknown", envoy, |n| file(list(n, |at| format!("{{ key: k{at}, kye: x }}"))));
}
