//! The path of one request: match rules, plan cells, classify them, commit, ask the store, settle.
//!
//! [`matched`] finds the rules, [`plan`] the cells, [`classify`] what decides each of them (pure), [`pending`] commits that
//! and undoes it if any part refuses, [`fallback`] decides what the store cannot. The modules that they use know nothing of
//! each other's requests.

mod classify;
mod decide;
mod direct;
mod fallback;
mod funds;
mod matched;
mod pending;
mod plan;
mod shedding;

pub(crate) use classify::Cells;
pub use direct::Direct;
pub(crate) use fallback::without_the_store;
pub(crate) use matched::Matched;
pub(crate) use pending::{Answers, decide_on_remote, decide_together};
pub(crate) use plan::Plan;
