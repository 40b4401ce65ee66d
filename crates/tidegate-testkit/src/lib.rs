//! Real servers for tests: started on free loopback ports, broken on purpose, and always stopped again.
//!
//! Every starter picks its own ports on 127.0.0.1, waits until the server truly answers, and shows the server's log
//! when it does not. Whatever it started dies with its handle, with a panicking test, and with a killed test process.
//!
//! Starters panic instead of returning errors: a test cannot go on without its server, and the message says what
//! to do. Nothing here decides or checks rate limits, and nothing here ships: it is a dev-dependency only.
//!
//! ```no_run
//! use tidegate_testkit::{Fault, FaultProxy, Redis};
//!
//! let redis = Redis::start();
//! let proxy = FaultProxy::start(redis.addr());
//! proxy.set(Fault::DropReplies);
//! assert!(tidegate_testkit::resp::Client::connect(proxy.addr()).try_cmd(&["PING"]).is_err());
//! ```

mod acceptor;
mod caddy;
mod clock;
mod cpu;
mod dynalite;
mod envoy;
mod fault_proxy;
pub mod frames;
pub mod http;
mod memcached;
mod moto;
mod nginx;
mod openapi;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod prometheus;
mod redis;
pub mod resp;
mod server;
mod stepped_clock;
mod tls;
mod tool;
mod upstream;

pub use caddy::Caddy;
pub use clock::{eventually, in_three_tries, poll};
pub use cpu::{cpu_of, cpu_of_family};
pub use dynalite::Dynalite;
pub use envoy::Envoy;
pub use fault_proxy::{Fault, FaultProxy};
pub use memcached::Memcached;
pub use moto::Moto;
pub use nginx::Nginx;
pub use openapi::OpenApi;
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::Postgres;
pub use process::{Process, Signal, StartFailure};
pub use prometheus::Prometheus;
pub use redis::{Redis, RedisBuilder, RedisCluster, SentinelGroup, ShardedRedis, slot_of};
pub use server::TidegateServer;
pub use stepped_clock::SteppedClock;
pub use tls::Certificates;
pub use tool::{find_node_package, find_python_with, find_tool};
pub use upstream::{Received, Upstream};
