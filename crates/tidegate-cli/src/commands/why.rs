//! `tidegate why`: who was refused, when, by which rule.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::args::{Output, WhyArgs};
use crate::commands::admin_client::AdminClient;
use crate::failure::Failure;
use crate::terminal::plain;

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

/// The question as the admin API takes it.
fn query(args: &WhyArgs) -> String {
    let key: Vec<String> = args.attributes.iter().map(|one| format!("{}={}", one.key, one.value)).collect();
    let mut path = format!("/decisions?limit={}", args.limit);
    let fields = [
        ("key", (!key.is_empty()).then(|| key.join(","))),
        ("domain", args.domain.clone()),
        ("rule", args.rule.clone()),
        ("verdict", (!args.all).then(|| "refused".to_owned())),
        ("from", args.from.clone()),
        ("to", args.to.clone()),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            let _ = write!(path, "&{name}={}", escaped(&value));
        }
    }
    path
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// The same from a file, in the shape that the API answers in.
fn search_file(path: &Path, args: &WhyArgs) -> Result<Value, Failure> {
    let unreadable = |error: io::Error| Failure::new(format!("cannot read {}: {error}", path.display()));
    let (mut newest, mut fit, mut bad) = (VecDeque::new(), 0u64, 0u64);
    for line in BufReader::new(File::open(path).map_err(unreadable)?).lines() {
        let Ok(decision) = serde_json::from_str::<Value>(&line.map_err(unreadable)?) else {
            bad += 1;
            continue;
        };
        if !fits(&decision, args) {
            continue;
        }
        fit += 1;
        newest.push_front(decision);
        newest.truncate(args.limit);
    }
    Ok(json!({ "decisions": newest, "fit": fit, "unreadable": bad }))
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
    let fit = found["fit"].as_u64().unwrap_or(0);
    let _ = match (fit, found["oldest"].as_str()) {
        (0, Some(oldest)) => writeln!(out, "nothing that fits was kept since {oldest}"),
        (0, None) => writeln!(out, "nothing that fits was kept"),
        _ if fit > decisions.len() as u64 => {
            writeln!(out, "and {} more: --limit shows them", fit - decisions.len() as u64)
        }
        _ => Ok(()),
    };
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
