//! The store on real Redis servers.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod any_answer;
mod calendar;
mod checks;
mod cluster;
mod conformance;
mod cross_slot;
mod differential;
mod expiry;
mod failures;
mod holds;
mod login;
mod memory;
mod promises;
mod questions;
mod random;
mod runtimes;
mod scripts;
mod sentinel;
mod sharded;
mod stepped_clock;
mod subject;
mod too_late;
mod twins;
