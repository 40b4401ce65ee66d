//! What a user pays: third-party crates, as `cargo tree` counts them.

use std::collections::BTreeSet;
use std::process::Command;

/// With default features. Eleven of them are SHA-256, HMAC and a comparison in constant time: leases are signed, and requests
/// that have names are known by them on every node. Five read the processor's counter: the clock of a check in memory. One asks
/// the system for random bytes.
const MOST: usize = 37;

/// The crates that `tidegate` brings in, ours left out.
fn brought_in(features: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "-p", "tidegate", "-e", "normal", "--prefix", "none", "--format", "{p}"])
        .args(features)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).unwrap();
    let names = listing.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty());
    names.filter(|name| !name.starts_with("tidegate")).map(str::to_owned).collect()
}

#[test]
fn default_features_are_light() {
    let crates = brought_in(&[]);
    assert!(crates.contains("parking_lot"), "the listing is none of dependencies: {crates:?}");
    assert!(crates.len() <= MOST, "{} crates, more than {MOST}: {crates:?}", crates.len());
}

#[test]
fn no_runtime_comes_with_a_limiter_in_memory() {
    let crates = brought_in(&[]);
    for heavy in ["tokio", "futures-util", "http", "redis"] {
        assert!(!crates.contains(heavy), "{heavy} in {crates:?}");
    }
}

#[test]
fn redis_without_tls_brings_no_cryptography_that_needs_a_c_compiler() {
    let crates = brought_in(&["--features", "redis"]);
    for heavy in ["aws-lc-rs", "aws-lc-sys", "rustls", "ring", "openssl"] {
        assert!(!crates.contains(heavy), "{heavy} in {crates:?}");
    }
    assert!(brought_in(&["--features", "redis-tls"]).contains("rustls"));
}

#[test]
fn middleware_brings_no_server_along() {
    let crates = brought_in(&["--features", "tower"]);
    for heavy in ["hyper", "axum", "tonic", "redis", "jsonwebtoken", "aws-lc-rs"] {
        assert!(!crates.contains(heavy), "{heavy} in {crates:?}");
    }
}
