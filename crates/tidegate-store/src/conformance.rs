//! The suite that every store must pass.
//!
//! It plays generated histories (requests over several cells, refunds, charges, resets and leases at given times) against
//! the store and against a model built only from [`tidegate_core`] and a map, and compares every answer. A failure names
//! its seed; the same seed plays the same history.

mod broken;
mod history;
mod model;
mod records;
mod refunds;

use tidegate_core::Timestamp;

pub use broken::Broken;

use crate::contract::{BatchOutcomes, Stamped, Store};
use history::{History, Operation};
use model::Model;

/// A store whose clock the suite sets.
pub trait Subject {
    /// The store.
    fn store(&self) -> &dyn Store;

    /// Sets the store's clock to `now`.
    fn set_time(&self, now: Timestamp);

    /// Whether it supports [records](Store::put_record). A store that does not must return `NotApplied` for each.
    fn keeps_records(&self) -> bool {
        true
    }

    /// Whether a request may be on several keys. One that may not must say so in its documentation: rules with different keys that
    /// match the same request are then no use.
    fn decides_several_keys(&self) -> bool {
        true
    }
}

/// Plays the histories of `seeds` and panics at the first answer that differs from the model's.
///
/// # Panics
/// When the store violates the contract.
pub async fn check(subject: &dyn Subject, seeds: std::ops::Range<u64>) {
    records::check(subject).await;
    refunds::check(subject).await;
    for seed in seeds {
        let history = History::generate(seed);
        let history = if subject.decides_several_keys() { history } else { history.on_one_key() };
        play(subject, &history).await;
    }
}

/// A store may or may not have dropped a cell whose full quota is back. That makes a difference once the clock steps
/// back, so the suite resets such cells first.
async fn forget_idle_cells(
    subject: &dyn Subject,
    history: &History,
    turn: usize,
    model: &mut Model,
    now: Timestamp,
) {
    for (key, limit) in history.cells(turn) {
        if model.is_idle(key, limit, now) {
            subject.store().reset(key, limit).answer().await.expect("the store answers");
            model.reset(key);
        }
    }
}

fn said(told: &BatchOutcomes) -> String {
    format!("{:?} {:?}", told.outcomes, told.folds)
}

async fn play(subject: &dyn Subject, history: &History) {
    let mut model = Model::default();
    let mut now = history.start;
    for (turn, step) in history.steps.iter().enumerate() {
        if step.time_after(now) < now {
            forget_idle_cells(subject, history, turn, &mut model, now).await;
        }
        now = step.time_after(now);
        subject.set_time(now);
        let (given, expected) = match &step.operation {
            Operation::Decide(requests) => {
                let spends = history.spends(requests, turn);
                let equal = spends.iter().zip(requests);
                let batch: Vec<_> =
                    equal.map(|(spends, any)| crate::Request { spends, count: any.count }).collect();
                let given = subject.store().decide(&batch).answer().await;
                let stamped = given.map(|told| Stamped { at: told.decided_at, value: said(&told) });
                (stamped, said(&model.decide(&batch, now)))
            }
            Operation::Refund { cell, hits, age } => {
                let refunds = [history.refund(*cell, *hits, *age, turn)];
                let given = subject.store().refund(&refunds).answer().await;
                model.refund(&refunds[0], now);
                (given.map(|done| done.map(|()| String::new())), String::new())
            }
            Operation::Charge { cell, charge } => {
                let charges = [history.charge(*cell, *charge, turn)];
                let given = subject.store().charge(&charges).answer().await;
                model.charge(&charges[0], now);
                (given.map(|done| done.map(|()| String::new())), String::new())
            }
            Operation::Reset { cell } => {
                let (key, limit) = history.cell(*cell, turn);
                let given = subject.store().reset(key, limit).answer().await;
                model.reset(key);
                (given.map(|done| done.map(|()| String::new())), String::new())
            }
            Operation::Renew { cell, turn: taken } => {
                let lease = history.lease(*cell, *taken);
                let given = subject.store().renew(lease).answer().await;
                (given.map(|done| done.map(|held| held.to_string())), model.renew(lease, now).to_string())
            }
            Operation::Release { cell, turn: taken } => {
                let lease = history.lease(*cell, *taken);
                let given = subject.store().release(lease).answer().await;
                (given.map(|done| done.map(|held| held.to_string())), model.release(lease, now).to_string())
            }
        };
        let context = || {
            format!(
                "seed {}, turn {turn}, at {now:?}: {:?}\ncells: {:#?}",
                history.seed,
                step.operation,
                history.limits()
            )
        };
        match given {
            Ok(Stamped { value: given, at }) => {
                assert!(given == expected, "{}\n   given {given}\nexpected {expected}", context());
                assert!(at.is_none_or(|at| at == now), "{}\nit says that this was at {at:?}", context());
            }
            Err(error) => panic!("{}\nthe store failed: {error:?}", context()),
        }
    }
}
