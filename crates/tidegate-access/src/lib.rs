//! Who may connect, and who may ask: the same for the data plane and the control plane, which do not know each other.
//!
//! [`ServerTls`] shows a certificate, and may want one from the client; both come from files that can be read again
//! while connections go on. [`Tokens`] are secrets that callers give, kept as digests. [`Guesses`] limits how often one
//! address may give a wrong one. Nothing here listens, logs, or decides about a rule.

mod guesses;
mod source;
mod stream;
mod tls;
mod tokens;
mod validity;

pub use guesses::{Guesses, PeerGroup};
pub use source::{TokenSource, TokenSourceError};
pub use stream::Stream;
pub use tls::{Offers, ServerTls, TlsError, TlsFiles, authorities, crypto};
pub use tokens::{SecretDigest, TokenError, Tokens, bearer};
