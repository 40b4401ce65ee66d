//! A report for a terminal.

use std::fmt::{self, Write as _};

use super::{bars, grouped, moment, percent, signed, span, window};
use crate::parse::civil;
use crate::report::{Counts, LimitReport, Otherwise, Peak, Report, RuleChange, RuleReport, Timeline};

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const BAR_WIDTH: u64 = 40;
const MOST_BARS: u64 = 12;

/// The report as text; charts are at most `width` columns wide.
#[must_use]
pub fn text(report: &Report, width: usize) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut out, report, width.clamp(40, 240));
    out
}

fn write_report(out: &mut String, report: &Report, width: usize) -> fmt::Result {
    let lines = &report.lines;
    if lines.played + lines.events == 0 {
        writeln!(out, "not a single line could be played ({} log)", report.format)?;
    } else {
        writeln!(
            out,
            "{} requests ({} log) from {} to {}",
            grouped(report.requests),
            report.format,
            civil(report.from_s),
            civil(report.to_s)
        )?;
    }
    if let Some(unknown) = &report.unknown {
        writeln!(out, "{unknown}")?;
    }
    if let Some(estimate) = &report.estimate {
        writeln!(out, "{estimate}")?;
    }
    let what = match (&report.unknown, &report.estimate) {
        (Some(_), _) => "requests refused by the other rules",
        (None, Some(_)) => "requests refused, estimated",
        (None, None) => "requests refused",
    };
    writeln!(out, "{}", refused_line(what, report.refused, report.requests))?;
    if let (Some(newly), Some(admitted)) = (report.newly_refused, report.newly_admitted) {
        writeln!(out, "  newly refused {}, newly admitted {}", grouped(newly), grouped(admitted))?;
    }
    if let Some(recorded) = report.refused_in_log {
        let otherwise = report.decided_otherwise.unwrap_or_default();
        let (admitted, refused) = (grouped(otherwise.admitted_now), grouped(otherwise.refused_now));
        writeln!(
            out,
            "  refused when it happened: {}; of those {admitted} pass here, and {refused} others do not",
            grouped(recorded)
        )?;
    }
    if let Some(otherwise) = report.before_otherwise.filter(|otherwise| *otherwise != Otherwise::default()) {
        writeln!(
            out,
            "  the rules compared with do not repeat what happened: of those refused then they let {} pass here, and refuse {} others",
            grouped(otherwise.admitted_now),
            grouped(otherwise.refused_now)
        )?;
    }
    if lines.bad + lines.unknown_domain > 0 {
        writeln!(
            out,
            "\n{} of {} lines were not played:",
            grouped(lines.bad + lines.unknown_domain),
            grouped(lines.read)
        )?;
        if lines.unknown_domain > 0 {
            writeln!(out, "  {} are of a domain that the rules do not have", grouped(lines.unknown_domain))?;
        }
        if lines.bad > 0 {
            writeln!(out, "  {} could not be read, such as", grouped(lines.bad))?;
        }
        for bad in &lines.examples {
            writeln!(out, "    line {}: {}: {}", bad.line, bad.why, bad.text)?;
        }
    }
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    write_timeline(out, &report.timeline, report.refused.before.is_some(), width)?;
    report.rules.iter().try_for_each(|rule| write_rule(out, rule))
}

fn refused_line(what: &str, counts: Counts, of: u64) -> String {
    let mut line =
        format!("{what}: {} ({} of {})", grouped(counts.now), percent(counts.now, of), grouped(of));
    if let (Some(before), Some(difference)) = (counts.before, counts.difference()) {
        let _ = write!(line, ", before {}, difference {}", grouped(before), signed(difference));
    }
    line
}

/// A bar chart of block characters: refused requests over time.
fn write_timeline(out: &mut String, timeline: &Timeline, compared: bool, width: usize) -> fmt::Result {
    let refused: u64 = timeline.buckets.iter().map(|bucket| bucket[1] + bucket[2]).sum();
    if timeline.buckets.len() < 2 || refused == 0 {
        return Ok(());
    }
    let per_column = timeline.buckets.len().div_ceil(width - 12);
    let columns: Vec<[u64; 3]> = timeline
        .buckets
        .chunks(per_column)
        .map(|chunk| chunk.iter().fold([0; 3], |sum, bucket| [0, 1, 2].map(|n| sum[n] + bucket[n])))
        .collect();
    let highest = columns.iter().map(|column| column[1].max(column[2])).max().unwrap_or(0).max(1);
    let wide = span(timeline.width_s * per_column as u64);
    writeln!(out, "\nrequests refused over time (a column is {wide}, the highest {})", grouped(highest))?;
    let rows = [("now", 1), ("before", 2)];
    for (name, of) in rows.iter().take(if compared { 2 } else { 1 }) {
        let blocks: String = columns.iter().map(|column| block(column[*of], highest)).collect();
        writeln!(out, "  {name:>6} |{blocks}|")?;
    }
    writeln!(out, "          {}", civil(timeline.start_s))
}

