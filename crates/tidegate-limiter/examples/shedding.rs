//! Draws what shedding does through a fourfold overload: `cargo run -p tidegate-limiter --example shedding [FOLDER]`.
//!
//! Twenty workers of 50 ms can do 400 requests a second. For one minute they are asked for 150, for four minutes for 1,600,
//! and then for 150 again; P0 asks for 100 all the time. It prints shed level and goodput by class over time, and beside
//! them P0 without shedding. Given a folder, it writes `shedding.csv` and `shedding.svg` there.

#![expect(clippy::print_stdout, reason = "it is run to be read")]

#[path = "../tests/it/overload.rs"]
mod overload;

use std::fmt::Write as _;
use std::path::PathBuf;

use overload::{Overload, Second};

/// Seconds that become one point.
const EVERY: usize = 5;
const NAMES: [&str; 4] = ["P0", "P1", "P2", "P3"];
const SEED: u64 = 7;

fn main() -> std::io::Result<()> {
    let with = points(&Overload::fourfold().run(SEED));
    let without = points(&Overload { believed: 1_000_000, ..Overload::fourfold() }.run(SEED));
    println!("goodput: the part of each class that is answered within 500 ms; a column is {EVERY} s");
    for (class, name) in NAMES.into_iter().enumerate() {
        draw(name, with.iter().map(|point| point.goodput[class]));
    }
    draw("P0 without shedding", without.iter().map(|point| point.goodput[0]));
    draw("shed level", with.iter().map(|point| point.level));
    if let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) {
        std::fs::write(folder.join("shedding.csv"), csv(&with, &without))?;
        std::fs::write(folder.join("shedding.svg"), svg(&with, &without))?;
    }
    Ok(())
}

/// A few seconds together.
struct Point {
    at: usize,
    level: f64,
    goodput: [f64; 4],
}

fn points(seconds: &[Second]) -> Vec<Point> {
    let chunks = seconds.chunks(EVERY).enumerate();
    chunks
        .map(|(number, chunk)| {
            let part = |class: usize| {
                let sent: u32 = chunk.iter().map(|second| second.sent[class]).sum();
                let good: u32 = chunk.iter().map(|second| second.good[class]).sum();
                // A request that came in one point may be answered in the next.
                (f64::from(good) / f64::from(sent.max(1))).min(1.0)
            };
            let level = chunk.last().map_or(0.0, |second| second.level);
            Point { at: number * EVERY, level, goodput: [0, 1, 2, 3].map(part) }
        })
        .collect()
}

/// Columns of a height from 0 to 1.
fn draw(name: &str, values: impl Iterator<Item = f64>) {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values: Vec<f64> = values.collect();
    println!("\n{name}");
    for row in (0..4).rev() {
        let column = |value: &f64| {
            let filled = (value * 4.0 - f64::from(row)).clamp(0.0, 1.0) * 8.0;
            BLOCKS[filled.round() as usize]
        };
        let label = if row == 3 { "1" } else { " " };
        println!("{label} |{}|", values.iter().map(column).collect::<String>());
    }
}

fn csv(with: &[Point], without: &[Point]) -> String {
    let mut text =
        "second,shed_level,goodput_p0,goodput_p1,goodput_p2,goodput_p3,goodput_p0_without_shedding\n"
            .to_owned();
    for (with, without) in with.iter().zip(without) {
        let [p0, p1, p2, p3] = with.goodput;
        let Point { at, level, .. } = with;
        let alone = without.goodput[0];
        writeln!(text, "{at},{level:.4},{p0:.4},{p1:.4},{p2:.4},{p3:.4},{alone:.4}").expect("text grows");
    }
    text
}

fn svg(with: &[Point], without: &[Point]) -> String {
    let [left, top, wide, high] = [40.0, 20.0, 720.0, 240.0];
    let end = with.last().map_or(1, |point| point.at).max(1) as f64;
    let path = |values: Vec<(usize, f64)>| {
        let place = |(at, value): &(usize, f64)| {
            format!("{:.1},{:.1}", left + *at as f64 / end * wide, top + (1.0 - value) * high)
        };
        values.iter().map(place).collect::<Vec<_>>().join(" ")
    };
    let mut lines: Vec<(String, &str, &str, String)> = Vec::new();
    for (class, color) in ["#0a7d33", "#1f6fd0", "#d08a1f", "#c0392b"].into_iter().enumerate() {
        let values = with.iter().map(|point| (point.at, point.goodput[class])).collect();
        lines.push((NAMES[class].to_owned(), color, "", path(values)));
    }
    let level = with.iter().map(|point| (point.at, point.level)).collect();
    lines.push(("shed level".to_owned(), "#444", "6 4", path(level)));
    let alone = without.iter().map(|point| (point.at, point.goodput[0])).collect();
    lines.push(("P0 without shedding".to_owned(), "#0a7d33", "2 4", path(alone)));
    let mut text = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 780 330\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"780\" height=\"330\" fill=\"white\"/>\n".to_owned();
    for (value, label) in [(0.0, "0"), (0.5, "0.5"), (1.0, "1")] {
        let y = top + (1.0 - value) * high;
        writeln!(
            text,
            "<path d=\"M{left} {y}h{wide}\" stroke=\"#ddd\"/><text x=\"10\" y=\"{}\">{label}</text>",
            y + 4.0
        )
        .expect("text grows");
    }
    for minute in (0..=10).step_by(2) {
        let x = left + f64::from(minute) * 60.0 / end * wide;
        writeln!(
            text,
            "<text x=\"{x:.0}\" y=\"{}\" text-anchor=\"middle\">{minute} min</text>",
            top + high + 18.0
        )
        .expect("text grows");
    }
    for (place, (name, color, dashes, points)) in lines.iter().enumerate() {
        let (x, y) = (left + place as f64 * 115.0, top + high + 46.0);
        writeln!(
            text,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>\n\
             <path d=\"M{x} {y}h18\" stroke=\"{color}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/><text x=\"{}\" y=\"{}\">{name}</text>",
            x + 22.0,
            y + 4.0
        )
        .expect("text grows");
    }
    text + "</svg>\n"
}
