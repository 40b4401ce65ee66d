//! The limiter on the memory store: which decision, which numbers, which rule.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod allocations;
mod check;
mod descriptors;
mod failure;
mod leases;
mod live_rules;
mod over;
mod overload;
mod penalty;
mod prepared;
mod shadow;
mod shedding;
mod sim;
mod threads;
mod world;
