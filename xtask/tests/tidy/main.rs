//! Keeps the workspace in the shape its design promises: who may depend on whom, lints everywhere, no stray text.
//!
//! Each check reads the checkout, and its message says how to put things right.

mod adding;
mod algorithms;
mod api;
mod arrows;
mod bounds;
mod docs;
mod files;
mod lints;
mod names;
mod path;
mod publishing;
mod rooms;
mod supply;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The checkout: the folder above this crate.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace root").to_owned()
}

/// What `cargo metadata` says of the workspace's own packages.
fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

/// Fails with every violation found, and with what to do about them.
#[track_caller]
fn expect_none(violations: &[String], what_to_do: &str) {
    assert!(violations.is_empty(), "\n{}\nhint: {what_to_do}\n", violations.join("\n"));
}
