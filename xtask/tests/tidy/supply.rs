//! Whose code is taken, under which licence and from where: what `deny.toml` says, held without `cargo deny`.
//!
//! The registries that a fresh machine reaches have no build of that tool that reads today's manifests (PyPI's, of 2023, ends
//! with a panic), and to build it in CI would take a good part of CI's time. So its configuration is the one list, this test
//! holds licences, bans and sources of it everywhere, and `cargo xtask ci` runs `cargo deny check`, advisories included, where
//! the tool is installed.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::{expect_none, root};

const WHAT_TO_DO: &str = "leave the crate out, or argue in deny.toml why it may be taken";
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn every_crate_we_take_is_one_that_deny_toml_allows() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let policy = Policy::read(&fs::read_to_string(root().join("deny.toml")).expect("deny.toml is there"));
    expect_none(&policy.violations(&metadata), WHAT_TO_DO);
}

/// What may be taken.
struct Policy {
    licences: Vec<String>,
    banned: Vec<String>,
}

impl Policy {
    /// The quoted words of `allow` under `[licenses]` and of `deny` under `[bans]`.
    fn read(text: &str) -> Self {
        let (mut section, mut list) = ("", "");
        let (mut licences, mut banned) = (Vec::new(), Vec::new());
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if line.starts_with('[') {
                (section, list) = (line, "");
            } else if let Some((name, _)) = line.split_once(" = [") {
                list = name;
            } else if line == "]" {
                list = "";
            }
            let quoted = line.split('"').nth(1).map(str::to_owned);
            match (section, list) {
                ("[licenses]", "allow") => licences.extend(quoted),
                ("[bans]", "deny") => banned.extend(quoted),
                _ => {}
            }
        }
        assert!(!licences.is_empty() && !banned.is_empty(), "deny.toml has no lists that can be read");
        Policy { licences, banned }
    }

    fn violations(&self, metadata: &Value) -> Vec<String> {
        let packages = metadata["packages"].as_array().expect("metadata lists packages");
        packages.iter().filter_map(|package| self.violation(package)).collect()
    }

    fn violation(&self, package: &Value) -> Option<String> {
        // Without a source it is ours.
        let source = package["source"].as_str()?;
        let name = package["name"].as_str().expect("a package has a name");
        let licence = package["license"].as_str().unwrap_or_default();
        if source != CRATES_IO {
            return Some(format!("{name} comes from {source}"));
        }
        if self.banned.iter().any(|banned| banned == name) {
            return Some(format!("{name} is banned"));
        }
        (!self.allows(licence)).then(|| format!("{name} has the licence `{licence}`"))
    }

    /// Whether an SPDX expression can be met with the licences that are allowed.
    fn allows(&self, expression: &str) -> bool {
        // Old manifests write a slash for "or".
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut rest = &words[..];
        self.any(&mut rest) && rest.is_empty()
    }

    fn any(&self, rest: &mut &[&str]) -> bool {
        let mut met = self.all(rest);
        while let ["OR", more @ ..] = *rest {
            *rest = more;
            met |= self.all(rest);
        }
        met
    }

    fn all(&self, rest: &mut &[&str]) -> bool {
        let mut met = self.one(rest);
        while let ["AND", more @ ..] = *rest {
            *rest = more;
            met &= self.one(rest);
        }
        met
    }

    fn one(&self, rest: &mut &[&str]) -> bool {
        match *rest {
            ["(", more @ ..] => {
                *rest = more;
                let met = self.any(rest);
                *rest = rest.get(1..).unwrap_or_default();
                met
            }
            [licence, "WITH", exception, more @ ..] => {
                *rest = more;
                self.licences.contains(&format!("{licence} WITH {exception}"))
            }
            [licence, more @ ..] => {
                *rest = more;
                self.licences.iter().any(|known| known == licence)
            }
            [] => false,
        }
    }
}

fn policy() -> Policy {
    Policy::read(
        "[licenses]\nallow = [\n    \"MIT\",\n    \"Apache-2.0 WITH LLVM-exception\",\n    \"ISC\",\n]\n\n\
         [bans]\ndeny = [\n    # Why.\n    { name = \"openssl\" },\n]\n",
    )
}

#[test]
fn an_expression_is_met_by_one_of_its_alternatives_and_all_of_its_parts() {
    for met in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "MIT AND ISC", "(MIT OR GPL-3.0) AND ISC"] {
        assert!(policy().allows(met), "{met}");
    }
    assert!(policy().allows("Apache-2.0 WITH LLVM-exception OR GPL-3.0"));
    for unmet in ["", "GPL-3.0", "Apache-2.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "MIT)"] {
        assert!(!policy().allows(unmet), "{unmet}");
    }
}

#[test]
fn a_crate_from_elsewhere_or_on_the_list_of_bans_is_found() {
    let package = |name: &str, source: Value| json!({ "name": name, "source": source, "license": "MIT" });
    let metadata = json!({ "packages": [
        package("ours", Value::Null),
        package("fine", json!(CRATES_IO)),
        package("openssl", json!(CRATES_IO)),
        package("strange", json!("git+https://example.com/strange")),
    ] });
    let found = policy().violations(&metadata);
    assert_eq!(found, ["openssl is banned", "strange comes from git+https://example.com/strange"]);
}
