//! Callers' secrets, stored and compared as digests.
//!
//! SHA-256 without salt is right for generated secrets: nobody guesses 128 random bits. It is wrong for words that people
//! choose, so short ones are rejected where they are visible.

use std::fmt;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// The prefix of a digest that is given in place of a secret.
const DIGEST_PREFIX: &str = "sha256:";

/// The digest of one secret.
///
/// Neither a memory dump nor the time of a comparison reveals the secret, or its length.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// The digest of `secret`.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        SecretDigest(Sha256::digest(secret).into())
    }

    /// Parses `sha256:` and 64 hexadecimal digits, or takes the text as the secret itself.
    ///
    /// # Errors
    /// It begins with `sha256:` and continues with anything else.
    pub fn read(text: &str) -> Result<Self, TokenError> {
        match text.strip_prefix(DIGEST_PREFIX) {
            Some(digits) => from_hex(digits).map(SecretDigest).ok_or(TokenError::NoDigest),
            None if text.is_empty() => Err(TokenError::Empty),
            None => Ok(SecretDigest::of(text.as_bytes())),
        }
    }

    /// Whether `given` is the secret.
    #[must_use]
    pub fn is_of(&self, given: &[u8]) -> bool {
        self.same(&SecretDigest::of(given)).into()
    }

    /// A name for the secret, which may be stored where neither it nor its digest should be.
    #[must_use]
    pub fn tag(&self) -> String {
        let digest = Sha256::digest([b"tag of ".as_slice(), &self.0].concat());
        hex::encode(&digest[..16])
    }

    fn same(&self, other: &SecretDigest) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for SecretDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretDigest(…)")
    }
}

/// Why a text is not usable as a secret. The text itself is never repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is empty.
    #[error("a secret cannot be empty")]
    Empty,
    /// Too short to be safe from guessing.
    #[error("a token has at least {SHORTEST_TOKEN} characters")]
    TooShort,
    /// Not a digest after `sha256:`.
    #[error("`sha256:` is followed by 64 hexadecimal digits")]
    NoDigest,
}

/// The shortest token accepted in clear.
const SHORTEST_TOKEN: usize = 16;

/// Tokens of which any one is accepted: several, for rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<SecretDigest>);

impl Tokens {
    /// Parses each with [`SecretDigest::read`], and requires 16 characters of those that are not digests.
    ///
    /// # Errors
    /// One is not usable.
    pub fn read<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, TokenError> {
        let read = |text: &str| match text.len() < SHORTEST_TOKEN && !text.is_empty() {
            true => Err(TokenError::TooShort),
            false => SecretDigest::read(text),
        };
        texts.into_iter().map(read).collect::<Result<_, _>>().map(Tokens)
    }

    /// Whether there are none: then no token is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them has this tag. Tags are no secrets.
    #[must_use]
    pub fn has_tag(&self, tag: &str) -> bool {
        self.0.iter().any(|token| token.tag() == tag)
    }

    /// Those that are not among `others`.
    pub(crate) fn without(&self, others: &Tokens) -> impl Iterator<Item = &SecretDigest> {
        self.0.iter().filter(|token| !others.0.contains(token))
    }

    /// Whether `given` is one of them, in constant time.
    #[must_use]
    pub fn accept(&self, given: &[u8]) -> bool {
        let given = SecretDigest::of(given);
        let any = self.0.iter().fold(Choice::from(0), |any, token| any | token.same(&given));
        any.into()
    }
}

/// The token of `Authorization: Bearer …`, if there is exactly one such header.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (given.next()?.as_bytes(), given.next()) else { return None };
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

fn from_hex(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(digits, &mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn any_of_several_tokens_is_accepted_and_nothing_else() {
        let tokens = Tokens::read(["the-old-token-0001", "the-new-token-0002"]).unwrap();
        assert!(tokens.accept(b"the-old-token-0001") && tokens.accept(b"the-new-token-0002"));
        assert!(!tokens.accept(b"the-old-token-000") && !tokens.accept(b""));
        assert!(!Tokens::default().accept(b""));
    }

    #[test]
    fn a_digest_stands_for_its_secret_and_is_no_secret_itself() {
        // SHA-256 of "abc", from FIPS 180-4.
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let tokens = Tokens::read([abc]).unwrap();
        assert!(tokens.accept(b"abc"));
        assert!(!tokens.accept(abc.as_bytes()));
    }

    #[test]
    fn what_cannot_be_a_token_is_refused_without_repeating_it() {
        for (text, error) in [
            ("", TokenError::Empty),
            ("hunter2", TokenError::TooShort),
            ("sha256:12345678901", TokenError::NoDigest),
            (&format!("sha256:{}", "x".repeat(64)), TokenError::NoDigest),
        ] {
            assert_eq!(Tokens::read([text]), Err(error), "{text}");
        }
        assert!(!TokenError::TooShort.to_string().contains("hunter2"));
    }

    #[test]
    fn a_bearer_token_is_read_from_one_header_only() {
        let given = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(given(&["Bearer abc"]).unwrap(), b"abc");
        assert_eq!(given(&["bearer  abc "]).unwrap(), b"abc");
        for bad in [&[][..], &["Bearer"], &["Bearer "], &["Basic abc"], &["Bearer a", "Bearer b"]] {
            assert_eq!(given(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_digest_shown_for_debugging_shows_nothing() {
        assert_eq!(format!("{:?}", SecretDigest::of(b"hunter2")), "SecretDigest(…)");
    }
}
