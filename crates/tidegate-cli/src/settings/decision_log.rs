//! The `decision_log:` section: its shape, its validation, and the resulting settings.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_admin::{Clear, DecisionLogConfig, FileConfig};

use super::values::{Count, Secret, Switch};
use crate::failure::Failure;

/// The decision log, for search, rankings and replay: none without this section
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DecisionLog {
    /// One in this many admissions is kept, however many there are: 1 for all, 0 for none. Without it, `admissions_per_second`
    /// says which
    admissions_one_in: Option<u32>,
    /// Admissions per second that are all logged: 1000 by default. Beyond that, one in 16 or fewer is logged, and represents the others
    admissions_per_second: Option<u32>,
    /// Refusals per second that are all logged: 1000 by default. Beyond that, one in 16 or fewer is logged, and represents the others
    refusals_per_second: Option<u32>,
    /// The most memory that kept decisions take, in bytes: 16777216 by default
    memory: Option<Count>,
    /// Attributes whose values are written as they are, `*` for all but those named like a secret, such as `api_key`: none by default. All others are hashed
    clear: Option<Vec<String>>,
    /// What hashes are keyed with, the same on all nodes: at least 16 bytes. By default `store.lease_secret`, and without
    /// that one that the fleet keeps in its Redis; on the memory store each process has its own
    secret: Option<Secret>,
    /// A file that decisions are appended to, as JSON lines
    file: Option<LogFile>,
    /// Whether decisions are written to stdout, as JSON lines: false by default
    stdout: Option<Switch>,
}

/// A file that decisions are appended to
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogFile {
    /// Its path, relative to the configuration file
    path: PathBuf,
    /// It is put aside when it has grown to this many bytes: 67108864 by default
    max_bytes: Option<Count>,
    /// How many of those that were put aside are kept: 4 by default
    keep: Option<u32>,
}

const LEAST_MEMORY: usize = 64 << 10;
const LEAST_FILE: usize = 4 << 10;
const MOST_KEPT: u32 = 1_000;
const MOST_ONE_IN: u32 = 1_000_000;
const SHORTEST_SECRET: usize = 16;

impl DecisionLog {
    pub(super) fn resolve_against(&mut self, dir: &Path) {
        if let Some(file) = &mut self.file {
            file.path = dir.join(&file.path);
        }
    }

    /// The resulting settings, or what is invalid.
    pub(crate) fn settings(&self) -> Result<DecisionLogConfig, Failure> {
        let default = DecisionLogConfig::default();
        if let Some(one_in) = self.admissions_one_in.filter(|one_in| *one_in > MOST_ONE_IN) {
            let what = format!("one admission in {one_in} is next to none");
            return Err(wrong("admissions_one_in", what, "at most 1000000; 0 keeps refusals alone"));
        }
        if self.admissions_one_in.is_some() && self.admissions_per_second.is_some() {
            let what = "`admissions_one_in` says already which admissions are kept".to_owned();
            return Err(wrong("admissions_per_second", what, "give one of them"));
        }
        if let Some(Count(memory)) = self.memory
            && memory.get() < LEAST_MEMORY
        {
            return Err(wrong("memory", format!("{memory} bytes hold next to nothing"), "65536 or more"));
        }
        if let Some(secret) = &self.secret
            && secret.reveal().len() < SHORTEST_SECRET
        {
            let what = format!("it has {} bytes, and needs at least 16", secret.reveal().len());
            return Err(wrong("secret", what, "take 32 random ones, for instance of `openssl rand -hex 32`"));
        }
        let clear = match self.clear.as_deref() {
            None => default.clear,
            Some([all]) if all == "*" => Clear::All,
            Some(names) if names.iter().any(|name| name == "*" || name.is_empty()) => {
                return Err(wrong(
                    "clear",
                    "`*` stands alone, and no name is empty".to_owned(),
                    "for example [path, method]",
                ));
            }
            Some(names) => Clear::Only(names.to_vec()),
        };
        Ok(DecisionLogConfig {
            admissions_one_in: self.admissions_one_in,
            admissions_per_second: self.admissions_per_second.unwrap_or(default.admissions_per_second),
            refusals_per_second: self.refusals_per_second.unwrap_or(default.refusals_per_second),
            memory_bytes: self.memory.map_or(default.memory_bytes, |Count(memory)| memory.get()),
            clear,
            secret: self.secret.as_ref().map(|secret| secret.reveal().to_owned()),
            file: self.file.as_ref().map(LogFile::settings).transpose()?,
            stdout: self.stdout.is_some_and(|Switch(stdout)| stdout),
            node: String::new(),
        })
    }
}

impl LogFile {
    fn settings(&self) -> Result<FileConfig, Failure> {
        let most_bytes = self.max_bytes.map_or(64 << 20, |Count(bytes)| bytes.get());
        if most_bytes < LEAST_FILE {
            let what = format!("a file of {most_bytes} bytes holds next to nothing");
            return Err(wrong("file.max_bytes", what, "4096 or more"));
        }
        let keep = self.keep.unwrap_or(4);
        if keep > MOST_KEPT {
            return Err(wrong("file.keep", format!("{keep} files are too many"), "1000 or fewer"));
        }
        Ok(FileConfig { path: self.path.clone(), most_bytes: most_bytes as u64, keep })
    }
}

fn wrong(field: &str, what: String, hint: &str) -> Failure {
    Failure::new(format!("decision_log.{field}: {what}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<DecisionLogConfig, Failure> {
        serde_saphyr::from_str::<DecisionLog>(text).unwrap().settings()
    }

    #[test]
    fn an_empty_section_switches_it_on_with_its_defaults() {
        assert_eq!(settings("{}").unwrap(), DecisionLogConfig::default());
        let all =
            settings("{ clear: ['*'], admissions_one_in: 1, stdout: true, file: { path: a.log, keep: 0 } }")
                .unwrap();
        assert_eq!(
            (all.clear, all.admissions_one_in, all.stdout, all.file.unwrap().keep),
            (Clear::All, Some(1), true, 0)
        );
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_field() {
        for (text, field) in [
            ("{ memory: 100 }", "decision_log.memory"),
            ("{ admissions_one_in: 1000001 }", "decision_log.admissions_one_in"),
            ("{ admissions_one_in: 1, admissions_per_second: 1 }", "decision_log.admissions_per_second"),
            ("{ secret: short }", "decision_log.secret"),
            ("{ clear: ['*', user] }", "decision_log.clear"),
            ("{ file: { path: a, max_bytes: 1 } }", "decision_log.file.max_bytes"),
            ("{ file: { path: a, keep: 5000 } }", "decision_log.file.keep"),
        ] {
            let failure = format!("{:?}", settings(text).unwrap_err());
            assert!(failure.contains(field), "{text}: {failure}");
            assert!(!failure.contains("short"), "no secret is shown: {failure}");
        }
    }
}
