//! The bounds that the operating guide publishes are checked by tests: each row of its table names one that exists.

use crate::files::sources;
use crate::{expect_none, root};

#[test]
fn every_published_bound_names_a_test_that_checks_it() {
    let guide = std::fs::read_to_string(root().join("docs/guides/operating.md")).expect("the guide is there");
    let table = guide.split("| What happens |").nth(1).expect("the table of bounds is there");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 10, "the table has moved");
    let files = sources();
    let exists = |test: &str| files.iter().any(|file| file.text.contains(&format!("fn {test}(")));
    let named = |row: &&str| row.rsplit('`').nth(1).is_some_and(exists);
    let unchecked: Vec<String> = rows.iter().filter(|row| !named(row)).map(|row| (*row).to_owned()).collect();
    expect_none(&unchecked, "name the test that checks the row in its last column, in backquotes");
}

#[test]
fn every_bound_of_a_listener_names_tests_that_exist() {
    let guide = std::fs::read_to_string(root().join("docs/guides/operating.md")).expect("the guide is there");
    let table =
        guide.split("| Bound | Default | Field | Held by |").nth(1).expect("the table of bounds is there");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 15, "the table has moved");
    let files = sources();
    let exists = |test: &str| files.iter().any(|file| file.text.contains(&format!("fn {test}(")));
    let held_by =
        |row: &str| row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default().to_owned();
    let missing = rows.iter().flat_map(|row| {
        let held_by = held_by(row);
        let tests: Vec<String> = held_by.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let unnamed = (tests.is_empty() && !held_by.contains("the same")).then(|| (*row).to_owned());
        tests.into_iter().filter(|test| !exists(test)).chain(unnamed).collect::<Vec<_>>()
    });
    expect_none(
        &missing.collect::<Vec<_>>(),
        "name the tests that hold the row in its last column, in backquotes",
    );
}
