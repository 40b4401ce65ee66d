//! The Store contract on one Redis, on Sentinel, on Redis Cluster and on sharded Redis.
//!
//! Every algorithm is a Lua script that mirrors its Rust twin in [`tidegate_core`]; Redis's own time is the only clock.

mod apart;
mod checks;
mod client;
mod cluster;
mod config;
mod dial;
mod failure;
mod key;
mod lanes;
mod limits;
mod link;
mod observer;
mod pause;
mod plan;
mod rounds;
mod script;
mod sentinel;
mod sharded;
mod store;
mod url;

pub use checks::{Finding, ServerReport};
pub use config::{ConfigError, RedisConfig, TimeSource, TlsFiles};
pub use observer::{NoObserver, Observer, Operation, Reason};
pub use store::RedisStore;
pub use url::{Credentials, Endpoint, StoreUrl, Topology, Transport, UrlError};
