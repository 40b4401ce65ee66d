//! Authentication of connections and callers, shared by the data plane and the control plane, which do not know each other.
//!
//! [`ServerTls`] presents a certificate, and may require one from the client; both come from files that can be reloaded
//! while connections are open. [`Tokens`] are callers' secrets, kept as digests. [`Guesses`] rate-limits wrong ones by
//! address, [`Register`] says how many connections an address may hold, and [`HalfClosed`] answers clients that have closed
//! their half. Nothing here listens, logs, or decides about a rule.

mod buckets;
mod guesses;
mod half_close;
mod register;
mod source;
mod stream;
mod tls;
mod tokens;
mod validity;

pub use buckets::Buckets;
pub use guesses::{Guesses, PeerGroup};
pub use half_close::{Answer, Answering, HalfClosed, LAST_WORDS};
pub use register::{Occupant, Register, Room};
pub use source::{TokenSource, TokenSourceError};
pub use stream::Stream;
pub use tls::{Offers, ServerTls, TlsError, TlsFiles, authorities, crypto, own_certificate};
pub use tokens::{SecretDigest, TokenError, Tokens, bearer};
