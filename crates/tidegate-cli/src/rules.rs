//! Reads and compiles rule files, in one way for `serve`, `validate` and `explain`, so that they never disagree.

use std::fmt;
use std::path::{Path, PathBuf};

use tidegate_rules::{Colour, Diagnostics, Format, LoadError, RuleSet, Source, load};
use tidegate_store::{Clock as _, SystemClock};

use crate::failure::Failure;

/// The rules of `serve` if none are given.
pub(crate) const STARTER: &str = include_str!("starter.yaml");
const STARTER_NAME: &str = "starter rules";

/// The files and directories of rules; none at all stands for the starter rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleFiles {
    /// In the native format.
    pub(crate) native: Vec<PathBuf>,
    /// A configuration directory of envoyproxy/ratelimit.
    pub(crate) envoy: Option<PathBuf>,
    /// Whether a management server sends limits, so that there need not be any file.
    pub(crate) xds: bool,
}

/// A compiled set, and its files.
#[derive(Debug)]
pub(crate) struct LoadedRules {
    pub(crate) rules: RuleSet,
    pub(crate) files: Vec<(Source, Format)>,
}

/// Why there is no set.
#[derive(Debug)]
pub(crate) enum RulesError {
    Unreadable(LoadError),
    Invalid(Diagnostics),
}

impl RuleFiles {
    /// Whether these are the starter rules.
    pub(crate) fn is_starter(&self) -> bool {
        self.native.is_empty() && self.envoy.is_none() && !self.xds
    }

    /// All paths given.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.native.iter().chain(&self.envoy).map(PathBuf::as_path)
    }

    /// The contents of the files, each with its format.
    pub(crate) fn read(&self) -> Result<Vec<(Source, Format)>, RulesError> {
        let mut sources = Vec::new();
        for path in &self.native {
            let files = load(path).map_err(RulesError::Unreadable)?;
            sources.extend(files.into_iter().map(|file| (file, Format::Native)));
        }
        let envoy = self.envoy.as_deref().map(load).transpose().map_err(RulesError::Unreadable)?;
        sources.extend(envoy.into_iter().flatten().map(|file| (file, Format::EnvoyRatelimit)));
        if self.is_starter() {
            sources.push((Source::new(STARTER_NAME, STARTER), Format::Native));
        }
        Ok(sources)
    }

    pub(crate) fn load(&self) -> Result<LoadedRules, RulesError> {
        let files = self.read()?;
        let groups: Vec<(&[Source], Format)> =
            files.iter().map(|(source, format)| (std::slice::from_ref(source), *format)).collect();
        let now = SystemClock::new().now();
        let rules = RuleSet::compile_at(&groups, Some(now)).map_err(RulesError::Invalid)?;
        Ok(LoadedRules { rules, files })
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RulesError::Unreadable(error) => write!(f, "{error}: {}", error.source),
            RulesError::Invalid(diagnostics) => diagnostics.fmt(f),
        }
    }
}

impl From<RulesError> for Failure {
    fn from(error: RulesError) -> Self {
        match error {
            RulesError::Unreadable(_) => Failure::new(error.to_string()),
            RulesError::Invalid(diagnostics) => Failure::rendered(diagnostics.render(Colour::Always)),
        }
    }
}
