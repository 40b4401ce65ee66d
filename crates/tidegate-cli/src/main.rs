//! The `tidegate` binary: the composition root, and the only crate that names a concrete store.
//!
//! `args` is the command line as typed; `commands` has one file per subcommand. Requests are not decided here, but in the
//! limiter.

mod args;
mod clock;
mod commands;
mod endpoint;
mod failure;
mod logging;
mod reload;
mod repeats;
mod rules;
mod settings;
mod stores;
mod terminal;
mod unread;
mod usage;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command};
use failure::Failure;

/// Measured against jemalloc and the system's allocator: the data plane allocates small and often, from several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => run(cli.command).unwrap_or_else(|failure| failure.report()),
        Err(error) => usage::report(&error),
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Bench(args) => commands::bench::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Import(args) => commands::import::run(&args),
        Command::Keys(args) => commands::keys::run(&args),
        Command::Login(args) => commands::login::run(&args),
        Command::Man(args) => commands::man::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Rules(args) => commands::rules::run(&args),
        Command::Schema(args) => commands::schema::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Validate(args) => commands::validate::run(&args),
        Command::Why(args) => commands::why::run(&args),
    }
}
