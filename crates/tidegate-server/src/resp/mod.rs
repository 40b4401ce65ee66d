//! The Redis protocol: any Redis client is a client of ours.
//!
//! [`parse`] turns bytes into commands, `session` answers those that are about the connection, `throttle` and `check`
//! turn the others into questions to the limiter, `answer` puts replies in their order, and `connection` owns the socket.
//! No key or value is ever stored or served here: whoever asks for `GET` is told that there is no such command.

mod answer;
mod buffers;
mod catalogue;
mod check;
mod connection;
mod gather;
pub mod parse;
mod password;
mod reply;
mod session;
mod stats;
mod throttle;

pub use password::Password;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::runtime::{Connection, Protocol, Serving};
use crate::service::Service;
use buffers::Pool;
use parse::Bounds;
use stats::Stats;

/// What a connection may take, and what it must give.
#[derive(Clone, Debug)]
pub struct RespSettings {
    /// The password that clients must give; none lets everybody in.
    pub password: Option<Password>,
    /// Bounds of one command.
    pub bounds: Bounds,
    /// How long a command may take to arrive once its first bytes are there.
    pub command_timeout: Duration,
}

impl Default for RespSettings {
    fn default() -> Self {
        Self { password: None, bounds: Bounds::default(), command_timeout: Duration::from_secs(10) }
    }
}

/// The Redis protocol of one worker, or of all.
#[derive(Clone)]
pub struct Resp {
    worker: Arc<Worker>,
}

/// What connections of one worker share.
pub(crate) struct Worker {
    service: Arc<Service>,
    settings: RespSettings,
    bounds_of_strangers: Bounds,
    stats: Arc<Stats>,
    pool: Pool,
    /// Whether the store ever made somebody wait. From then on, what is pipelined is asked for together.
    store_takes_time: AtomicBool,
}

impl Resp {
    /// Serves `service`.
    #[must_use]
    pub fn new(service: Arc<Service>, settings: RespSettings) -> Self {
        let stats = Arc::new(Stats::new(Arc::clone(&service.clock)));
        Self { worker: Arc::new(Worker::new(service, settings, stats)) }
    }

    /// The same for a worker that has a service of its own, with buffers of its own too. `CLIENT ID` and `INFO` tell of
    /// all workers together.
    #[must_use]
    pub fn for_worker(&self, service: Arc<Service>) -> Self {
        let Worker { settings, stats, .. } = &*self.worker;
        Self { worker: Arc::new(Worker::new(service, settings.clone(), Arc::clone(stats))) }
    }
}

impl Worker {
    fn new(service: Arc<Service>, settings: RespSettings, stats: Arc<Stats>) -> Self {
        Worker {
            service,
            bounds_of_strangers: settings.bounds.for_stranger(),
            settings,
            stats,
            pool: Pool::default(),
            store_takes_time: AtomicBool::new(false),
        }
    }
}

impl Protocol for Resp {
    fn serve(&self, connection: Connection) -> Serving {
        Box::pin(connection::serve(Arc::clone(&self.worker), connection))
    }
}
