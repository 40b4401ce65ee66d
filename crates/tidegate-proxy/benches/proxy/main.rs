//! What our reverse proxy adds to a request's latency, beside what nginx adds.
//!
//! `cargo bench -p tidegate-proxy --bench proxy` asks a small server directly, through nginx and through our proxy (this
//! program again, with a rule that is checked for every request), one request after another on one connection, and
//! alternates between them. Each way keeps its connections. The proxies share one core; client and server share the other.
//! What a proxy adds is the median of its latencies less the median of the direct ones of the same round.

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
    /// Forward to a server.
    Serve {
        /// Where it is.
        upstream: SocketAddr,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    match arguments.server {
        Some(Server::Serve { upstream }) => serve::run(upstream),
        None if arguments.bench => measure::run(&arguments.measure),
        None => Ok(()),
    }
}
