//! The store on a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod conformance;
mod faults;
mod fleet;
mod hosts;
mod subject;
