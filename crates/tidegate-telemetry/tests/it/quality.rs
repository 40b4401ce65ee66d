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

/// How large the incidents of a kind are.
fn sizes(kind: Kind) -> &'static str {
    match kind {
        Kind::TrafficSpike => "3 to 12 times",
        Kind::TrafficDrop => "to 0 to 15 %",
        Kind::RefusalSpike => "20 to 70 points",
        Kind::NewTopCaller => "55 to 90 %",
        Kind::SpreadCaller => "4 to 10 times, as many more keys",
        Kind::ShadowWouldRefuse => "10 to 50 %",
        _ => "none of its own",
    }
}

#[test]
fn on_traffic_with_known_incidents_alerts_are_right_as_often_as_the_guide_says() {
    let scores = scores();
    let mut table =
        "| Kind | Incidents | Precision | Recall | Minutes until told |\n|---|---|---|---|---|\n".to_owned();
    for (kind, score) in &scores {
        let (name, sizes, incidents) = (kind.name(), sizes(*kind), score.found + score.missed);
        let (precision, recall, delay) = (score.precision(), score.recall(), score.delay_minutes());
        table +=
            &format!("| `{name}`, {sizes} | {incidents} | {precision:.2} | {recall:.2} | {delay:.1} |\n");
    }
    println!("{table}");
    let guide = std::fs::read_to_string("../../docs/guides/telemetry.md").unwrap();
    assert!(guide.contains(&table), "docs/guides/telemetry.md says otherwise; put this there:\n{table}");
    let sum = |of: fn(&Score) -> u32| f64::from(scores.values().map(of).sum::<u32>());
    let (found, missed, wrong) = (sum(|one| one.found), sum(|one| one.missed), sum(|one| one.wrong));
    assert!(found / (found + wrong) >= 0.95 && found / (found + missed) >= 0.95, "{scores:#?}");
}
