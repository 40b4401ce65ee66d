//! Any text as a duration or a rate: never a panic, never a zero that was not written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_rules::{parse_duration, parse_rate};

fuzz_target!(|text: &str| {
    if let Ok(span) = parse_duration(text) {
        // What we print of a span is a span again, and the same one.
        assert_eq!(parse_duration(&span.to_string()).ok(), Some(span), "{text:?} became {span}");
    }
    if let Ok(rate) = parse_rate(text) {
        assert!(rate.count() > 0 && rate.period().get() > 0);
    }
});
