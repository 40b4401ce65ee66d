//! The flags of commands that use the admin API.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::values::parse_duration;
use super::{Attribute, Output};

/// The address of the admin API.
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// Where the server's admin listener is
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_ADMIN",
        default_value = "http://127.0.0.1:8082",
        global = true
    )]
    pub(crate) admin: String,
    /// A PEM file with the certificate authority of an https:// address; otherwise what the system trusts
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA", global = true)]
    pub(crate) ca: Option<PathBuf>,
    /// Write for a person, or for a program
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    pub(crate) output: Output,
}

/// Make a sign-in link for the dashboard, or sign this machine in
///
/// A link works once, for 10 minutes, until the next one is made: through the server's admin API where there is a token for
/// it (TIDEGATE_TOKEN, or one that was kept), else, or with --data or --config, in its database. With `-` (which reads a link
/// from standard input) or --keep, a token of its own, valid for at most 30 days, is kept in ~/.config/tidegate/tokens for
/// `tidegate rules`, `keys` and `top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate login\n  tidegate login --keep\n  \
    tidegate login -          # then paste a link: as an argument, every user of this machine could see it")]
pub(crate) struct LoginArgs {
    /// `-`: read a sign-in link from standard input, and keep a token for this machine
    #[arg(value_name = "-", conflicts_with_all = ["config", "data"])]
    pub(crate) link: Option<String>,
    /// Keep a token for this machine instead of printing a link
    #[arg(long)]
    pub(crate) keep: bool,
    /// The server's configuration file [env: TIDEGATE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The server's directory of the embedded database [env: TIDEGATE_DATA] [default: tidegate-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where the server's admin listener is: what its configuration says by default
    #[arg(long, value_name = "URL", env = "TIDEGATE_ADMIN")]
    pub(crate) admin: Option<String>,
    /// A PEM file with the certificate authority of an https:// address; otherwise what the system trusts
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA")]
    pub(crate) ca: Option<PathBuf>,
}

/// Show and change the rules of a fleet
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidegate rules list\n  tidegate rules edit api --reason 'more for acme'\n  \
    tidegate rules apply rules/ --reason 'from git'\n  tidegate rules history\n  tidegate rules rollback 41"
)]
pub(crate) struct RulesArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    #[command(subcommand)]
    pub(crate) what: RulesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    /// List the rules in force
    List,
    /// Print the document of a domain, or one rule of it
    Get {
        /// The domain
        domain: String,
        /// The rule
        rule: Option<String>,
    },
    /// Edit a domain's document in $EDITOR and publish it
    Edit {
        /// The domain
        domain: String,
        /// Why
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Publish rule files: domains that they do not name stay as they are
    Apply {
        /// Rule files, or directories of them
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Why
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Show what a version changed, or how rule files differ from what is in force
    Diff {
        /// A version's number, or rule files
        #[arg(value_name = "VERSION|PATH", required = true)]
        what: Vec<String>,
    },
    /// List versions, newest first
    History {
        /// How many
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Publish the documents of an earlier version again
    Rollback {
        /// The version
        version: u64,
        /// Why
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Publish rule files as the whole set: what they do not name is removed
    Import {
        /// Rule files, or directories of them
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Why
        #[arg(long, default_value = "imported")]
        reason: String,
    },
    /// Show the limit that 99.9 % of callers stay within, of each rule; or try one in a shadow rule
    Suggest {
        /// The domain
        domain: Option<String>,
        /// The rule
        #[arg(requires = "domain")]
        rule: Option<String>,
        /// Publish a shadow rule with the suggested limit: it counts, and never refuses
        #[arg(long, requires = "rule")]
        shadow: bool,
        /// Another number for the shadow rule than the suggested one
        #[arg(long, value_name = "LIMIT", requires = "shadow")]
        value: Option<u64>,
        /// Why
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Write every document into a directory, one file per domain
    Export {
        /// The directory, made if absent
        dir: PathBuf,
    },
}

/// Look at single keys, reset, override and ban them
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate keys get --domain api user=42\n  \
    tidegate keys ban --domain api ip=203.0.113.7 --for 1h --reason abuse\n  \
    tidegate keys override --domain api --rule per-user user=42 --limit 5000/minute --for 7d\n  tidegate keys list")]
pub(crate) struct KeysArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    #[command(subcommand)]
    pub(crate) what: KeysCommand,
}

/// A key: the domain and its attributes.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The domain
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: String,
    /// What is known of the caller
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) attributes: Vec<Attribute>,
}

/// How long, and why.
#[derive(Debug, Args)]
pub(crate) struct UntilArgs {
    /// One rule; every rule of the domain without
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Option<String>,
    /// How long it lasts, such as 1h or 7d; for ever without
    #[arg(long = "for", value_name = "DURATION")]
    pub(crate) lasts: Option<String>,
    /// Why
    #[arg(long, default_value = "")]
    pub(crate) reason: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Show every cell of a key; nothing is spent
    Get(KeyArgs),
    /// Give every cell of a key its full quota back
    Reset(KeyArgs),
    /// Give one key limits of its own, or none at all
    Override {
        #[command(flatten)]
        key: KeyArgs,
        /// A limit such as 5000/minute; may be given several times. Unlimited without
        #[arg(long = "limit", value_name = "LIMIT")]
        limits: Vec<String>,
        #[command(flatten)]
        until: UntilArgs,
    },
    /// Refuse a key
    Ban {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        until: UntilArgs,
    },
    /// Lift an override or a ban
    Lift {
        /// Its id, from `tidegate keys list`
        id: String,
        /// Why
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// List overrides and bans
    List {
        /// Part of a key's value
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
    },
}

/// Watch what a fleet does right now
///
/// The picture is written anew each second; Ctrl-C ends it. Where stdout is no terminal, one is written.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate top\n  tidegate top --once --output json")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Write one picture and end
    #[arg(long)]
    pub(crate) once: bool,
    /// How often it is written anew
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) every: Duration,
    /// How many rules are shown: those that decide most
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub(crate) rules: usize,
    /// How many callers are shown: those that are refused most and those that ask most, where the server keeps decisions
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub(crate) callers: usize,
}
