//! The JSON that clients send and receive: shapes, bounds and errors, not their meaning.
//!
//! A body is parsed once, borrowing where possible. Only an invalid body is parsed a second time, to find the field and a
//! hint, so that precise errors cost valid requests nothing.

mod decision;
mod fields;
mod mistakes;
mod requests;
mod rls;
mod take;

pub use decision::{BatchReply, Decision, SkippedRule};
pub use fields::{Attributes, Count, Text};
pub use mistakes::parse;
pub use requests::{Batch, Check, Lease, Refund, WorkerReport};
pub use rls::{parse_rls, write_rls};
pub use take::{Returned, Take, TakeReply, Taken, Wanted};

/// The most attributes of a request.
pub const MAX_ATTRIBUTES: usize = 64;
/// The most checks of a batch.
pub const MAX_CHECKS: usize = 100;
/// The protocol of `/v1/take` that this server implements.
pub const TAKE_PROTOCOL: u64 = 1;
/// The most takes of a message, and the most returns.
pub const MAX_TAKES: usize = 200;
/// The longest attribute name, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// The longest attribute value, in bytes: enough for any path or token that should be a key.
pub const MAX_VALUE_BYTES: usize = 4 * 1024;
/// The longest domain, in bytes.
pub const MAX_DOMAIN_BYTES: usize = 256;
/// The longest request id, in bytes: a UUID, a trace id and then some.
pub const MAX_REQUEST_ID_BYTES: usize = 128;
/// The longest `spent` token, in bytes: more than we ever write.
pub const MAX_SPENT_BYTES: usize = 128;
/// The longest lease, in bytes. A lease names the cells it holds.
pub const MAX_LEASE_BYTES: usize = 64 * 1024;
