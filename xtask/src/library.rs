//! What a library that others build on must keep: packages that can be published, features in every combination, the oldest
//! compiler it names, and how it compares with others.

use std::fs;
use std::path::Path;

use crate::command::CommandLine;
use crate::steps::{Failure, Outcome, Steps};

/// The oldest compiler that the library crates promise to build with.
const OLDEST: &str = "1.88.0";

/// Packages every library crate as `cargo publish` would, without building it: seconds, so that CI can do it.
pub(crate) fn package(root: &Path) -> Result<Outcome, Failure> {
    run(root, packaging(root, ["package", "--no-verify"])?)
}

/// All that is too slow for CI: packages built as users get them, every combination of features, the oldest compiler.
pub(crate) fn all(root: &Path) -> Result<(), Failure> {
    let mut steps = Steps::default();
    let done = steps
        .run("publish", || publish(root))
        .and_then(|()| steps.run("oldest", || oldest(root)))
        .and_then(|()| steps.run("features", || features(root, None)))
        .and_then(|()| steps.run("binary", || binary(root)));
    eprintln!("{}", steps.summary());
    done
}

/// In a folder of its own each time: Cargo keeps what it has once unpacked of a version at a path, also when that has changed.
fn publish(root: &Path) -> Result<Outcome, Failure> {
    let _ = fs::remove_dir_all(root.join("target/publish"));
    let target = format!("target/publish/{}", std::process::id());
    run(root, packaging(root, ["publish", "--dry-run"])?.args(["--target-dir", &target]))
}

fn packaging(root: &Path, words: [&str; 2]) -> Result<CommandLine, Failure> {
    let libraries = libraries(root)?;
    let crates = libraries.iter().flat_map(|library| ["-p", &library.name]);
    Ok(CommandLine::new(["cargo"]).args(words).args(["--quiet", "--allow-dirty", "--locked"]).args(crates))
}

/// A crate that users of the library build.
struct Library {
    name: String,
    manifest: String,
}

impl Library {
    /// Its features with what each turns on, as the manifest writes them, without the default.
    fn features(&self) -> Vec<(&str, &str)> {
        let section =
            self.manifest.split("\n[features]\n").nth(1).and_then(|after| after.split("\n[").next());
        let lines = section.into_iter().flat_map(str::lines).filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| line.split_once(" = ")).filter(|(name, _)| *name != "default").collect()
    }
}

