//! Two nodes on one database run the same rules soon after a change on one of them.

use std::time::Duration;

use serde_json::json;
use tidegate_admin::RuleSource;
use tidegate_testkit::{Postgres, in_three_tries, poll};

use super::world::{Node, RULES};

#[test]
fn two_nodes_on_one_database_converge_within_two_seconds() {
    let url = Postgres::shared().new_database();
    let [one, other] = [(); 2].map(|()| Node::on(&url, RuleSource::Database, tempfile::tempdir().unwrap()));
    let mut version = 1;
    in_three_tries(|| {
        let mut slowest = Duration::ZERO;
        for _ in 0..5 {
            let limit = 2 + version % 5;
            assert_eq!(one.publish(version, &RULES.replace("3/", &format!("{limit}/"))).status, 200);
            let took = waited(|| other.get("/rules")["version"] == json!(version + 1));
            slowest = slowest.max(took.expect("the other node follows"));
            assert_eq!(other.passing(&version.to_string(), 9), limit as usize);
            version += 1;
        }
        println!("the other node ran each of 5 versions within {slowest:?}");
        if slowest < Duration::from_secs(2) { Ok(()) } else { Err(format!("{slowest:?}")) }
    });
}

#[test]
fn a_ban_made_on_one_node_counts_on_the_other() {
    let url = Postgres::shared().new_database();
    let [one, other] = [(); 2].map(|()| Node::on(&url, RuleSource::Database, tempfile::tempdir().unwrap()));
    let ban = json!({ "domain": "api", "when": { "user": "42" }, "action": "ban", "reason": "abuse" });
    assert_eq!(one.ask("POST", "/keys/overrides", &ban).status, 201);
    assert!(waited(|| !other.check("42").allowed).is_some());
    assert!(other.check("43").allowed);
}

/// How long it took until `holds`.
#[expect(clippy::disallowed_methods, reason = "it measures how long real nodes take")]
fn waited(mut holds: impl FnMut() -> bool) -> Option<Duration> {
    let start = std::time::Instant::now();
    poll(Duration::from_secs(30), || holds().then(|| start.elapsed()))
}
