//! The dashboard's built files: made from `dashboard/`, committed, and compiled into the binary, so that nobody needs Node to
//! build tidegate. CI makes them again and compares.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::command::CommandLine;
use crate::steps::{Failure, Outcome};

/// Where the built files are kept.
const BUILT: &str = "crates/tidegate-admin/dashboard";
/// Where CI puts those that it makes, from `dashboard/`.
const AGAIN: &str = "../target/dashboard";

/// Builds the dashboard where it is kept.
pub(crate) fn build(root: &Path) -> Result<(), Failure> {
    install(root)?;
    npm(root, &["run", "build"])
}

/// Checks and tests the sources, builds them elsewhere, and compares with what is kept.
pub(crate) fn check(root: &Path) -> Result<Outcome, Failure> {
    install(root)?;
    npm(root, &["run", "check"])?;
    npm(root, &["test"])?;
    npm(root, &["run", "build", "--", "--logLevel", "warn", "--outDir", AGAIN])?;
    let differ = differing(&root.join("dashboard").join(AGAIN), &root.join(BUILT));
    let differ = differ.map_err(|error| stale(&format!("cannot compare: {error}")))?;
    match differ.first() {
        None => Ok(Outcome::Done),
        Some(file) => Err(stale(&format!("{} is not what dashboard/ makes", file.display()))),
    }
}

fn stale(what: &str) -> Failure {
    let hint = "run `cargo xtask dashboard`, and commit crates/tidegate-admin/dashboard".to_owned();
    Failure { what: what.to_owned(), hint }
}

fn install(root: &Path) -> Result<(), Failure> {
    // Not `npm ci`: it wants packages of every platform in the lock file.
    npm(root, &["install", "--no-audit", "--no-fund"])
}

fn npm(root: &Path, words: &[&str]) -> Result<(), Failure> {
    let command = CommandLine::new(["npm", "--prefix", "dashboard"]).args(words.iter().copied());
    command.run(root).map_err(|why| Failure::of_command(&command, &why))
}

/// The files that only one of two folders has, or that differ.
fn differing(one: &Path, other: &Path) -> io::Result<Vec<PathBuf>> {
    let (one, other) = (files(one)?, files(other)?);
    let names: std::collections::BTreeSet<&PathBuf> = one.keys().chain(other.keys()).collect();
    Ok(names.into_iter().filter(|name| one.get(*name) != other.get(*name)).cloned().collect())
}

/// Every file below `folder`, by its path from there.
fn files(folder: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = PathBuf::from(path.file_name().expect("an entry of a folder has a name"));
        if path.is_dir() {
            found.extend(files(&path)?.into_iter().map(|(below, bytes)| (name.join(below), bytes)));
        } else {
            found.insert(name, fs::read(&path)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_or_is_missing_is_named() {
        let root = std::env::temp_dir().join(format!("tidegate-xtask-dashboard-{}", std::process::id()));
        let (kept, made) = (root.join("kept"), root.join("made"));
        for folder in [&kept, &made] {
            fs::create_dir_all(folder.join("assets")).expect("a folder");
            fs::write(folder.join("index.html"), "same").expect("a file");
            fs::write(folder.join("assets/app.js"), folder.as_os_str().as_encoded_bytes()).expect("a file");
        }
        fs::write(made.join("assets/new.js"), "new").expect("a file");
        let differ = differing(&made, &kept).expect("both are folders");
        fs::remove_dir_all(&root).expect("our own folder");
        assert_eq!(differ, [PathBuf::from("assets/app.js"), PathBuf::from("assets/new.js")]);
    }
}
