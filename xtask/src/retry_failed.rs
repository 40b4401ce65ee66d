//! A test that fails while others run beside it is tried once more, alone: a busy machine must not cost a CI run. Its first
//! failure is printed whole and named in the summary, because it is a defect of the test or of what it tests.

use std::path::Path;

use crate::steps::{Failure, Outcome};
use crate::tiers::Ran;
use crate::tools::ToolEnv;

/// More failures than this are no coincidence.
const MOST: usize = 10;

/// Judges the test programs that ran, after trying once more what failed in them.
pub(crate) fn alone(root: &Path, ran: Vec<Ran<'_>>, found: &ToolEnv) -> Result<Outcome, Failure> {
    let mut again = Vec::new();
    for ran in ran {
        let Err(why) = &ran.ended else { continue };
        let failure = Failure::of_command(&ran.command, why);
        let Some(failed) = failed_tests(&ran.printed) else { return Err(failure) };
        let failed: Vec<String> = failed.into_iter().map(str::to_owned).collect();
        again.push((ran, failed, failure));
    }
    let names: Vec<String> = again.iter().flat_map(|(_, failed, _)| failed.clone()).collect();
    if names.is_empty() {
        return Ok(Outcome::Done);
    }
    if names.len() > MOST {
        let (_, _, failure) = again.swap_remove(0);
        return Err(Failure {
            what: format!("{} tests failed: {}", names.len(), names.join(", ")),
            ..failure
        });
    }
    let first: String = again.iter().map(|(ran, failed, _)| first_failures(&ran.printed, failed)).collect();
    for (ran, failed, failure) in again {
        let command = ran.program.command().args(["--exact", "--test-threads", "1"]).args(failed.clone());
        let (ended, printed) = command.quiet_env(found.vars()).run_captured(root);
        println!("{printed}");
        // A name that fits no test is no test that passed.
        let passed = |name: &String| printed.lines().any(|line| outcome_of(line) == Some((name, "ok")));
        if ended.is_err() || !failed.iter().all(passed) {
            return Err(failure);
        }
    }
    println!("These tests passed only alone. Their first failures:\n{first}");
    Ok(Outcome::SecondTry(names))
}

/// What the harness printed about each of `failed`, whole.
fn first_failures(printed: &str, failed: &[String]) -> String {
    let mut shown = String::new();
    for name in failed {
        let begins = format!("---- {name} stdout ----");
        let section = printed.lines().skip_while(|line| *line != begins);
        let ends =
            |line: &str| line == "failures:" || (line.starts_with("---- ") && line.ends_with(" stdout ----"));
        let section = section.enumerate().take_while(|(n, line)| *n == 0 || !ends(line));
        shown.extend(section.flat_map(|(_, line)| [line, "\n"]));
    }
    shown
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
    (!names.is_empty()).then_some(names)
}

/// A test's name and how it ended, of a line that says so.
fn outcome_of(line: &str) -> Option<(&str, &str)> {
    let (name, word) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name.trim_end_matches(" - should panic"), word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::Program;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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
    fn first_failure_is_shown_whole_and_alone() {
        let printed = "failures:\n\n---- a::slow stdout ----\nleft: 1\nright: 2\n\n---- a::other stdout ----\nno\n\nfailures:\n    a::slow\n";
        assert_eq!(
            first_failures(printed, &["a::slow".to_owned()]),
            "---- a::slow stdout ----\nleft: 1\nright: 2\n\n"
        );
    }

    /// A stand-in for test programs that fail in the crowd: `failures` tests each; alone it ends with `status` and says `word`.
    fn after_failures(tests: usize, status: u8, word: &str) -> Result<Outcome, Failure> {
        let folder =
            std::env::temp_dir().join(format!("xtask-{}-{tests}-{status}-{word}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let names: Vec<String> = (0..tests).map(|n| format!("a::slow{n}")).collect();
        let lines =
            |word: &str| names.iter().map(|name| format!("test {name} ... {word}\n")).collect::<String>();
        let script =
            format!("#!/bin/sh\ncat <<E\nrunning x\n{}test result: x\nE\nexit {status}\n", lines(word));
        let path = folder.join("program");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program::at(&folder, &path);
        let printed = format!("running x\n{}test result: FAILED\n", lines("FAILED"));
        let ran = Ran {
            program: &program,
            command: program.command(),
            ended: Err("exit status: 101".into()),
            printed,
        };
        let outcome = alone(&folder, vec![ran], &ToolEnv::default());
        fs::remove_dir_all(&folder).unwrap();
        outcome
    }

    #[test]
    fn what_passes_alone_is_named() {
        assert_eq!(after_failures(1, 0, "ok"), Ok(Outcome::SecondTry(vec!["a::slow0".to_owned()])));
    }

    #[test]
    fn what_fails_alone_too_is_a_failure() {
        assert!(after_failures(1, 101, "FAILED").is_err());
    }

    #[test]
    fn what_did_not_run_the_second_time_did_not_pass() {
        assert!(after_failures(1, 0, "ignored").is_err());
    }

    #[test]
    fn many_failures_are_no_coincidence() {
        assert!(after_failures(MOST, 0, "ok").is_ok());
        assert!(after_failures(MOST + 1, 0, "ok").is_err());
    }
}
