//! The tests run real servers on as many cores as there are, and CI shares its machine: what fails in the crowd is tried once
//! more, alone. What passes only then is named in the summary, because it is a defect of the test or of what it tests.

use std::path::Path;

use crate::command::CommandLine;
use crate::steps::{Failure, Outcome};

/// More failures than this are no coincidence.
const MOST: usize = 5;

/// Runs `cargo test` with `command`'s words and variables, and the few tests that fail once more.
pub(crate) fn tests(root: &Path, command: &CommandLine) -> Result<Outcome, Failure> {
    let (first, printed) = command.run_and_read(root);
    let Err(why) = first else { return Ok(Outcome::Done) };
    let failure = Failure::of_command(command, &why);
    let Some(failed) = failed_tests(&printed) else { return Err(failure) };
    eprintln!("\n{} failed: once more, alone", failed.join(", "));
    let again = command.clone().args(["--", "--exact", "--test-threads=1"]).args(failed.iter().copied());
    let (second, printed) = again.run_and_read(root);
    second.map_err(|why| Failure::of_command(&again, &why))?;
    // A name that fits no test is no test that passed.
    let passed = |name: &&str| printed.lines().any(|line| outcome_of(line) == Some((name, "ok")));
    if failed.iter().all(passed) {
        Ok(Outcome::SecondTry(failed.iter().map(|&name| name.to_owned()).collect()))
    } else {
        Err(failure)
    }
}

/// The tests that failed, if that is all that went wrong: nothing where a test program did not come to its end, where it is
/// not a test that failed, or where too many did.
fn failed_tests(printed: &str) -> Option<Vec<&str>> {
    let count = |start: &str| printed.lines().filter(|line| line.starts_with(start)).count();
    if count("running ") != count("test result: ") {
        return None;
    }
    let failed = printed.lines().filter_map(outcome_of).filter(|(_, word)| *word == "FAILED");
    let mut names: Vec<&str> = failed.map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    (1..=MOST).contains(&names.len()).then_some(names)
}

/// A test's name and how it ended, of a line that says so.
fn outcome_of(line: &str) -> Option<(&str, &str)> {
    let (name, word) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name.trim_end_matches(" - should panic"), word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWD: &str = "running 2 tests\ntest a::passes ... ok\ntest a::slow ... FAILED\n\nfailures:\n    a::slow\n\n\
                         test result: FAILED. 1 passed; 1 failed\nrunning 0 tests\ntest result: ok. 0 passed\n";

    #[test]
    fn the_tests_that_failed_are_found_by_name() {
        assert_eq!(failed_tests(CROWD), Some(vec!["a::slow"]));
    }

    #[test]
    fn a_test_program_that_did_not_end_is_not_tried_again() {
        assert_eq!(failed_tests(&format!("{CROWD}running 3 tests\ntest b::kills ... ")), None);
    }

    #[test]
    fn what_failed_without_a_test_is_not_tried_again() {
        assert_eq!(failed_tests(""), None);
    }

    #[test]
    fn many_failures_are_no_coincidence() {
        let lines: String = (0..=MOST).map(|n| format!("test t{n} ... FAILED\n")).collect();
        assert_eq!(failed_tests(&lines), None);
    }

    /// A stand-in for `cargo test` that fails in the crowd; alone it ends with `status` and says `word` of the test.
    fn after_a_failure(status: u8, word: &str) -> Result<Outcome, Failure> {
        let script = format!(
            "case \"$*\" in *--exact*) printf 'running 1 test\\ntest a::slow ... {word}\\ntest result: x\\n'; exit {status};; esac\n\
             printf 'running 1 test\\ntest a::slow ... FAILED\\ntest result: FAILED\\n'; exit 101"
        );
        tests(Path::new("/"), &CommandLine::new(["sh", "-c", &script, "sh"]))
    }

    #[test]
    fn what_passes_alone_is_named() {
        assert_eq!(after_a_failure(0, "ok"), Ok(Outcome::SecondTry(vec!["a::slow".to_owned()])));
    }

    #[test]
    fn what_fails_alone_too_is_a_failure() {
        assert!(after_a_failure(101, "FAILED").is_err());
    }

    #[test]
    fn what_did_not_run_the_second_time_did_not_pass() {
        assert!(after_a_failure(0, "ignored").is_err());
    }
}
