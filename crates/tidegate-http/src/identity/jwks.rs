//! Sets of public keys: which are usable, and how published ones are kept fresh.

use std::fs;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use tidegate_core::Micros;
use tidegate_limiter::Runtime;

use super::Identity;

/// The largest document or secret file.
const MOST_BYTES: usize = 1 << 20;
/// More keys than any issuer publishes.
const MOST_KEYS: usize = 100;
/// How often published keys are fetched anyway.
const REFRESH_EVERY: Micros = Micros::from_secs(300);
/// The shortest interval between two fetches: anyone can name a key that does not exist.
const REFRESH_AT_MOST_EVERY: Micros = Micros::from_secs(10);

/// A key that can verify tokens, of one algorithm.
pub(super) struct Key {
    pub(super) id: Option<String>,
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

/// Why a document yields no keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwksError {
    /// It is not what it should be.
    #[error("not a JSON Web Key Set")]
    Malformed(#[source] serde_json::Error),
    /// It is larger than any such document.
    #[error("a key set of {bytes} bytes is too large")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It contains no usable key.
    #[error("no public key for signatures in the key set")]
    NoKey,
}

/// The signature keys of a document, restricted to `allowed` algorithms if given.
pub(super) fn parse(document: &[u8], allowed: Option<&[Algorithm]>) -> Result<Vec<Key>, JwksError> {
    if document.len() > MOST_BYTES {
        return Err(JwksError::TooLarge { bytes: document.len() });
    }
    #[derive(serde::Deserialize)]
    struct Set {
        keys: Vec<serde_json::Value>,
    }
    let set: Set = serde_json::from_slice(document).map_err(JwksError::Malformed)?;
    // One by one: a key of an unknown kind must not hide the others.
    let known =
        set.keys.into_iter().take(MOST_KEYS).filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    let keys: Vec<Key> = known.filter_map(|jwk| usable(&jwk, allowed)).collect();
    if keys.is_empty() { Err(JwksError::NoKey) } else { Ok(keys) }
}

fn usable(jwk: &Jwk, allowed: Option<&[Algorithm]>) -> Option<Key> {
    if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let declared = match &jwk.common.key_algorithm {
        Some(declared) => Some(declared.to_string().parse::<Algorithm>().ok()?),
        None => None,
    };
    let fits: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &[
            Algorithm::RS256,
            Algorithm::RS384,
            Algorithm::RS512,
            Algorithm::PS256,
            Algorithm::PS384,
            Algorithm::PS512,
        ],
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[Algorithm::ES256],
            EllipticCurve::P384 => &[Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
        // A public key set must not contain a shared secret: every reader could sign with it.
        _ => return None,
    };
    let may = |algorithm: &&Algorithm| allowed.is_none_or(|allowed| allowed.contains(algorithm));
    // If the key does not name its algorithm, the configuration may; the first is the usual one.
    let algorithm = match declared {
        Some(declared) => *fits.iter().filter(may).find(|fit| **fit == declared)?,
        None => *fits.iter().find(may)?,
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some(Key { id: jwk.common.key_id.clone(), algorithm, key })
}

/// Fetches the published keys of `identity` at intervals, for as long as it runs. A failed fetch keeps the old keys; `told`
/// is called with each result. Returns at once if keys come from elsewhere.
pub async fn keep_jwks_fresh<Fetched>(
    identity: Arc<Identity>,
    runtime: Arc<dyn Runtime>,
    mut fetch: impl FnMut(&str) -> Fetched,
    mut told: impl FnMut(Result<usize, String>),
) where
    Fetched: Future<Output = Result<Vec<u8>, String>>,
{
    let Some(url) = identity.jwks_url() else { return };
    loop {
        let document = fetch(url).await;
        told(document.and_then(|document| identity.set_jwks(&document).map_err(|error| error.to_string())));
        let mut waited = Micros::ZERO;
        while waited < REFRESH_EVERY {
            runtime.sleep(REFRESH_AT_MOST_EVERY).await;
            waited = Micros::new(waited.get() + REFRESH_AT_MOST_EVERY.get());
            if identity.wants_jwks() {
                break;
            }
        }
    }
}

/// The text of a file.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let size = fs::metadata(path).map_err(|error| format!("cannot read {shown}: {error}"))?.len();
    if size > MOST_BYTES as u64 {
        return Err(format!("{shown} is too large"));
    }
    fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))
}
