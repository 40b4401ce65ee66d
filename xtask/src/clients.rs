//! The tests of the clients in `clients/`, each in its own language, and of pages and gateways, against the real server.

use std::fs;
use std::path::Path;
use std::thread;

use crate::command::CommandLine;
use crate::steps::{Failure, Outcome};
use crate::tools::{self, ToolEnv};

/// In two lanes: most of their time they wait for servers, and Go's first build is the longest part of all.
///
/// `pages` are the guide and the pages for those who come from elsewhere, and gateways; they need what `node` and `java` build.
const LANES: [&[&str]; 2] = [&["go", "python"], &["node", "java", "pages"]];

/// Builds the server, finds or installs what the clients need, and runs the tests of all, or of one.
pub(crate) fn asked(root: &Path, only: Option<&str>) -> Result<(), Failure> {
    let found = tools::provide(root)?;
    let build = CommandLine::new(["cargo", "build", "--locked", "-p", "tidegate-cli"]);
    build.run(root).map_err(|why| Failure::of_command(&build, &why))?;
    match only {
        Some(name) => run(root, &commands(root, name, &found)),
        None => all(root, &found).map(drop),
    }
}

/// The tests of every client. The server must have been built, as it is with the tests.
pub(crate) fn all(root: &Path, found: &ToolEnv) -> Result<Outcome, Failure> {
    let lane = |names: &'static [&str]| {
        move || names.iter().try_for_each(|name| run(root, &commands(root, name, found)))
    };
    thread::scope(|scope| {
        let lanes = LANES.map(|names| scope.spawn(lane(names)));
        lanes.into_iter().try_for_each(|lane| lane.join().expect("no lane panics"))
    })?;
    Ok(Outcome::Done)
}

/// Whether there is such a client.
pub(crate) fn is_one(name: &str) -> bool {
    LANES.concat().contains(&name)
}

fn run(root: &Path, commands: &[CommandLine]) -> Result<(), Failure> {
    for command in commands {
        let (done, printed) = command.run_captured(root);
        println!("{printed}");
        done.map_err(|why| Failure::of_command(command, &why))?;
    }
    Ok(())
}

fn commands(root: &Path, name: &str, found: &ToolEnv) -> Vec<CommandLine> {
    let folder = root.join("clients").join(name).display().to_string();
    let binary = root.join("target/debug/tidegate").display().to_string();
    let command = |words: &[&str]| {
        CommandLine::new(words.iter().copied()).within(&folder).env("TIDEGATE_BINARY", binary.as_str())
    };
    match name {
        "python" => {
            let words = ["-W", "ignore", "-m", "unittest", "discover", "-s", "tests", "-t", "."];
            let python = command(&[&found.path("fastapi")]).args(words);
            vec![python.env("PYTHONPATH", "src").env("TIDEGATE_ALL_FRAMEWORKS", "1")]
        }
        "pages" => {
            let testing = root.join("clients/testing").display().to_string();
            let words = [
                "-W",
                "ignore",
                "-m",
                "unittest",
                "test_pages",
                "test_gateways",
                "test_packages",
                "test_pacing",
            ];
            let python = CommandLine::new([found.path("redis-py")]).args(words).within(&testing);
            vec![python.env("TIDEGATE_BINARY", binary.as_str()).quiet_env(found.vars())]
        }
        "node" => vec![command(&["npm", "ci", "--no-audit", "--no-fund"]), command(&["npm", "test"])],
        "go" => {
            let go = found.path("go");
            // What it builds goes with the rest, and it fetches nothing.
            let cache = root.join("target/go").display().to_string();
            let go = |words: &[&str]| {
                command(&[&go])
                    .args(words.iter().copied())
                    .env("GOCACHE", cache.as_str())
                    .env("GOTOOLCHAIN", "local")
            };
            vec![go(&["vet", "./..."]), go(&["test", "-count=1", "./..."])]
        }
        "java" => {
            let classes = root.join("target/java").display().to_string();
            let path = [found.path("tomcat"), found.path("tomcat-annotations")].join(":");
            let javac = found.path("javac");
            let java = Path::new(&javac).with_file_name("java").display().to_string();
            let sources = java_files(&root.join("clients/java/src"));
            let compile = ["-Xlint:all,-path", "-Werror", "--release", "17", "-cp", &path, "-d", &classes];
            let tests = ["-cp", &format!("{classes}:{path}"), "example.tidegate.Tests"];
            vec![command(&[&javac]).args(compile).args(sources), command(&[&java]).args(tests)]
        }
        other => unreachable!("{other} is no client"),
    }
}

/// Every Java file below `folder`.
fn java_files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(java_files(&path));
        } else if path.extension().is_some_and(|end| end == "java") {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_in_the_checkout_is_in_a_lane() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the checkout");
        let folders = fs::read_dir(root.join("clients")).expect("clients/ is there");
        let names = folders.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
        let mut clients: Vec<String> =
            names.filter(|name| name != "testing" && name != "README.md").collect();
        clients.sort();
        let mut known = LANES.concat();
        known.retain(|name| *name != "pages");
        known.sort_unstable();
        assert_eq!(clients, known);
    }
}
