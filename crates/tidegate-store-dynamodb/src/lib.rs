//! The Store contract on DynamoDB, for fleets without a server of their own. It was run against emulators, never against AWS: whole
//! against `moto`; against `dynalite`, which knows no transactions, where each request is on one key.
//!
//! # How a batch is decided
//!
//! Core decides, in the node; DynamoDB keeps bytes, and stores them only if nobody else has meanwhile. All limits of one key tuple are
//! one item (`tidegate-store-items` decides what becomes of it). `change.rs` does it for a whole batch:
//!
//! 1. `BatchGetItem`, strongly consistent, reads all items, a hundred in a call. Where nothing changes (all were refused) that is the
//!    answer: a refusal writes nothing.
//! 2. An item that changes alone is put, or deleted, on the condition that its version is the one that was read. Items that change
//!    together are one `TransactWriteItems`, of a hundred at most; larger groups are cut. Each version is random, so an item that was
//!    deleted and made again is another.
//! 3. Whoever loses reads again, after a short random pause. That is the only retry of a write, and a lost read is the only other: whatever
//!    might have been applied is reported as in doubt.
//!
//! # Which clock counts
//!
//! DynamoDB has no clock to ask. The `Date` of each answer tells whole seconds of the front end that gave it, from which `ServerClock`
//! estimates the rest, to some hundredths of a second once a few seconds have passed. The clocks of nodes do not matter, also not for
//! signatures. Where front ends disagree, nodes disagree by as much: a window may end that much earlier on one node. No
//! counter ever sees time go back: each item has the time of its last change.
//!
//! # What DynamoDB cannot guarantee
//!
//! *Large state.* An item has at most 400 KB: concurrency limits and logs with more entries are refused ([`MOST_LEASES`],
//! [`MOST_LOGGED`]). A request over more than a hundred keys cannot be decided.
//!
//! *Speed.* A decision that spends is two calls of some milliseconds each, hence the longer time-out; one key takes about a thousand
//! writes a second at most.
//!
//! # Why this is not the SDK
//!
//! `aws-sdk-dynamodb` with `aws-config`, without their TLS, are 142 crates and 71 s of CPU to build; this needs six calls, one signature,
//! and the HTTP client that the workspace has.

mod api;
mod change;
mod config;
mod credentials;
mod http_client;
mod sign;
mod store;
mod table;
mod url;

pub use config::{ConfigError, DynamoDbConfig, Login, TimeSource};
pub use store::{DynamoDb, DynamoDbStore, MOST_LEASES, MOST_LOGGED};
pub use table::TableReport;
pub use tidegate_store::CallObserver;
pub use url::{DynamoDbUrl, UrlError};
