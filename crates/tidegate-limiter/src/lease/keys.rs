//! The secret with which the nodes of a fleet recognise the leases they issued.
//!
//! An operator may supply it. Otherwise it lives in the store, beside the counters: the first node writes it, all others read
//! it. A node that starts without its store signs with its own secret until the store answers, and keeps accepting what it
//! signed with it.

use arc_swap::ArcSwap;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate_core::Micros;

/// The record name of the secret in the store.
pub(crate) const RECORD: &[u8] = b"lease-key";
/// How long the store keeps it after a node last asked for it. A lease that outlives this was one no holder could renew.
pub(crate) const KEPT: Micros = Micros::from_secs(7 * 86_400);

/// The keys that a node signs with and accepts.
pub(crate) struct LeaseKeys {
    known: ArcSwap<SigningKeys>,
    /// Whether an operator supplied the key: then the store's is ignored.
    is_given: bool,
}

struct SigningKeys {
    signing: Key,
    /// The key used for signing before the store returned another.
    earlier: Option<Key>,
}

type Key = [u8; 32];

/// Proves that the fleet issued a lease: the first half of an HMAC-SHA-256.
pub(crate) type Signature = [u8; 16];

impl LeaseKeys {
    /// The key from an operator's `secret`; without one, an unpredictable key.
    pub(crate) fn new(secret: Option<&[u8]>) -> Self {
        let signing = match secret {
            Some(secret) => Sha256::digest([b"tidegate leases ", secret].concat()).into(),
            None => tidegate_store::random_bytes(),
        };
        let known = ArcSwap::from_pointee(SigningKeys { signing, earlier: None });
        LeaseKeys { known, is_given: secret.is_some() }
    }

    /// Whether the fleet must agree on a key through the store.
    pub(crate) fn are_shared_by_the_store(&self) -> bool {
        !self.is_given
    }

    /// The signing key, for the store to keep if it has none.
    pub(crate) fn signing(&self) -> Key {
        self.known.load().signing
    }

    /// Signs with the fleet's key from now on.
    pub(crate) fn learn(&self, fleets: &[u8]) {
        let known = self.known.load();
        if let Ok(key) = Key::try_from(fleets)
            && key != known.signing
        {
            self.known.store(std::sync::Arc::new(SigningKeys { signing: key, earlier: Some(known.signing) }));
        }
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Signature {
        sign(&self.known.load().signing, message)
    }

    /// Whether this fleet signed `message` with `signature`. Takes equally long for every wrong signature.
    pub(crate) fn knows(&self, message: &[u8], signature: &Signature) -> bool {
        let known = self.known.load();
        let mut keys = std::iter::once(&known.signing).chain(&known.earlier);
        keys.any(|key| bool::from(sign(key, message).ct_eq(signature)))
    }
}

/// HMAC-SHA-256, truncated to its first half.
fn sign(key: &Key, message: &[u8]) -> Signature {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    let whole = mac.finalize().into_bytes();
    *whole.first_chunk().expect("32 bytes have a first half")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_rfc_4231_says() {
        // Test case 1 has a 20-byte key: HMAC pads shorter keys with zeros, as this one is.
        let mut key = Key::default();
        key[..20].fill(0x0b);
        let expected = 0xb034_4c61_d8db_3853_5ca8_afce_af0b_f12b_u128;
        assert_eq!(sign(&key, b"Hi There"), expected.to_be_bytes());
    }

    #[test]
    fn what_was_signed_before_the_fleets_key_was_known_is_still_known_and_what_others_signed_is_not() {
        let (node, other) = (LeaseKeys::new(None), LeaseKeys::new(None));
        let before = node.sign(b"lease");
        node.learn(&other.signing());
        assert!(node.knows(b"lease", &before) && !other.knows(b"lease", &before));
        assert!(other.knows(b"lease", &node.sign(b"lease")));
        assert!(!node.knows(b"another", &before) && !node.knows(b"lease", &[0; 16]));
    }

    #[test]
    fn nodes_that_were_given_the_same_secret_know_what_each_signed_and_nobody_else_does() {
        let [one, same, other] =
            [&b"secret"[..], b"secret", b"another"].map(|secret| LeaseKeys::new(Some(secret)));
        let signed = one.sign(b"lease");
        assert!(same.knows(b"lease", &signed) && !other.knows(b"lease", &signed));
        assert!(!LeaseKeys::new(None).knows(b"lease", &signed));
    }
}
