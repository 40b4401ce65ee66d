//! Which test programs belong to which tier, and how they share the machine.
//!
//! One build serves every tier. A tier then runs some of the built programs, two at a time: most tests wait for a server, a
//! heartbeat or a timeout, so more of them than cores run at once. Tests that measure speed run afterwards, with nothing beside
//! them.

use std::path::Path;
use std::sync::Mutex;
use std::thread;

use crate::command::CommandLine;
use crate::retry_failed;
use crate::steps::{Failure, Outcome};
use crate::tools::ToolEnv;

/// How much is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// Unit, property and simulator tests: no server.
    NoServers,
    /// And those that need one Redis.
    OneRedis,
    /// Every test that CI runs.
    All,
    /// And what takes minutes or hours each.
    Nightly,
}

impl Tier {
    pub(crate) fn numbered(number: &str) -> Option<Self> {
        Some(match number {
            "0" => Self::NoServers,
            "1" => Self::OneRedis,
            "2" => Self::All,
            "3" => Self::Nightly,
            _ => return None,
        })
    }
}

/// Integration tests that need less than every server, by package, and what in them needs more.
const TIERED: [(&str, Tier, &[&str]); 16] = [
    ("xtask", Tier::NoServers, &[]),
    ("tidegate-core", Tier::NoServers, &[]),
    ("tidegate-decisions", Tier::NoServers, &[]),
    ("tidegate-http", Tier::NoServers, &[]),
    ("tidegate-limiter", Tier::NoServers, &[]),
    ("tidegate-rules", Tier::NoServers, &[]),
    ("tidegate-store", Tier::NoServers, &[]),
    ("tidegate-telemetry", Tier::NoServers, &[]),
    ("tidegate-tower", Tier::NoServers, &[]),
    ("tidegate-replay", Tier::NoServers, &["nginx::", "gateways::"]),
    ("tidegate-runtime", Tier::NoServers, &[]),
    ("tidegate-proxy", Tier::NoServers, &["real_servers::"]),
    ("tidegate-server", Tier::OneRedis, &["clients::"]),
    ("tidegate-store-redis", Tier::OneRedis, &["cluster::", "sentinel::", "sharded::", "cross_slot::"]),
    ("tidegate", Tier::OneRedis, &["room::"]),
    ("tidegate-client", Tier::OneRedis, &[]),
];

/// Unit tests that start a Redis, and the only ones that start a server.
const UNIT_TESTS_ON_REDIS: &str = "alert_watcher::tests::";

/// Tests that measure: of speed, of memory, of who comes first under load. They run after all others, with nothing beside them.
pub(crate) const MEASURING: [(&str, &[&str]); 7] = [
    (
        "tidegate-cli",
        &[
            "control_load::",
            "dynamodb_store::",
            "many_rules::",
            "memcached_store::",
            "memory::",
            "overload::",
            "postgres_store::",
            "redis_faults::",
            "redis_gray::",
            "redis_heal::",
            "redis_load::",
            "redis_overload::",
            "redis_regions::",
            "redis_topologies::",
            "rlqs::",
        ],
    ),
    (
        "tidegate-admin",
        &[
            "many_overrides::",
            "jobs_of_clients_that_hang_up_end_and_are_not_waited_for",
            "replays_of_clients_that_hang_up_end_and_are_not_waited_for",
            "two_nodes_on_one_database_converge_within_two_seconds",
        ],
    ),
    ("tidegate-client", &["processes::"]),
    ("tidegate-proxy", &["floods::", "upstreams::"]),
    ("tidegate-server", &["waiting::"]),
    (
        "tidegate-store-redis",
        &["expiry::", "planned_failover_loses_next_to_nothing_where_a_master_needs_its_replica"],
    ),
    ("tidegate-testkit", &["fault_proxy::"]),
];

/// Programs at a time, and tests at a time in each of them: more than cores, as most tests wait.
const PROGRAMS: usize = 2;
const THREADS: &str = "3";
/// Tests at a time in a program that has the machine for itself.
const THREADS_ALONE: &str = "2";

/// Each attack needs the whole machine, and so does a browser.
const ALONE: [&str; 2] = ["attack", "dashboard"];

/// A program made of a crate's tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// `it`, `attack`, or the library's or the binary's name.
    target: String,
    /// Unit tests, next to the code.
    unit: bool,
    folder: String,
    path: String,
}

