//! One name, one type: whoever reads `Answer` in a crate need not ask which.

use std::collections::BTreeMap;

use crate::expect_none;
use crate::files::sources;

/// Crates that still give one name to several types. The list may only become shorter.
const NOT_YET: &[&str] = &["tidegate-cli", "tidegate-rules", "tidegate-server"];

#[test]
fn no_two_types_of_one_crate_have_the_same_name() {
    let repeated: BTreeMap<String, Vec<String>> = repeated_names();
    let violations: Vec<String> = repeated
        .iter()
        .filter(|(krate, _)| !NOT_YET.contains(&krate.as_str()))
        .flat_map(|(krate, names)| names.iter().map(move |name| format!("{krate}: {name}")))
        .collect();
    expect_none(&violations, "say in the name whose it is: `StoreAnswer`, not another `Answer`");
}

/// The types that share their name with another of the same crate, by crate.
fn repeated_names() -> BTreeMap<String, Vec<String>> {
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
    let mut repeated: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((krate, name), places) in files {
        if places.len() > 1 {
            repeated.entry(krate).or_default().push(format!("{name} in {}", places.join(", ")));
        }
    }
    repeated
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
