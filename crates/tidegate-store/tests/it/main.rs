//! The memory store: is it a store, does it keep its bounds, does it stay exact when many ask at once.

mod bounds;
mod conformance;
mod parallel;