impl Program {
    /// Of a line of `cargo test --no-run --message-format=json`, if it is about a test program.
    fn of_message(line: &str) -> Option<Self> {
        let after = |key: &str| line.split_once(&format!("\"{key}\":")).map(|(_, rest)| rest);
        let text = |key: &str| Some(after(key)?.strip_prefix('"')?.split_once('"')?.0.to_owned());
        let is_test = after("profile")?.split_once('}')?.0.contains("\"test\":true");
        let path = text("executable")?;
        let folder = text("manifest_path")?.strip_suffix("/Cargo.toml")?.to_owned();
        let package = folder.rsplit('/').next()?.to_owned();
        let unit = !after("kind")?.starts_with("[\"test\"]");
        is_test.then_some(Self { package, target: text("name")?, unit, folder, path })
    }

    pub(crate) fn is(&self, package: &str, target: &str) -> bool {
        self.package == package && self.target == target
    }

    /// A stand-in.
    #[cfg(test)]
    pub(crate) fn at(folder: &Path, path: &Path) -> Self {
        let text = |path: &Path| path.display().to_string();
        Self { package: "p".into(), target: "it".into(), unit: false, folder: text(folder), path: text(path) }
    }

    /// What is left out of it in `tier`; nothing where all of it is.
    fn left_out(&self, tier: Tier) -> Option<&'static [&'static str]> {
        if tier >= Tier::All {
            return Some(&[]);
        }
        if self.unit {
            return Some(if tier == Tier::NoServers { &[UNIT_TESTS_ON_REDIS] } else { &[] });
        }
        let row = TIERED.iter().find(|(package, ..)| *package == self.package);
        row.filter(|(_, from, _)| *from <= tier).map(|(_, _, more)| *more)
    }

    fn measuring(&self) -> &'static [&'static str] {
        let row = MEASURING.iter().find(|(package, _)| self.is(package, "it"));
        row.map_or(&[], |(_, names)| *names)
    }

    /// The longest ones first, so that none is left alone at the end.
    fn rank(&self) -> (bool, usize) {
        let order = ["tidegate-cli", "tidegate-server", "tidegate-store-redis", "tidegate-admin"];
        let place = order.iter().position(|package| *package == self.package).unwrap_or(order.len());
        // The command line's unit tests wait for minutes too.
        (self.unit && place > 0, place)
    }

    pub(crate) fn command(&self) -> CommandLine {
        // Cargo says so too; what we inherit is about xtask.
        let here = ("CARGO_MANIFEST_DIR".to_owned(), self.folder.clone());
        CommandLine::new([self.path.as_str()]).within(&self.folder).quiet_env([here])
    }
}

/// Builds every test program, and runs those of `tier`; the few that fail once more, alone.
pub(crate) fn run(root: &Path, tier: Tier, found: &ToolEnv) -> Result<Outcome, Failure> {
    let programs = built(root)?;
    let (mut crowd, mut alone) = (Vec::new(), Vec::new());
    for program in &programs {
        let Some(left_out) = program.left_out(tier) else { continue };
        let command = program.command().args(skip(left_out)).quiet_env(found.vars());
        let quietly = command.clone().args(["--test-threads", THREADS_ALONE]);
        if ALONE.contains(&program.target.as_str()) {
            alone.push((program, quietly));
            continue;
        }
        let measuring = program.measuring();
        crowd.push((program, command.args(["--test-threads", THREADS]).args(skip(measuring))));
        if !measuring.is_empty() {
            alone.push((program, quietly.args(measuring.iter().copied())));
        }
    }
    let mut ran = at_once(root, &crowd, PROGRAMS);
    ran.extend(at_once(root, &alone, 1));
    let outcome = retry_failed::alone(root, ran, found)?;
    if tier >= Tier::All {
        let doc = CommandLine::new(["cargo", "test", "--workspace", "--locked", "--no-fail-fast", "--doc"]);
        doc.run(root).map_err(|why| Failure::of_command(&doc, &why))?;
    }
    Ok(outcome)
}

fn skip<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().flat_map(|name| ["--skip", *name]).collect()
}

