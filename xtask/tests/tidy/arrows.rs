//! Which crate may use which: the absences are the point.
//!
//! The limiter sees no concrete store, the data plane does not know the control plane, and core knows nobody at all.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{expect_none, metadata};

/// A crate, and the workspace crates it may use. It may also use what those may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("tidegate-core", &[]),
    ("tidegate-access", &["tidegate-core"]),
    ("tidegate-client", &["tidegate-core"]),
    ("tidegate-rules", &["tidegate-core"]),
    ("tidegate-store", &["tidegate-core"]),
    ("tidegate-fleet", &["tidegate-store"]),
    ("tidegate-store-items", &["tidegate-fleet", "tidegate-store"]),
    ("tidegate-shed", &["tidegate-rules", "tidegate-store"]),
    ("tidegate-limiter", &["tidegate-rules", "tidegate-shed", "tidegate-store"]),
    ("tidegate-http", &["tidegate-limiter"]),
    ("tidegate-tower", &["tidegate-http"]),
    ("tidegate-runtime", &["tidegate-access"]),
    ("tidegate-server", &["tidegate-runtime", "tidegate-http"]),
    ("tidegate-proxy", &["tidegate-runtime", "tidegate-http"]),
    ("tidegate-decisions", &["tidegate-limiter"]),
    ("tidegate-metrics", &["tidegate-limiter"]),
    ("tidegate-replay", &["tidegate-decisions", "tidegate-http"]),
    ("tidegate-rulestore", &["tidegate-rules"]),
    ("tidegate-telemetry", &["tidegate-access", "tidegate-metrics"]),
    (
        "tidegate-admin",
        &[
            "tidegate-decisions",
            "tidegate-fleet",
            "tidegate-replay",
            "tidegate-rulestore",
            "tidegate-telemetry",
        ],
    ),
    ("tidegate", &["tidegate-limiter", "tidegate-tower"]),
    (
        "tidegate-cli",
        &[
            "tidegate-server",
            "tidegate-proxy",
            "tidegate-admin",
            "tidegate-fleet",
            "tidegate-http",
            "tidegate-replay",
        ],
    ),
    (TESTKIT, &["tidegate-store"]),
    ("xtask", &[]),
];

/// How the name of a concrete store begins: it needs no row above.
const STORE: &str = "tidegate-store-";
/// What a store may use.
const STORES_MAY_USE: &[&str] = &["tidegate-fleet", "tidegate-store", "tidegate-store-items"];
/// Who may name concrete stores, all of them.
const MAY_USE_STORES: &[&str] = &["tidegate", "tidegate-cli"];

/// What the tests of a crate may use beyond that. All listeners must read a request alike, so some tests ask all of them.
const TESTS_MAY_USE: &[(&str, &str)] = &[
    ("tidegate-proxy", "tidegate-server"),
    // The client is tested against the server that it is for.
    ("tidegate-client", "tidegate"),
    ("tidegate-client", "tidegate-access"),
    ("tidegate-client", "tidegate-limiter"),
    ("tidegate-client", "tidegate-rules"),
    ("tidegate-client", "tidegate-runtime"),
    ("tidegate-client", "tidegate-server"),
    ("tidegate-client", "tidegate-store"),
];

/// Starts real servers for tests: any crate's dev-dependency, never more.
const TESTKIT: &str = "tidegate-testkit";

/// Crates that must compile with nothing but the standard library.
const STD_ONLY: &[&str] = &["tidegate-core", "xtask"];

const WHAT_TO_DO: &str = "turn the dependency round, or move the code to the crate that may use both; \
    a new crate, or a new arrow, goes into the table of xtask/tests/tidy/arrows.rs and of docs/ARCHITECTURE.md";

#[test]
fn crates_depend_only_on_those_below_them() {
    expect_none(&violations(&metadata()), WHAT_TO_DO);
}

#[test]
fn the_table_of_arrows_names_crates_that_exist() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    let known: BTreeSet<&str> = packages.iter().map(|package| text(package, "name")).collect();
    let named = ARROWS.iter().flat_map(|(name, uses)| uses.iter().chain([name]));
    let for_tests = TESTS_MAY_USE.iter().flat_map(|(name, used)| [name, used]);
    let gone: BTreeSet<String> = named
        .chain(for_tests)
        .filter(|name| !known.contains(**name))
        .map(|name| (*name).to_owned())
        .collect();
    expect_none(&gone.into_iter().collect::<Vec<_>>(), WHAT_TO_DO);
}

/// Every dependency in `metadata` that the table does not allow.
fn violations(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    packages.iter().flat_map(violations_of).collect()
}

