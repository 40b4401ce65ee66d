//! Runs the steps of a chore in order, stops at the first failure, and says how long each took.

use std::fmt;
use std::time::Duration;

use crate::clock;

/// How a step that did not fail ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Nothing was run, for this reason.
    Skipped(String),
    /// These tests failed among all others and passed alone.
    SecondTry(Vec<String>),
}

/// Why a chore stopped, and how to see it again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) what: String,
    /// Lines for the person in front of the terminal: what to do, or the command to repeat.
    pub(crate) hint: String,
}

impl Failure {
    /// A command that failed; repeating it alone is the quickest way to see why.
    pub(crate) fn of_command(command: &impl fmt::Display, why: &str) -> Self {
        Self { what: why.to_owned(), hint: format!("repeat it with\n    {command}") }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nhint: {}", self.what, self.hint)
    }
}

/// The steps run so far.
#[derive(Default)]
pub(crate) struct Steps {
    rows: Vec<(&'static str, Duration, String)>,
}

impl Steps {
    /// Runs one step; a failure names it.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<Outcome, Failure>,
    ) -> Result<(), Failure> {
        eprintln!("\n== {name}");
        let start = clock::now();
        let result = step();
        let word = match &result {
            Ok(Outcome::Done) => "ok".to_owned(),
            Ok(Outcome::Skipped(why)) => {
                eprintln!("skipped: {why}");
                format!("skipped: {why}")
            }
            Ok(Outcome::SecondTry(tests)) => format!("ok, but only alone: {}", tests.join(", ")),
            Err(_) => "FAILED".to_owned(),
        };
        self.rows.push((name, start.elapsed(), word));
        result.map(drop).map_err(|failure| Failure { what: format!("{name}: {}", failure.what), ..failure })
    }

    /// One line per step that was started, then their total.
    pub(crate) fn summary(&self) -> String {
        let total: Duration = self.rows.iter().map(|(_, took, _)| *took).sum();
        let mut text = String::from("\nsummary\n");
        for (name, took, word) in &self.rows {
            text += &format!("  {name:<9} {:>7.1} s  {word}\n", took.as_secs_f64());
        }
        text + &format!("  {:<9} {:>7.1} s", "total", total.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing() -> Result<Outcome, Failure> {
        Err(Failure::of_command(&"cargo test", "exit status: 101"))
    }

    #[test]
    fn a_failure_names_its_step_and_the_command_to_repeat() {
        let failure = Steps::default().run("test", failing).expect_err("the step fails");
        assert_eq!(failure.to_string(), "test: exit status: 101\nhint: repeat it with\n    cargo test");
    }

    #[test]
    fn the_summary_has_one_line_per_step_with_its_outcome() {
        let mut steps = Steps::default();
        steps.run("format", || Ok(Outcome::Done)).expect("the step passes");
        steps.run("fuzz", || Ok(Outcome::Skipped("no nightly".into()))).expect("a skip is no failure");
        steps.run("test", failing).expect_err("the step fails");
        let endings: Vec<String> = steps
            .summary()
            .lines()
            .filter_map(|line| line.split_once(" s  "))
            .map(|(name, outcome)| format!("{} {outcome}", name.split_whitespace().next().unwrap()))
            .collect();
        assert_eq!(endings, ["format ok", "fuzz skipped: no nightly", "test FAILED"]);
    }
}
