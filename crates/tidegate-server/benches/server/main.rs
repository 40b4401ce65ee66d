//! What a request costs the server, next to a server that decides nothing.
//!
//! `cargo xtask bench server` starts our binary and the two references (`bare-tonic`, `bare-axum`: this program again)
//! on one core and `tidegate bench` on another, alternates between them, and prints CPU time per request and its ratio. Absolute figures move from machine to machine and from
//! minute to minute; the ratio of two neighbouring runs hardly does.

#![expect(clippy::print_stdout, reason = "the report is the purpose")]

mod bare_axum;
mod bare_tonic;
mod measure;
mod process;

use clap::{Parser, Subcommand};
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_runtime::{DataPlane, Listener, Protocol, Settings};

// The allocator of the tidegate binary: a reference with another one would not be a reference.
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
    /// Serve ShouldRateLimit with tonic, and always answer OK.
    BareTonic(Listen),
    /// Serve POST /v1/check with axum, and always answer the same.
    BareAxum(Listen),
}

#[derive(clap::Args)]
struct Listen {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    match arguments.server {
        Some(Server::BareTonic(at)) => serve("grpc", at.listen, || Arc::new(bare_tonic::BareTonic::start())),
        Some(Server::BareAxum(at)) => serve("http", at.listen, || Arc::new(bare_axum::BareAxum::new())),
        None if arguments.bench => measure::run(&arguments.measure),
        None => Ok(()),
    }
}

fn serve(
    name: &'static str,
    address: SocketAddr,
    make: impl Fn() -> Arc<dyn Protocol> + Send + Sync + 'static,
) -> Result<(), Box<dyn std::error::Error>> {
    let listener = Listener::bind(name, address, move |_| make())?;
    let plane = DataPlane::start(&Settings::default(), vec![listener])?;
    for (name, address) in plane.addresses() {
        println!("listening {name} {address}");
    }
    loop {
        std::thread::park();
    }
}
