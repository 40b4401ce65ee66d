//! The control plane's settings: where rules and tokens are stored, and the name of this node.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_admin::RuleSource;
use tidegate_rulestore::DatabaseUrl;

use super::config::{Config, Rules};
use super::listeners::Tokens;
use super::values::{RulesSource, Secret};
use crate::failure::Failure;

const DEFAULT_DATA: &str = "tidegate-data";

/// The admin listener's tokens and names, and the control plane's database
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdminSection {
    /// Tokens with every right; several, so that they can be replaced one by one
    pub(crate) tokens: Option<Vec<Secret>>,
    /// A file with a token on each line, relative to the configuration file. It is read again on SIGHUP, and when it changes
    pub(crate) tokens_file: Option<PathBuf>,
    /// Names of the admin listener on loopback, besides addresses and `localhost`: of a reverse proxy on this machine, for
    /// example
    pub(crate) hosts: Option<Vec<String>>,
    /// sqlite:PATH, postgres://user:password@host/name, or `none`: this node has no database and follows the others
    /// through Redis. An embedded one in `data` by default
    pub(crate) database: Option<Secret>,
    /// The installation's name in the dashboard: `tidegate` by default
    pub(crate) environment: Option<String>,
    /// The node's name: the machine's name by default
    pub(crate) node: Option<String>,
}

impl AdminSection {
    pub(super) fn resolve_against(&mut self, directory: &Path) {
        self.tokens_file.iter_mut().for_each(|path| *path = directory.join(&*path));
    }

    /// The accepted tokens of the listener.
    pub(super) fn who(&self) -> Tokens {
        Tokens { tokens: self.tokens.clone(), tokens_file: self.tokens_file.clone() }
    }
}

/// The settings of the control plane.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ControlSettings {
    pub(crate) source: RuleSource,
    pub(crate) database: DatabaseChoice,
    pub(crate) data: PathBuf,
    pub(crate) hosts: Vec<String>,
    pub(crate) environment: String,
    pub(crate) node: String,
}

/// The database of this node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DatabaseChoice {
    Embedded,
    At(DatabaseUrl),
    None,
}

impl ControlSettings {
    pub(crate) fn decide(config: &Config) -> Result<Self, Failure> {
        let section = &config.admin;
        let database = match section.database.as_ref().map(Secret::reveal) {
            None => DatabaseChoice::Embedded,
            Some("none") => DatabaseChoice::None,
            Some(url) => DatabaseChoice::At(url.parse().map_err(|error: tidegate_rulestore::Error| {
                Failure::new(format!("admin.database: {error}"))
                    .hint("write sqlite:PATH, postgres://user:password@host/name, or none")
            })?),
        };
        Ok(ControlSettings {
            source: match &config.rls.xds {
                Some(xds) => {
                    let files = named(&config.rules);
                    RuleSource::Files([files, vec![format!("xDS: {}", xds.address)]].concat())
                }
                None => source_of(&config.rules)?,
            },
            database,
            data: config.data.clone().unwrap_or_else(|| DEFAULT_DATA.into()),
            hosts: section.hosts.clone().unwrap_or_default(),
            environment: section.environment.clone().unwrap_or_else(|| "tidegate".to_owned()),
            node: section.node.clone().unwrap_or_else(machine),
        })
    }
}

/// Files if some are named, otherwise the database; an explicit `source` wins.
fn source_of(rules: &Rules) -> Result<RuleSource, Failure> {
    let files = named(rules);
    match (rules.source, files.is_empty()) {
        (Some(RulesSource::Database), false) => {
            Err(Failure::new("rules.source: database, and rule files are named as well")
                .hint("import them once with `tidegate rules import FILE`, and leave them out here"))
        }
        (Some(RulesSource::Database) | None, _) if files.is_empty() => Ok(RuleSource::Database),
        _ => {
            Ok(RuleSource::Files(if files.is_empty() { vec!["the starter rules".to_owned()] } else { files }))
        }
    }
}

fn named(rules: &Rules) -> Vec<String> {
    let paths = rules.paths.iter().flatten().chain(&rules.envoy_config);
    paths.map(|path| path.display().to_string()).collect()
}

fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "tidegate".to_owned() } else { name.to_owned() }
}
