//! Any bytes as a Redis command: read within bounds, and the same however the network cuts them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::resp::parse::{Bounds, Parsed, Words, parse};

fuzz_target!(|bytes: &[u8]| {
    let bounds = Bounds::default().for_stranger();
    let mut words = Words::new();
    let whole = parse(bytes, &bounds, &mut words);
    assert!(words.len() <= bounds.max_words && words.iter().all(|word| word.len() <= bounds.max_word_bytes));
    match &whole {
        Parsed::Command { length } | Parsed::Line { length, .. } => assert!(*length > 0 && *length <= bytes.len()),
        Parsed::Incomplete { at_least } => assert!(*at_least > bytes.len()),
        Parsed::Malformed(why) => assert!(!why.to_string().is_empty()),
    }
    for end in 0..bytes.len() {
        match parse(&bytes[..end], &bounds, &mut Words::new()) {
            // Whoever waits as long as told misses nothing.
            Parsed::Incomplete { at_least } => match &whole {
                Parsed::Command { length } | Parsed::Line { length, .. } => assert!(at_least <= *length),
                Parsed::Incomplete { .. } | Parsed::Malformed(_) => {}
            },
            early => assert_eq!(early, whole, "cut at {end}"),
        }
    }
});