fn violations_of(package: &Value) -> Vec<String> {
    let name = text(package, "name");
    let Some(used_by_name) = may_use(name) else {
        return vec![format!("{name} is not in the table of crates")];
    };
    let allows =
        |used: &str| used_by_name.contains(used) || MAY_USE_STORES.contains(&name) && used.starts_with(STORE);
    let dependencies = package["dependencies"].as_array().expect("a package lists dependencies");
    let bad = dependencies.iter().filter_map(|dependency| {
        let (used, kind) = (text(dependency, "name"), dependency["kind"].as_str());
        let ours = dependency.get("path").is_some_and(Value::is_string);
        let fine = match (ours, kind) {
            (true, Some("dev")) => {
                used == TESTKIT || used == name || allows(used) || TESTS_MAY_USE.contains(&(name, used))
            }
            (true, _) => allows(used),
            (false, Some("dev")) => true,
            (false, _) => !STD_ONLY.contains(&name),
        };
        let kind = kind.map(|kind| format!("{kind}-")).unwrap_or_default();
        (!fine).then(|| format!("{name} has a {kind}dependency on {used}"))
    });
    bad.collect()
}

/// What `name` may use, through others included; nothing if the table does not know it.
fn may_use(name: &str) -> Option<BTreeSet<&'static str>> {
    let direct = match ARROWS.iter().find(|(known, _)| *known == name) {
        Some((_, direct)) => *direct,
        None if name.starts_with(STORE) => STORES_MAY_USE,
        None => return None,
    };
    let mut all: BTreeSet<&str> = direct.iter().copied().collect();
    for used in direct {
        all.extend(may_use(used).expect("the table is closed"));
    }
    Some(all)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} is a string"))
}

fn workspace_of(name: &str, dependencies: &[Value]) -> Value {
    json!({ "packages": [{ "name": name, "dependencies": dependencies }] })
}

fn ours(name: &str, kind: Option<&str>) -> Value {
    json!({ "name": name, "kind": kind, "path": format!("/repo/crates/{name}") })
}

fn theirs(name: &str, kind: Option<&str>) -> Value {
    json!({ "name": name, "kind": kind })
}

#[test]
fn an_arrow_that_points_up_is_found() {
    let upwards = workspace_of("tidegate-store", &[ours("tidegate-limiter", None)]);
    assert_eq!(violations(&upwards), ["tidegate-store has a dependency on tidegate-limiter"]);
}

#[test]
fn the_limiter_cannot_name_a_concrete_store() {
    let concrete = workspace_of("tidegate-limiter", &[ours("tidegate-store-redis", None)]);
    assert_eq!(violations(&concrete), ["tidegate-limiter has a dependency on tidegate-store-redis"]);
}

#[test]
fn the_data_plane_cannot_name_the_rule_database_or_the_control_plane() {
    for plane in
        ["tidegate-limiter", "tidegate-server", "tidegate-proxy", "tidegate-tower", "tidegate-store-redis"]
    {
        for control in ["tidegate-rulestore", "tidegate-admin"] {
            let found = violations(&workspace_of(plane, &[ours(control, None)]));
            assert_eq!(found, [format!("{plane} has a dependency on {control}")]);
        }
    }
}

#[test]
fn a_store_needs_no_row_and_is_named_by_the_binary_and_the_library_alone() {
    let new = "tidegate-store-etcd";
    assert!(violations(&workspace_of(new, &[ours("tidegate-store-items", None)])).is_empty());
    for user in MAY_USE_STORES {
        assert!(violations(&workspace_of(user, &[ours(new, None)])).is_empty());
    }
    let found = violations(&workspace_of(new, &[ours("tidegate-limiter", None)]));
    assert_eq!(found, [format!("{new} has a dependency on tidegate-limiter")]);
    for user in ["tidegate-store-items", "tidegate-server", "tidegate-store-redis"] {
        let found = violations(&workspace_of(user, &[ours(new, None)]));
        assert_eq!(found, [format!("{user} has a dependency on {new}")]);
    }
}

#[test]
fn what_a_neighbour_may_use_may_be_used() {
    assert!(violations(&workspace_of("tidegate-server", &[ours("tidegate-core", None)])).is_empty());
}

#[test]
fn core_has_no_dependency_at_all_but_for_its_tests() {
    let dependencies = [theirs("serde", None), theirs("cc", Some("build")), theirs("proptest", Some("dev"))];
    let found = violations(&workspace_of("tidegate-core", &dependencies));
    assert_eq!(
        found,
        ["tidegate-core has a dependency on serde", "tidegate-core has a build-dependency on cc"]
    );
}

#[test]
fn the_testkit_is_for_tests_only() {
    assert!(violations(&workspace_of("tidegate-cli", &[ours(TESTKIT, Some("dev"))])).is_empty());
    let shipped = workspace_of("tidegate-cli", &[ours(TESTKIT, None)]);
    assert_eq!(violations(&shipped), ["tidegate-cli has a dependency on tidegate-testkit"]);
}

#[test]
fn a_crate_that_nobody_placed_is_found() {
    assert_eq!(
        violations(&workspace_of("tidegate-utils", &[])),
        ["tidegate-utils is not in the table of crates"]
    );
}
