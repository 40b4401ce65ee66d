//! The middleware on real servers, and on a clock that a test turns.

mod answers;
mod leases;
mod on_axum;
mod on_hyper;
mod on_tonic;
mod queue;
mod refusals;
mod shedding;
mod world;
