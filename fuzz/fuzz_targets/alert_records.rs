//! Any bytes as what nodes keep in Redis about alerts: see the test of the same, which this includes.

#![no_main]

#[path = "../../crates/tidegate-telemetry/tests/it/any_record.rs"]
mod any_record;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| any_record::read_as_each(bytes));
