//! The admin API over HTTP, on a real listener, a real limiter and a real database.

mod access;
mod dashboard;
mod decisions;
mod document;
mod fleet;
mod hostile;
mod keys;
mod outage;
mod rules;
mod sessions;
mod stalls;
mod world;