/// Every test program of the workspace, built, the longest first.
///
/// Benchmarks are left out: they need `valgrind` and minutes, and clippy's `--all-targets` already compiles them.
pub(crate) fn built(root: &Path) -> Result<Vec<Program>, Failure> {
    let build = CommandLine::new(["cargo", "test", "--workspace", "--locked", "--no-run"])
        .args(["--message-format", "json-render-diagnostics"]);
    let (done, messages) = build.run_captured(root);
    done.map_err(|why| Failure::of_command(&build, &why))?;
    let mut programs: Vec<Program> = messages.lines().filter_map(Program::of_message).collect();
    programs.sort_by_key(|program| (program.rank(), program.package.clone(), program.target.clone()));
    Ok(programs)
}

/// A test program that ran: how it ended, and what it printed.
pub(crate) struct Ran<'a> {
    pub(crate) program: &'a Program,
    pub(crate) command: CommandLine,
    pub(crate) ended: Result<(), String>,
    pub(crate) printed: String,
}

/// Runs `commands`, up to `most` at a time, and prints what each printed when it has ended.
fn at_once<'a>(root: &Path, commands: &[(&'a Program, CommandLine)], most: usize) -> Vec<Ran<'a>> {
    let waiting = Mutex::new(commands.iter());
    let ran = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("no lane panics").next();
    thread::scope(|scope| {
        for _ in 0..most {
            scope.spawn(|| {
                while let Some((program, command)) = next() {
                    let (ended, printed) = command.run_captured(root);
                    let mut ran = ran.lock().expect("no lane panics");
                    println!("     Running {} {}\n{printed}", program.package, program.target);
                    ran.push(Ran { program, command: command.clone(), ended, printed });
                }
            });
        }
    });
    ran.into_inner().expect("no lane panics")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened from what cargo prints.
    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///c/crates/tidegate-core#0.1.0","manifest_path":"/c/crates/tidegate-core/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"it","src_path":"/c/crates/tidegate-core/tests/it/main.rs","test":true},"profile":{"opt_level":"1","test":true},"features":[],"executable":"/c/target/debug/deps/it-1","fresh":true}"#;

    #[test]
    fn test_program_is_read_from_cargos_message() {
        let program = Program::of_message(MESSAGE).unwrap();
        assert_eq!((program.package.as_str(), program.target.as_str()), ("tidegate-core", "it"));
        assert_eq!((program.unit, program.path.as_str()), (false, "/c/target/debug/deps/it-1"));
        assert_eq!(program.command().to_string(), "cd /c/crates/tidegate-core && /c/target/debug/deps/it-1");
    }

    #[test]
    fn example_is_no_test_program() {
        assert_eq!(Program::of_message(&MESSAGE.replace(r#""1","test":true"#, r#""1","test":false"#)), None);
    }

    #[test]
    fn tiers_only_grow() {
        let it = |package: &str| Program { package: package.into(), ..Program::of_message(MESSAGE).unwrap() };
        let tiers = [Tier::NoServers, Tier::OneRedis, Tier::All];
        let runs = |package| tiers.map(|tier| it(package).left_out(tier).is_some());
        assert_eq!(runs("tidegate-core"), [true, true, true]);
        assert_eq!(runs("tidegate-store-redis"), [false, true, true]);
        assert_eq!(runs("tidegate-cli"), [false, false, true]);
    }

    #[test]
    fn unit_tests_start_no_server_but_those_named() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let servers =
            "tidegate_testkit::.*\\b(Caddy|Envoy|Memcached|Nginx|Postgres|Redis|Sentinel|TidegateServer)";
        let grep = CommandLine::new(["git", "grep", "--name-only", "-E", servers, "--", "crates/*/src/*"]);
        let (_, found) = grep.run_captured(root);
        let files: Vec<&str> =
            found.lines().filter(|file| !file.starts_with("crates/tidegate-testkit/")).collect();
        let folder = UNIT_TESTS_ON_REDIS.trim_end_matches("::").replace("::", "/");
        assert!(files.len() == 1 && files[0].ends_with(&format!("{folder}.rs")), "{files:?}");
    }

    #[test]
    fn tables_name_modules_and_tests_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let left_out = TIERED.iter().map(|(package, _, names)| (*package, *names));
        for (package, names) in left_out.chain(MEASURING) {
            for name in names {
                let last = name.trim_end_matches("::").rsplit("::").next().unwrap();
                let word = if name.ends_with("::") { format!("mod {last};") } else { format!("fn {last}()") };
                let grep = ["git", "grep", "--quiet", "-F", &word, "--"];
                let grep = CommandLine::new(grep).args([format!("crates/{package}/tests")]);
                assert!(grep.succeeds(root), "{package} has no `{word}`");
            }
        }
    }
}
