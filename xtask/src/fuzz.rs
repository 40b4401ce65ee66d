//! Runs the fuzz targets of `fuzz/` for a bounded time each.
//!
//! New inputs go to `.tools/`, so that a run leaves the checkout as it was; `fuzz/corpus/TARGET` holds the committed
//! seeds and is only read. Crashes are left in `fuzz/artifacts/TARGET`, as cargo-fuzz does.

use std::fs;
use std::path::Path;

use crate::command::CommandLine;
use crate::steps::{Failure, Outcome};
use crate::tools;

const CARGO_FUZZ: &str = "0.13.2";

/// Seconds per target in the tests: enough to notice a target that no longer builds or falls over at once.
const BOUNDED_SECONDS: u64 = 8;
/// Seconds for all targets together in the tests, however many there are.
const BOUNDED_TOTAL: u64 = 180;
/// Seconds per target when asked for without a number.
const ASKED_SECONDS: u64 = 60;

/// The tier of the tests: every target briefly, or the reason why not.
pub(crate) fn bounded(root: &Path) -> Result<Outcome, Failure> {
    let targets = targets(root);
    if targets.is_empty() {
        return Ok(Outcome::Skipped("there are no fuzz targets".to_owned()));
    }
    if let Err(failure) = able(root) {
        return Ok(Outcome::Skipped(failure.to_string()));
    }
    let seconds = bounded_seconds(targets.len());
    targets.iter().try_for_each(|target| run(root, target, seconds))?;
    Ok(Outcome::Done)
}

/// The targets a person asked for.
pub(crate) fn asked(root: &Path, only: Option<&str>, seconds: Option<u64>) -> Result<(), Failure> {
    let mut targets = targets(root);
    if let Some(only) = only {
        if !targets.iter().any(|target| target == only) {
            let hint = format!("the targets are: {}", targets.join(", "));
            return Err(Failure { what: format!("there is no fuzz target `{only}`"), hint });
        }
        targets = vec![only.to_owned()];
    }
    able(root)?;
    targets.iter().try_for_each(|target| run(root, target, seconds.unwrap_or(ASKED_SECONDS)))
}

fn bounded_seconds(targets: usize) -> u64 {
    let share = BOUNDED_TOTAL / u64::try_from(targets).expect("targets are files").max(1);
    share.clamp(1, BOUNDED_SECONDS)
}

/// Each source file in `fuzz/fuzz_targets` is a target.
fn targets(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join("fuzz/fuzz_targets")) else { return Vec::new() };
    let stem = |path: &Path| Some(path.file_stem()?.to_str()?.to_owned());
    let sources = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let sources = sources.filter(|path| path.extension().is_some_and(|ext| ext == "rs"));
    let mut targets: Vec<String> = sources.filter_map(|path| stem(&path)).collect();
    targets.sort();
    targets
}

/// Fuzzing needs a nightly compiler, a C++ compiler for libFuzzer, and cargo-fuzz, which we install.
fn able(root: &Path) -> Result<(), Failure> {
    let works = |words: &[&str]| {
        CommandLine::new(words.iter().copied()).quiet_env(tools::installed_path(root)).succeeds(root)
    };
    if !works(&["cargo", "+nightly", "--version"]) {
        return Err(Failure {
            what: "fuzzing needs a nightly compiler".to_owned(),
            hint: "rustup toolchain install nightly --profile minimal".to_owned(),
        });
    }
    if !works(&["c++", "--version"]) {
        return Err(Failure {
            what: "fuzzing needs a C++ compiler".to_owned(),
            hint: "sudo apt-get install -y g++".to_owned(),
        });
    }
    if works(&["cargo-fuzz", "--version"]) {
        return Ok(());
    }
    let install = ["cargo", "install", "cargo-fuzz", "--locked", "--version", CARGO_FUZZ, "--root", ".tools"];
    let install = CommandLine::new(install);
    install.run(root).map_err(|why| Failure::of_command(&install, &why))
}

fn run(root: &Path, target: &str, seconds: u64) -> Result<(), Failure> {
    let found = format!(".tools/fuzz-corpus/{target}");
    let seeds = format!("fuzz/corpus/{target}");
    fs::create_dir_all(root.join(&found)).map_err(|error| Failure {
        what: format!("cannot create {found}: {error}"),
        hint: "make the checkout writable for you".to_owned(),
    })?;
    // libFuzzer writes to the first corpus and only reads the others.
    let corpora: Vec<String> = [found, seeds].into_iter().filter(|dir| root.join(dir).is_dir()).collect();
    // No sanitizer: there is no unsafe code of ours for one to watch, and without it building takes half the time.
    let fuzz =
        ["cargo", "+nightly", "fuzz", "run", "--sanitizer", "none", "--target-dir", "target/fuzz", target];
    let command = CommandLine::new(fuzz)
        .args(corpora)
        .args(["--", &format!("-max_total_time={seconds}"), "-timeout=10", "-rss_limit_mb=2048"])
        .quiet_env(tools::installed_path(root));
    command.run(root).map_err(|why| Failure {
        what: format!("fuzz target {target} failed ({why})"),
        hint: format!(
            "a crashing input is in fuzz/artifacts/{target}; repeat with\n    cargo xtask fuzz {target} --seconds {seconds}"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounded_tier_stays_within_its_total_however_many_targets_there_are() {
        for targets in 1..=180_usize {
            let seconds = bounded_seconds(targets);
            assert!(
                seconds >= 1 && seconds * targets as u64 <= BOUNDED_TOTAL,
                "{targets} targets x {seconds} s"
            );
        }
    }
}
