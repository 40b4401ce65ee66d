//! The project's chores, as `cargo xtask`: one command for a newcomer, and the same one for CI.
//!
//! It only runs other programs, and has no dependencies: it is the first thing a newcomer compiles. Nothing of the
//! product lives here, and no step hides in a shell script.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks to a terminal")]

mod args;
mod bench;
mod chores;
mod clients;
mod clock;
mod command;
mod dashboard;
mod dist;
mod docs;
mod fuzz;
mod library;
mod loc;
mod mutants;
mod pictures;
mod redises;
mod retry_failed;
mod slice;
mod steps;
mod tiers;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::Chore;

fn main() -> ExitCode {
    let chore = match args::parse(std::env::args().skip(1)) {
        Ok(chore) => chore,
        Err(mistake) => {
            eprintln!("error: {mistake}\n\n{}", args::HELP);
            return ExitCode::from(2);
        }
    };
    let root = root();
    let done = match chore {
        Chore::Help => {
            println!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Chore::Test { tier } => chores::test(&root, tier),
        Chore::Ci => chores::ci(&root),
        Chore::Tools => chores::tools(&root),
        Chore::Clients { only } => clients::asked(&root, only.as_deref()),
        Chore::Dashboard => dashboard::build(&root),
        Chore::Docs => docs::build(&root),
        Chore::Pictures => pictures::take(&root),
        Chore::Redises { only } => redises::run(&root, only.as_deref()),
        Chore::Library => library::all(&root),
        Chore::Dist { check } => dist::run(&root, check),
        Chore::Loc => loc::print(&root),
        Chore::Compare => library::compare(&root),
        Chore::Fuzz { target, seconds } => chores::fuzz(&root, target.as_deref(), seconds),
        Chore::Mutants { only } => mutants::run(&root, only.as_deref()),
        Chore::Bench { name, rest } => bench::run(&root, name.as_deref(), &rest),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nerror: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The checkout: the folder above this crate.
///
/// Cargo says at run time where the crate is; the compiled-in path only serves someone who runs the binary by hand.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).parent().expect("xtask lives in the workspace root").to_owned()
}
