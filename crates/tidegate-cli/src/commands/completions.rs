//! `tidegate completions`: the shell script that completes our command line.

use std::io::Write as _;
use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::{Cli, CompletionsArgs};
use crate::failure::Failure;

pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
