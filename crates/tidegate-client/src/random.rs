//! Random numbers for ids and jitter, from the seed that the standard library gets of the operating system. They keep no secret.

use std::hash::{BuildHasher, RandomState};

fn word() -> u64 {
    RandomState::new().hash_one(())
}

/// An id that no other request has.
pub(crate) fn id() -> String {
    format!("{:016x}{:016x}", word(), word())
}

/// From 0 up to, not including, 1.
pub(crate) fn fraction() -> f64 {
    (word() >> 11) as f64 / (1_u64 << 53) as f64
}
