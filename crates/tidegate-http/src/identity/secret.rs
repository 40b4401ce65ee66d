//! Secrets: never printed, and hashed before anything keeps them.

use std::fmt;

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// A text that must not be shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transparent))]
pub struct Secret(String);

impl Secret {
    /// Takes `text` as a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    #[cfg(feature = "jwt")]
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The attribute value for a secret: its SHA-256 in hexadecimal, as `printf %s SECRET | sha256sum` prints it.
#[must_use]
pub fn hash_secret(secret: impl AsRef<[u8]>) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(secret) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_what_sha256sum_prints() {
        // printf %s abc | sha256sum
        assert_eq!(hash_secret("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "(secret)");
    }
}
