//! How often alerts are right. `cargo test -p tidegate-telemetry --test it quality -- --nocapture` prints the table.

use tidegate_telemetry::alerts::Kind;
use tidegate_telemetry::alerts::synthetic::{Evaluation, SIZES, Size, evaluate};

/// Other seeds than those the thresholds were chosen with.
const SEEDS: [u64; 3] = [201, 202, 203];

/// The range of sizes, in words.
fn shown(kind: Kind, least: f64, most: f64) -> String {
    let (low, high) = ((100.0 * least).round(), (100.0 * most).round());
    match kind {
        Kind::TrafficSpike | Kind::SpreadCaller => format!("{least} to {most} times"),
        Kind::TrafficDrop => format!("to {low} to {high} %"),
        Kind::RefusalSpike => format!("{low} to {high} points"),
        _ => format!("{low} to {high} %"),
    }
}

#[test]
fn on_traffic_with_known_incidents_alerts_are_right_as_often_as_the_guide_says() {
    let mut all = Evaluation::default();
    SEEDS.into_iter().for_each(|seed| all.add(&evaluate(seed)));
    let mut table = "| Kind | Put in | Told | Just above | Told | Below | Told | Precision | Minutes |\n\
                     |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (kind, sizes) in SIZES {
        table += &format!("| `{}` |", kind.name());
        for (size, least, most) in sizes {
            let score = all.score(kind, size);
            let put_in = score.found + score.missed;
            table += &format!(" {} | {} of {put_in} |", shown(kind, least, most), score.found);
        }
        let found = [Size::Plain, Size::JustAbove].map(|size| all.score(kind, size));
        let minutes = found.iter().map(|score| score.minutes).sum::<u64>() as f64;
        let told = f64::from(found.iter().map(|score| score.found).sum::<u32>().max(1));
        table += &format!(" {:.2} | {:.1} |\n", all.precision(kind), minutes / told);
    }
    println!("{table}{:?}", all.wrong);
    let guide = std::fs::read_to_string("../../docs/guides/telemetry.md").unwrap();
    assert!(
        guide.contains(&table),
        "docs/guides/telemetry.md says otherwise; put this there:\n{table}{:?}",
        all.wrong
    );
    let wrong = f64::from(all.wrong.values().sum::<u32>());
    let sum = |of: Size| {
        let scores = all.scores.iter().filter(|((_, size), _)| *size == of);
        scores.fold((0.0, 0.0), |(found, all), (_, score)| {
            (found + f64::from(score.found), all + f64::from(score.found + score.missed))
        })
    };
    let [(plain, of_plain), (above, of_above), (_, below)] =
        [Size::Plain, Size::JustAbove, Size::Below].map(sum);
    assert!(plain / of_plain >= 0.95 && above / of_above >= 0.8, "{all:#?}");
    assert!((plain + above) / (plain + above + wrong) >= 0.95, "{all:#?}");
    assert!(below >= 100.0, "there is something to be wrong about");
}
