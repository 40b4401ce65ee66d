//! The rooms of the limiter know only those below them, so that each can be read and changed alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::expect_none;
use crate::files::sources;

const LIMITER: &str = "crates/tidegate-limiter/src/";

/// Each room, and the modules that it must not know.
const ROOMS: &[(&str, &[&str])] = &[
    ("deny_cache", &["local", "remote", "check", "limiter"]),
    ("local", &["deny_cache", "remote", "check", "limiter"]),
    ("remote", &["check", "limiter"]),
];

#[test]
fn no_room_of_the_limiter_knows_one_above_it() {
    let mut violations = Vec::new();
    let mut seen = 0;
    for file in sources() {
        for (room, above) in ROOMS {
            if !file.path.starts_with(&format!("{LIMITER}{room}/")) {
                continue;
            }
            seen += 1;
            let knows = |line: &str| above.iter().any(|other| line.contains(&format!("crate::{other}::")));
            violations.extend(file.lines_where(knows));
        }
    }
    assert!(seen > 10, "the rooms have moved: put their new places into this list");
    expect_none(&violations, "pass what is needed as an argument, or move it to the room that needs it");
}

/// The path of one request is one room in two places: what a caller calls, and what it does.
const PATH: [&str; 2] = ["limiter", "check"];

/// A module and those that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_two_modules_of_the_limiter_know_each_other_even_by_way_of_a_third() {
    let mut imports = Imports::new();
    for file in sources() {
        let Some(path) = file.path.strip_prefix(LIMITER).filter(|path| *path != "lib.rs") else { continue };
        let own = room(path.split(['/', '.']).next().unwrap_or_default());
        // Tests may know everything.
        let code = file.text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let known = code.flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
            room(
                rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                    .next()
                    .unwrap_or_default(),
            )
        });
        imports
            .entry(own.to_owned())
            .or_default()
            .extend(known.filter(|name| *name != own).map(str::to_owned));
    }
    assert!(imports.len() > 20, "the limiter has moved: put its new place into this test");
    let cycles = imports.keys().filter(|module| leads_to(&imports, module, module));
    let cycles: Vec<String> = cycles.map(|module| format!("{module} leads to itself")).collect();
    expect_none(&cycles, "move what both need into a module below them");
}

fn room(module: &str) -> &str {
    if PATH.contains(&module) { "the path of one request" } else { module }
}

/// Whether `from` imports `to`, or something that does.
fn leads_to(imports: &Imports, from: &str, to: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for known in imports.get(module).into_iter().flatten() {
            if known == to {
                return true;
            }
            if seen.insert(known) {
                next.push(known);
            }
        }
    }
    false
}
