//! CL.THROTTLE on our server beside PING on redis-server, which decides nothing.
//!
//! `cargo bench -p tidegate-server --bench resp` starts both on one core and redis-benchmark on another, alternates between
//! them, and prints decisions per second, CPU time per decision, and the ratio to Redis's PING at the same pipeline. Our
//! server is this program again (`serve`: memory store, no rules), or the binary that `--ours` names. Absolute figures move
//! from machine to machine and from minute to minute; the ratio of two neighbouring runs hardly does. Where a server is
//! not busy all the time, redis-benchmark was the slower one, and the CPU time tells more than the rate.

#![expect(clippy::print_stdout, reason = "the report is the purpose")]

mod measure;
mod serve;

use std::error::Error;
use std::net::SocketAddr;

use clap::{Parser, Subcommand};

// The allocator of the tidegate binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    server: Option<Server>,
    #[command(flatten)]
    measure: measure::Options,
    /// What `cargo bench` passes; without it (`cargo test --benches`) nothing is measured.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Server {
    /// Serve the Redis protocol on a memory store.
    Serve {
        /// Where to listen; port 0 takes a free one.
        #[arg(long, default_value = "127.0.0.1:0")]
        resp: SocketAddr,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    match arguments.server {
        Some(Server::Serve { resp }) => serve::run(resp),
        None if arguments.bench => measure::run(&arguments.measure),
        None => Ok(()),
    }
}
