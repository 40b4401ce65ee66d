//! Partition keys: whose quota a limit is, in a form that names nobody.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// Makes partition keys that only its holders can make: all nodes of a fleet must have the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PartitionSecret([u8; 32]);

/// Whose quota a limit is: callers with the same key of the same rule share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition(pub(super) [u8; Partition::BYTES]);

impl Partition {
    /// Two callers of a million have the same with a probability below 10^-9. A multiple of three needs no padding.
    pub(super) const BYTES: usize = 9;
    /// Its length in base64.
    pub(super) const DIGITS: usize = Partition::BYTES / 3 * 4;

    /// It in base64, as RFC 9651 wants it.
    pub(super) fn base64(self) -> [u8; Partition::DIGITS] {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = [0; Partition::DIGITS];
        for (bytes, digits) in self.0.as_chunks::<3>().0.iter().zip(text.as_chunks_mut::<4>().0) {
            let [high, middle, low] = bytes.map(u32::from);
            let number = high << 16 | middle << 8 | low;
            *digits = [18, 12, 6, 0].map(|shift| DIGITS[(number >> shift & 63) as usize]);
        }
        text
    }
}

impl PartitionSecret {
    /// From a text of any length.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        PartitionSecret(Sha256::digest(secret).into())
    }

    /// The partition of these parts, in this order: a rule, and the values of its key.
    pub(crate) fn partition<'p>(self, parts: impl Iterator<Item = &'p [u8]>) -> Partition {
        let mut hasher = Sha256::new_with_prefix(self.0);
        for part in parts {
            // Its length first, so that `ab`, `c` is not `a`, `bc`.
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let hash: [u8; 32] = hasher.finalize().into();
        Partition(std::array::from_fn(|place| hash[place]))
    }
}

impl fmt::Debug for PartitionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PartitionSecret")
    }
}
