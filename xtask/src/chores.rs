//! What each chore does, step by step.

use std::path::Path;

use crate::command::CommandLine;
use crate::steps::{Failure, Outcome, Steps};
use crate::tiers::{self, Tier};
use crate::tools::{self, ToolEnv};
use crate::{clients, dashboard, dist, docs, fuzz, library, mutants, slice};

/// Finds or installs the tools, and says where each is.
pub(crate) fn tools(root: &Path) -> Result<(), Failure> {
    let found = tools::provide(root)?;
    println!("{}", tools::listing(root, &found));
    Ok(())
}

/// The tests of a tier. The first two need no tool that is not there already.
pub(crate) fn test(root: &Path, tier: Tier) -> Result<(), Failure> {
    with_summary(|steps| {
        if tier < Tier::All {
            return steps.run("test", || tiers::run(root, tier, &ToolEnv::default()));
        }
        let found = tools_step(steps, root)?;
        steps.run("test", || tiers::run(root, tier, &found))?;
        steps.run("clients", || clients::all(root, &found))?;
        steps.run("fuzz", || fuzz::bounded(root))?;
        if tier < Tier::Nightly {
            return Ok(());
        }
        steps.run("attacks", || run(root, &attacks(&found)))?;
        steps.run("alerts", || long_alerts(root, &found, &LONG_ALERTS))?;
        steps.run("quotas", || run(root, &silent_envoys(&found)))?;
        steps.run("size", || size(root, &found))?;
        steps.run("mutants", || mutants::run(root, None).map(|()| Outcome::Done))?;
        steps.run("library", || library::all(root).map(|()| Outcome::Done))
    })
}

/// The attacks with other seeds and more acts than in CI.
fn attacks(found: &ToolEnv) -> CommandLine {
    let command = CommandLine::new(["cargo", "test", "--locked", "-p", "tidegate-cli", "--test", "attack"]);
    command
        .env("ATTACK_SEEDS", "100,101,102")
        .env("ATTACK_ACTS", "100")
        .env("ATTACK_FLOOD", "1000")
        .quiet_env(found.vars())
}

/// The alerts that compare a minute with the half hour before it.
const LONG_ALERTS: [&str; 2] = ["six_times_the_usual_requests", "begins_to_refuse_half_of_its_requests"];

/// These of them.
fn long_alerts(root: &Path, found: &ToolEnv, names: &[&str]) -> Result<Outcome, Failure> {
    let program = tiers::built(root)?.into_iter().find(|program| program.is("tidegate-cli", "it"));
    let command = program.expect("the workspace has the binary's tests").command();
    run(root, &command.args(["--ignored"]).args(names.iter().copied()).quiet_env(found.vars()))
}

/// One of them.
pub(crate) fn long_alert(root: &Path, number: usize, found: &ToolEnv) -> Result<Outcome, Failure> {
    long_alerts(root, found, &[LONG_ALERTS[number % LONG_ALERTS.len()]])
}

/// Envoys that stand still.
fn silent_envoys(found: &ToolEnv) -> CommandLine {
    let command = CommandLine::new(["cargo", "test", "--locked", "-p", "tidegate-cli", "--test", "it", "--"]);
    command.args(["--ignored", "rlqs", "--nocapture"]).quiet_env(found.vars())
}

/// Ten million callers on a release build.
fn size(root: &Path, found: &ToolEnv) -> Result<Outcome, Failure> {
    cargo(root, &["build", "--release", "--locked", "-p", "tidegate-cli"])?;
    let binary = root.join("target/release/tidegate").display().to_string();
    let command =
        CommandLine::new(["cargo", "test", "--locked", "-p", "tidegate-cli", "--test", "attack", "--"])
            .args(["--ignored", "ten_million", "--nocapture"]);
    run(root, &command.env("ATTACK_BINARY", binary).quiet_env(found.vars()))
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
        steps.run("test", || tiers::run(root, Tier::All, &found))?;
        steps.run("clients", || clients::all(root, &found))?;
        steps.run("packages", || dist::of_tests(root))?;
        steps.run("rustdoc", || rustdoc(root))?;
        steps.run("docs", || docs::build(root).map(|()| Outcome::Done))?;
        steps.run("fuzz", || fuzz::bounded(root))?;
        steps.run("slice", || slice::run(root, &found))
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

fn rustdoc(root: &Path) -> Result<Outcome, Failure> {
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
