//! The Redis protocol: any Redis client is a tidegate client.
//!
//! [`parse`] turns bytes into commands, `session` answers those about the connection, `throttle` and `check` turn the others
//! into limiter requests, `answer` orders the replies, and `connection` owns the socket. No keys or values are stored or
//! served here: `GET` is an unknown command.

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

use crate::service::Service;
use buffers::BufferPool;
use parse::Bounds;
use stats::Stats;
use tidegate_runtime::{Connection, IdleTimeouts, Protocol, Serving};

/// Limits of a connection, and its users.
#[derive(Clone, Debug)]
pub struct RespSettings {
    /// The users; if there are any, a login is required.
    pub users: Users,
    /// Bounds of one command.
    pub bounds: Bounds,
    /// The longest wait for the rest of a command after its first bytes.
    pub command_timeout: Duration,
    /// The longest wait for a login.
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

/// State shared by the connections of one worker.
pub(crate) struct RespWorker {
    service: Arc<Service>,
    settings: RespSettings,
    logins: Arc<Logins>,
    bounds_of_strangers: Bounds,
    stats: Arc<Stats>,
    pool: BufferPool,
    /// Whether the store ever made a command wait. From then on, pipelined commands are decided together.
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

    /// The login attempts, for metrics.
    #[must_use]
    pub fn logins(&self) -> Arc<Logins> {
        Arc::clone(&self.worker.logins)
    }

    /// The same for a worker with its own service and buffers. `CLIENT ID` and `INFO` cover all workers together.
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

    fn idle_timeouts(&self) -> IdleTimeouts {
        let RespWorker { settings, logins, .. } = &*self.worker;
        let idle = settings.idle_timeout;
        let first = if logins.are_needed() { settings.login_timeout } else { idle };
        IdleTimeouts { first, idle, even_under_way: false }
    }
}
