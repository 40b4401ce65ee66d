//! One name, one type: whoever reads `Answer` in a crate need not ask which.

use std::collections::BTreeMap;

use crate::expect_none;
use crate::files::sources;

/// Names that several types of a crate may share.
const SHARED: &[(&str, &[&str])] = &[
    // What a program writes a rule with is called like what it becomes.
    ("tidegate-rules", &["Rule"]),
];

#[test]
fn no_two_types_of_one_crate_have_the_same_name() {
    let is_known =
        |krate: &str, name: &str| SHARED.iter().any(|(of, names)| *of == krate && names.contains(&name));
    let violations: Vec<String> = repeated_names()
        .into_iter()
        .filter(|((krate, name), _)| !is_known(krate, name))
        .map(|((krate, name), places)| format!("{krate}: {name} in {}", places.join(", ")))
        .collect();
    expect_none(&violations, "say in the name whose it is: `StoreAnswer`, not another `Answer`");
}

/// The types that share their name with another of the same crate, and the files that have them.
fn repeated_names() -> BTreeMap<(String, String), Vec<String>> {
    let mut files: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for file in sources() {
        let Some((krate, inside)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'))
        else {
            continue;
        };
        if !inside.starts_with("src/") || !file.is_rust() || file.is_generated() {
            continue;
        }
        for name in file.text.lines().filter_map(type_name) {
            files.entry((krate.to_owned(), name.to_owned())).or_default().push(inside.to_owned());
        }
    }
    files.retain(|_, places| places.len() > 1);
    files
}

/// The name of the type that a line at the left margin defines: what is further in belongs to one function or test.
fn type_name(line: &str) -> Option<&str> {
    let definition = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
    let rest = kinds.iter().find_map(|kind| definition.strip_prefix(kind))?;
    rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

#[test]
fn a_type_is_found_whoever_may_see_it() {
    assert_eq!(type_name("pub(crate) struct Lane<'a> {"), Some("Lane"));
    assert_eq!(type_name("pub enum Kind {"), Some("Kind"));
    assert_eq!(type_name("type Bucket = [Entry; 4];"), Some("Bucket"));
    assert_eq!(type_name("    struct Inner;"), None);
    assert_eq!(type_name("impl Kind {"), None);
}
