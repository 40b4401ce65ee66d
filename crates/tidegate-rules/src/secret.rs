//! Attributes that carry secrets, such as API keys: a cell's key has their hash, so that no store and no log has the value.
//!
//! Only keys are hashed. Conditions, tiers and overrides compare the value itself, which never leaves the process.

use sha2::{Digest as _, Sha256};

/// Names that usually carry a secret, without case, `-`, `_` and `.`.
const NAMES: [&str; 15] = [
    "accesstoken",
    "apikey",
    "apitoken",
    "auth",
    "authorization",
    "authtoken",
    "bearer",
    "bearertoken",
    "clientsecret",
    "cookie",
    "password",
    "proxyauthorization",
    "secret",
    "token",
    "xapikey",
];

/// Whether an attribute of this name is hashed by default: `api_key`, `token`, `Authorization` and the like.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let letters = || {
        let spelled = name.bytes().filter(|byte| !matches!(byte, b'-' | b'_' | b'.'));
        spelled.map(|byte| byte.to_ascii_lowercase())
    };
    NAMES.iter().any(|secret| letters().eq(secret.bytes()))
}

/// The hash of a value as part of a key: `#` and the first 32 digits of its SHA-256.
pub(crate) fn hashed(value: &[u8]) -> [u8; 33] {
    let digest = Sha256::digest(value);
    let mut text = [b'#'; 33];
    for (pair, byte) in text[1..].chunks_exact_mut(2).zip(digest) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised_in_every_spelling() {
        for name in ["api_key", "API-Key", "apikey", "x-api-key", "token", "Authorization", "access.token"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["user", "tokens", "api", "key", "ip", "", "token_type", "tenant"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn a_hash_begins_as_sha256sum_prints_it() {
        // printf %s abc | sha256sum
        assert_eq!(hashed(b"abc"), *b"#ba7816bf8f01cfea414140de5dae2223");
    }
}
