//! `tidegate replay`: what rules would have done to recorded traffic.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use tidegate_replay::{Format, Line, Options, Parser, Reader, Replay, html, svg, text};
use tidegate_rules::RuleSet;

use crate::args::{Output, RecordedFormat, ReplayArgs};
use crate::failure::Failure;
use crate::rules::RuleFiles;
use crate::settings::suggest;

/// As wide as charts are where nobody knows how wide the terminal is.
const WIDTH: usize = 100;

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let load = |paths: &[_]| RuleFiles { native: paths.to_vec(), envoy: None }.load();
    let rules = load(&args.rules)?.rules;
    let against = (!args.against.is_empty()).then(|| load(&args.against)).transpose()?;
    let options =
        Options { named: args.top, most_callers: args.max_callers, ..Options::new(domain(args, &rules)?) };
    let mut replay = Replay::new(rules, against.map(|loaded| loaded.rules), options);
    for log in &args.logs {
        play(&mut replay, log, args)?;
    }
    let report = replay.finish();
    if report.lines.read == 0 {
        return Err(Failure::new("the log is empty").hint("give the log that holds the traffic to play"));
    }
    if let Some(path) = &args.svg {
        write(path, &svg(&report))?;
    }
    if let Some(path) = &args.html {
        write(path, &html(&report))?;
    }
    let mut out = io::stdout().lock();
    match args.output.output {
        Output::Text => write!(out, "{}", text(&report, WIDTH))?,
        Output::Json => {
            let json = serde_json::to_string_pretty(&report).expect("a report is plain data");
            writeln!(out, "{json}")?;
        }
    }
    if report.lines.played == 0 {
        let hint = "say how the log is written with --format, and of which domain it is with --domain";
        return Err(Failure::new("not a single line of the log could be played").hint(hint));
    }
    Ok(ExitCode::SUCCESS)
}

/// The domain of requests that do not say theirs.
fn domain(args: &ReplayArgs, rules: &RuleSet) -> Result<String, Failure> {
    let mut known: Vec<&str> = rules.domains().collect();
    known.sort_unstable();
    match (&args.domain, &known[..]) {
        (Some(domain), _) if known.contains(&domain.as_str()) => Ok(domain.clone()),
        (Some(domain), _) => {
            let failure = Failure::new(format!("no rule file has rules for the domain `{domain}`"));
            Err(failure.hint(suggest(domain, &known)))
        }
        (None, [only]) => Ok((*only).to_owned()),
        // A log of our own says the domain of each request; for any other it must be said.
        (None, _) if args.format == RecordedFormat::Tidegate => Ok(String::new()),
        (None, _) => {
            let failure =
                Failure::new("the rules have several domains, and the log does not say which one is meant");
            Err(failure.hint(format!("name it with --domain; the rules have {}", known.join(", "))))
        }
    }
}

fn play(replay: &mut Replay, log: &Path, args: &ReplayArgs) -> Result<(), Failure> {
    let unreadable = |error: io::Error| Failure::new(format!("cannot read {}: {error}", log.display()));
    let (input, size): (Box<dyn Read>, u64) = if log == Path::new("-") {
        (Box::new(io::stdin().lock()), 0)
    } else {
        let file = File::open(log).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        (Box::new(file), size)
    };
    let mut reader = Reader::new(input);
    let Some(first) = reader.next_line().map_err(unreadable)? else { return Ok(()) };
    let (mut parser, is_header) = parser_for(first, args)?;
    if !is_header {
        replay.play_line(first, &mut parser);
    }
    let bar = progress(size);
    let played = replay.play_log(&mut reader, &mut parser, |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    played.map_err(unreadable)
}

/// What reads the log, and whether its first line was a header.
fn parser_for(first: Line<'_>, args: &ReplayArgs) -> Result<(Parser, bool), Failure> {
    let Line::Text(first) = first else {
        return Err(Failure::new("the first line is longer than 64 KiB").hint("is this a log?"));
    };
    if first.starts_with(&[0x1f, 0x8b]) || first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err(Failure::new("the log is compressed").hint("zcat access.log.gz | tidegate replay - …"));
    }
    let format = match args.format {
        RecordedFormat::Csv => {
            let mapping: Vec<(String, String)> =
                args.map.iter().map(|map| (map.key.clone(), map.value.clone())).collect();
            let parser = Parser::csv(first, &mapping).map_err(|why| {
                Failure::new(why).hint("for example --map time=started_at --map user=account")
            })?;
            return Ok((parser, true));
        }
        RecordedFormat::Auto => Format::of(first).map_err(|unknown| {
            let hint = "say which it is with --format; for CSV also which column is what, with --map";
            Failure::new(format!("{unknown}, by its first line")).hint(hint)
        })?,
        RecordedFormat::Tidegate => Format::Tidegate,
        RecordedFormat::Combined => Format::Combined,
        RecordedFormat::Envoy => Format::Envoy,
        RecordedFormat::Caddy => Format::Caddy,
    };
    Ok((Parser::new(format).expect("CSV was dealt with"), false))
}

/// A bar on stderr; nothing at all if that is not a terminal.
fn progress(size: u64) -> ProgressBar {
    let bar = if size > 0 { ProgressBar::new(size) } else { ProgressBar::no_length() };
    let template = "{elapsed_precise} [{bar:40}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    bar.set_style(style.progress_chars("=> "));
    bar
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))
}
