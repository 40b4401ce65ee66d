//! The bounds that the operating guide publishes are checked by tests: each row of its tables names some, and all of them exist.

use crate::files::sources;
use crate::{expect_none, root};

#[test]
fn every_published_bound_names_tests_that_exist() {
    check("| What happens |", 10);
}

#[test]
fn every_bound_of_a_listener_names_tests_that_exist() {
    check("| Bound | Default | Field | Held by |", 15);
}

/// Every row of the table that begins so names tests in its last column, or those of the row above.
fn check(header: &str, at_least: usize) {
    let guide = std::fs::read_to_string(root().join("docs/guides/operating.md")).expect("the guide is there");
    let table = guide.split(header).nth(1).expect("the table of bounds is there");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > at_least, "the table has moved");
    let files = sources();
    let exists = |test: &str| {
        let named = [format!("fn {test}("), format!("on_both!({test},")];
        files.iter().any(|file| named.iter().any(|name| file.text.contains(name)))
    };
    let missing = rows.iter().flat_map(|row| {
        let last = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let tests: Vec<String> = last.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let unnamed = (tests.is_empty() && !last.contains("the same")).then(|| (*row).to_owned());
        tests.into_iter().filter(|test| !exists(test)).chain(unnamed).collect::<Vec<_>>()
    });
    expect_none(
        &missing.collect::<Vec<_>>(),
        "name the tests that check the row in its last column, in backquotes",
    );
}
