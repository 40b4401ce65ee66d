//! Any values as the answers of a Redis: see the test of the same, which this includes.

#![no_main]

#[path = "../../crates/tidegate-store-redis/tests/it/any_answer.rs"]
mod any_answer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| any_answer::answer_with(bytes));
