//! `tidegate why`, as typed.

use std::path::PathBuf;

use clap::Args;

use super::Attribute;
use super::admin::AdminArgs;

/// Search the decisions that were kept: who was refused, when, by which rule
///
/// Asks a server that has a section `decision_log` in its configuration, or reads a file that such a server wrote. Values
/// may be given as they were sent: the server hashes them as the log does.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate why user=42\n  \
    tidegate why user=42 --from 2027-01-16T14:00:00Z --to 2027-01-16T14:05:00Z\n  \
    tidegate why --rule per-user --all --limit 50\n  \
    tidegate why 'user=#b1f3c0de9a417d22' --log decisions.log")]
pub(crate) struct WhyArgs {
    /// What the caller sent
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) attributes: Vec<Attribute>,
    /// The domain
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,
    /// The rule that decided
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Option<String>,
    /// Show admissions too
    #[arg(long)]
    pub(crate) all: bool,
    /// From this moment on (RFC 3339), or so far back, such as 15m
    #[arg(long, value_name = "WHEN")]
    pub(crate) from: Option<String>,
    /// Before this moment
    #[arg(long, value_name = "WHEN")]
    pub(crate) to: Option<String>,
    /// Show at most this many, newest first
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Read this file instead of asking a server
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}
