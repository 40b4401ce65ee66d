//! A report for people: as text, as a picture, and as one page that needs no network.

mod figure;
mod html;
mod svg;
mod text;

pub use html::html;
pub use svg::{Chart, svg};
pub use text::text;

use crate::parse::civil;

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `+412`, `-3`, `±0`.
fn signed(number: i64) -> String {
    match number {
        0 => "±0".to_owned(),
        1.. => format!("+{}", grouped(number.unsigned_abs())),
        _ => format!("-{}", grouped(number.unsigned_abs())),
    }
}

/// A share as a percentage that distinguishes little from nothing.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".to_owned();
    }
    let share = part as f64 * 100.0 / whole as f64;
    if share < 0.01 { "< 0.01 %".to_owned() } else { format!("{share:.2} %") }
}

/// `1 h`, `30 s`.
fn span(seconds: u64) -> String {
    match seconds {
        s if s.is_multiple_of(86_400) => format!("{} d", s / 86_400),
        s if s.is_multiple_of(3_600) => format!("{} h", s / 3_600),
        s if s.is_multiple_of(60) => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

/// A window given in microseconds.
fn window(micros: u64) -> String {
    if micros.is_multiple_of(1_000_000) {
        span(micros / 1_000_000)
    } else {
        format!("{} ms", micros as f64 / 1_000.0)
    }
}

fn moment(micros: u64) -> String {
    civil(micros / 1_000_000)
}

/// Peaks grouped into at most `most` bars: the smallest and largest number of each, and its callers.
fn bars(peaks: &[crate::report::Peak], most: u64) -> Vec<(u64, u64, u64)> {
    let Some(largest) = peaks.last().map(|peak| peak.value) else { return Vec::new() };
    // One, two or five times a power of ten, for readable edges.
    let mut width = 1u64;
    let mut steps = [2, 5, 10].into_iter().cycle();
    let mut base = 1;
    while largest / width >= most {
        let step = steps.next().unwrap_or(10);
        width = base * step;
        if step == 10 {
            base = width;
        }
    }
    let mut bars: Vec<(u64, u64, u64)> = Vec::new();
    for peak in peaks {
        let (first, last) =
            (peak.value / width * width, (peak.value / width * width).saturating_add(width - 1));
        match bars.last_mut() {
            Some(bar) if bar.0 == first => bar.2 += peak.count,
            _ => bars.push((first, last, peak.count)),
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Peak;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0, 12, 123, 1_234, 1_234_567].map(grouped), ["0", "12", "123", "1,234", "1,234,567"]);
        assert_eq!([-1_200, 0, 3].map(signed), ["-1,200", "±0", "+3"]);
        assert_eq!(
            (percent(1, 1_000_000), percent(412, 18_200)),
            ("< 0.01 %".to_owned(), "2.26 %".to_owned())
        );
        assert_eq!([1, 60, 5_400, 7_200, 86_400].map(span), ["1 s", "1 min", "90 min", "2 h", "1 d"]);
    }

    #[test]
    fn bars_have_readable_edges_and_lose_nobody() {
        let peaks: Vec<Peak> = (1..=137).map(|value| Peak { value, count: 2 }).collect();
        let bars = bars(&peaks, 12);
        assert_eq!((bars[0].0, bars[0].1, bars.len()), (0, 19, 7));
        assert_eq!(bars.iter().map(|bar| bar.2).sum::<u64>(), 274);
    }

    #[test]
    fn the_last_bar_of_the_largest_numbers_ends_behind_its_beginning() {
        let bars = bars(&[Peak { value: u64::MAX, count: 1 }], 12);
        assert_eq!(bars, [(18_000_000_000_000_000_000, u64::MAX, 1)]);
    }
}
