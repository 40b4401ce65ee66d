//! Any text as a rule file, in either format: it compiles or is explained, and what compiled can be matched and told.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::Timestamp;
use tidegate_rules::{Descriptor, Format, Matches, RuleSet, Source};

fuzz_target!(|text: &str| {
    for format in [Format::Native, Format::EnvoyRatelimit] {
        match RuleSet::compile(&[Source::new("fuzz.yaml", text)], format) {
            Ok(rules) => match_everything(&rules),
            Err(diagnostics) => assert!(!diagnostics.to_string().is_empty()),
        }
    }
});

fn match_everything(rules: &RuleSet) {
    let entries: [(&str, &[u8]); 4] = [("user", b"42"), ("path", b"/v1/items"), ("method", b"POST"), ("plan", b"pro")];
    for count in 0..=entries.len() {
        let descriptor = Descriptor { entries: &entries[..count] };
        for domain in rules.domains() {
            let mut found = Matches::new();
            rules
                .matches(domain, &[descriptor], Timestamp::from_micros(1_800_000_000_000_000), &mut found)
                .expect("its own domain");
        }
    }
}
