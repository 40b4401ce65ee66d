//! Reads a history and says what in it breaks a promise.
//!
//! It shares no code with the algorithms: it knows what is published about each limit (`limit.rs`), takes every decision as
//! made at *some* moment between request and answer, and complains only where no such moment would do. So a slow machine
//! makes it miss something, and never complain wrongly.

mod admitted;
mod grants;
mod leases;
mod ledger;
mod redis;
mod refused;
mod retry_after;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

pub(crate) use redis::{Look, Pace, Script, Span, keys_without_ttl, slow_scripts};

use crate::history::{Asked, History, LeaseCall};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// More was admitted than the published bound.
    TooMany,
    /// Refused while the store was up and quota was left.
    WronglyRefused,
    /// Waiting as long as told does not help, or was not needed.
    DishonestRetryAfter,
    /// Decided without the store although it was up.
    NotTheStore,
    /// What is left was told twice, or more than there can be.
    WrongNumbers,
    /// More leases held than allowed, one lost, or one that stays.
    LeasesNotConserved,
    KeyWithoutTtl,
    SlowScript,
}

impl Violation {
    fn new(kind: Kind, what: impl Into<String>) -> Self {
        Violation { kind, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.what)
    }
}

/// Everything that is wrong with `history`, at most a few of each kind and cell.
pub(crate) fn check(history: &History) -> Vec<Violation> {
    let view = View::of(history);
    let mut violations = sources::check(history);
    for cell in 0..history.cells.len() {
        violations.extend(admitted::check(&view, cell));
        violations.extend(leases::check(&view, cell));
    }
    violations.extend(refused::check(&view));
    violations.extend(retry_after::check(&view));
    violations
}

/// A history, and where in it things are.
struct View<'h> {
    history: &'h History,
    /// The requests that touch each cell, in no order.
    touching: Vec<Vec<&'h Asked>>,
    /// The calls about each lease, by when they were sent.
    calls: HashMap<&'h str, Vec<&'h LeaseCall>>,
}

impl<'h> View<'h> {
    fn of(history: &'h History) -> Self {
        let mut touching = vec![Vec::new(); history.cells.len()];
        for asked in &history.asked {
            history.shapes[asked.shape].iter().for_each(|cell| touching[*cell].push(asked));
        }
        let mut calls: HashMap<&str, Vec<&LeaseCall>> = HashMap::new();
        history.lease_calls.iter().for_each(|call| calls.entry(&call.lease).or_default().push(call));
        calls.values_mut().for_each(|calls| calls.sort_by_key(|call| call.sent));
        View { history, touching, calls }
    }

    fn calls_of(&self, lease: &str) -> &[&'h LeaseCall] {
        self.calls.get(lease).map_or(&[], Vec::as_slice)
    }
}
