//! The JSON that clients send and read: shapes, bounds and mistakes, nothing of what they mean.
//!
//! A body is parsed once, borrowing from it where it can. Only a body that fails is read a second time, to say which
//! field was wrong and what to do about it, so that precise errors cost good requests nothing.

mod decision;
mod fields;
mod mistakes;
mod requests;
mod rls;

pub use decision::{BatchReply, Decision};
pub use fields::{Attributes, Count, Text};
pub use mistakes::parse;
pub use requests::{Batch, Check, Lease, Refund, WorkerReport};
pub use rls::{parse_rls, write_rls};

/// Attributes of one request.
pub const MAX_ATTRIBUTES: usize = 64;
/// Checks in one batch.
pub const MAX_CHECKS: usize = 100;
/// Bytes of an attribute's name.
pub const MAX_NAME_BYTES: usize = 256;
/// Bytes of an attribute's value: enough for any path or token that should be a key.
pub const MAX_VALUE_BYTES: usize = 4 * 1024;
/// Bytes of a domain.
pub const MAX_DOMAIN_BYTES: usize = 256;
/// Bytes of a request id: a UUID, a trace id and then some.
pub const MAX_REQUEST_ID_BYTES: usize = 128;
/// Bytes of what says when hits were spent: more than we ever write.
pub const MAX_SPENT_BYTES: usize = 128;
/// Bytes of a lease, which names the cells it holds.
pub const MAX_LEASE_BYTES: usize = 64 * 1024;
