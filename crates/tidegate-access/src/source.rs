//! Tokens from the configuration and from a file that can be reloaded: so they are replaced without a restart.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::tokens::{SecretDigest, TokenError, Tokens};

/// The largest token file.
const MOST_BYTES: u64 = 1 << 20;

/// The most tokens remembered that are accepted no more.
const MOST_ENDED: usize = 1_000;

/// The tokens accepted now.
#[derive(Debug)]
pub struct TokenSource {
    given: Vec<String>,
    file: Option<PathBuf>,
    current: ArcSwap<Tokens>,
    /// Tokens that were accepted before, oldest first.
    ended: Mutex<VecDeque<SecretDigest>>,
}

/// Why tokens cannot be read. The message contains no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenSourceError {
    /// One of the given tokens is not usable.
    #[error("one of the tokens cannot be used")]
    Given(#[source] TokenError),
    /// A file is missing, or not a regular file.
    #[error("cannot read tokens from {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A line of the file is not usable.
    #[error("line {line} of {path} cannot be used")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: TokenError,
    },
}

impl TokenSource {
    /// Reads `given`, and each line of `file` that is neither empty nor a `#` comment.
    ///
    /// # Errors
    /// One of them is not usable.
    pub fn load(given: Vec<String>, file: Option<PathBuf>) -> Result<Self, TokenSourceError> {
        let current = ArcSwap::from_pointee(read(&given, file.as_deref())?);
        Ok(TokenSource { given, file, current, ended: Mutex::default() })
    }

    /// Reloads the file.
    ///
    /// # Errors
    /// It is not usable; the old tokens stay in use.
    pub fn reload(&self) -> Result<(), TokenSourceError> {
        let new = Arc::new(read(&self.given, self.file.as_deref())?);
        let before = self.current.swap(Arc::clone(&new));
        let mut ended = self.ended.lock();
        ended.extend(before.without(&new).cloned());
        let too_many = ended.len().saturating_sub(MOST_ENDED);
        ended.drain(..too_many);
        Ok(())
    }

    /// Whether `given` was accepted once, since this process started: its holder is not guessing, but gets no access.
    #[must_use]
    pub fn has_ended(&self, given: &[u8]) -> bool {
        self.ended.lock().iter().any(|token| token.is_of(given))
    }

    /// Whether a token with this tag is accepted.
    #[must_use]
    pub fn has_tag(&self, tag: &str) -> bool {
        self.current.load().has_tag(tag)
    }

    /// The file, to be watched for changes.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Whether `given` is one of them.
    #[must_use]
    pub fn accept(&self, given: &[u8]) -> bool {
        self.current.load().accept(given)
    }
}

fn read(given: &[String], file: Option<&Path>) -> Result<Tokens, TokenSourceError> {
    let mut texts = given.to_vec();
    Tokens::read(given.iter().map(String::as_str)).map_err(TokenSourceError::Given)?;
    if let Some(path) = file {
        let text = read_file(path)
            .map_err(|source| TokenSourceError::Unreadable { path: path.to_owned(), source })?;
        for (line, token) in text.lines().map(str::trim).enumerate() {
            if token.is_empty() || token.starts_with('#') {
                continue;
            }
            Tokens::read([token]).map_err(|source| TokenSourceError::Line {
                path: path.to_owned(),
                line: line + 1,
                source,
            })?;
            texts.push(token.to_owned());
        }
    }
    Tokens::read(texts.iter().map(String::as_str)).map_err(TokenSourceError::Given)
}

/// The text of a regular file: reading a pipe could block for ever.
fn read_file(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file of a reasonable size",
        ));
    }
    fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_can_be_replaced_while_the_server_runs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        fs::write(&file, "# of the gateways\nthe-first-token-1\n\n").unwrap();
        let tokens = TokenSource::load(vec!["a-given-token-000".to_owned()], Some(file.clone())).unwrap();
        assert!(tokens.accept(b"a-given-token-000") && tokens.accept(b"the-first-token-1"));
        fs::write(&file, "the-first-token-1\nthe-other-token-2\n").unwrap();
        tokens.reload().unwrap();
        assert!(tokens.accept(b"the-first-token-1") && tokens.accept(b"the-other-token-2"));
        fs::write(&file, "the-other-token-2\n").unwrap();
        tokens.reload().unwrap();
        assert!(!tokens.accept(b"the-first-token-1") && tokens.accept(b"the-other-token-2"));
        assert!(tokens.has_ended(b"the-first-token-1"), "who still shows it is not guessing");
        assert!(!tokens.has_ended(b"the-other-token-2") && !tokens.has_ended(b"a-guess-of-mine-3"));
    }

    #[test]
    fn a_file_with_a_mistake_changes_nothing_and_is_not_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        fs::write(&file, "the-first-token-1\n").unwrap();
        let tokens = TokenSource::load(Vec::new(), Some(file.clone())).unwrap();
        fs::write(&file, "the-other-token-2\nhunter2\n").unwrap();
        let error = tokens.reload().unwrap_err();
        assert!(matches!(error, TokenSourceError::Line { line: 2, .. }));
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert!(tokens.accept(b"the-first-token-1"));
    }
}
