//! What users of the library can name, as text under version control: a change to it is seen in review.
//!
//! Read from the sources, not from rustdoc's JSON: that needs a nightly compiler, and its format changes with it. What is public
//! in the facade, its middleware and rules in code is public to users; what they re-export is listed by name.

use std::fs;

use crate::files::sources;
use crate::{metadata, root};

const SNAPSHOT: &str = "docs/reference/api.txt";

/// Where public means public to users.
const SURFACES: [&str; 3] =
    ["crates/tidegate/src/", "crates/tidegate-tower/src/", "crates/tidegate-rules/src/code"];

#[test]
fn the_public_api_is_the_one_that_was_reviewed() {
    let mut api = String::from("# Written by `UPDATE_API=1 cargo test -p xtask --test tidy api`.\n");
    let mut files: Vec<_> = sources()
        .into_iter()
        .filter(|file| SURFACES.iter().any(|start| file.path.starts_with(start)))
        .collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(files.len() > 8, "the library has moved");
    for file in files {
        let items = public_items(&file.text);
        if !items.is_empty() {
            api += &format!("\n{}\n{}\n", file.path, items.join("\n"));
        }
    }
    let path = root().join(SNAPSHOT);
    if std::env::var_os("UPDATE_API").is_some() {
        fs::write(&path, &api).expect("the snapshot can be written");
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    let new: Vec<&str> = api.lines().filter(|line| !known.lines().any(|other| other == *line)).collect();
    let gone: Vec<&str> = known.lines().filter(|line| !api.lines().any(|other| other == *line)).collect();
    assert!(
        known == api,
        "\nthe public API changed\nnew: {new:#?}\ngone: {gone:#?}\nhint: if that is meant, say so in CHANGELOG.md and run \
         `UPDATE_API=1 cargo test -p xtask --test tidy api`\n"
    );
}

/// The folders of the crates that users depend on: those that are published.
fn libraries() -> Vec<String> {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    // An empty list of registries is `publish = false`.
    let published = packages.iter().filter(|package| package["publish"].is_null());
    published.filter_map(|package| Some(format!("crates/{}/src/", package["name"].as_str()?))).collect()
}

/// What signatures must not name: a new major version of such a crate would be a new major version of ours.
const OTHERS_TYPES: [&str; 4] = ["SmallVec", "smallvec", "ArcSwap", "foldhash"];

#[test]
fn no_public_signature_names_a_type_of_a_crate_that_users_need_not_know() {
    let (mut found, libraries) = (Vec::new(), libraries());
    assert!(libraries.contains(&"crates/tidegate/src/".to_owned()), "{libraries:?}");
    for file in sources().iter().filter(|file| libraries.iter().any(|start| file.path.starts_with(start))) {
        for item in public_items(&file.text) {
            // The one field of a tuple struct is private unless it says otherwise.
            let seen = match item.split_once('(') {
                Some((head, fields)) if head.contains("struct ") && !fields.starts_with("pub ") => {
                    head.to_owned()
                }
                _ => item,
            };
            if OTHERS_TYPES.iter().any(|name| seen.contains(name)) {
                found.push(format!("{}: {}", file.path, seen.trim()));
            }
        }
    }
    assert!(found.is_empty(), "\n{found:#?}\nhint: wrap it in a type of our own that is read as a slice\n");
}

/// Each public item on a line of its own: a signature up to its body.
fn public_items(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut items = Vec::new();
    let mut lines = code.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if !line.starts_with("pub ") {
            continue;
        }
        let is_use = line.starts_with("pub use");
        let mut item = line.to_owned();
        let ends = |item: &str| match is_use {
            true => item.ends_with(';'),
            false => {
                item.ends_with('{') || item.ends_with(';') || (item.ends_with(',') && !item.contains("fn "))
            }
        };
        while !ends(&item) {
            let Some(next) = lines.next() else { break };
            item = format!("{item} {next}");
        }
        items.push(format!("  {}", item.trim_end_matches(['{', ',', ' '])));
    }
    items
}

#[test]
fn signatures_are_read_whole_and_bodies_not() {
    let text = "pub fn one(\n    a: u8,\n) -> u8 {\n    a\n}\npub(crate) fn hidden() {}\npub use a::{\n    B,\n};\npub b: u8,\n#[cfg(test)]\npub fn test() {}";
    assert_eq!(public_items(text), ["  pub fn one( a: u8, ) -> u8", "  pub use a::{ B, };", "  pub b: u8"]);
}
