//! Measured costs for capacity planning: bytes per counter (`cargo xtask bench memory-table`) and time per decision (`cargo
//! xtask bench redis-costs`), on Redis 7.0 and one core of a small virtual machine.

use tidegate_core::{CellForm, Limit, Micros};

pub use crate::limits::decision_us;

/// A Redis key that holds a counter, including the server's tables.
const REDIS_COUNTER: u64 = 200;
/// The same with an empty log or lease set.
const REDIS_KEY: u64 = 190;
/// A lease in Redis, in a small set and in one above `MANY_LEASES`.
const REDIS_LEASE: u64 = 19;
const REDIS_LEASE_OF_MANY: u64 = 104;
const MANY_LEASES: u64 = 128;
/// Redis's allocator rounds up.
const ROUNDING_PERCENT: u64 = 12;

/// Redis's time per call, before any decision.
const CALL_US: f64 = 5.5;
/// Redis's time to reserve a part of a request that spans servers, and to drop the reservation.
const RESERVATION_US: f64 = 6.0;

/// Bytes that a fully used cell of `limit` takes in Redis.
#[must_use]
pub fn redis_bytes(limit: &Limit) -> u64 {
    match limit.form() {
        CellForm::Log { hits, window } => REDIS_KEY + rounded_up(hits * width(window)),
        CellForm::Leases { most } => {
            let each = if most < MANY_LEASES { REDIS_LEASE } else { REDIS_LEASE_OF_MANY };
            REDIS_KEY + rounded_up(most * each)
        }
        CellForm::Counter => REDIS_COUNTER,
    }
}

/// Redis's time for a request over `places` groups of counters whose decisions take `decisions_us` in total.
#[must_use]
pub fn request_us(places: u64, decisions_us: f64) -> f64 {
    let calls = places as f64;
    let reserved = if places > 1 { RESERVATION_US * calls } else { 0.0 };
    CALL_US * calls + reserved + decisions_us
}

/// The bytes needed to distinguish times within `span` of each other.
fn width(span: Micros) -> u64 {
    match span.get() {
        0..=0x1_0000_0000 => 4,
        0x1_0000_0001..=0x100_0000_0000 => 5,
        0x100_0000_0001..=0x1_0000_0000_0000 => 6,
        _ => 7,
    }
}

fn rounded_up(bytes: u64) -> u64 {
    bytes + (bytes * ROUNDING_PERCENT).div_ceil(100)
}
