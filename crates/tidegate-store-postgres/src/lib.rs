//! The Store contract on PostgreSQL, for fleets that have a database and no Redis.
//!
//! # How a batch is decided
//!
//! Core decides, in the node. A twin of every algorithm in PL/pgSQL would be a third one to keep exact, at 10 to 100 times the
//! cost of Rust; so PostgreSQL keeps bytes, locks them, and says what time it is. One transaction of two round trips:
//!
//! 1. `BEGIN`, and a function that locks the rows of all cells of the batch, ascending, creates the missing ones, and returns
//!    what they hold and the time *after* the last lock.
//! 2. A function that writes what changed, and `COMMIT`. Where nothing changed (all were refused) the answer does not wait for it.
//!
//! This is exact: nobody else reads or writes the rows in between; times never run backwards for one row while the server's clock
//! does not; only that clock is used. It cannot deadlock (`schema.sql` says why). And it says precisely what failed: nothing was
//! applied before the commit is sent.
//!
//! What was not chosen. *Compare and set in one round trip*, on what the node remembers of a row and its estimate of the server's
//! time, needs a second round trip whenever another node wrote one of a batch's rows, which in a fleet is usual, and starves where
//! many nodes write one hot row: it would need these locks as well. It would also save little: on loopback a round trip is 0.05 ms,
//! and the transaction of one key takes 0.58 ms in two round trips and 0.59 ms in one (PostgreSQL 15, `pgbench -c 1` with these
//! functions, the better of two runs each, on a busy machine); a batch pays it once. *Advisory locks* cost less than row locks, but their table in
//! shared memory has room for about 64 a connection, which a few batches fill.
//!
//! The price: a node that stops between the two round trips holds its rows for at most half a second, in which requests of other
//! nodes on these rows follow their failure policy.
//!
//! # What is lost when
//!
//! The table is unlogged: nothing waits for a disk, and a crash or a failover to a replica empties it: every caller has its
//! whole quota again. A restart in order keeps it.
//!
//! PgBouncer in transaction mode works: no statement is prepared, and no setting outlives its transaction.

mod cells;
mod config;
mod connect;
mod failure;
mod name;
mod pool;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
mod upkeep;
mod url;
mod values;

pub use config::{ConfigError, PostgresConfig, TimeSource, TlsFiles};
pub use store::PostgresStore;
pub use tidegate_store::CallObserver;
pub use upkeep::ServerReport;
pub use url::{PostgresUrl, UrlError};
