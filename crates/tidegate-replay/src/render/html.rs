//! A report as one HTML page without network access or other files. A slider moves a limit and shows its effect.

use std::fmt::{self, Write as _};

use super::figure::write_figure;
use super::svg::{Chart, escaped};
use super::{grouped, moment, percent, signed};
use crate::parse::civil;
use crate::report::{CallerReport, Counts, LimitReport, Report, RuleChange, RuleReport};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The report as one HTML page that works offline.
#[must_use]
pub fn html(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut out, report);
    out
}

fn write_page(out: &mut String, report: &Report) -> fmt::Result {
    // Callers choose their names: nothing on this page may load or send anything.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>tidegate replay</title><style>{STYLE}</style></head><body><main>\n<h1>What these rules would have done</h1>"
    )?;
    let played = report.lines.played + report.lines.events;
    match played {
        0 => write!(out, "<p>Not a single line could be played ({} log).", report.format)?,
        _ => write!(
            out,
            "<p>{} requests from {} to {} ({} log).",
            grouped(report.requests),
            civil(report.from_s),
            civil(report.to_s),
            report.format
        )?,
    }
    writeln!(out, " {} of {} lines played.</p>", grouped(played), grouped(report.lines.read))?;
    for caveat in [&report.unknown, &report.estimate].into_iter().flatten() {
        writeln!(out, "<p class=\"caveat\">{}</p>", escaped(caveat))?;
    }
    for bad in &report.lines.examples {
        let (why, text) = (escaped(&bad.why), escaped(&bad.text));
        writeln!(out, "<p class=\"bad\">line {}: {why}: <code>{text}</code></p>", bad.line)?;
    }
    for note in &report.notes {
        writeln!(out, "<p class=\"note\">{}</p>", escaped(note))?;
    }
    let what = if report.unknown.is_some() { "requests, by the other rules" } else { "requests" };
    write_counts(out, &[(what, report.refused, report.requests)])?;
    if played > 0 {
        write_figure(out, Chart::Refused(&report.timeline), "requests refused")?;
    }
    report.rules.iter().try_for_each(|rule| write_rule(out, rule, company(report, rule)))?;
    writeln!(out, "</main><script>{SCRIPT}</script></body></html>")
}

const COLUMNS: [&str; 5] = ["refused now", "before", "difference", "of", "share"];

/// A table of numbers that a narrow page stacks: each cell knows its column's name.
fn write_counts(out: &mut String, rows: &[(&str, Counts, u64)]) -> fmt::Result {
    out.push_str("<div class=\"wide\"><table class=\"counts\"><thead><tr><th></th>");
    COLUMNS.iter().try_for_each(|name| write!(out, "<th>{name}</th>"))?;
    out.push_str("</tr></thead><tbody>");
    for (what, counts, of) in rows {
        write!(out, "<tr><th>{what}</th>")?;
        let before = counts.before.map_or("–".to_owned(), grouped);
        let difference = counts.difference().map_or("–".to_owned(), signed);
        let cells = [grouped(counts.now), before, difference, grouped(*of), percent(counts.now, *of)];
        for (name, cell) in COLUMNS.iter().zip(cells) {
            write!(out, "<td data-of=\"{name}\">{cell}</td>")?;
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    Ok(())
}

/// Whether a limit decides alone, or something else may refuse first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    Alone,
    Others,
}

fn company(report: &Report, rule: &RuleReport) -> Company {
    let refuses = |other: &&RuleReport| {
        other.domain == rule.domain
            && other.rule != rule.rule
            && !other.shadow
            && other.change != RuleChange::Removed
    };
    let has_others = rule.limits.len() > 1 || report.rules.iter().any(|other| refuses(&other));
    if has_others { Company::Others } else { Company::Alone }
}

fn write_rule(out: &mut String, rule: &RuleReport, company: Company) -> fmt::Result {
    writeln!(out, "<section><h2>{}/{}</h2>", escaped(&rule.domain), escaped(&rule.rule))?;
    if rule.shadow {
        out.push_str("<p class=\"note\">A shadow rule: this is what enforcing it would refuse.</p>\n");
    }
    if rule.unknown {
        out.push_str("<p class=\"caveat\">Unknown: the log hashes what it matches on.</p></section>\n");
        return Ok(());
    }
    write_counts(
        out,
        &[("requests", rule.refused, rule.requests), ("callers", rule.callers_refused, rule.callers)],
    )?;
    if rule.refused.now > 0 {
        write_figure(out, Chart::Refused(&rule.timeline), "requests refused")?;
        write_callers(out, "hit first", &rule.hit_first)?;
        write_callers(out, "hit most", &rule.hit_most)?;
    }
    let together = (company == Company::Others).then_some(rule.refused.now);
    rule.limits
        .iter()
        .filter(|limit| !limit.peaks.is_empty())
        .try_for_each(|limit| write_limit(out, limit, together))?;
    out.push_str("</section>\n");
    Ok(())
}

fn write_callers(out: &mut String, title: &str, callers: &[CallerReport]) -> fmt::Result {
    write!(
        out,
        "<div class=\"wide\"><table class=\"callers-hit\"><thead><tr><th>{title}</th><th>requests</th><th>refused</th><th>first at</th></tr></thead><tbody>"
    )?;
    for caller in callers {
        let first = caller.first_refused_us.map(moment).unwrap_or_default();
        let (name, requests, refused) =
            (escaped(&caller.caller), grouped(caller.requests), grouped(caller.refused.now));
        write!(
            out,
            "<tr><td><code>{name}</code></td><td>{requests}</td><td>{refused}</td><td>{first}</td></tr>"
        )?;
    }
    out.push_str("</tbody></table></div>\n");
    Ok(())
}

/// A limit's chart and slider. The slider counts all demand on the limit. If others refuse a part of it first, it says so,
/// and shows beside its number what the rule refused `together` with them.
fn write_limit(out: &mut String, limit: &LimitReport, together: Option<u64>) -> fmt::Result {
    let title = format!("{}: callers by their peak", limit.limit);
    write_figure(out, Chart::Peaks(limit), &title)?;
    let pairs = |peaks: &[crate::report::Peak]| {
        let pairs: Vec<String> = peaks.iter().map(|peak| format!("{}:{}", peak.value, peak.count)).collect();
        pairs.join(" ")
    };
    let largest = limit.peaks.last().map_or(1, |peak| peak.value).max(limit.quota.min(1 << 40));
    let together = together.map(|refused| format!(" data-together=\"{refused}\"")).unwrap_or_default();
    writeln!(
        out,
        "<div class=\"slider\" data-peaks=\"{}\" data-runs=\"{}\" data-quota=\"{}\"{together}><label>limit \
         <input type=\"range\" min=\"0\" max=\"{largest}\" value=\"{}\"> <output></output></label></div>",
        pairs(&limit.peaks),
        pairs(&limit.runs),
        limit.quota,
        limit.quota.min(largest)
    )?;
    if let Some(suggestion) = &limit.suggestion {
        writeln!(
            out,
            "<p>Suggested limit: <b>{}</b>, which 99.9 % of {} callers stay within ({} % sure); {} above.</p>",
            grouped(suggestion.limit),
            grouped(suggestion.callers),
            suggestion.confidence_percent,
            grouped(suggestion.above)
        )?;
        out.push_str("<ul>");
        for (caller, peak) in &suggestion.busiest {
            write!(out, "<li><code>{}</code>: {}</li>", escaped(caller), grouped(*peak))?;
        }
        out.push_str("</ul>\n");
    }
    Ok(())
}
