//! Every crate obeys the workspace's lints: one that forgot to inherit them would pass every check unseen.

use std::fs;

use crate::{expect_none, metadata};

const WHAT_TO_DO: &str = "add to that Cargo.toml:\n\n[lints]\nworkspace = true";

#[test]
fn every_crate_inherits_the_workspace_lints() {
    let metadata = metadata();
    let manifests = metadata["packages"].as_array().expect("metadata lists packages").iter();
    let manifests =
        manifests.map(|package| package["manifest_path"].as_str().expect("a manifest has a path"));
    let without =
        manifests.filter(|path| !inherits_lints(&fs::read_to_string(path).expect("a manifest is text")));
    let violations: Vec<String> = without.map(|path| format!("{path} does not inherit the lints")).collect();
    expect_none(&violations, WHAT_TO_DO);
}

fn inherits_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(|line| line.split('#').next().unwrap_or_default().replace(' ', ""));
    let in_section = lines.by_ref().skip_while(|line| line != "[lints]").skip(1);
    let mut section = in_section.take_while(|line| !line.starts_with('['));
    section.any(|line| line == "workspace=true")
}

#[test]
fn a_manifest_without_the_lints_is_found() {
    assert!(inherits_lints("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"));
    assert!(!inherits_lints("[package]\nname = \"a\"\n"));
    assert!(!inherits_lints("[lints]\n\n[other]\nworkspace = true\n"));
    assert!(!inherits_lints("[lints]\n# workspace = true\n"));
}
