//! The Store contract on a single Redis, Sentinel, Redis Cluster and sharded Redis.
//!
//! Every algorithm is a Lua script that mirrors its Rust twin in [`tidegate_core`]; only Redis's own clock is used.

mod backoff;
mod charges;
mod checks;
mod client;
mod clocks;
mod cluster;
mod config;
pub mod costs;
mod cross_slot;
mod dial;
mod failure;
mod fleet;
mod fleet_store;
mod in_place;
mod key;
mod limits;
mod link;
mod observer;
mod per_runtime;
mod questions;
mod records;
mod retry_budget;
mod rounds;
mod sample;
mod script;
mod sentinel;
mod store;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod url;
mod wire;

pub use checks::{Finding, ServerReport};
pub use config::{ConfigError, RedisConfig, TimeSource, TlsFiles};
pub use key::KEY_LAYOUT;
pub use observer::{NoObserver, Observer, Operation, Reason};
pub use sample::KeyKind;
pub use store::RedisStore;
pub use url::{Credentials, Endpoint, StoreUrl, Topology, Transport, UrlError};
