//! Attacks on real servers: seeded random rules, bursts, stalls, restarts, clock steps, rule changes and node churn, and an
//! independent checker that reads what was recorded and says which promise was broken.
//!
//! Every attack prints its seed. `ATTACK_SEEDS=7,8` runs other seeds, `ATTACK_ACTS=200` makes each longer,
//! `ATTACK_FLOOD=1000` sends that many requests over each connection of a flood on another store than Redis,
//! `ATTACK_BINARY=target/dist/tidegate` attacks another build:
//!
//! ```sh
//! ATTACK_SEEDS=7 cargo test -p tidegate-cli --test attack -- NAME --nocapture
//! ```

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod acts;
mod attack;
mod checker;
mod history;
mod limit;
mod plan;
mod pulse;
mod random;
mod scenarios;
mod watch;
mod world;
