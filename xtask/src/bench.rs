//! Every figure we quote has one command: a row of this table.

use std::path::Path;

use crate::command::CommandLine;
use crate::steps::Failure;

/// A benchmark: what it shows, and the command that prints it.
struct Bench {
    name: &'static str,
    shows: &'static str,
    command: &'static [&'static str],
}

/// In the order of the documents that quote them.
const BENCHES: &[Bench] = &[];

/// Runs the benchmark called `name` with `rest` appended, or lists them all.
pub(crate) fn run(root: &Path, name: Option<&str>, rest: &[String]) -> Result<(), Failure> {
    let Some(name) = name else {
        println!("{}", listing());
        return Ok(());
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        return Err(Failure { what: format!("there is no benchmark `{name}`"), hint: listing() });
    };
    let command = CommandLine::new(bench.command.iter().copied()).args(rest.iter().cloned());
    command.run(root).map_err(|why| Failure::of_command(&command, &why))
}

fn listing() -> String {
    if BENCHES.is_empty() {
        return "no benchmarks are registered yet".to_owned();
    }
    let rows = BENCHES.iter().map(|bench| format!("\n  {:<16} {}", bench.name, bench.shows));
    format!("run one with `cargo xtask bench NAME`:{}", rows.collect::<String>())
}
