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

/// Promise 13. Such a cell ends last of all: if the one that ends first made room, it would be a live counter's.
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
    for max_burst in [0, 15] {
        let flood = (0..4 * CELLS)
            .map(|key| words(&format!("CL.THROTTLE {max_burst}-{key} {max_burst} 1 315360000")));
        let passed = ask_all(&node, flood).iter().filter(|reply| reply.array()[0].int() == 0).count();
        assert_eq!(passed, 4 * CELLS, "each is new");
        let (cells, freed) = (node.metric_sum("tidegate_cells"), ask_callers());
        tell!("bursts of {}: {cells} cells, {freed} of {CALLERS} freed", max_burst + 1);
        assert_eq!(freed, 0, "by bursts of {}", max_burst + 1);
    }
    assert!(node.metric_sum("tidegate_cell_evictions_total{") > 0.0, "there was room for all");
}
