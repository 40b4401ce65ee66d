//! How often alerts are right. `cargo test -p tidegate-telemetry --test it quality -- --nocapture` prints the table.

use std::collections::BTreeMap;

use tidegate_telemetry::alerts::Kind;
use tidegate_telemetry::alerts::synthetic::{Score, evaluate};

/// Other seeds than those the thresholds were chosen with.
const SEEDS: [u64; 3] = [101, 102, 103];

fn scores() -> BTreeMap<Kind, Score> {
    let mut sum: BTreeMap<Kind, Score> = BTreeMap::new();
    for (kind, score) in SEEDS.into_iter().flat_map(evaluate) {
        let all = sum.entry(kind).or_default();
        all.found += score.found;
        all.missed += score.missed;
        all.wrong += score.wrong;
        all.minutes += score.minutes;
    }
    sum
}

#[test]
fn on_traffic_with_known_incidents_alerts_are_right_as_often_as_the_guide_says() {
    let scores = scores();
    println!("| Kind | Incidents | Precision | Recall | Minutes until told |\n|---|---|---|---|---|");
    let mut all = Score::default();
    for (kind, score) in &scores {
        let incidents = score.found + score.missed;
        println!(
            "| `{}` | {incidents} | {:.2} | {:.2} | {:.1} |",
            kind.name(),
            score.precision(),
            score.recall(),
            score.delay_minutes()
        );
        all.found += score.found;
        all.missed += score.missed;
        all.wrong += score.wrong;
    }
    println!(
        "all: {} incidents, precision {:.3}, recall {:.3}",
        all.found + all.missed,
        all.precision(),
        all.recall()
    );
    assert!(all.precision() >= 0.9 && all.recall() >= 0.9, "{scores:#?}");
}
