//! Counts the lines of every crate: product code apart from tests, so that a redesign can be measured.
//!
//! A line is a line, comments and blank ones included. Generated code is left out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::steps::Failure;

/// Lines of one crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    product: usize,
    unit_tests: usize,
    /// Integration tests and benchmarks.
    other_tests: usize,
}

impl Lines {
    fn add(&mut self, other: Lines) {
        self.product += other.product;
        self.unit_tests += other.unit_tests;
        self.other_tests += other.other_tests;
    }
}

/// Prints the lines of each crate, and their sum.
pub(crate) fn print(root: &Path) -> Result<(), Failure> {
    let mut folders = entries(&root.join("crates"));
    folders.push(root.join("xtask"));
    println!("{:24}{:>10}{:>12}{:>13}", "crate", "product", "unit tests", "other tests");
    let mut sum = Lines::default();
    for folder in folders {
        let lines = of_crate(&folder);
        row(&folder.file_name().unwrap_or_default().to_string_lossy(), lines);
        sum.add(lines);
    }
    row("all", sum);
    let mut dashboard = Lines::default();
    walk(&root.join("dashboard/src"), &mut |path, text| dashboard.add(of_file(path, text)));
    row("dashboard/src", dashboard);
    Ok(())
}

fn row(name: &str, lines: Lines) {
    println!("{name:24}{:>10}{:>12}{:>13}", lines.product, lines.unit_tests, lines.other_tests);
}

fn of_crate(folder: &Path) -> Lines {
    let mut lines = Lines::default();
    for part in ["src", "lua"] {
        // Only the path inside the crate says what a file is.
        let of = |path: &Path, text: &str| of_file(path.strip_prefix(folder).unwrap_or(path), text);
        walk(&folder.join(part), &mut |path, text| lines.add(of(path, text)));
    }
    for part in ["tests", "benches"] {
        walk(&folder.join(part), &mut |_, text| lines.other_tests += text.lines().count());
    }
    lines
}

/// The lines of one source file. `#[cfg(test)]` begins the unit tests: ours are last in a file, or a file named `tests.rs`, or
/// files in a folder `tests`.
fn of_file(path: &Path, text: &str) -> Lines {
    let all = text.lines().count();
    if text.lines().take(5).any(|line| line.contains("@generated")) {
        return Lines::default();
    }
    let is_test_file = path.iter().any(|part| part == "tests" || part == "tests.rs")
        || path.to_string_lossy().contains(".test.");
    let mut lines = text.lines().map(str::trim_end);
    let before = match is_test_file {
        true => 0,
        // A module in a file of its own (`mod tests;`) is counted there.
        false => lines.position(|line| line == "#[cfg(test)]").filter(|at| opens(text, *at)).unwrap_or(all),
    };
    Lines { product: before, unit_tests: all - before, other_tests: 0 }
}

/// Whether the line after `at` opens a module here.
fn opens(text: &str, at: usize) -> bool {
    text.lines().nth(at + 1).is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
}

fn walk(folder: &Path, each: &mut impl FnMut(&Path, &str)) {
    for path in entries(folder) {
        if path.is_dir() {
            walk(&path, each);
        } else if let Ok(text) = fs::read_to_string(&path) {
            let counted = ["rs", "lua", "ts", "svelte", "css"];
            if path.extension().is_some_and(|end| counted.iter().any(|known| end == *known)) {
                each(&path, &text);
            }
        }
    }
}

/// What is in a folder, by name; nothing if there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, text: &str) -> (usize, usize) {
        let lines = of_file(Path::new(name), text);
        (lines.product, lines.unit_tests)
    }

    #[test]
    fn unit_tests_are_counted_apart() {
        assert_eq!(count("a.rs", "one\n\n#[cfg(test)]\nmod tests {\n}\n"), (2, 3));
        assert_eq!(count("a.rs", "#[cfg(test)]\nmod tests;\n\nthree\n"), (4, 0));
        assert_eq!(count("tests.rs", "one\ntwo\n"), (0, 2));
        assert_eq!(count("src/tests/mod.rs", "one\ntwo\n"), (0, 2));
        assert_eq!(count("src/protests.rs", "one\ntwo\n"), (2, 0));
        assert_eq!(count("a.rs", "// @generated\none\n"), (0, 0));
    }
}
