//! A chart on a page: shapes that scale, and text beside them that does not.
//!
//! A picture that shrinks with its page shrinks its text too, until it is unreadable on a phone. So only bars and lines are
//! an image here, in the colours of the page's theme, and all text is HTML.

use std::fmt::{self, Write as _};

use super::grouped;
use super::svg::{Axes, Chart, LEFT, PLOT, TOP, escaped, legend};

/// Writes `chart` as a figure. A chart of peaks has a line that `page.js` moves with the limit.
pub(super) fn write_figure(out: &mut String, chart: Chart<'_>, title: &str) -> fmt::Result {
    let (title, Axes { highest, first, last, end }) = (escaped(title), chart.axes());
    let class = if matches!(chart, Chart::Peaks(_)) { " class=\"peaks\"" } else { "" };
    write!(out, "<figure{class}><figcaption><b>{title}</b>")?;
    if let Chart::Refused(timeline) = chart {
        write!(out, "<span>{}</span>", legend(timeline))?;
    }
    write!(
        out,
        "</figcaption><div class=\"high\"><span>{}</span><span>0</span></div><div class=\"plot\">\
         <svg viewBox=\"{LEFT} {TOP} {} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">",
        grouped(highest),
        PLOT.0,
        PLOT.1
    )?;
    chart.write_shapes(out)?;
    out.push_str("</svg>");
    if let Chart::Peaks(limit) = chart {
        write_limit(out, limit.quota, end)?;
    }
    writeln!(out, "</div><div class=\"far\"><span>{first}</span><span>{last}</span></div></figure>")
}

/// The line exists even if the limit is off the chart: a slider may move it in.
fn write_limit(out: &mut String, quota: u64, end: u64) -> fmt::Result {
    let hidden = if quota > end { " hidden" } else { "" };
    let permyriad = u128::from(quota.min(end)) * 10_000 / u128::from(end.max(1));
    let side = if permyriad > 7_000 { "limit left" } else { "limit" };
    write!(
        out,
        "<div class=\"{side}\" data-end=\"{end}\" style=\"left:{}.{:02}%\"{hidden}><span>limit {}</span></div>",
        permyriad / 100,
        permyriad % 100,
        grouped(quota)
    )
}
