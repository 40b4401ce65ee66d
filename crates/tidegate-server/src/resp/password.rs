//! The password that clients must give, if there is one.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A password, kept as a digest: neither a dump of this process nor the time of a comparison tells what it is, or how
/// long.
#[derive(Clone)]
pub struct Password([u8; 32]);

impl Password {
    /// Clients must give this.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Password(Sha256::digest(secret).into())
    }

    pub(crate) fn is(&self, given: &[u8]) -> bool {
        Sha256::digest(given).ct_eq(&self.0).into()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}
