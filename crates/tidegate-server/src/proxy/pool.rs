//! A worker's connections to one target, kept for later requests.
//!
//! Not hyper-util's client: it pools connections by the address in a request, so over HTTP/2 the upstream could not be given
//! the host that the client requested, and it loses the request when a connection fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::uri::Scheme;
use parking_lot::Mutex;
use tidegate_core::Timestamp;
use tokio::runtime::Handle;

use super::dial::{DialError, Dialed, Dialer, Http1, Http2, Wants};

/// The most idle connections kept; more are closed after use.
pub(super) const MOST_IDLE: usize = 128;

pub(super) struct Pool {
    dialer: Dialer,
    /// Idle connections, the last used at the end.
    idle: Mutex<Vec<Idle>>,
    idle_for: Duration,
    /// The connection that all HTTP/2 requests share. Locked while it is made, so that a burst makes only one.
    http2: tokio::sync::Mutex<Option<Http2>>,
    /// Whether the target has ever chosen HTTP/2.
    prefers_http2: AtomicBool,
}

struct Idle {
    sender: Http1,
    since: Timestamp,
}

/// A connection for one request.
pub(super) enum Lent {
    Http1(LentConnection),
    /// With the scheme that requests on it must name.
    Http2(Http2, Scheme),
}

impl Pool {
    pub(super) fn new(dialer: Dialer, idle_for: Duration) -> Arc<Self> {
        Arc::new(Pool {
            dialer,
            idle: Mutex::new(Vec::new()),
            idle_for,
            http2: tokio::sync::Mutex::new(None),
            prefers_http2: AtomicBool::new(false),
        })
    }

    /// A pooled connection, or a new one.
    pub(super) async fn lend(self: &Arc<Self>, wants: Wants, now: Timestamp) -> Result<Lent, DialError> {
        if wants == Wants::Any && self.prefers_http2.load(Ordering::Relaxed) {
            return self.lend_http2().await;
        }
        match self.take_idle(now) {
            Some(sender) => Ok(self.lent(sender, Use::Again)),
            None => self.lend_new(wants).await,
        }
    }

    /// A new connection.
    pub(super) async fn lend_new(self: &Arc<Self>, wants: Wants) -> Result<Lent, DialError> {
        Ok(match self.dialer.dial(wants).await? {
            Dialed::Http1(sender) => self.lent(sender, Use::First),
            Dialed::Http2(sender) => {
                self.prefers_http2.store(true, Ordering::Relaxed);
                *self.http2.lock().await = Some(sender.clone());
                Lent::Http2(sender, self.dialer.scheme())
            }
        })
    }

    /// Closes connections that were idle for too long.
    pub(super) fn sweep(&self, now: Timestamp) {
        self.idle.lock().retain(|idle| !idle.sender.is_closed() && self.is_fresh(idle, now));
    }

    async fn lend_http2(self: &Arc<Self>) -> Result<Lent, DialError> {
        let mut shared = self.http2.lock().await;
        if let Some(sender) = shared.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(Lent::Http2(sender.clone(), self.dialer.scheme()));
        }
        Ok(match self.dialer.dial(Wants::Any).await? {
            Dialed::Http2(sender) => {
                *shared = Some(sender.clone());
                Lent::Http2(sender, self.dialer.scheme())
            }
            // The server behind the address changed.
            Dialed::Http1(sender) => {
                self.prefers_http2.store(false, Ordering::Relaxed);
                self.lent(sender, Use::First)
            }
        })
    }

    fn take_idle(&self, now: Timestamp) -> Option<Http1> {
        let mut idle = self.idle.lock();
        while let Some(last) = idle.pop() {
            if last.sender.is_ready() && self.is_fresh(&last, now) {
                return Some(last.sender);
            }
        }
        None
    }

    fn is_fresh(&self, idle: &Idle, now: Timestamp) -> bool {
        Duration::from(now.since(idle.since)) < self.idle_for
    }

    fn keep(&self, sender: Http1, since: Timestamp) {
        let mut idle = self.idle.lock();
        if idle.len() < MOST_IDLE {
            idle.push(Idle { sender, since });
        }
    }

    fn lent(self: &Arc<Self>, sender: Http1, used: Use) -> Lent {
        Lent::Http1(LentConnection { sender, used, pool: Arc::clone(self) })
    }
}

/// Whether a connection carried a request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    First,
    /// The server may have closed it a moment ago.
    Again,
}

/// A connection that carries one request at a time. Dropping it closes it.
pub(super) struct LentConnection {
    pub(super) sender: Http1,
    pub(super) used: Use,
    pool: Arc<Pool>,
}

impl LentConnection {
    /// Returns it to the pool after its answer was read to the end.
    pub(super) fn give_back(self, now: Timestamp) {
        let LentConnection { mut sender, pool, .. } = self;
        if sender.is_ready() {
            return pool.keep(sender, now);
        }
        if sender.is_closed() {
            return;
        }
        // The request's body is still being sent, or the connection's task has not run yet.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            if sender.ready().await.is_ok() {
                pool.keep(sender, now);
            }
        });
    }
}
