//! `tidegate replay`: replays recorded traffic through rules.

mod recorded_file;

use std::fs::OpenOptions;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::io::Errno;
use tidegate_replay::{
    Format, Line, LogSource, MergeByTime, Options, Order, Parser, Reader, Replay, html, svg, text,
};
use tidegate_rules::RuleSet;

use self::recorded_file::{MOST_OPEN, OpenFiles, RecordedFile};
use crate::args::{Output, RecordedFormat, ReplayArgs};
use crate::failure::Failure;
use crate::rules::RuleFiles;
use crate::settings::suggest;

/// The width of charts if the terminal's is unknown.
const WIDTH: usize = 100;

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let load = |paths: &[_]| RuleFiles { native: paths.to_vec(), envoy: None, xds: false }.load();
    let rules = load(&args.rules)?.rules;
    args.svg.iter().chain(&args.html).try_for_each(|path| check_output(path, args))?;
    let against = (!args.against.is_empty()).then(|| load(&args.against)).transpose()?;
    let domain = domain(args, &rules)?;
    let named = domain.clone().unwrap_or_default();
    let order = if args.sort { Order::Whole } else { Order::Window };
    let options = Options { named: args.top, most_callers: args.max_callers, order, ..Options::new(named) };
    let mut domains: Vec<String> = rules.domains().map(str::to_owned).collect();
    domains.sort_unstable();
    let mut replay = Replay::new(rules, against.map(|loaded| loaded.rules), options);
    let check = |format| check_domain(format, domain.as_ref(), &domains);
    if args.logs.iter().filter(|log| is_stdin(log)).count() > 1 {
        return Err(Failure::new("`-` is given twice, and there is one standard input")
            .hint("cat the logs into one pipe: zcat *.gz | tidegate replay - …"));
    }
    let found = args.logs.iter().map(|log| find(log, args, check));
    let logs: Vec<FoundLog> = found.filter_map(Result::transpose).collect::<Result<_, Failure>>()?;
    play(&mut replay, logs, args)?;
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

/// The domain of requests without one; `None` if the rules have several and none is selected.
fn domain(args: &ReplayArgs, rules: &RuleSet) -> Result<Option<String>, Failure> {
    let mut known: Vec<&str> = rules.domains().collect();
    known.sort_unstable();
    match (&args.domain, &known[..]) {
        (Some(domain), _) if known.contains(&domain.as_str()) => Ok(Some(domain.clone())),
        (Some(domain), _) => {
            let failure = Failure::new(format!("no rule file has rules for the domain `{domain}`"));
            Err(failure.hint(suggest(domain, &known)))
        }
        (None, [only]) => Ok(Some((*only).to_owned())),
        (None, _) => Ok(None),
    }
}

/// The decision log has the domain of each request; for any other format it must be known.
fn check_domain(format: Format, domain: Option<&String>, rules: &[String]) -> Result<(), Failure> {
    if domain.is_some() || format == Format::Tidegate {
        return Ok(());
    }
    let failure = Failure::new("the rules have several domains, and the log does not say which one is meant");
    Err(failure.hint(format!("name it with --domain; the rules have {}", rules.join(", "))))
}

/// The output files must be writable now, and none may also be an input.
fn check_output(path: &Path, args: &ReplayArgs) -> Result<(), Failure> {
    let cannot = |why: String| Failure::new(format!("cannot write {}: {why}", path.display()));
    if path.metadata().is_ok_and(|known| !known.is_file() && !known.is_dir()) {
        return Ok(());
    }
    let options = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    options.map_err(|error| cannot(error.to_string()))?;
    let read = args.logs.iter().chain(&args.rules).chain(&args.against);
    let is_same = |other: &PathBuf| other.canonicalize().ok() == path.canonicalize().ok();
    match read.clone().any(is_same) || args.svg == args.html {
        true => Err(cannot("it is read, or written twice".to_owned()).hint("name another file")),
        false => Ok(()),
    }
}

/// The source of a log.
type Input = Box<dyn Read>;

/// A log whose first line was read.
struct OpenedLog {
    path: PathBuf,
    reader: Reader<Input>,
    parser: Parser,
    /// The first line, unless it is a header.
    first: Option<Vec<u8>>,
    size: u64,
}

