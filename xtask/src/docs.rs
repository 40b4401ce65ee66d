//! The documentation as a site: mdBook over docs/, whose table of contents is docs/SUMMARY.md.
//!
//! mdBook is compiled once, into `.tools/`, because no package manager that we use has it: a minute on two cores. The tidy tests
//! check that every page is listed and every link and anchor leads somewhere.

use std::path::Path;

use crate::command::CommandLine;
use crate::steps::Failure;

/// The release that docs/book.toml is written for.
const VERSION: &str = "0.5.4";
const TOOL: &str = ".tools/mdbook";

/// Builds the site in target/book.
pub(crate) fn build(root: &Path) -> Result<(), Failure> {
    let program = format!("{TOOL}/bin/mdbook");
    let has_it = |program: &str| CommandLine::new([program, "--version"]).succeeds(root);
    let program = match std::env::var("TIDEGATE_TOOL_MDBOOK") {
        Ok(own) => own,
        Err(_) if has_it(&program) => program,
        Err(_) => {
            let install = ["cargo", "install", "mdbook", "--locked", "--version", VERSION, "--root", TOOL];
            let features = ["--no-default-features", "--features", "search"];
            run(root, &CommandLine::new(install).args(features))?;
            program
        }
    };
    run(root, &CommandLine::new([&*program, "build", "docs"]))
}

fn run(root: &Path, command: &CommandLine) -> Result<(), Failure> {
    command.run(root).map_err(|why| Failure::of_command(command, &why))
}
