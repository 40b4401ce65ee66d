//! Signs what nodes tell each other through Redis, with a secret that Redis does not have.
//!
//! A signature is the last field of a JSON object, so that an earlier release, which knows no signatures, reads the rest. It
//! covers the bytes before it, and what they are for: a signed question is no answer, and an answer to one question is none
//! to another. It hides nothing.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// What a signature is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose<'a> {
    Set,
    Changes,
    Revision,
    Note,
    Question { id: u64 },
    Answer { id: u64, from: &'a str },
}

/// The fleet's key.
#[derive(Clone)]
pub(super) struct Seal(Hmac<Sha256>);

const BEFORE: &[u8] = b",\"signature\":\"";
const AFTER: &[u8] = b"\"}";
const HEX: usize = 64;
/// The bytes that a signature adds.
pub(super) const SIGNATURE_BYTES: usize = BEFORE.len() + HEX + 1;

impl Seal {
    /// The secret may also sign leases: this key is derived from it, so that neither signature passes for the other.
    pub(super) fn new(secret: &[u8]) -> Self {
        let mut derived = keyed(secret);
        derived.update(b"tidegate: what nodes tell each other");
        Seal(keyed(&derived.finalize().into_bytes()))
    }

    /// Adds the signature to an object, which has at least one field.
    pub(super) fn sign(&self, purpose: Purpose<'_>, mut object: Vec<u8>) -> Vec<u8> {
        let signature = self.signature(purpose, &[&object]);
        object.pop();
        object.extend_from_slice(BEFORE);
        object.extend_from_slice(signature.as_bytes());
        object.extend_from_slice(AFTER);
        object
    }

    /// Whether an object is signed for this purpose.
    pub(super) fn has_signed(&self, purpose: Purpose<'_>, object: &[u8]) -> bool {
        let Some(end) = object.len().checked_sub(BEFORE.len() + HEX + AFTER.len()) else { return false };
        let (signed, rest) = object.split_at(end);
        let signature = rest.strip_prefix(BEFORE).and_then(|rest| rest.strip_suffix(AFTER));
        signature.is_some_and(|signature| self.is_valid(purpose, &[signed, b"}"], signature))
    }

    /// The signature of these parts, in hex.
    pub(super) fn signature(&self, purpose: Purpose<'_>, parts: &[&[u8]]) -> String {
        hex::encode(self.mac(purpose, parts).finalize().into_bytes())
    }

    /// Whether this is the signature of these parts, in hex.
    pub(super) fn is_valid(&self, purpose: Purpose<'_>, parts: &[&[u8]], signature: &[u8]) -> bool {
        hex::decode(signature).is_ok_and(|bytes| self.mac(purpose, parts).verify_slice(&bytes).is_ok())
    }

    fn mac(&self, purpose: Purpose<'_>, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        let (name, id, from) = match purpose {
            Purpose::Set => ("set", 0, ""),
            Purpose::Changes => ("changes", 0, ""),
            Purpose::Revision => ("revision", 0, ""),
            Purpose::Note => ("note", 0, ""),
            Purpose::Question { id } => ("question", id, ""),
            Purpose::Answer { id, from } => ("answer", id, from),
        };
        // Lengths first: two lists of parts are never the same bytes.
        for part in [name.as_bytes(), &id.to_le_bytes(), from.as_bytes()] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: &[u8] = br#"{"name":"one"}"#;

    #[test]
    fn signature_matches_an_independent_tool() {
        // key=$(printf 'tidegate: what nodes tell each other' | openssl dgst -sha256 -hmac secret -binary | xxd -p -c 64)
        // printf '\x04\0\0\0\0\0\0\0note\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{"name":"one"}' |
        //   openssl dgst -sha256 -mac HMAC -macopt hexkey:$key
        assert_eq!(Seal::new(b"secret").signature(Purpose::Note, &[NOTE]), EXPECTED);
    }

    const EXPECTED: &str = "fe57f5fa8ab013499f11c4a24585b6b2b2a84ca331c6c7d4811c333a6db8167b";

    #[test]
    fn signed_objects_stay_json_that_others_can_read() {
        let signed = Seal::new(b"secret").sign(Purpose::Note, NOTE.to_vec());
        assert_eq!(signed.len(), NOTE.len() + SIGNATURE_BYTES);
        let read: serde_json::Value = serde_json::from_slice(&signed).unwrap();
        assert_eq!((&read["name"], &read["signature"]), (&"one".into(), &EXPECTED.into()));
    }

    #[test]
    fn signature_is_refused_for_other_bytes_purposes_and_secrets() {
        let seal = Seal::new(b"secret");
        let answer = Purpose::Answer { id: 7, from: "one" };
        let signed = seal.sign(answer, NOTE.to_vec());
        assert!(seal.has_signed(answer, &signed));
        assert!(!Seal::new(b"other").has_signed(answer, &signed));
        for other in [
            Purpose::Note,
            Purpose::Question { id: 7 },
            Purpose::Answer { id: 8, from: "one" },
            Purpose::Answer { id: 7, from: "two" },
        ] {
            assert!(!seal.has_signed(other, &signed), "{other:?}");
        }
        for place in 0..signed.len() {
            let mut changed = signed.clone();
            changed[place] ^= 1;
            assert!(!seal.has_signed(answer, &changed), "byte {place}");
            assert!(!seal.has_signed(answer, &signed[..place]), "cut at {place}");
        }
        assert!(!seal.has_signed(answer, NOTE));
    }
}
