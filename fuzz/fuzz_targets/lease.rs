//! Any text as a lease: what is one can be written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_limiter::LeaseToken;

fuzz_target!(|text: &str| {
    if let Ok(token) = text.parse::<LeaseToken>() {
        assert_eq!(token.to_string().parse(), Ok(token));
    }
});
