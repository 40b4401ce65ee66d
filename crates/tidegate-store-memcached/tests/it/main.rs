//! The store on a real Memcached.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod conformance;
mod faults;
mod fleet;
mod subject;
