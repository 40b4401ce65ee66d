//! A report as a picture: refused requests over time, and callers by their peak, with the limit.

use std::fmt::{self, Write as _};

use super::{bars, grouped, span};
use crate::parse::civil;
use crate::report::{LimitReport, Report, Timeline};

const WIDTH: u64 = 900;
const HEIGHT: u64 = 220;
pub(super) const LEFT: u64 = 70;
pub(super) const TOP: u64 = 34;
pub(super) const PLOT: (u64, u64) = (WIDTH - LEFT - 20, HEIGHT - TOP - 36);
const MOST_BARS: u64 = 60;
// Fixed colours, because the picture has its own white background.
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600}.now{fill:#c2410c}\
    .before{fill:none;stroke:#1d4ed8;stroke-width:1.5}.callers{fill:#0f766e}.axis{stroke:#999}\
    .limit{stroke:#b91c1c;stroke-width:2;stroke-dasharray:5 3}.limit-text{fill:#b91c1c}.halo{stroke:#fff;stroke-width:4}";

/// The content of a picture.
#[derive(Clone, Copy, Debug)]
pub enum Chart<'a> {
    /// Refused requests over time: now, and before if known.
    Refused(&'a Timeline),
    /// The number of callers by peak under one limit.
    Peaks(&'a LimitReport),
}

/// All charts of the report, stacked.
#[must_use]
pub fn svg(report: &Report) -> String {
    let mut charts = vec![("requests refused".to_owned(), Chart::Refused(&report.timeline))];
    for rule in &report.rules {
        let name = format!("{}/{}", rule.domain, rule.rule);
        if rule.refused.now > 0 {
            charts.push((format!("{name}: requests refused"), Chart::Refused(&rule.timeline)));
        }
        let peaked = rule.limits.iter().filter(|limit| !limit.peaks.is_empty());
        charts.extend(
            peaked.map(|limit| {
                (format!("{name}, {}: callers by their peak", limit.limit), Chart::Peaks(limit))
            }),
        );
    }
    let mut out = String::new();
    let height = HEIGHT * charts.len() as u64;
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\
         <style>{STYLE}</style><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    for (place, (title, chart)) in charts.iter().enumerate() {
        let _ = write!(out, "<g transform=\"translate(0 {})\">", place as u64 * HEIGHT);
        let _ = chart.write(&mut out, title);
        out.push_str("</g>");
    }
    out.push_str("</svg>\n");
    out
}

impl Chart<'_> {
    fn write(&self, out: &mut String, title: &str) -> fmt::Result {
        let axes = self.axes();
        write!(out, "<text class=\"title\" x=\"{LEFT}\" y=\"14\">{}</text>", escaped(title))?;
        self.write_shapes(out)?;
        write_axes(out, &axes)?;
        match self {
            Chart::Refused(timeline) => {
                let legend = legend(timeline);
                write!(out, "<text x=\"{}\" y=\"14\" text-anchor=\"end\">{legend}</text>", WIDTH - 20)
            }
            Chart::Peaks(limit) if limit.quota <= axes.end => write_limit(out, limit.quota, axes.end),
            Chart::Peaks(_) => Ok(()),
        }
    }

    /// Only bars and lines: the area between the axes.
    pub(super) fn write_shapes(&self, out: &mut String) -> fmt::Result {
        match self {
            Chart::Refused(timeline) => write_timeline(out, timeline),
            Chart::Peaks(limit) => write_peaks(out, limit, self.axes().end),
        }
    }

    /// The labels of the axes.
    pub(super) fn axes(&self) -> Axes {
        match self {
            Chart::Refused(timeline) => {
                let end = timeline.start_s + columns(timeline) * timeline.width_s;
                Axes {
                    highest: most_refused(timeline),
                    first: civil(timeline.start_s),
                    last: civil(end),
                    end,
                }
            }
            Chart::Peaks(limit) => {
                let bars = bars(&limit.peaks, MOST_BARS);
                let last = bars.last().map_or(1, |bar| bar.1.saturating_add(1));
                // The limit is shown unless it is so far away that it would squeeze everything else.
                let is_near = limit.quota < last.saturating_mul(4);
                let end = if is_near { last.max(limit.quota.saturating_add(1)) } else { last };
                Axes { highest: most_callers(&bars), first: "0".to_owned(), last: grouped(end), end }
            }
        }
    }
}

/// The labels at the ends of a chart's axes; `end` is the end of the horizontal one as a number.
pub(super) struct Axes {
    pub(super) highest: u64,
    pub(super) first: String,
    pub(super) last: String,
    pub(super) end: u64,
}

/// The legend of a timeline.
pub(super) fn legend(timeline: &Timeline) -> String {
    format!("bars: now; line: before; a bar is {}", span(timeline.width_s.max(1)))
}

fn columns(timeline: &Timeline) -> u64 {
    timeline.buckets.len().max(1) as u64
}

fn most_refused(timeline: &Timeline) -> u64 {
    timeline.buckets.iter().map(|bucket| bucket[1].max(bucket[2])).max().unwrap_or(0).max(1)
}

fn most_callers(bars: &[(u64, u64, u64)]) -> u64 {
    bars.iter().map(|bar| bar.2).max().unwrap_or(0).max(1)
}

fn write_timeline(out: &mut String, timeline: &Timeline) -> fmt::Result {
    let (highest, columns) = (most_refused(timeline), columns(timeline));
    let mut line = String::new();
    for (place, [_, now, before]) in (0u64..).zip(&timeline.buckets) {
        let (x, next) = (LEFT + place * PLOT.0 / columns, LEFT + (place + 1) * PLOT.0 / columns);
        let (width, height) = ((next - x).max(1), scaled(*now, highest));
        if height > 0 {
            let y = TOP + PLOT.1 - height;
            write!(out, "<rect class=\"now\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>")?;
        }
        let y = TOP + PLOT.1 - scaled(*before, highest);
        write!(line, "{x},{y} {next},{y} ")?;
    }
    if timeline.buckets.iter().any(|bucket| bucket[2] > 0) {
        write!(out, "<polyline class=\"before\" points=\"{}\"/>", line.trim_end())?;
    }
    Ok(())
}

fn write_peaks(out: &mut String, limit: &LimitReport, end: u64) -> fmt::Result {
    let bars = bars(&limit.peaks, MOST_BARS);
    let highest = most_callers(&bars);
    for (first, last, callers) in &bars {
        let (x, next) = (x_of(*first, end), x_of(last.saturating_add(1), end));
        let (width, height) = ((next - x).max(2) - 1, scaled(*callers, highest));
        let y = TOP + PLOT.1 - height;
        write!(out, "<rect class=\"callers\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>")?;
    }
    Ok(())
}

/// The limit as a vertical line. Its number is above the plot, where no bar is behind it.
fn write_limit(out: &mut String, quota: u64, end: u64) -> fmt::Result {
    let (x, bottom) = (x_of(quota, end), TOP + PLOT.1);
    for class in ["halo", "limit"] {
        let top = TOP - 12;
        write!(out, "<line class=\"{class}\" x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{bottom}\"/>")?;
    }
    let side = if x > LEFT + PLOT.0 * 3 / 4 { "dx=\"-4\" text-anchor=\"end\"" } else { "dx=\"4\"" };
    let (y, number) = (TOP - 2, grouped(quota));
    write!(out, "<text class=\"limit-text\" x=\"{x}\" y=\"{y}\" {side}>limit {number}</text>")
}

fn x_of(value: u64, end: u64) -> u64 {
    LEFT + u64::try_from(u128::from(value) * u128::from(PLOT.0) / u128::from(end)).unwrap_or(PLOT.0)
}

/// A height in the plot; anything above zero is visible.
fn scaled(count: u64, highest: u64) -> u64 {
    u64::try_from((u128::from(count) * u128::from(PLOT.1)).div_ceil(u128::from(highest))).unwrap_or(PLOT.1)
}

fn write_axes(out: &mut String, axes: &Axes) -> fmt::Result {
    let (bottom, right) = (TOP + PLOT.1, LEFT + PLOT.0);
    let Axes { highest, first, last, .. } = axes;
    write!(out, "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/>")?;
    write!(out, "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{TOP}\" x2=\"{LEFT}\" y2=\"{bottom}\"/>")?;
    write!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        LEFT - 6,
        TOP + 10,
        grouped(*highest)
    )?;
    write!(out, "<text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>", LEFT - 6)?;
    write!(out, "<text x=\"{LEFT}\" y=\"{}\">{first}</text>", bottom + 18)?;
    write!(out, "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{last}</text>", bottom + 18)
}

/// Escapes text, which callers may have chosen, so that it is not markup.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
    }
    out
}
