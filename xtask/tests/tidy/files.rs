//! What no file of ours may hold: paths of somebody's machine, unfinished code, too much of everything.

use std::fs;
use std::process::Command;

use crate::{expect_none, root};

/// A Rust file longer than this must be on the list below.
const LONG: usize = 600;

/// Long files, each with the reason why it is better in one piece.
const LONG_FILES: &[(&str, &str)] = &[];

/// A file of the checkout, as text.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Written by a program: its header says so, as generators do.
    pub(crate) fn is_generated(&self) -> bool {
        self.text.lines().take(5).any(|line| line.contains("@generated"))
    }

    /// The number of each line that `is_bad`, as `path:line`.
    pub(crate) fn lines_where(&self, is_bad: impl Fn(&str) -> bool) -> Vec<String> {
        let lines = self.text.lines().enumerate().filter(|(_, line)| is_bad(line));
        lines.map(|(index, line)| format!("{}:{}: {}", self.path, index + 1, line.trim())).collect()
    }
}

/// Every file that is committed or about to be: what git ignores is nobody's concern.
pub(crate) fn sources() -> Vec<Source> {
    let root = root();
    // In a container the checkout often belongs to somebody else, which git refuses to read unless told.
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("our file names are UTF-8");
    let read = |path: &str| {
        let text = fs::read_to_string(root.join(path)).ok()?;
        Some(Source { path: path.to_owned(), text })
    };
    // A file that cannot be read as text is a picture, or was deleted and not yet committed.
    let sources: Vec<Source> = names.split('\0').filter(|name| !name.is_empty()).filter_map(read).collect();
    assert!(sources.iter().any(|file| file.path == "Cargo.toml"), "git lists the files of another checkout");
    sources
}

#[test]
fn no_file_names_a_folder_of_somebodys_machine() {
    let here = root().display().to_string();
    // A checkout directly below the root, say in `/app`, would find that word everywhere.
    let deep = root().components().count() > 2;
    let bad = |line: &str| names_a_private_folder(line) || (deep && line.contains(&here));
    let violations: Vec<String> = sources().iter().flat_map(|file| file.lines_where(bad)).collect();
    expect_none(&violations, "write the path relative to the checkout, or take it from the environment");
}

#[test]
fn no_code_is_left_for_later() {
    // Spelled in two halves, or this file would find itself.
    let later = [concat!("todo", "!("), concat!("unimplemented", "!(")];
    let bad = |line: &str| later.iter().any(|word| line.contains(word));
    let rust = sources().into_iter().filter(Source::is_rust);
    let violations: Vec<String> = rust.flat_map(|file| file.lines_where(bad)).collect();
    expect_none(&violations, "finish it, or take it out until it is finished");
}

#[test]
fn long_files_are_long_for_a_stated_reason() {
    let files: Vec<Source> = sources().into_iter().filter(Source::is_rust).collect();
    let violations: Vec<String> = files.iter().filter_map(too_long).collect();
    expect_none(
        &violations,
        "split it by concept; a file that is better in one piece goes on the list in xtask/tests/tidy/files.rs",
    );
    let stale = LONG_FILES.iter().filter(|(listed, _)| {
        !files.iter().any(|file| file.path == *listed && file.text.lines().count() > LONG)
    });
    let stale: Vec<String> = stale.map(|(path, _)| format!("{path} is not long any more")).collect();
    expect_none(&stale, "take it off the list in xtask/tests/tidy/files.rs");
}

fn too_long(file: &Source) -> Option<String> {
    let lines = file.text.lines().count();
    let excused = file.is_generated() || LONG_FILES.iter().any(|(path, _)| *path == file.path);
    (lines > LONG && !excused).then(|| format!("{} has {lines} lines, more than {LONG}", file.path))
}

/// Whether `line` holds an absolute path below somebody's home, or below a folder where checkouts are mounted.
fn names_a_private_folder(line: &str) -> bool {
    // Joined at run time, or this file would find itself.
    ["home", "Users", "root", "work"].iter().any(|top| contains_path(line, &format!("/{top}/")))
}

/// Whether `line` holds `prefix` as the start of a path, and something after it.
///
/// A URL such as `https://example.com/home/page`, or a relative `docs/work/notes`, is not an absolute path: a word
/// goes on before the slash there.
fn contains_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + prefix.len()..].chars().next();
        let starts_here = before.is_none_or(|c| !c.is_alphanumeric() && !"._-/}*~".contains(c));
        let goes_on = after.is_some_and(|c| c.is_alphanumeric() || "._".contains(c));
        starts_here && goes_on
    })
}

fn source(path: &str, text: impl Into<String>) -> Source {
    Source { path: path.to_owned(), text: text.into() }
}

#[test]
fn absolute_paths_are_told_from_urls_and_relative_ones() {
    let path = |top: &str| format!("/{top}/somebody/code");
    for top in ["home", "Users", "root", "work"] {
        assert!(names_a_private_folder(&format!("open(\"{}\")", path(top))), "{top}");
        assert!(!names_a_private_folder(&format!("https://example.com{}", path(top))), "{top}");
        assert!(!names_a_private_folder(&format!("docs{}", path(top))), "{top}");
    }
}

#[test]
fn a_long_file_is_found_unless_a_program_wrote_it() {
    let long = "\n".repeat(LONG + 1);
    assert_eq!(
        too_long(&source("a.rs", long.as_str())).as_deref(),
        Some("a.rs has 601 lines, more than 600")
    );
    assert_eq!(too_long(&source("a.rs", "\n".repeat(LONG))), None);
    assert_eq!(too_long(&source("a.rs", format!("// @generated by prost\n{long}"))), None);
}

#[test]
fn a_violation_is_reported_with_its_line() {
    let file = source("a.rs", "fine\n  bad\n");
    assert_eq!(file.lines_where(|line| line.contains("bad")), ["a.rs:2: bad"]);
}
