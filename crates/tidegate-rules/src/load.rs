//! Reads rule files into memory: the only place in this crate that touches the file system.
//!
//! A directory means every `.yaml`, `.yml` and `.json` below it, sorted by name. Hidden entries are skipped: in Kubernetes
//! the files of a mounted ConfigMap are symbolic links into a hidden directory, and would be read twice.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A rule file: its name for messages, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path, or another name that tells a person where it comes from.
    pub name: String,
    /// Its content.
    pub text: String,
}

impl Source {
    /// A file `name` with the content `text`.
    #[must_use]
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Source { name: name.into(), text: text.into() }
    }
}

/// Why a file or directory could not be read.
#[derive(Debug)]
pub struct LoadError {
    /// The file or directory.
    pub path: PathBuf,
    /// The system's error, or what is wrong with it.
    pub source: io::Error,
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot read {}", self.path.display())
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The most files below one directory: more is not a rule directory.
const MOST_FILES: usize = 10_000;
/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;
/// The deepest directory.
const DEEPEST: usize = 16;

/// The file at `path`, or every rule file below it if it is a directory.
///
/// # Errors
/// Something cannot be read, is not UTF-8, is far too large, or a directory contains no rule file.
pub fn load(path: &Path) -> Result<Vec<Source>, LoadError> {
    let mut sources = Vec::new();
    if !metadata(path)?.is_dir() {
        sources.push(read(path)?);
        return Ok(sources);
    }
    collect(path, 0, &mut sources)?;
    if sources.is_empty() {
        return Err(refused(path, "there is no .yaml, .yml or .json file in it"));
    }
    Ok(sources)
}

fn collect(folder: &Path, depth: usize, sources: &mut Vec<Source>) -> Result<(), LoadError> {
    let failed = |source| LoadError { path: folder.to_owned(), source };
    if depth > DEEPEST {
        return Err(refused(folder, "folders are nested too deep, or a link leads in a circle"));
    }
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed)?;
    paths.retain(|path| !is_hidden(path));
    paths.sort();
    for path in paths {
        if metadata(&path)?.is_dir() {
            collect(&path, depth + 1, sources)?;
        } else if is_rule_file(&path) {
            if sources.len() == MOST_FILES {
                return Err(refused(folder, "it holds too many rule files"));
            }
            sources.push(read(&path)?);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Source, LoadError> {
    let metadata = metadata(path)?;
    // Reading a pipe without a writer would block for ever.
    if !metadata.is_file() {
        return Err(refused(path, "it is not a regular file: write the rules to one"));
    }
    if metadata.len() > MOST_BYTES {
        return Err(refused(path, "it is too large for a rule file"));
    }
    let text = fs::read_to_string(path).map_err(|source| LoadError { path: path.to_owned(), source })?;
    Ok(Source::new(path.display().to_string(), text))
}

fn metadata(path: &Path) -> Result<fs::Metadata, LoadError> {
    fs::metadata(path).map_err(|source| LoadError { path: path.to_owned(), source })
}

fn refused(path: &Path, why: &str) -> LoadError {
    LoadError { path: path.to_owned(), source: io::Error::new(io::ErrorKind::InvalidData, why) }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn is_rule_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}
