//! The store on an emulator of DynamoDB: `moto`. It was never run against AWS.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod conformance;
mod dynalite;
mod exact;
mod faults;
mod fleet;
mod subject;
