//! What it costs to find a request's rules among ten and among ten thousand: `cargo bench -p tidegate-rules`.
//!
//! The two must be close: rules that have nothing to do with a request must not slow it down.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate_core::Timestamp;
use tidegate_rules::{Descriptor, Format, Matches, RuleSet, Source};

const SIZES: [usize; 2] = [10, 10_000];

fn native(rules: impl Iterator<Item = String>) -> RuleSet {
    compile(format!("domain: api\nrules:\n{}", rules.collect::<String>()), Format::Native)
}

fn envoy(descriptors: impl Iterator<Item = String>) -> RuleSet {
    compile(format!("domain: api\ndescriptors:\n{}", descriptors.collect::<String>()), Format::EnvoyRatelimit)
}

fn compile(text: String, format: Format) -> RuleSet {
    RuleSet::compile(&[Source::new("bench.yaml", text)], format).unwrap_or_else(|wrong| panic!("{wrong}"))
}

fn measure(
    criterion: &mut Criterion,
    name: &str,
    rules: impl Fn(usize) -> RuleSet,
    entries: &[(&str, &[u8])],
) {
    let mut group = criterion.benchmark_group(name);
    let now = Timestamp::from_micros(1_800_000_000_000_000);
    for size in SIZES {
        let rules = rules(size);
        let descriptors = [Descriptor { entries }];
        let mut found = Matches::new();
        rules.matches("api", &descriptors, now, &mut found).expect("a known domain");
        assert_eq!(found.len(), 1, "{name} with {size} rules");
        group.bench_function(format!("{size} rules"), |bencher| {
            bencher.iter(|| {
                let mut found = Matches::new();
                rules.matches("api", black_box(&descriptors), now, &mut found).expect("a known domain");
                black_box(found.len())
            });
        });
    }
    group.finish();
}

fn matching(criterion: &mut Criterion) {
    let exact = |size| {
        native((0..size).map(|n| {
            format!("  - {{ name: r{n}, match: {{ method: POST, path: /v1/items{n} }}, key: [user], limits: [5/s] }}\n")
        }))
    };
    let post: &[(&str, &[u8])] = &[("method", b"POST"), ("path", b"/v1/items7"), ("user", b"42")];
    measure(criterion, "native exact", exact, post);

    let glob = |size| {
        native((0..size).map(|n| {
            format!("  - {{ name: r{n}, match: {{ method: POST, path: '/v1/items{n}/*' }}, key: [user], limits: [5/s] }}\n")
        }))
    };
    let below: &[(&str, &[u8])] = &[("method", b"POST"), ("path", b"/v1/items7/parts/3"), ("user", b"42")];
    measure(criterion, "native glob", glob, below);

    let suffix = |size| {
        native((0..size).map(|n| {
            format!(
                "  - {{ name: r{n}, match: {{ host: '*.tenant{n}.example' }}, key: [user], limits: [5/s] }}\n"
            )
        }))
    };
    measure(criterion, "native suffix", suffix, &[("host", b"www.tenant7.example"), ("user", b"42")]);

    let single_keys = |size| {
        let keys: String =
            (0..size).map(|n| format!("{{ when: {{ user: u{n} }}, limits: [9/s] }}, ")).collect();
        native(
            [format!("  - {{ name: r, key: [user], limits: [5/s], key_overrides: [{keys}] }}\n")].into_iter(),
        )
    };
    measure(criterion, "native single keys", single_keys, &[("user", b"u7")]);

    let limit = "rate_limit: { unit: day, requests_per_unit: 5 }";
    let exact =
        |size| envoy((0..size).map(|n| format!("  - {{ key: path, value: /v1/items{n}, {limit} }}\n")));
    measure(criterion, "envoy exact", exact, &[("path", b"/v1/items7")]);

    let glob =
        |size| envoy((0..size).map(|n| format!("  - {{ key: path, value: '/v1/items{n}/*', {limit} }}\n")));
    measure(criterion, "envoy wildcard", glob, &[("path", b"/v1/items7/parts/3")]);
}

criterion_group!(benches, matching);
criterion_main!(benches);
