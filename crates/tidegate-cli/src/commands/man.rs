//! `tidegate man`: the manual, generated from the help texts.

use std::fs;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::args::{Cli, ManArgs};
use crate::failure::Failure;

pub(crate) fn run(args: &ManArgs) -> Result<ExitCode, Failure> {
    let command = Cli::command().disable_help_subcommand(true);
    match &args.dir {
        None => io::stdout().lock().write_all(&page(command)?)?,
        // tidegate.1, and tidegate-serve.1 and so on for the subcommands.
        Some(dir) => fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir)).map_err(
            |error| {
                Failure::new(format!("cannot write manual pages into {}: {error}", dir.display()))
                    .hint("name a directory you may write to")
            },
        )?,
    }
    Ok(ExitCode::SUCCESS)
}

fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
