//! What the control plane tells, asked from outside, and read by a parser that is not its own.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod api;
mod bounds;
mod counts;
mod durations;
mod gauges;
mod guides;
mod http;
mod many_overrides;
mod remote;
mod scrape;
mod world;
