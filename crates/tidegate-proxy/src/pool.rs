//! A worker's connections to one target, kept for later requests.
//!
//! Not hyper-util's client: it pools connections by the address in a request, so over HTTP/2 the upstream could not be given
//! the host that the client requested, and it loses the request when a connection fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use http::uri::Scheme;
use parking_lot::Mutex;
use tidegate_core::Timestamp;
use tokio::runtime::Handle;

use crate::dial::{DialError, Dialed, Dialer, Http1, Http2, Wants};

/// The most idle connections kept; more are closed after use.
pub(crate) const MOST_IDLE: usize = 128;

pub(crate) struct Pool {
    dialer: Dialer,
    /// Idle connections, the last used at the end.
    idle: Mutex<Vec<Idle>>,
    idle_for: Duration,
    http2: Mutex<SharedHttp2>,
    /// Whether the target has ever chosen HTTP/2.
    prefers_http2: AtomicBool,
}

/// The connection that all HTTP/2 requests share.
#[derive(Default)]
struct SharedHttp2 {
    open: Option<Http2>,
    /// The attempt to open one: a burst makes only one, and all of it has the same answer. It ends with the last request
    /// that waits for it.
    dialing: Option<WeakShared<Dialing>>,
}

/// The new connection, or nothing if the server turned out to speak HTTP/1: then it is among the idle ones.
type Dialing = BoxFuture<'static, Result<Option<Http2>, DialError>>;

struct Idle {
    sender: Http1,
    since: Timestamp,
}

/// A connection for one request.
pub(crate) enum Lent {
    Http1(LentConnection),
    /// With the scheme that requests on it must name.
    Http2(Http2, Scheme),
}

impl Pool {
    pub(crate) fn new(dialer: Dialer, idle_for: Duration) -> Arc<Self> {
        Arc::new(Pool {
            dialer,
            idle: Mutex::new(Vec::new()),
            idle_for,
            http2: Mutex::default(),
            prefers_http2: AtomicBool::new(false),
        })
    }

    /// A pooled connection, or a new one.
    pub(crate) async fn lend(self: &Arc<Self>, wants: Wants, now: Timestamp) -> Result<Lent, DialError> {
        if wants == Wants::Any && self.prefers_http2.load(Ordering::Relaxed) {
            return self.lend_http2(now).await;
        }
        match self.take_idle(now) {
            Some(sender) => Ok(self.lent(sender, Use::Again)),
            None => self.lend_new(wants).await,
        }
    }

    /// A new connection.
    pub(crate) async fn lend_new(self: &Arc<Self>, wants: Wants) -> Result<Lent, DialError> {
        Ok(match self.dialer.dial(wants).await? {
            Dialed::Http1(sender) => self.lent(sender, Use::First),
            Dialed::Http2(sender) => {
                self.prefers_http2.store(true, Ordering::Relaxed);
                self.http2.lock().open = Some(sender.clone());
                Lent::Http2(sender, self.dialer.scheme())
            }
        })
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn sweep(&self, now: Timestamp) {
        self.idle.lock().retain(|idle| !idle.sender.is_closed() && self.is_fresh(idle, now));
    }

    async fn lend_http2(self: &Arc<Self>, now: Timestamp) -> Result<Lent, DialError> {
        let dialing = {
            let mut shared = self.http2.lock();
            if let Some(sender) = shared.open.as_ref().filter(|sender| !sender.is_closed()) {
                return Ok(Lent::Http2(sender.clone(), self.dialer.scheme()));
            }
            let under_way = shared.dialing.as_ref().and_then(WeakShared::upgrade);
            under_way.filter(|dialing| dialing.peek().is_none()).unwrap_or_else(|| {
                let dialing = Arc::clone(self).dial_http2(now).boxed().shared();
                shared.dialing = dialing.downgrade();
                dialing
            })
        };
        match dialing.await? {
            Some(sender) => Ok(Lent::Http2(sender, self.dialer.scheme())),
            None => match self.take_idle(now) {
                Some(sender) => Ok(self.lent(sender, Use::First)),
                None => self.lend_new(Wants::Any).await,
            },
        }
    }

    async fn dial_http2(self: Arc<Self>, now: Timestamp) -> Result<Option<Http2>, DialError> {
        match self.dialer.dial(Wants::Any).await? {
            Dialed::Http2(sender) => {
                self.http2.lock().open = Some(sender.clone());
                Ok(Some(sender))
            }
            // The server behind the address changed.
            Dialed::Http1(sender) => {
                self.prefers_http2.store(false, Ordering::Relaxed);
                self.keep(sender, now);
                Ok(None)
            }
        }
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
pub(crate) enum Use {
    First,
    /// The server may have closed it a moment ago.
    Again,
}

/// A connection that carries one request at a time. Dropping it closes it.
pub(crate) struct LentConnection {
    pub(crate) sender: Http1,
    pub(crate) used: Use,
    pool: Arc<Pool>,
}

impl LentConnection {
    /// Returns it to the pool after its answer was read to the end.
    pub(crate) fn give_back(self, now: Timestamp) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_config;
    use futures_util::future::join_all;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn requests_for_a_silent_server_wait_for_one_attempt() {
        const WITHIN: Duration = Duration::from_secs(2);
        // Connections are established by the system, and nobody answers a TLS handshake.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("https://{}", silent.local_addr().unwrap()).parse().unwrap();
        let dialer = Dialer { target, tls: Some(client_config(None).unwrap()), within: WITHIN };
        let pool = Pool::new(dialer, Duration::from_secs(30));
        pool.prefers_http2.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let began = Instant::now();
            let lent = join_all((0..5).map(|_| pool.lend(Wants::Any, Timestamp::default()))).await;
            assert!(lent.iter().all(|lent| matches!(lent, Err(DialError::TooSlow(_)))));
            assert!(began.elapsed() < WITHIN * 2, "{:?}", began.elapsed());
        }
    }
}