/// Opens a log and detects its format; `None` if it is empty.
fn open(
    path: &Path,
    args: &ReplayArgs,
    reader: fn(Input) -> Reader<Input>,
) -> Result<Option<OpenedLog>, Failure> {
    let (input, size): (Input, u64) = if is_stdin(path) {
        (Box::new(io::stdin().lock()), 0)
    } else {
        let size = path.metadata().map_err(|error| unreadable(path, &error))?.len();
        let file =
            RecordedFile::open(path, &OpenFiles::default()).map_err(|error| unreadable(path, &error))?;
        (Box::new(file), size)
    };
    let mut reader = reader(input);
    let Some(line) = reader.next_line().map_err(|error| unreadable(path, &error))? else { return Ok(None) };
    let (parser, is_header) = parser_for(line, args)?;
    let first = match line {
        Line::Text(text) if !is_header => Some(text.to_vec()),
        _ => None,
    };
    Ok(Some(OpenedLog { path: path.to_owned(), reader, parser, first, size }))
}

/// A log that is not empty. Only a pipe is kept open, because its first line can be read only once: there may be more logs
/// than a process may open.
enum FoundLog {
    Pipe(OpenedLog),
    File { path: PathBuf, size: u64, format: Format },
}

impl FoundLog {
    fn is_own(&self) -> bool {
        let format = match self {
            FoundLog::Pipe(log) => log.parser.format(),
            FoundLog::File { format, .. } => *format,
        };
        format == Format::Tidegate
    }

    fn size(&self) -> u64 {
        match self {
            FoundLog::Pipe(log) => log.size,
            FoundLog::File { size, .. } => *size,
        }
    }

    fn path(&self) -> &Path {
        match self {
            FoundLog::Pipe(log) => &log.path,
            FoundLog::File { path, .. } => path,
        }
    }
}

