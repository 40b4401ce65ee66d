//! The memory cost of a cell in the memory store, for capacity planning.

use tidegate_core::{CellForm, Limit, Micros};

/// A counter of any kind.
const COUNTER: u64 = 45;
/// An empty log, and an empty set of leases.
const LOG: u64 = 83;
const LEASES: u64 = 112;
/// A lease.
const LEASE: u64 = 16;
/// Entries of windows up to this length take half as much.
const SHORT_WINDOW: Micros = Micros::new(1 << 32);

/// Bytes that a fully used cell of `limit` takes in a [`MemoryStore`](crate::MemoryStore), as measured (`cargo xtask bench
/// memory-table`).
#[must_use]
pub fn memory_bytes(limit: &Limit) -> u64 {
    match limit.form() {
        CellForm::Log { hits, window } if window <= SHORT_WINDOW => LOG + 4 * hits,
        CellForm::Log { hits, .. } => LOG + 8 * hits,
        // Capacity doubles as needed.
        CellForm::Leases { most } => LEASES + LEASE * most.next_power_of_two(),
        CellForm::Counter => COUNTER,
    }
}
