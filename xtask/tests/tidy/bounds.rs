//! The bounds that docs/operate publishes, and the promises of SECURITY.md, are checked by tests: each row of their tables
//! names some, and all that are named exist.

use crate::files::{Source, sources};
use crate::{expect_none, root};

#[test]
fn every_published_bound_names_tests_that_exist() {
    check("docs/operate/lost.md", "| What happens |", 10);
}

#[test]
fn every_bound_of_a_listener_names_tests_that_exist() {
    check("docs/operate/bounds.md", "| Bound | Default | Field | Held by |", 15);
}

#[test]
fn every_promise_of_security_names_tests_that_exist() {
    check(SECURITY, "| Promise | Test |", 15);
    let text = read(SECURITY);
    let files = sources();
    let is_setting = |name: &str| name.starts_with("TIDEGATE_") || name == "max_connections_per_peer";
    let quoted = text.split('`').skip(1).step_by(2).map(test_in);
    // Tests are named by whole sentences; other names have fewer words.
    let named: Vec<&str> =
        quoted.filter(|name| name.matches('_').count() >= 3 && !is_setting(name)).collect();
    assert!(named.len() > 40, "tests are named otherwise: {named:?}");
    let missing: Vec<String> =
        named.into_iter().filter(|name| !exists(name, &files)).map(str::to_owned).collect();
    expect_none(&missing, "SECURITY.md names tests that exist, each in full");
}

const SECURITY: &str = "SECURITY.md";

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("the document is there")
}

/// The test that is named, perhaps with its module.
fn test_in(quoted: &str) -> &str {
    quoted.rsplit("::").next().unwrap_or_default()
}

fn exists(test: &str, files: &[Source]) -> bool {
    let named = [format!("fn {test}("), format!("on_both!({test},")];
    files.iter().any(|file| named.iter().any(|name| file.text.contains(name)))
}

/// Every row of the tables that begin so names tests in its last column, or those of the row above. A crate is no test.
fn check(document: &str, header: &str, at_least: usize) {
    let document = read(document);
    let tables = document.split(header).skip(1);
    let rows: Vec<&str> =
        tables.flat_map(|table| table.lines().skip(2).take_while(|line| line.starts_with('|'))).collect();
    assert!(rows.len() > at_least, "the table has moved");
    let files = sources();
    let missing = rows.iter().flat_map(|row| {
        let last = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let quoted = last.split('`').skip(1).step_by(2).map(test_in);
        let tests: Vec<&str> = quoted.filter(|name| !name.starts_with("tidegate-")).collect();
        let unnamed = (tests.is_empty() && !last.contains("the same")).then_some(*row);
        tests
            .into_iter()
            .filter(|test| !exists(test, &files))
            .chain(unnamed)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    expect_none(
        &missing.collect::<Vec<_>>(),
        "name the tests that check the row in its last column, in backquotes",
    );
}
