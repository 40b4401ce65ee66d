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
mod login;
mod multi;
pub mod parse;
mod reply;
mod session;
mod stats;
mod throttle;

pub use login::{Logins, Users};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::runtime::{Connection, Patience, Protocol, Serving};
use crate::service::Service;
use buffers::BufferPool;
use parse::Bounds;
use stats::Stats;

/// What a connection may take, and who may log in.
#[derive(Clone, Debug)]
pub struct RespSettings {
    /// Who may log in, and so must.
    pub users: Users,
    /// Bounds of one command.
    pub bounds: Bounds,
    /// How long a command may take to arrive once its first bytes are there.
    pub command_timeout: Duration,
    /// How long a client may take to log in.
    pub login_timeout: Duration,
    /// How long a client may send nothing. Client libraries keep connections for a long time and do not expect a server to
    /// close them, so this is long; a listener that is full closes idle connections earlier.
    pub idle_timeout: Duration,
}

impl Default for RespSettings {
    fn default() -> Self {
        Self {
            users: Users::default(),
            bounds: Bounds::default(),
            command_timeout: Duration::from_secs(10),
            login_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60 * 60),
        }
    }
}

/// The Redis protocol of one worker, or of all.
#[derive(Clone)]
pub struct Resp {
    worker: Arc<RespWorker>,
}

/// What connections of one worker share.
pub(crate) struct RespWorker {
    service: Arc<Service>,
    settings: RespSettings,
    logins: Arc<Logins>,
    bounds_of_strangers: Bounds,
    stats: Arc<Stats>,
    pool: BufferPool,
    /// Whether the store ever made somebody wait. From then on, what is pipelined is asked for together.
    store_takes_time: AtomicBool,
}

impl Resp {
    /// Serves `service`.
    #[must_use]
    pub fn new(service: Arc<Service>, settings: RespSettings) -> Self {
        let stats = Arc::new(Stats::new(Arc::clone(&service.clock)));
        let logins = Arc::new(Logins::new(settings.users.clone()));
        Self { worker: Arc::new(RespWorker::new(service, settings, logins, stats)) }
    }

    /// What is known of attempts to log in, for metrics.
    #[must_use]
    pub fn logins(&self) -> Arc<Logins> {
        Arc::clone(&self.worker.logins)
    }

    /// The same for a worker that has a service of its own, with buffers of its own too. `CLIENT ID` and `INFO` tell of
    /// all workers together.
    #[must_use]
    pub fn for_worker(&self, service: Arc<Service>) -> Self {
        let RespWorker { settings, logins, stats, .. } = &*self.worker;
        let (logins, stats) = (Arc::clone(logins), Arc::clone(stats));
        Self { worker: Arc::new(RespWorker::new(service, settings.clone(), logins, stats)) }
    }
}

impl RespWorker {
    fn new(service: Arc<Service>, settings: RespSettings, logins: Arc<Logins>, stats: Arc<Stats>) -> Self {
        RespWorker {
            service,
            bounds_of_strangers: settings.bounds.for_stranger(),
            settings,
            logins,
            stats,
            pool: BufferPool::default(),
            store_takes_time: AtomicBool::new(false),
        }
    }
}

impl Protocol for Resp {
    fn serve(&self, connection: Connection) -> Serving {
        Box::pin(connection::serve(Arc::clone(&self.worker), connection))
    }

    fn patience(&self) -> Patience {
        let RespWorker { settings, logins, .. } = &*self.worker;
        let idle = settings.idle_timeout;
        let first = if logins.are_needed() { settings.login_timeout } else { idle };
        Patience { first, idle, even_under_way: false }
    }
}
