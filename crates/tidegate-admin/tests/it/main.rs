//! The control plane's output, requested from outside, and parsed by an independent parser.

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