/// Zero is blank; anything above it is visible.
fn block(count: u64, highest: u64) -> char {
    let height = (u128::from(count) * 8).div_ceil(u128::from(highest));
    BLOCKS[usize::try_from(height.min(8)).unwrap_or(8)]
}

fn write_rule(out: &mut String, rule: &RuleReport) -> fmt::Result {
    let change = match rule.change {
        RuleChange::Only | RuleChange::Both => "",
        RuleChange::Added => " (new)",
        RuleChange::Removed => " (only in the old rules)",
    };
    let shadow = if rule.shadow { " (shadow: what enforcing it would refuse)" } else { "" };
    writeln!(out, "\nrule {}/{}{change}{shadow}", rule.domain, rule.rule)?;
    if rule.unknown {
        return writeln!(out, "  unknown: the log hashes what it matches on");
    }
    writeln!(out, "  {}", refused_line("requests refused", rule.refused, rule.requests))?;
    let about = if rule.sampled_one_in > 1 { "about " } else { "" };
    writeln!(out, "  {about}{}", refused_line("callers refused", rule.callers_refused, rule.callers))?;
    if let (Some(newly), Some(no_longer)) = (rule.callers_newly_refused, rule.callers_no_longer_refused) {
        writeln!(out, "    newly refused {}, no longer refused {}", grouped(newly), grouped(no_longer))?;
    }
    if rule.skipped > 0 {
        writeln!(out, "  not counted, because they lack an attribute of the key: {}", grouped(rule.skipped))?;
    }
    if let Some(first) = rule.hit_first.first() {
        let when = moment(first.first_refused_us.unwrap_or_default());
        writeln!(out, "  hit first: {} at {when}", first.caller)?;
        writeln!(out, "  hit most:")?;
        for caller in &rule.hit_most {
            let line = refused_line("refused", caller.refused, caller.requests);
            writeln!(out, "    {}: {line}", caller.caller)?;
        }
    }
    rule.limits.iter().try_for_each(|limit| write_limit(out, limit))
}

fn write_limit(out: &mut String, limit: &LimitReport) -> fmt::Result {
    let Some(suggestion) = &limit.suggestion else { return Ok(()) };
    let per = limit.window_us.map(|micros| format!(" per {}", window(micros))).unwrap_or_default();
    writeln!(out, "  limit {} ({}{per}): callers by their peak", grouped(limit.quota), limit.algorithm)?;
    let bars = split_at(limit.quota, &limit.peaks, bars(&limit.peaks, MOST_BARS));
    let most = bars.iter().map(|bar| bar.2).max().unwrap_or(1).max(1);
    let above: u64 = bars.iter().filter(|bar| bar.0 > limit.quota).map(|bar| bar.2).sum();
    let within = bars.partition_point(|bar| bar.0 <= limit.quota);
    for bar in &bars[..within] {
        write_bar(out, bar, most)?;
    }
    writeln!(out, "    {} {} above", limit_line(limit.quota), grouped(above))?;
    for bar in &bars[within..] {
        write_bar(out, bar, most)?;
    }
    writeln!(
        out,
        "    suggested: {}, which 99.9 % of {} callers stay within ({} % sure); {} above",
        grouped(suggestion.limit),
        grouped(suggestion.callers),
        suggestion.confidence_percent,
        grouped(suggestion.above)
    )?;
    for (caller, peak) in &suggestion.busiest {
        writeln!(out, "      {caller}: {}", grouped(*peak))?;
    }
    Ok(())
}

fn write_bar(out: &mut String, (first, last, callers): &(u64, u64, u64), most: u64) -> fmt::Result {
    let width = usize::try_from((callers * BAR_WIDTH).div_ceil(most)).unwrap_or(0);
    let range =
        if first == last { grouped(*first) } else { format!("{}-{}", grouped(*first), grouped(*last)) };
    writeln!(out, "    {range:>15} {} {}", "█".repeat(width), grouped(*callers))
}

/// Splits the bar that contains the limit in two, so that no caller above the limit is shown below its line. A part without
/// callers is left out, like other empty bars.
fn split_at(quota: u64, peaks: &[Peak], bars: Vec<(u64, u64, u64)>) -> Vec<(u64, u64, u64)> {
    let split = |(first, last, callers): (u64, u64, u64)| {
        if !(first..last).contains(&quota) {
            return [(first, last, callers), (first, last, 0)];
        }
        let within = peaks.iter().filter(|peak| (first..=quota).contains(&peak.value));
        let within = within.map(|peak| peak.count).sum();
        [(first, quota, within), (quota + 1, last, callers - within)]
    };
    bars.into_iter().flat_map(split).filter(|bar| bar.2 > 0).collect()
}

fn limit_line(quota: u64) -> String {
    format!("{:>15} {}", format!("limit {}", grouped(quota)), "─".repeat(BAR_WIDTH as usize))
}
