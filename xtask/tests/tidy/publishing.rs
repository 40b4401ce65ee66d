//! Library crates have what crates.io and their users need.

use std::fs;
use std::path::Path;

use crate::{expect_none, metadata, root};

/// What a manifest must say.
const FIELDS: [&str; 6] = ["description", "license", "repository", "readme", "rust_version", "version"];

#[test]
fn every_crate_that_is_published_says_what_it_is_and_needs_only_published_ones() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("a list of packages");
    // An empty list of registries is `publish = false`.
    let is_published = |package: &serde_json::Value| package["publish"].is_null();
    let names: Vec<&str> = packages
        .iter()
        .filter(|package| is_published(package))
        .filter_map(|package| package["name"].as_str())
        .collect();
    assert!(names.len() > 10, "{names:?}");
    let mut violations = Vec::new();
    for package in packages.iter().filter(|package| is_published(package)) {
        let name = package["name"].as_str().expect("a name");
        violations.extend(
            FIELDS
                .iter()
                .filter(|field| package[**field].is_null())
                .map(|field| format!("{name} has no {field}")),
        );
        for list in ["keywords", "categories"] {
            let count = package[list].as_array().map_or(0, Vec::len);
            if !(1..=5).contains(&count) {
                violations.push(format!("{name} has {count} {list}, crates.io takes 1 to 5"));
            }
        }
        // A link that became a small file with its target in it would be published as the licence.
        if licence(&root().join("crates").join(name)) != licence(&root()) {
            violations.push(format!("crates/{name}/LICENSE is not a link to ours"));
        }
        for dependency in package["dependencies"].as_array().expect("a list") {
            let (other, is_dev) = (dependency["name"].as_str().expect("a name"), dependency["kind"] == "dev");
            if other.starts_with("tidegate")
                && !is_dev
                && (!names.contains(&other) || dependency["req"] == "*")
            {
                violations.push(format!("{name} needs {other}, which is not published or has no version"));
            }
        }
    }
    expect_none(
        &violations,
        "complete crates/NAME/Cargo.toml; `cargo xtask library` runs cargo publish --dry-run",
    );
}

/// Where else the repository's address stands, each with what is before and behind it.
const OTHER_PLACES: [(&str, &str, &str); 4] = [
    ("clients/node/package.json", "  \"homepage\": \"", "\",\n"),
    ("clients/python/pyproject.toml", "Homepage = \"", "\"\n"),
    ("clients/java/pom.xml", "  <url>", "</url>\n"),
    ("clients/go/go.mod", "module ", "\n"),
];

#[test]
fn the_owner_fills_in_the_repository_in_one_place() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let address = manifest.lines().find_map(|line| line.strip_prefix("repository = \"")?.strip_suffix('"'));
    let address = address.expect("Cargo.toml names the repository");
    let mut violations = Vec::new();
    for (file, before, behind) in OTHER_PLACES {
        let path = root().join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let (start, rest) = text.split_once(before).unwrap_or_else(|| panic!("{file} has no {before}"));
        let (found, end) = rest.split_once(behind).unwrap_or_else(|| panic!("{file} has no {behind}"));
        // A module of Go is named by where it is, without the scheme.
        let module = format!("{}/clients/go", address.trim_start_matches("https://"));
        let wanted = if file.ends_with("go.mod") { &*module } else { address };
        if found == wanted {
            continue;
        }
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, format!("{start}{before}{wanted}{behind}{end}")).expect("it can be written");
        } else {
            violations.push(format!("{file}: {found}, not {wanted}"));
        }
    }
    expect_none(
        &violations,
        "the repository is what Cargo.toml says; `UPDATE_EXPECT=1 cargo test -p xtask --test tidy owner` copies it",
    );
}

fn licence(folder: &Path) -> Option<String> {
    fs::read_to_string(folder.join("LICENSE")).ok()
}
