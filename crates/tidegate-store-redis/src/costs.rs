//! What was measured, for those who plan how much Redis they need: bytes per counter (`cargo xtask bench memory-table`) and
//! time per decision (`cargo xtask bench redis-costs`), on Redis 7.0 and one core of a small virtual machine.

use tidegate_core::{Limit, Micros};

/// A key in Redis with a counter in it, the server's tables included.
const REDIS_COUNTER: u64 = 200;
/// The same with an empty log or an empty set of leases.
const REDIS_KEY: u64 = 190;
/// A lease in Redis, in a set of few and in one of more than a hundred.
const REDIS_LEASE: u64 = 19;
const REDIS_LEASE_OF_MANY: u64 = 104;
const MANY_LEASES: u64 = 128;
/// Redis's allocator rounds up.
const ROUNDING_PERCENT: u64 = 12;

/// Redis's time for a call, before it decides anything.
const CALL_US: f64 = 5.5;
/// Redis's time for reserving a part of a request that spans servers, and for forgetting that.
const RESERVATION_US: f64 = 6.0;

/// Bytes that a cell of `limit` takes in Redis, all of it used.
#[must_use]
pub fn redis_bytes(limit: &Limit) -> u64 {
    match limit {
        Limit::SlidingLog(log) => REDIS_KEY + rounded_up(log.limit() * width(log.window())),
        Limit::Concurrency(leases) => {
            let each = if leases.limit() < MANY_LEASES { REDIS_LEASE } else { REDIS_LEASE_OF_MANY };
            REDIS_KEY + rounded_up(leases.limit() * each)
        }
        _ => REDIS_COUNTER,
    }
}

/// Redis's time for deciding one counter within a call, in microseconds.
#[must_use]
pub fn decision_us(limit: &Limit) -> f64 {
    match limit {
        Limit::TokenBucket(_) | Limit::FixedWindow(_) | Limit::SlidingWindow(_) => 4.5,
        Limit::LeakyBucket(_) => 5.0,
        Limit::SlidingLog(_) => 7.0,
        Limit::Concurrency(_) => 12.0,
    }
}

/// Redis's time for a request over `places` groups of counters that take `decisions_us` together.
#[must_use]
pub fn request_us(places: u64, decisions_us: f64) -> f64 {
    let calls = places as f64;
    let reserved = if places > 1 { RESERVATION_US * calls } else { 0.0 };
    CALL_US * calls + reserved + decisions_us
}

/// The bytes in which moments that lie within `span` of each other are told apart.
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
