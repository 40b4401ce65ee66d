//! What of decisions is kept, and where.

use std::fmt;
use std::path::PathBuf;

/// What of decisions is kept, and where.
#[derive(Clone, PartialEq, Eq)]
pub struct DecisionLogConfig {
    /// One in this many admissions is kept, whatever the rate; 0 for none. Without it, all up to `admissions_per_second` are.
    pub admissions_one_in: Option<u32>,
    /// Up to so many admissions in a second are all kept. Of those beyond, one in 16 and fewer.
    pub admissions_per_second: u32,
    /// The most refusals that are kept in a second. The next line stands for those that were not.
    pub refusals_per_second: u32,
    /// The most memory that kept lines take.
    pub memory_bytes: usize,
    /// Which attributes are written as they are; the values of all others are hashed.
    pub clear: Clear,
    /// What hashes are keyed with. Nodes that share it write the same hash for the same caller. None: each process has its
    /// own.
    pub secret: Option<String>,
    /// A file that lines are appended to.
    pub file: Option<FileConfig>,
    /// Whether lines are written to stdout.
    pub stdout: bool,
    /// What this node is called.
    pub node: String,
}

/// Which attributes are written as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clear {
    /// All of them.
    All,
    /// These.
    Only(Vec<String>),
}

impl Clear {
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Clear::All => true,
            Clear::Only(names) => names.iter().any(|clear| clear == name),
        }
    }
}

/// A file that lines are appended to, and its predecessors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// Its path. Predecessors are called the same with `.1`, `.2` and so on behind it.
    pub path: PathBuf,
    /// It is put aside when it has grown to this size.
    pub most_bytes: u64,
    /// How many predecessors are kept.
    pub keep: u32,
}

impl fmt::Debug for DecisionLogConfig {
    /// All but the secret.
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
