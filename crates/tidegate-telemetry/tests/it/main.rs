//! Telemetry to real receivers, and alerts on traffic with known incidents.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod any_record;
mod quality;
mod receivers;