/// Detects the format of a log, so that an error in any of them is reported before the first is replayed; `None` if it is
/// empty.
fn find(
    path: &Path,
    args: &ReplayArgs,
    check: impl Fn(Format) -> Result<(), Failure>,
) -> Result<Option<FoundLog>, Failure> {
    let Some(log) = open(path, args, Reader::small)? else { return Ok(None) };
    let format = log.parser.format();
    check(format)?;
    Ok(Some(match path.is_file() && !is_stdin(path) {
        true => FoundLog::File { path: log.path, size: log.size, format },
        false => FoundLog::Pipe(log),
    }))
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Replays logs one after the other, in the given order. Decision logs have exact times, and those of several nodes belong
/// together: if all are decision logs, they are merged in time order.
fn play(replay: &mut Replay, logs: Vec<FoundLog>, args: &ReplayArgs) -> Result<(), Failure> {
    if logs.iter().all(FoundLog::is_own) {
        return play_merged(replay, logs);
    }
    logs.into_iter().try_for_each(|log| match log {
        own if own.is_own() => play_merged(replay, vec![own]),
        FoundLog::Pipe(log) => play_one(replay, log),
        FoundLog::File { path, .. } => {
            open(&path, args, Reader::new)?.map_or(Ok(()), |log| play_one(replay, log))
        }
    })
}

fn play_one(replay: &mut Replay, mut log: OpenedLog) -> Result<(), Failure> {
    let bar = progress(log.size);
    if let Some(first) = &log.first {
        replay.play_line(Line::Text(first), &mut log.parser);
    }
    let played = replay.play_log(&mut log.reader, &mut log.parser, |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    played.map_err(|error| unreadable(&log.path, &error))
}

fn play_merged(replay: &mut Replay, logs: Vec<FoundLog>) -> Result<(), Failure> {
    let bar = progress(logs.iter().map(FoundLog::size).sum());
    let paths: Vec<PathBuf> = logs.iter().map(|log| log.path().to_owned()).collect();
    let (files, many) = (OpenFiles::default(), logs.len() > MOST_OPEN);
    let source = |log| match log {
        FoundLog::Pipe(log) => Ok(LogSource::Open(log.reader, log.first)),
        FoundLog::File { path, .. } if many => Ok(on_demand(path, files.clone())),
        FoundLog::File { path, .. } => {
            let file = RecordedFile::open(&path, &files).map_err(|error| unreadable(&path, &error))?;
            Ok(LogSource::Open(Reader::new(Box::new(file) as Input), None))
        }
    };
    let sources: Vec<LogSource<Input>> = logs.into_iter().map(source).collect::<Result<_, Failure>>()?;
    let mut merged = MergeByTime::of(sources);
    let played = replay.play_merged(&mut merged, |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    played.map_err(|error| unreadable(&paths[merged.reading()], &error))
}

/// One of many logs: it takes memory, and perhaps an open file, only while its lines are replayed.
fn on_demand(path: PathBuf, files: OpenFiles) -> LogSource<Input> {
    LogSource::OnDemand(Box::new(move || {
        let file = RecordedFile::open(&path, &files)?;
        Ok(Reader::small(Box::new(file) as Input))
    }))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot read {}: {error}", path.display()));
    let too_many_files = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    match error.raw_os_error().is_some_and(|code| too_many_files.contains(&code)) {
        true => failure.hint(
            "every pipe needs an open file: write the logs to plain files, of which at most 16 are open at once, or raise \
             the limit with `ulimit -n 4096`",
        ),
        false => failure,
    }
}

/// The parser for the log, and whether its first line is a header.
fn parser_for(first: Line<'_>, args: &ReplayArgs) -> Result<(Parser, bool), Failure> {
    let Line::Text(first) = first else {
        return Err(Failure::new("the first line is longer than 64 KiB").hint("is this a log?"));
    };
    if first.starts_with(&[0x1f, 0x8b]) || first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err(Failure::new("the log is compressed").hint("zcat access.log.gz | tidegate replay - …"));
    }
    let mapping: Vec<(String, String)> =
        args.map.iter().map(|map| (map.key.clone(), map.value.clone())).collect();
    let bad_mapping =
        |why: String| Failure::new(why).hint("for example --map time=started_at --map user=account");
    let format = match args.format {
        RecordedFormat::Json => {
            return Ok((Parser::json(&mapping).map_err(bad_mapping)?, false));
        }
        // A line of JSON is no header.
        RecordedFormat::Auto if !mapping.is_empty() && first.starts_with(b"{") => {
            return Ok((Parser::json(&mapping).map_err(bad_mapping)?, false));
        }
        // `--map` names columns, so the log must be CSV.
        RecordedFormat::Auto | RecordedFormat::Csv
            if args.format == RecordedFormat::Csv || !args.map.is_empty() =>
        {
            return Ok((Parser::csv(first, &mapping).map_err(bad_mapping)?, true));
        }
        _ if !args.map.is_empty() => {
            return Err(Failure::new("--map names columns of CSV, or fields of JSON lines")
                .hint("leave it out, or say --format csv or --format json"));
        }
        RecordedFormat::Auto | RecordedFormat::Csv => Format::of(first).map_err(|unknown| {
            let hint = "say which it is with --format; for csv and json also which column or field is what, with --map";
            Failure::new(format!("{unknown}, by its first line")).hint(hint)
        })?,
        RecordedFormat::Tidegate => Format::Tidegate,
        RecordedFormat::Combined => Format::Combined,
        RecordedFormat::Envoy => Format::Envoy,
        RecordedFormat::Caddy => Format::Caddy,
    };
    Ok((Parser::new(format).expect("formats with a mapping were dealt with"), false))
}

/// A progress bar on stderr; nothing if that is not a terminal.
fn progress(size: u64) -> ProgressBar {
    let bar = if size > 0 { ProgressBar::new(size) } else { ProgressBar::no_length() };
    let template = "{elapsed_precise} [{bar:40}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    bar.set_style(style.progress_chars("=> "));
    // At once: it moves only after many lines, and a slow pipe may take long to deliver them.
    bar.tick();
    bar
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_open_files_are_an_error_that_names_the_way_out() {
        let failure = unreadable(Path::new("a.log"), &Errno::MFILE.into());
        let hints = failure.hints().join("\n");
        assert!(hints.contains("plain files") && hints.contains("ulimit -n"), "{failure:?}");
        assert_eq!(unreadable(Path::new("a.log"), &Errno::NOENT.into()).hints(), [] as [String; 0]);
    }
}
