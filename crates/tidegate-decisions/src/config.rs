//! Settings of the decision log: which decisions are kept, and where.

use std::fmt;
use std::path::PathBuf;

use tidegate_rules::is_secret_name;

/// Which decisions are kept, and where.
#[derive(Clone, PartialEq, Eq)]
pub struct DecisionLogConfig {
    /// Keeps one in this many admissions at any rate; 0 keeps none. `None` keeps all up to `admissions_per_second`.
    pub admissions_one_in: Option<u32>,
    /// Up to this many admissions per second are all kept. Beyond that, one in 16 and fewer.
    pub admissions_per_second: u32,
    /// Up to this many refusals per second are all kept. Beyond that, a thinning sample is, and a line stands for several.
    pub refusals_per_second: u32,
    /// The most memory that kept lines take.
    pub memory_bytes: usize,
    /// Attributes written in clear; the values of all others are hashed.
    pub clear: Clear,
    /// The key of the hashes. Nodes with the same secret write the same hash for the same caller. `None`: each process has
    /// its own.
    pub secret: Option<String>,
    /// A file that lines are appended to.
    pub file: Option<FileConfig>,
    /// Whether lines are written to stdout.
    pub stdout: bool,
    /// The name of this node.
    pub node: String,
}

/// Which attributes are written in clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clear {
    /// All of them, except those whose names say that they are secret, such as `api_key`.
    All,
    /// These.
    Only(Vec<String>),
}

impl Clear {
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Clear::All => !is_secret_name(name),
            Clear::Only(names) => names.iter().any(|clear| clear == name),
        }
    }
}

/// A file that lines are appended to, and its rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// Its path. Rotated files have the suffixes `.1`, `.2` and so on.
    pub path: PathBuf,
    /// The size at which it is rotated.
    pub most_bytes: u64,
    /// The number of rotated files kept.
    pub keep: u32,
}

impl fmt::Debug for DecisionLogConfig {
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionLogConfig")
            .field("admissions_one_in", &self.admissions_one_in)
            .field("admissions_per_second", &self.admissions_per_second)
            .field("refusals_per_second", &self.refusals_per_second)
            .field("memory_bytes", &self.memory_bytes)
            .field("clear", &self.clear)
            .field("file", &self.file)
            .field("stdout", &self.stdout)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Default for DecisionLogConfig {
    fn default() -> Self {
        DecisionLogConfig {
            admissions_one_in: None,
            admissions_per_second: 1_000,
            refusals_per_second: 1_000,
            memory_bytes: 16 << 20,
            clear: Clear::Only(Vec::new()),
            secret: None,
            file: None,
            stdout: false,
            node: String::new(),
        }
    }
}
