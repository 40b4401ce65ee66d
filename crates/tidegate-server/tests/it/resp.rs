//! The Redis protocol as clients see it.

mod check;
mod clients;
mod commands;
mod hostile;
mod order;
mod parser;
mod throttle;
mod waiting;
mod world;
