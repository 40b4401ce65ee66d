//! `tidegate why`: who was refused, when, by which rule.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_replay::{Line, Reader};
use tidegate_store::{Clock as _, SystemClock};
use tidegate_telemetry::url_part;

use crate::args::{Attribute, Output, WhyArgs};
use crate::commands::admin_client::AdminClient;
use crate::failure::Failure;
use crate::terminal::plain;

/// The most results of a server.
const MOST: usize = 1_000;

pub(crate) fn run(args: &WhyArgs) -> Result<ExitCode, Failure> {
    let found = match &args.log {
        Some(path) => search_file(path, args)?,
        None => AdminClient::new(&args.admin)?.get(&query(args))?.body,
    };
    let mut out = io::stdout().lock();
    match args.admin.output {
        Output::Json => writeln!(out, "{found:#}")?,
        Output::Text => write!(out, "{}", sentences(&found))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The query string for the admin API.
fn query(args: &WhyArgs) -> String {
    // As an object: a value may contain commas and equals signs.
    let key: BTreeMap<&str, &str> =
        args.attributes.iter().map(|one| (one.key.as_str(), one.value.as_str())).collect();
    let mut path = format!("/decisions?limit={}", args.limit);
    let fields = [
        ("key", (!key.is_empty()).then(|| json!(key).to_string())),
        ("domain", args.domain.clone()),
        ("rule", args.rule.clone()),
        ("verdict", (!args.all).then(|| "refused".to_owned())),
        ("from", args.from.clone()),
        ("to", args.to.clone()),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            let _ = write!(path, "&{name}={}", url_part(&value));
        }
    }
    path
}

/// The same from a file, in the shape of the API's answer.
fn search_file(path: &Path, args: &WhyArgs) -> Result<Value, Failure> {
    let unreadable = |error: io::Error| Failure::new(format!("cannot read {}: {error}", path.display()));
    let (from, to) = (moment_us(args.from.as_deref(), "--from")?, moment_us(args.to.as_deref(), "--to")?);
    if from.unwrap_or(0) >= to.unwrap_or(u64::MAX) {
        return Err(Failure::new("--from must be before --to")
            .hint("spans go back from now: --from 1h --to 15m is what was between them"));
    }
    let (mut newest, mut matched, mut bad) = (VecDeque::new(), 0u64, 0u64);
    let mut hashed = BTreeSet::new();
    let mut lines = Reader::new(File::open(path).map_err(unreadable)?);
    while let Some(line) = lines.next_line().map_err(unreadable)? {
        let decision = match line {
            Line::Text(text) if matched + bad == 0 && text.starts_with(&[0x1f, 0x8b]) => {
                return Err(Failure::new(format!("{} is compressed", path.display()))
                    .hint("unpack it first: zcat decisions.log.1.gz > decisions.log.1"));
            }
            Line::Text(text) => serde_json::from_slice::<Value>(text).ok(),
            Line::TooLong => None,
        };
        let Some(mut decision) = decision.filter(Value::is_object) else {
            bad += 1;
            continue;
        };
        // Not a decision, but a later event.
        if decision.get("event").is_some() {
            continue;
        }
        let is_hashed = |one: &&Attribute| {
            let shown = decision["attributes"][&one.key].as_str().unwrap_or_default();
            shown.starts_with('#') && !one.value.starts_with('#')
        };
        hashed.extend(args.attributes.iter().filter(is_hashed).map(|one| one.key.as_str()));
        let at = decision["time_us"].as_u64().unwrap_or(0);
        let is_then = from.is_none_or(|from| at >= from) && to.is_none_or(|to| at < to);
        if !is_then || !fits(&decision, args) {
            continue;
        }
        matched += 1;
        if let Some(time) = moment(&decision) {
            decision["time"] = time.into();
        }
        newest.push_front(decision);
        newest.truncate(args.limit as usize);
    }
    Ok(json!({ "decisions": newest, "matched": matched, "unreadable": bad, "hashed": hashed }))
}

/// A time, or a duration back from now, as the API accepts them.
fn moment_us(text: Option<&str>, option: &str) -> Result<Option<u64>, Failure> {
    let Some(text) = text else { return Ok(None) };
    if let Ok(back) = tidegate_rules::parse_duration(text) {
        return Ok(Some(SystemClock::new().now().as_micros().saturating_sub(back.get())));
    }
    let moment: jiff::Timestamp = text.parse().map_err(|_| {
        Failure::new(format!("`{text}` is no moment")).hint(format!(
            "write date, time and zone, such as {option} 2027-01-01T14:03Z, or how far back: {option} 15m"
        ))
    })?;
    Ok(Some(u64::try_from(moment.as_microsecond()).unwrap_or(0)))
}

/// Its time, as the API writes it.
fn moment(decision: &Value) -> Option<String> {
    let moment = jiff::Timestamp::from_microsecond(decision["time_us"].as_i64()?).ok()?;
    Some(moment.to_string())
}

fn fits(decision: &Value, args: &WhyArgs) -> bool {
    let is = |field: &str, wanted: &Option<String>| {
        wanted.as_ref().is_none_or(|wanted| decision[field].as_str() == Some(wanted))
    };
    is("domain", &args.domain)
        && is("rule", &args.rule)
        && (args.all || decision["verdict"] == "refused")
        && args.attributes.iter().all(|one| decision["attributes"][&one.key].as_str() == Some(&one.value))
}

fn sentences(found: &Value) -> String {
    let mut out = String::new();
    let decisions = found["decisions"].as_array().map(Vec::as_slice).unwrap_or_default();
    for decision in decisions {
        out.push_str(&plain(&sentence(decision)));
        out.push('\n');
    }
    let matched = found["matched"].as_u64().unwrap_or(0);
    let _ = match (matched, found["oldest"].as_str()) {
        (0, Some(oldest)) => writeln!(out, "nothing that fits was kept since {oldest}"),
        (0, None) => writeln!(out, "nothing that fits was kept"),
        _ if matched > decisions.len() as u64 => {
            let (more, how) = (
                matched - decisions.len() as u64,
                if decisions.len() < MOST { "--limit" } else { "--from and --to" },
            );
            writeln!(out, "and {more} more: {how} shows them")
        }
        _ => Ok(()),
    };
    if let (0, Some(unknown)) = (matched, found["unknown"].as_str()) {
        let _ = writeln!(out, "{}: `tidegate rules list` shows them", plain(unknown));
    }
    for name in
        found["hashed"].as_array().into_iter().flatten().filter_map(Value::as_str).filter(|_| matched == 0)
    {
        let _ = writeln!(
            out,
            "the values of {} are hashed in this file: ask the server, or give the hash",
            plain(name)
        );
    }
    for missing in found["missing"].as_array().into_iter().flatten() {
        let text = |field: &str| missing[field].as_str().unwrap_or_default();
        let _ = writeln!(out, "without {}: {}", text("node"), text("why"));
    }
    if let Some(bad @ 1..) = found["unreadable"].as_u64() {
        let _ = writeln!(out, "{bad} lines could not be read");
    }
    out
}

/// One decision in a line: `… refused by api/per-user: 0 of 100 left, retry in 18.0 s …`.
fn sentence(decision: &Value) -> String {
    let text = |field: &str| decision[field].as_str().unwrap_or_default();
    let when = decision["time"].as_str().map_or_else(|| format!("{} us", decision["time_us"]), str::to_owned);
    let mut line = format!("{when}  {}", text("verdict"));
    match decision["rule"].as_str() {
        Some(rule) => {
            let _ = write!(line, " by {}/{rule}", text("domain"));
        }
        None => line.push_str(", no rule matched"),
    }
    if let (Some(remaining), Some(limit)) = (decision["remaining"].as_u64(), decision["limit"].as_u64()) {
        let _ = write!(line, ": {remaining} of {limit} left");
    }
    if let Some(wait) = decision["retry_after_ms"].as_u64() {
        let _ = write!(line, ", retry in {:.1} s", wait as f64 / 1_000.0);
    }
    for (name, value) in decision["attributes"].as_object().into_iter().flatten() {
        let value: String = value
            .as_str()
            .unwrap_or_default()
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        let _ = write!(line, "  {name}={value}");
    }
    let _ = write!(line, "  ({}, node {}, version {}", text("source"), text("node"), decision["version"]);
    if let Some(n @ 2..) = decision["n"].as_u64() {
        let _ = write!(line, ", stands for {n}");
    }
    line.push(')');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_found_under_a_name_that_no_rule_has_says_so_and_where_the_names_are() {
        let unknown = "no rule in use is called `nope`";
        let told = sentences(&json!({ "decisions": [], "matched": 0, "unknown": unknown }));
        assert_eq!(
            told,
            "nothing that fits was kept\nno rule in use is called `nope`: `tidegate rules list` shows them\n"
        );
    }
}
