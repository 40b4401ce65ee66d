//! What each chore does, step by step.

use std::path::Path;

use crate::command::CommandLine;
use crate::steps::{Failure, Outcome, Steps};
use crate::tools::{self, ToolEnv};
use crate::{dashboard, fuzz, library, second_try};

/// Finds or installs the tools, and says where each is.
pub(crate) fn tools(root: &Path) -> Result<(), Failure> {
    let found = tools::provide(root)?;
    println!("{}", tools::listing(root, &found));
    Ok(())
}

/// Every test there is.
pub(crate) fn test(root: &Path) -> Result<(), Failure> {
    with_summary(|steps| {
        let found = tools_step(steps, root)?;
        steps.run("test", || tests(root, &found))?;
        steps.run("fuzz", || fuzz::bounded(root))
    })
}

/// Everything that must pass before a change is accepted, quickest first.
pub(crate) fn ci(root: &Path) -> Result<(), Failure> {
    with_summary(|steps| {
        steps.run("format", || cargo(root, &["fmt", "--all", "--check"]))?;
        steps.run("package", || library::package(root))?;
        let found = tools_step(steps, root)?;
        let lints = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        steps.run("lints", || cargo(root, &lints))?;
        steps.run("deny", || deny(root))?;
        steps.run("dashboard", || dashboard::check(root))?;
        steps.run("test", || tests(root, &found))?;
        steps.run("docs", || docs(root))?;
        steps.run("fuzz", || fuzz::bounded(root))
    })
}

/// Fuzzes because someone asked for it, so being unable to is a failure and not a skip.
pub(crate) fn fuzz(root: &Path, target: Option<&str>, seconds: Option<u64>) -> Result<(), Failure> {
    fuzz::asked(root, target, seconds)
}

fn with_summary(chore: impl FnOnce(&mut Steps) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut steps = Steps::default();
    let result = chore(&mut steps);
    eprintln!("{}", steps.summary());
    result
}

fn tools_step(steps: &mut Steps, root: &Path) -> Result<ToolEnv, Failure> {
    let mut found = ToolEnv::default();
    steps.run("tools", || {
        found = tools::provide(root)?;
        Ok(Outcome::Done)
    })?;
    Ok(found)
}

/// Unit, integration and documentation tests of every crate.
///
/// Benchmarks are left out: they need `valgrind` and minutes, and clippy's `--all-targets` already compiles them.
fn tests(root: &Path, found: &ToolEnv) -> Result<Outcome, Failure> {
    let command = CommandLine::new(["cargo", "test", "--workspace", "--locked", "--no-fail-fast"]);
    second_try::tests(root, &command.quiet_env(found.vars()))
}

const CARGO_DENY: &str = "0.20.2";

/// Whose code we take, by `cargo deny`, which we install. Advisories need a database that is fetched: where it cannot be, that
/// is said, and the rest is checked all the same.
fn deny(root: &Path) -> Result<Outcome, Failure> {
    let tool = |args: &[&str]| {
        CommandLine::new(["cargo", "deny"]).args(args.iter().copied()).quiet_env(tools::installed_path(root))
    };
    if !tool(&["--version"]).succeeds(root) {
        // Without optimisation: it runs for seconds, and building it so takes a third of the time.
        let install =
            ["install", "cargo-deny", "--debug", "--locked", "--version", CARGO_DENY, "--root", ".tools"];
        cargo(root, &install)?;
    }
    run(root, &tool(&["check", "licenses", "bans", "sources"]))?;
    if !tool(&["fetch", "db"]).succeeds(root) {
        return Ok(Outcome::Skipped(
            "advisories are not looked at: their database cannot be fetched".to_owned(),
        ));
    }
    run(root, &tool(&["check", "advisories"]))
}

fn docs(root: &Path) -> Result<Outcome, Failure> {
    let command = CommandLine::new(["cargo", "doc", "--workspace", "--no-deps", "--locked"]);
    run(root, &command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn cargo(root: &Path, args: &[&str]) -> Result<Outcome, Failure> {
    run(root, &CommandLine::new(["cargo"]).args(args.iter().copied()))
}

fn run(root: &Path, command: &CommandLine) -> Result<Outcome, Failure> {
    command.run(root).map_err(|why| Failure::of_command(command, &why))?;
    Ok(Outcome::Done)
}