/// The crates that are published, in the order of their names.
fn libraries(root: &Path) -> Result<Vec<Library>, Failure> {
    let unread = |error: std::io::Error| Failure {
        what: format!("the crates cannot be listed: {error}"),
        hint: "run it in a checkout".to_owned(),
    };
    let mut all = Vec::new();
    for folder in fs::read_dir(root.join("crates")).map_err(unread)? {
        let folder = folder.map_err(unread)?;
        let manifest = fs::read_to_string(folder.path().join("Cargo.toml")).map_err(unread)?;
        if manifest.contains("\npublish = true\n") {
            all.push(Library { name: folder.file_name().to_string_lossy().into_owned(), manifest });
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

pub(crate) fn oldest(root: &Path) -> Result<Outcome, Failure> {
    let toolchain = format!("+{OLDEST}");
    if !CommandLine::new(["cargo", &toolchain, "--version"]).succeeds(root) {
        return Ok(Outcome::Skipped(format!("rustup toolchain install {OLDEST} --profile minimal")));
    }
    let check = ["check", "--quiet", "--locked", "-p", "tidegate", "--all-features", "--target-dir"];
    run(root, CommandLine::new(["cargo", &toolchain]).args(check).args(["target/oldest"]))
}

/// Checks every library crate with every combination of its features that differ, away from what people build; or with every
/// n-th of them, from the one at a place on.
pub(crate) fn features(root: &Path, slice: Option<(usize, usize)>) -> Result<Outcome, Failure> {
    let libraries = libraries(root)?;
    let (first, every) = slice.unwrap_or((0, 1));
    for (name, features) in libraries.iter().flat_map(checked).skip(first).step_by(every) {
        check(root, name, &features)?;
    }
    Ok(Outcome::Done)
}

/// The binary without any of the stores that it can be without, and with one of them.
fn binary(root: &Path) -> Result<Outcome, Failure> {
    for features in ["", "memcached"] {
        check(root, "tidegate-cli", features)?;
    }
    Ok(Outcome::Done)
}

fn check(root: &Path, name: &str, features: &str) -> Result<Outcome, Failure> {
    let check = ["cargo", "check", "--quiet", "--locked", "--target-dir", "target/library", "-p", name];
    run(root, CommandLine::new(check).args(["--no-default-features", "--features", features]))
}

/// The combinations of a crate's features that are checked: of the facade those that differ, of the others every subset.
fn checked(library: &Library) -> Vec<(&str, String)> {
    let features = library.features();
    let all = match (library.name.as_str(), features.is_empty()) {
        ("tidegate", _) => combinations(&features),
        // It is checked with those that use it.
        (_, true) => Vec::new(),
        _ => subsets(&features.iter().map(|(name, _)| *name).collect::<Vec<_>>()).collect(),
    };
    all.into_iter().map(|features| (library.name.as_str(), features)).collect()
}

/// Every subset, the empty one first.
fn subsets(features: &[&str]) -> impl Iterator<Item = String> {
    (0..1_usize << features.len()).map(move |chosen| {
        let is_chosen = |place: &usize| chosen >> place & 1 == 1;
        let names: Vec<&str> = (0..features.len()).filter(is_chosen).map(|place| features[place]).collect();
        names.join(",")
    })
}

/// The facade's: what implies another is left out beside it.
fn combinations(features: &[(&str, &str)]) -> Vec<String> {
    // What re-exports a module, and changes nothing else: alone, and beside all others.
    let is_store =
        |(name, brings): &&(&str, &str)| brings.contains("tidegate-store-") && !name.starts_with("redis");
    let stores: Vec<String> = features.iter().filter(is_store).map(|(name, _)| (*name).to_owned()).collect();
    let with_all = format!("memory,redis-tls,{},axum,tonic,jwt,tracing,conformance", stores.join(","));
    let mut all = [vec!["conformance".to_owned(), with_all], stores].concat();
    for memory in ["", "memory"] {
        for redis in ["", "redis", "redis-tls"] {
            for middleware in ["", "tower", "axum", "tonic", "axum,tonic"] {
                for jwt in ["", "jwt"] {
                    for tracing in ["", "tracing"] {
                        let chosen: Vec<&str> = [memory, redis, middleware, jwt, tracing]
                            .into_iter()
                            .filter(|name| !name.is_empty())
                            .collect();
                        all.push(chosen.join(","));
                    }
                }
            }
        }
    }
    all
}

/// Libraries that are compared, each with the folder of its project.
const COMPARED: [&str; 4] = ["tidegate", "governor", "tower_governor", "limitador"];

/// What is measured of each. A project prints the last two.
const FIGURES: [&str; 4] = [
    "crates pulled",
    "cold release build, CPU seconds",
    "ns per check, 1,000 keys",
    "ns per check, 100,000 keys",
];

/// What each project may do, in the order of the table.
const TASKS: [&str; 6] = [
    "100 a minute for each user",
    "10 a second, 50 at once",
    "when to come back",
    "an axum service, by client address, with headers",
    "one limit for several processes",
    "another limit while requests are decided, counters kept",
];

/// A task that is counted and not compiled, in the project of a library: all others are compiled too.
const NOT_COMPILED: (&str, &str, &str) = (
    "limitador",
    "one limit for several processes",
    "the Redis storage of 0.14.0 calls its module `bin`, which it has beside `disk_storage` alone, so it builds only with RocksDB",
);

/// Builds the projects under `examples/compare`, and prints the table that the docs quote.
pub(crate) fn compare(root: &Path) -> Result<(), Failure> {
    let mut columns = Vec::new();
    for name in COMPARED {
        let (project, target) =
            (root.join("examples/compare").join(name), root.join("target/compare").join(name));
        let column = compared(name, &project, &target)?;
        // At once: minutes of work would be lost with the next project that does not build.
        eprintln!("{name}: {}", column.join(", "));
        columns.push(column);
    }
    println!("| | {} |\n|---|{}", COMPARED.join(" | "), "---:|".repeat(COMPARED.len()));
    for (place, title) in FIGURES.into_iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|column| column[place].as_str()).collect();
        println!("| {title} | {} |", cells.join(" | "));
    }
    for (place, task) in TASKS.iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|column| column[FIGURES.len() + place].as_str()).collect();
        println!("| lines: {task} | {} |", cells.join(" | "));
    }
    println!("\n\\* counted, not compiled: {}", NOT_COMPILED.2);
    Ok(())
}

