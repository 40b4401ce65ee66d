//! What the control plane costs the requests beside it, on the real server.
//!
//! `cargo xtask bench publish` publishes ten thousand rules under an open load and prints p99 meanwhile beside p99 before, and
//! the memory that stays when they are gone. `cargo xtask bench control-plane` measures CPU time per request: with
//! dashboards open and history kept, beside a server without an admin listener.
//!
//! Client and server share the machine, as they would not in production: compare lines of one run.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench measures time and prints it")]

mod cost;
mod publish;
mod server;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// The tidegate binary, which also offers the load.
    #[arg(long, env = "TIDEGATE", global = true)]
    ours: Option<PathBuf>,
    /// What `cargo bench` passes; without it (`cargo test --benches`) nothing is measured.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Clone, Copy, Subcommand)]
enum What {
    /// Publishes rules under load.
    Publish {
        /// Rules in the large set.
        #[arg(long, default_value_t = 10_000)]
        rules: usize,
        /// Requests per second.
        #[arg(long, default_value_t = 20_000)]
        rate: u32,
        /// Seconds of load before, and meanwhile.
        #[arg(long, default_value_t = 10)]
        secs: u32,
    },
    /// Measures what the control plane adds to a request.
    Cost {
        /// Rules in use.
        #[arg(long, default_value_t = 100)]
        rules: usize,
        /// Dashboards that are open.
        #[arg(long, default_value_t = 3)]
        dashboards: usize,
        /// Seconds of each load.
        #[arg(long, default_value_t = 20)]
        secs: u32,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let (true, Some(what)) = (options.bench, options.what) else { return Ok(()) };
    let Some(ours) = &options.ours else {
        return Err("no tidegate binary; hint: `cargo xtask bench publish` builds it and passes it on".into());
    };
    match what {
        What::Publish { rules, rate, secs } => publish::run(ours, rules, rate, secs),
        What::Cost { rules, dashboards, secs } => cost::run(ours, rules, dashboards, secs),
    }
}
