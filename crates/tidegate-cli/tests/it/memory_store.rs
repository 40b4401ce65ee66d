//! A server whose counters live in its memory, which is full: who is forgotten then, and who is not.

use tidegate_testkit::resp::Value;

use crate::redis_world::{Node, PATIENT, tell};

/// Asks everything at once in turns of a thousand, and returns every reply.
fn ask_all(node: &Node, commands: impl Iterator<Item = Vec<String>>) -> Vec<Value> {
    let (commands, mut client) = (commands.collect::<Vec<_>>(), node.client());
    commands.chunks(1_000).flat_map(|some| client.pipeline(some)).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Promise 13. Such a cell ends last of all: if the one that ends first made room, it would be a live counter's. It has quota left;
/// one that has none is itself somebody who has spent all.
#[test]
fn cells_of_ten_years_made_by_cl_throttle_free_nobody_who_has_spent_all() {
    const CELLS: usize = 8_000;
    const CALLERS: usize = 3_000;
    const RULES: &str =
        "- { name: few, key: [user], limits: [{ algorithm: token_bucket, rate: 1/h, burst: 2 }] }\n";
    let node = Node::start_with("memory:", PATIENT, RULES, &format!("limits: {{ max_cells: {CELLS} }}\n"));
    let ask_callers = || {
        let replies = ask_all(&node, (0..CALLERS).map(|user| words(&format!("TG.CHECK api user u{user}"))));
        replies.iter().filter(|reply| reply.array()[0].int() == 1).count()
    };
    assert_eq!([ask_callers(), ask_callers(), ask_callers()], [CALLERS, CALLERS, 0]);
    let flood = (0..8 * CELLS).map(|key| words(&format!("CL.THROTTLE {key} 15 1 315360000")));
    let passed = ask_all(&node, flood).iter().filter(|reply| reply.array()[0].int() == 0).count();
    assert_eq!(passed, 8 * CELLS, "each is new");
    let evicted = node.metric("tidegate_cell_evictions_total{reason=\"in_use\"}");
    tell!("{evicted} cells made room");
    assert!(evicted >= (7 * CELLS) as f64, "there was room for all: {evicted}");
    assert_eq!(ask_callers(), 0, "somebody was freed");
}
