//! Tokens from the configuration and from a file that can be read again: so they are replaced without a restart.

use std::path::{Path, PathBuf};
use std::{fs, io};

use arc_swap::ArcSwap;

use crate::tokens::{TokenError, Tokens};

/// Larger files hold no tokens.
const MOST_BYTES: u64 = 1 << 20;

/// Tokens that are accepted now.
#[derive(Debug)]
pub struct TokenSource {
    given: Vec<String>,
    file: Option<PathBuf>,
    current: ArcSwap<Tokens>,
}

/// Why tokens cannot be read. None of them is repeated.
#[derive(Debug, thiserror::Error)]
pub enum TokenSourceError {
    /// One of those that were given cannot be used.
    #[error("one of the tokens cannot be used")]
    Given(#[source] TokenError),
    /// A file is not there, or is none.
    #[error("cannot read tokens from {path}")]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file's line cannot be used.
    #[error("line {line} of {path} cannot be used")]
    Line {
        /// Where.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: TokenError,
    },
}

impl TokenSource {
    /// Reads `given`, and each line of `file` that is neither empty nor begins with `#`.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn load(given: Vec<String>, file: Option<PathBuf>) -> Result<Self, TokenSourceError> {
        let current = ArcSwap::from_pointee(read(&given, file.as_deref())?);
        Ok(TokenSource { given, file, current })
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// When it cannot be used: then all stays as it was.
    pub fn reload(&self) -> Result<(), TokenSourceError> {
        self.current.store(read(&self.given, self.file.as_deref())?.into());
        Ok(())
    }

    /// The file, for whoever watches it.
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

/// A regular file's text: reading a pipe could take for ever.
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