/// The figures of one project: crates, seconds, nanoseconds, and lines per task.
fn compared(name: &str, project: &Path, target: &Path) -> Result<Vec<String>, Failure> {
    let target_dir = target.display().to_string();
    let _ = fs::remove_dir_all(target);
    let tree = ["cargo", "tree", "--quiet", "-e", "normal", "--prefix", "none", "--format", "{p}"];
    let listing = output(project, CommandLine::new(tree))?;
    let mut crates: Vec<&str> = listing.lines().filter_map(|line| line.split(' ').next()).collect();
    crates.sort_unstable();
    crates.dedup();
    let before = cpu_seconds();
    run(project, CommandLine::new(["cargo", "build", "--quiet", "--release", "--target-dir", &target_dir]))?;
    let seconds = cpu_seconds().saturating_sub(before);
    let build = CommandLine::new(["cargo", "run", "--quiet", "--release", "--target-dir", &target_dir]);
    let nanoseconds = output(project, build)?;
    // What is counted is also compiled, with all that its tasks need, unless that takes a C++ compiler half an hour.
    if name != NOT_COMPILED.0 {
        let check = ["cargo", "check", "--quiet", "--all-features", "--target-dir", &target_dir];
        run(project, CommandLine::new(check))?;
    }
    let source = fs::read_to_string(project.join("src/main.rs")).map_err(|error| Failure {
        what: format!("{}: {error}", project.display()),
        hint: "run it in a checkout".to_owned(),
    })?;
    let others = crates.iter().filter(|name| !name.starts_with("compare-")).count();
    let mut nanoseconds = nanoseconds.lines();
    let mut next = || nanoseconds.next().unwrap_or("—").to_owned();
    let figures = [others.to_string(), seconds.to_string(), next(), next()];
    Ok(figures.into_iter().chain(TASKS.iter().map(|task| lines_cell(name, &source, task))).collect())
}

/// How many lines a task takes, marked where they are not compiled.
fn lines_cell(name: &str, source: &str, task: &str) -> String {
    let mark = if name == NOT_COMPILED.0 && task == NOT_COMPILED.1 { "\\*" } else { "" };
    lines_of(source, task) + mark
}

/// The lines between `// task: NAME` and `// end`, or a dash.
fn lines_of(source: &str, task: &str) -> String {
    let start = format!("// task: {task}");
    let mut lines = source.lines().skip_while(|line| *line != start).skip(1).peekable();
    if lines.peek().is_none() {
        return "—".to_owned();
    }
    lines.take_while(|line| *line != "// end").count().to_string()
}

/// What the programs that were run so far have used of processors: how long a build takes however busy the machine is.
fn cpu_seconds() -> u64 {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // The 16th and 17th field of the line, of which the name is the second.
    let ticks = after_name.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok());
    ticks.sum::<u64>() / TICKS_PER_SECOND
}

fn output(dir: &Path, command: CommandLine) -> Result<String, Failure> {
    command.output(dir).ok_or_else(|| Failure::of_command(&command, "it failed"))
}

fn run(dir: &Path, command: CommandLine) -> Result<Outcome, Failure> {
    command.run(dir).map_err(|why| Failure::of_command(&command, &why))?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_libraries() -> Vec<Library> {
        libraries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap()
    }

    #[test]
    fn every_combination_is_checked_once() {
        let libraries = all_libraries();
        let facade = libraries.iter().find(|library| library.name == "tidegate").unwrap();
        let all: Vec<String> = checked(facade).into_iter().map(|(_, features)| features).collect();
        let mut different = all.clone();
        different.sort();
        different.dedup();
        assert!(all.len() > 120 && different.len() == all.len(), "{} of {}", different.len(), all.len());
        for some in ["", "postgres", "postgres-tls", "memory,redis-tls,axum,tonic,jwt,tracing"] {
            assert!(all.contains(&some.to_owned()), "{some}");
        }
    }

    #[test]
    fn every_feature_of_every_library_crate_is_checked() {
        let libraries = all_libraries();
        for library in &libraries {
            let all = checked(library);
            for (feature, _) in library.features() {
                let is_checked = all.iter().any(|(_, some)| some.split(',').any(|name| name == feature));
                assert!(is_checked, "{}: {feature}", library.name);
            }
        }
        let store = libraries.iter().find(|library| library.name == "tidegate-store").unwrap();
        let names: Vec<String> = checked(store).into_iter().map(|(_, some)| some).collect();
        assert_eq!(names, ["", "conformance", "counter", "conformance,counter"]);
    }

    #[test]
    fn crates_that_are_published_are_those_that_users_build() {
        let libraries = all_libraries();
        let has = |name: &str| libraries.iter().any(|library| library.name == name);
        assert!(has("tidegate") && has("tidegate-core") && has("tidegate-store-redis"));
        assert!(!has("tidegate-cli") && !has("tidegate-testkit"));
    }

    #[test]
    fn the_comparison_quotes_the_lines_that_the_projects_have() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let quoted = fs::read_to_string(root.join("docs/comparison.md")).unwrap();
        let source =
            |name| fs::read_to_string(root.join("examples/compare").join(name).join("src/main.rs")).unwrap();
        for task in TASKS {
            let cells = COMPARED.map(|name| lines_cell(name, &source(name), task));
            let row = format!("| lines: {task} | {} |\n", cells.join(" | "));
            assert!(quoted.contains(&row), "docs/comparison.md has not the row: {row}");
        }
        assert!(quoted.contains("\\* Counted, not compiled"));
    }

    #[test]
    fn lines_of_a_task_are_those_between_its_marks() {
        let source = "// task: a\none\ntwo\n// end\n// task: b\n// end";
        assert_eq!((lines_of(source, "a").as_str(), lines_of(source, "c").as_str()), ("2", "—"));
    }
}
