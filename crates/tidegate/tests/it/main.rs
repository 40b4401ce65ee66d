//! The library as a Rust user sees it.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod asking;
mod crates;
mod examples;
mod facade;
mod fleet;
mod ownership;
mod readme;
mod room;
mod spends;
