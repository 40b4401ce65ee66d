//! The command line as typed, before anything is looked up, merged or checked against a file.
//!
//! Its meaning, together with the environment and the configuration file, is decided in `settings` for `serve` and in each
//! command for the others. Doc comments here are help texts.

mod admin;
mod bench;
mod plan;
mod replay;
mod serve;
mod values;
mod why;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::settings::env;

pub(crate) use admin::{
    AdminArgs, KeyArgs, KeysArgs, KeysCommand, LoginArgs, RulesArgs, RulesCommand, TopArgs, UntilArgs,
};
pub(crate) use bench::{BenchArgs, Pace, Protocol, Throttle};
pub(crate) use plan::PlanArgs;
pub(crate) use replay::{RecordedFormat, ReplayArgs};
pub(crate) use serve::ServeArgs;
pub(crate) use values::{Attribute, parse_duration};
pub(crate) use why::WhyArgs;

/// Distributed rate limiter
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 110, arg_required_else_help = true)]
#[command(
    after_help = "Start with:\n  tidegate serve                     a working server, nothing else needed\n  \
    tidegate validate rules.yaml       find mistakes before the server does\n\n\
    `tidegate help COMMAND` explains each command and shows examples."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeArgs),
    Validate(ValidateArgs),
    Explain(ExplainArgs),
    Check(CheckArgs),
    Import(ImportArgs),
    Rules(RulesArgs),
    Keys(KeysArgs),
    Login(LoginArgs),
    Top(TopArgs),
    Plan(PlanArgs),
    Replay(ReplayArgs),
    Why(WhyArgs),
    Bench(BenchArgs),
    Schema(SchemaArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Find mistakes in rule files, each with file, line, column and a way out
///
/// Exits with 0 if every file is good, 1 if not.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidegate validate rules/\n  tidegate validate api.yaml login.yaml --output json\n  \
    tidegate validate new.yaml --against rules.yaml"
)]
pub(crate) struct ValidateArgs {
    /// Rule files, or directories of them
    #[arg(value_name = "PATH", required_unless_present_any = ["envoy_config", "config"])]
    pub(crate) paths: Vec<PathBuf>,
    /// Configuration directory of envoyproxy/ratelimit
    #[arg(long, value_name = "DIR")]
    pub(crate) envoy_config: Option<PathBuf>,
    /// The server's configuration file, and the rules that it names
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paths", "envoy_config"])]
    pub(crate) config: Option<PathBuf>,
    /// The rules in force: warn of counters that would start empty
    #[arg(long, value_name = "PATH")]
    pub(crate) against: Option<PathBuf>,
    /// Fail on warnings too
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Show which rules a request matches, and why the others do not
///
/// For each rule: the limits that apply and whose counters they are, or the reason why it does not count.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidegate explain --rules rules/ --domain api user=42 method=POST path=/v1/items\n  \
    tidegate explain --envoy-config config/ --domain edge remote_address=203.0.113.7"
)]
pub(crate) struct ExplainArgs {
    /// Rule file, or a directory of them; may be given several times
    #[arg(long, value_name = "PATH", required_unless_present_any = ["envoy_config", "config"])]
    pub(crate) rules: Vec<PathBuf>,
    /// Configuration directory of envoyproxy/ratelimit, read as it is
    #[arg(long, value_name = "DIR")]
    pub(crate) envoy_config: Option<PathBuf>,
    /// The server's configuration file, for the rules that it names
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rules", "envoy_config"])]
    pub(crate) config: Option<PathBuf>,
    /// Show the rules that do not match too, and why not
    #[arg(long)]
    pub(crate) all: bool,
    /// The domain the request asks in
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: String,
    /// What is known of the request; for an Envoy configuration, the descriptor's entries in order
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) attributes: Vec<Attribute>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Ask a running server whether a request may pass, and spend it
///
/// Exits with 0 if allowed, 1 if refused, 2 if there was no answer.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate check --domain api user=42\n  \
    tidegate check --domain api user=42 --cost 0        look without spending\n  \
    if tidegate check --domain jobs queue=mail; then send-mail; fi")]
pub(crate) struct CheckArgs {
    /// Where the server's HTTP listener is
    #[arg(long, value_name = "URL", env = env::SERVER, default_value = "http://127.0.0.1:8080")]
    pub(crate) server: String,
    /// A PEM file with the certificate authority of an https:// address; otherwise what the system trusts
    #[arg(long, value_name = "FILE", env = env::CA)]
    pub(crate) ca: Option<PathBuf>,
    /// The domain to ask in
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: String,
    /// What is known of the request
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) attributes: Vec<Attribute>,
    /// How much to spend; 0 looks without spending
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) cost: u64,
    /// How long to wait for the answer
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Print another limiter's configuration as tidegate rules
///
/// The rules go to stdout. What has no equivalent is named on stderr, so that nothing is lost unseen. Exits with 1 if a limit
/// was left out, unless `--lossy` accepts that.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate import envoy config/ratelimit/ > rules.yaml\n  \
    tidegate import limitador limits.yaml > rules.yaml\n  \
    tidegate import envoy-env ratelimit.env > tidegate.yaml        a configuration, for `serve --config`\n  \
    tidegate import limitador limits.yaml --lossy > rules.yaml    exit with 0 even if a limit was left out")]
pub(crate) struct ImportArgs {
    /// Whose configuration it is
    #[arg(value_name = "FROM")]
    pub(crate) format: ImportFormat,
    /// The file, or for envoy its configuration directory; for envoy-env a file with NAME=VALUE on each line, as `env` prints
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Accept that limits without an equivalent are left out
    #[arg(long)]
    pub(crate) lossy: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportFormat {
    /// The limits of envoyproxy/ratelimit
    Envoy,
    /// The environment variables of envoyproxy/ratelimit, which become a configuration
    EnvoyEnv,
    /// Limitador
    Limitador,
}

/// Print the JSON schema of rule files (or of the server's configuration), for editors and linters
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate schema > tidegate-rules.schema.json\n  \
    tidegate schema config > tidegate-config.schema.json\n  tidegate schema metrics > metrics.md")]
pub(crate) struct SchemaArgs {
    /// Of which file
    #[arg(value_name = "FILE", default_value = "rules")]
    pub(crate) of: SchemaOf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    /// Rule files
    Rules,
    /// The file given to `serve --config`
    Config,
    /// Not a schema: every metric there is, as a page of Markdown
    Metrics,
}

/// Print a script that completes tidegate's commands and flags in your shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  source <(tidegate completions bash)\n  \
    tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub(crate) struct CompletionsArgs {
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Print the manual page, or write one page per command
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate man | man -l -\n  tidegate man --dir target/man")]
pub(crate) struct ManArgs {
    /// Write tidegate.1, tidegate-serve.1 and so on into this directory, made if absent
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// The output format.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Write for a person, or for a program
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For a person
    Text,
    /// One JSON document on stdout
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
