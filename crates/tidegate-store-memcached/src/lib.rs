//! The Store contract on Memcached, for fleets that have one and no Redis.
//!
//! # How a batch is decided
//!
//! Core decides, in the node; Memcached keeps bytes, and stores them only if nobody else has meanwhile (compare and set). All limits
//! of one key tuple are one item (`tidegate-store-items` decides what becomes of it), so they change together. `change.rs` does it for a whole batch:
//!
//! 1. One round trip reads all items. Requests that share no item do not concern each other: each such group is decided by itself.
//! 2. Where nothing changes (all were refused) that is the answer. Otherwise one more round trip stores each group of one item.
//!    Groups whose item was changed meanwhile start again; of those that want one item, one always gets on.
//! 3. A group of several items first marks each as held, in one round trip, then stores what becomes of them. Whoever finds an item
//!    held waits; a mark that its node left behind lasts half a second. If some cannot be held, the others are let go, and the
//!    group starts again after a short random pause. So nothing is spent before all of it can be.
//!
//! # What Memcached cannot guarantee
//!
//! *That a counter stays.* A server that is full evicts items, and a restart loses all: such a caller has its whole quota again.
//! `upkeep.rs` measures it by items of its own that nobody touches.
//!
//! *The time.* Memcached has no clock to read but whole seconds: for how long an item is kept that ends at a fixed time (`wire::left`). `ServerClock` estimates from them what the first server's clock shows, to
//! some hundredths of a second once a few have passed; no counter ever sees time go back.
//!
//! *Large state.* An item has at most a megabyte, and is read and written whole: rules that would keep more than [`MOST_LEASES`] or
//! [`MOST_LOGGED`] of one key are refused before they are used (`Store::key_room`).

mod change;
mod config;
mod link;
mod store;
mod upkeep;
mod url;
mod wire;

pub use config::{ConfigError, MemcachedConfig, TimeSource};
pub use store::{MOST_LEASES, MOST_LOGGED, Memcached, MemcachedStore};
pub use tidegate_store::CallObserver;
pub use upkeep::ServerReport;
pub use url::{MemcachedUrl, UrlError};
