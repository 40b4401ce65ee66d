//! One body of tests, run on real SQLite and on real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test may fail")]
#![expect(clippy::print_stdout, reason = "a child says what it was acknowledged")]

mod durability;
mod keys;
mod migrations;
mod outages;
mod publishing;
mod sessions;
mod tokens;
mod watching;
mod world;
