//! Any text as a file of another limiter: what is imported compiles, and what is not is explained.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_rules::{Format, RuleSet, Source, import};

fuzz_target!(|text: &str| {
    let source = [Source::new("fuzz.yaml", text)];
    for imported in [import::envoy(&source), import::limitador(&source)] {
        match imported {
            // Where nothing maps there is nothing to compile.
            Ok(imported) if imported.rules.is_empty() => {}
            Ok(imported) => {
                let rules = RuleSet::compile(&[Source::new("imported.yaml", &imported.rules)], Format::Native);
                if let Err(diagnostics) = rules {
                    panic!("{diagnostics}\nfrom\n{}", imported.rules);
                }
            }
            Err(diagnostics) => assert!(!diagnostics.to_string().is_empty()),
        }
    }
});
