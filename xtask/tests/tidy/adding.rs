//! The lists of files in docs/ARCHITECTURE.md, "To add something": each file exists and has what the list says, and no list is
//! longer than it says.

use std::fs;

use crate::files::sources;
use crate::{expect_none, root};

const GUIDE: &str = "docs/ARCHITECTURE.md";
const SECTION: &str = "\n## To add something\n";

/// One list: what is added, the most files that takes, and each file with a text that it has.
#[derive(Debug, PartialEq, Eq)]
struct Recipe {
    thing: String,
    most: usize,
    files: Vec<(String, String)>,
}

#[test]
fn lists_of_files_to_touch_are_true() {
    let guide = fs::read_to_string(root().join(GUIDE)).expect("the guide exists");
    let (_, rest) = guide.split_once(SECTION).expect("the guide says how to add something");
    let section = rest.split("\n## ").next().unwrap_or_default();
    let recipes = recipes(section);
    assert_eq!(
        recipes.len(),
        8,
        "an algorithm, a rule field, a store, a route, a metric, an alert kind, a subcommand, a configuration field"
    );
    let violations: Vec<String> = recipes.iter().flat_map(violations_of).collect();
    expect_none(&violations, "correct the list in docs/ARCHITECTURE.md, or make it shorter");
}

/// The crate whose store the list has as its example.
const STORE: &str = "tidegate-store-memcached";

#[test]
fn a_store_is_named_in_the_files_of_its_list_alone() {
    let guide = fs::read_to_string(root().join(GUIDE)).expect("the guide exists");
    let recipe = recipes(&guide).into_iter().find(|recipe| recipe.thing == "A store").expect("it has a list");
    let is_listed = |path: &str| recipe.files.iter().any(|(listed, _)| listed == path);
    let (crate_name, module) = (STORE, STORE.replace('-', "_"));
    let is_code = |path: &str| path.ends_with(".rs") || path.ends_with("Cargo.toml");
    let is_its_own = |path: &str| path.starts_with(&format!("crates/{STORE}/"));
    let is_test = |path: &str| path.contains("/tests/") || path.contains("/benches/");
    let elsewhere = sources().into_iter().filter(|file| {
        let path = file.path.as_str();
        let names_it = file.text.contains(crate_name) || file.text.contains(&module);
        is_code(path) && names_it && !is_listed(path) && !is_its_own(path) && !is_test(path)
    });
    let violations: Vec<String> = elsewhere.map(|file| format!("{} names {STORE}", file.path)).collect();
    expect_none(
        &violations,
        "derive it from the manifests or from stores/kinds.rs, or add the file to the list",
    );
}

fn violations_of(recipe: &Recipe) -> Vec<String> {
    let Recipe { thing, most, files } = recipe;
    let mut found: Vec<String> = files.iter().filter_map(|file| problem(thing, file)).collect();
    if files.is_empty() || files.len() > *most {
        found.push(format!("{thing}: {} files, and the list says {most}", files.len()));
    }
    found
}

fn problem(thing: &str, (path, has): &(String, String)) -> Option<String> {
    match fs::read_to_string(root().join(path)) {
        Ok(text) if text.contains(has) => None,
        Ok(_) => Some(format!("{thing}: {path} has no `{has}`")),
        Err(error) => Some(format!("{thing}: {path}: {error}")),
    }
}

/// The lists of a section: `- **A thing**, 3 files: `path` (`text`), …`, over several lines.
fn recipes(section: &str) -> Vec<Recipe> {
    let joined = section.replace("\n  ", " ");
    let lines = joined.lines().filter_map(|line| line.strip_prefix("- **"));
    lines.filter_map(recipe).collect()
}

fn recipe(line: &str) -> Option<Recipe> {
    let (thing, rest) = line.split_once("**, ")?;
    let (most, rest) = rest.split_once(" files: ")?;
    let ticked: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let files = ticked.chunks(2).filter_map(|pair| match pair {
        [path, has] => Some(((*path).to_owned(), (*has).to_owned())),
        _ => None,
    });
    Some(Recipe { thing: thing.to_owned(), most: most.parse().ok()?, files: files.collect() })
}

#[test]
fn a_list_is_read_over_its_lines() {
    let text =
        "Words.\n\n- **A thing**, 3 files: `a/b.rs` (`fn c`) or\n  `d.md` (`e`; generated).\n- **No list**\n";
    let files = [("a/b.rs", "fn c"), ("d.md", "e")].map(|(path, has)| (path.to_owned(), has.to_owned()));
    assert_eq!(recipes(text), [Recipe { thing: "A thing".to_owned(), most: 3, files: files.into() }]);
}
