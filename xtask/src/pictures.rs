//! `cargo xtask pictures`: the README's pictures of the dashboard, taken again after it has changed.
//!
//! `pictures.cjs` starts a fleet of the `release` build on a real Redis, lets traffic pass for some minutes, and has Chromium look.

use std::path::Path;

use crate::command::CommandLine;
use crate::steps::Failure;
use crate::tools;

const BUILD: [&str; 6] = ["cargo", "build", "--release", "--locked", "-p", "tidegate-cli"];

/// Writes `docs/images/overview.png` and `editor.png`. `PICTURES_BINARY` names a binary that was built before.
pub(crate) fn take(root: &Path) -> Result<(), Failure> {
    let found = tools::provide(root)?;
    let binary = match std::env::var("PICTURES_BINARY") {
        Ok(binary) => binary,
        Err(_) => {
            run(root, &CommandLine::new(BUILD))?;
            root.join("target/release/tidegate").display().to_string()
        }
    };
    let script = CommandLine::new(["node", "xtask/src/pictures.cjs"])
        .env("BINARY", binary)
        .env("REDIS", found.path("redis-server"))
        .env("CHROMIUM", found.path("chromium"))
        .env("PLAYWRIGHT", found.path("playwright-core"))
        .env("TO", root.join("docs/images").display().to_string());
    run(root, &script)
}

fn run(root: &Path, command: &CommandLine) -> Result<(), Failure> {
    command.run(root).map_err(|why| Failure::of_command(command, &why))
}
