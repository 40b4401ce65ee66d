//! Secrets: generated from the system's randomness, shown once, stored as a digest.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::error::{Error, Result};

/// A secret: `tg_ID_SECRET`. The first part identifies it, the second proves it.
///
/// The last digits are a mark that only its database can make. So a secret that has ended is told from a guess for ever, and
/// nothing need be stored for that.
///
/// `Debug` and logs never show it; [`Secret::reveal`] is for the one answer that returns it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    id: String,
    text: String,
}

const PREFIX: &str = "tg_";
const MARK_DIGITS: usize = 16;

/// Key and text have fixed lengths, and most of the hash is left out: nothing can be appended to either.
fn mark(key: &str, text: &str) -> String {
    let digest = Sha256::digest([key.as_bytes(), text.as_bytes()].concat());
    hex::encode(&digest[..MARK_DIGITS / 2])
}

impl Secret {
    /// A new secret that no database knows.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> Result<Self> {
        Secret::generate("")
    }

    pub(crate) fn generate(key: &str) -> Result<Self> {
        let id = random_hex::<8>()?;
        let unmarked = format!("{PREFIX}{id}_{}", random_hex::<24>()?);
        let text = format!("{unmarked}{}", mark(key, &unmarked));
        Ok(Secret { id, text })
    }

    /// Whether it was generated with this key: it is, or was, a secret of that database.
    pub(crate) fn is_marked(&self, key: &str) -> bool {
        let (unmarked, given) = self.text.split_at(self.text.len() - MARK_DIGITS);
        mark(key, unmarked).as_bytes().ct_eq(given.as_bytes()).into()
    }

    /// Parses a received secret; `None` if it cannot be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let hex =
            |part: &str, length| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        (hex(id, 16) && hex(secret, 64)).then(|| Secret { id: id.to_owned(), text: text.to_owned() })
    }

    /// Its id, which is not secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// The stored digest. Secrets have 256 random bits, so a fast hash is enough.
    pub(crate) fn digest(&self) -> String {
        hex::encode(Sha256::digest(self.text.as_bytes()))
    }

    /// Whether `digest` is this secret's, in constant time.
    pub(crate) fn has_digest(&self, digest: &str) -> bool {
        self.digest().as_bytes().ct_eq(digest.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_…", self.id)
    }
}

/// `BYTES` random bytes as hexadecimal digits.
pub(crate) fn random_hex<const BYTES: usize>() -> Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|_| Error::NoEntropy)?;
    Ok(hex::encode(bytes))
}

/// A random number that fits a database's signed integer.
pub(crate) fn random_mark() -> Result<i64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_| Error::NoEntropy)?;
    Ok(i64::from_le_bytes(bytes) & i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_and_parses_back() {
        let secret = Secret::generate("key").unwrap();
        assert_eq!(Secret::parse(secret.reveal()), Some(secret.clone()));
        let shown = format!("{secret:?}");
        assert!(!shown.contains(secret.reveal().rsplit('_').next().unwrap()), "{shown}");
    }

    #[test]
    fn only_its_own_digest_fits() {
        let (one, other) = (Secret::generate("key").unwrap(), Secret::generate("key").unwrap());
        assert!(one.has_digest(&one.digest()));
        assert!(!one.has_digest(&other.digest()));
        assert!(!one.has_digest(""));
    }

    #[test]
    fn a_secret_is_marked_as_one_of_its_database_and_a_guess_is_not() {
        let secret = Secret::generate("key").unwrap();
        assert!(secret.is_marked("key") && !secret.is_marked("another"));
        let other = Secret::generate("key").unwrap();
        let guess = format!("{PREFIX}{}{}", secret.id(), &other.reveal()[PREFIX.len() + 16..]);
        assert!(!Secret::parse(&guess).unwrap().is_marked("key"));
    }

    #[test]
    fn what_cannot_be_a_secret_is_none() {
        for text in ["", "tg_", "tg_0_0", "tg_0123456789abcdef_", "bearer"] {
            assert_eq!(Secret::parse(text), None, "{text}");
        }
    }
}
