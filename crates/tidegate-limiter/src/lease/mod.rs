//! Leases: what a caller holds, who may have written it, and which leases the store has yet to hear of.
//!
//! [`token`] is a lease as text, signed with one of [`keys`]. [`issued`] are those that this node issued without the store,
//! [`pending`] those that are to be released there. Releasing and renewing is up to `leases.rs`, which makes the calls.

mod ids;
pub(crate) mod issued;
pub(crate) mod keys;
pub(crate) mod pending;
mod token;

pub(crate) use ids::LeaseIds;
pub(crate) use token::read_lease;
pub use token::{LeaseToken, LeaseTokenError};
