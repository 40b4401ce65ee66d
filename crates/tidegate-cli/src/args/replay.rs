//! `tidegate replay`, as typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Attribute, OutputArgs};

/// Play recorded traffic through rules, and show what they would have done
///
/// Decides every line of a log as a server with these rules would have: who would have been refused, when, and what a limit
/// would have to be. With --against the same traffic is played through other rules too, and what differs is shown. It
/// connects to nothing. On a terminal a bar shows how much of the log was played.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate replay access.log --rules new.yaml\n  \
    tidegate replay access.log --rules new.yaml --against rules/ --html report.html\n  \
    zcat access.log.*.gz | tidegate replay - --rules new.yaml --output json\n  \
    tidegate replay calls.csv --format csv --map time=started_at --map user=account --rules new.yaml\n  \
    tidegate replay app.log --format json --map time=ts --map user=account.id --rules new.yaml")]
pub(crate) struct ReplayArgs {
    /// Logs, played one after the other; `-` is stdin
    #[arg(value_name = "LOG", required = true)]
    pub(crate) logs: Vec<PathBuf>,
    /// The rules to try: a file, or a directory of them; may be given several times
    #[arg(long, value_name = "NEW", required = true)]
    pub(crate) rules: Vec<PathBuf>,
    /// The rules to compare with
    #[arg(long, value_name = "OLD")]
    pub(crate) against: Vec<PathBuf>,
    /// How the log is written
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub(crate) format: RecordedFormat,
    /// The domain of requests from a log that does not say it [default: the rules' only one]
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,
    /// Which column of a CSV file, or field of JSON lines, is what: `time`, `cost`, or an attribute; may be given several times
    #[arg(long, value_name = "WHAT=COLUMN")]
    pub(crate) map: Vec<Attribute>,
    /// Put the whole log in the order of its times first: takes half a kilobyte of memory a line. Without it lines of access
    /// logs are put in order as far as ten minutes or 16,384 lines reach
    #[arg(long)]
    pub(crate) sort: bool,
    /// Callers named in each list
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,
    /// Callers told apart under each rule; beyond that they are sampled. About 200 bytes each
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) max_callers: usize,
    /// Write the charts to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the report to this file: one page that needs no network
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordedFormat {
    /// Whatever the first line looks like
    Auto,
    /// tidegate's own decision log
    Tidegate,
    /// nginx's and Apache's combined format
    Combined,
    /// Envoy's JSON access log
    Envoy,
    /// Caddy's JSON access log
    Caddy,
    /// Comma-separated values, with --map
    Csv,
    /// JSON lines of any shape, with --map; a.b is field b of the object in a
    Json,
}
