//! A few connections per runtime.
//!
//! A server runs one single-threaded runtime per core, and a connection is driven by the runtime that made it: a core must not
//! wait for another's event loop while it holds rows. Connections are made by tasks of their own, so that a caller that gives up
//! after its 10 ms does not end a connection that takes 20.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::connect::{Connector, Link};
use crate::failure::Failure;

/// Only short-lived test runtimes exceed this: all but the newest are forgotten, and their connections closed.
const MOST_RUNTIMES: usize = 1_024;
/// After a connection could not be made, none is tried for so long: the reason is known.
const PAUSE: Duration = Duration::from_millis(20);

/// All connections of a store.
pub(crate) struct Pool {
    connector: Arc<Connector>,
    per_runtime: usize,
    lanes: Mutex<HashMap<Id, Arc<Lane>>>,
}

/// The connections of one runtime.
struct Lane {
    idle: Mutex<Vec<Link>>,
    /// A permit for every idle connection.
    ready: Semaphore,
    /// How many there are, idle, in use and being made.
    count: AtomicUsize,
    failed: Notify,
    last_failure: Mutex<Option<(Instant, String)>>,
}

/// A connection in use. Dropping it closes the connection, and with it whatever was under way there.
pub(crate) struct Lent {
    link: Option<Link>,
    lane: Arc<Lane>,
    /// Whether it was used before: then it may have died meanwhile, which says nothing about the server.
    pub(crate) is_used: bool,
}

impl Pool {
    pub(crate) fn new(connector: Connector, per_runtime: usize) -> Self {
        Pool { connector: Arc::new(connector), per_runtime, lanes: Mutex::default() }
    }

    /// A connection of this runtime, by `until`.
    pub(crate) async fn take(&self, until: Instant, span: Duration) -> Result<Lent, Failure> {
        let lane = self.lane();
        loop {
            if let Some(link) = lane.take_idle() {
                return Ok(Lent { link: Some(link), lane, is_used: true });
            }
            // Before the first look at what failed, so that no failure is missed.
            let failed = lane.failed.notified();
            if self.may_add(&lane)? {
                self.add(&lane);
            }
            tokio::select! {
                // It is taken with this permit: one that is given back goes to the next who waits, and round and round.
                permit = lane.ready.acquire() => {
                    if let Some(link) = permit.ok().and_then(|permit| lane.take(permit)) {
                        return Ok(Lent { link: Some(link), lane: Arc::clone(&lane), is_used: true });
                    }
                }
                () = failed => {}
                () = tokio::time::sleep_until(until) => return Err(Failure::TooLate(span)),
            }
        }
    }

    /// Whether one more connection may be made; an error if that has just failed and there is none to wait for.
    fn may_add(&self, lane: &Lane) -> Result<bool, Failure> {
        let count = lane.count.load(Ordering::Relaxed);
        let recent = lane.last_failure.lock().clone().filter(|(at, _)| at.elapsed() < PAUSE);
        match recent {
            Some((_, why)) if count == 0 => Err(Failure::NotApplied("unreachable", why.into())),
            Some(_) => Ok(false),
            None => Ok(count < self.per_runtime),
        }
    }

    fn add(&self, lane: &Arc<Lane>) {
        lane.count.fetch_add(1, Ordering::Relaxed);
        let (lane, connector) = (Arc::clone(lane), Arc::clone(&self.connector));
        tokio::spawn(async move {
            match connector.connect().await {
                Ok(link) => {
                    *lane.last_failure.lock() = None;
                    lane.put(link);
                }
                Err(why) => {
                    *lane.last_failure.lock() = Some((Instant::now(), why));
                    lane.count.fetch_sub(1, Ordering::Relaxed);
                    lane.failed.notify_waiters();
                }
            }
        });
    }

    fn lane(&self) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        let runtime = Handle::current().id();
        if let Some(lane) = lanes.get(&runtime) {
            return Arc::clone(lane);
        }
        if lanes.len() == MOST_RUNTIMES {
            lanes.clear();
        }
        let lane = Arc::new(Lane {
            idle: Mutex::default(),
            ready: Semaphore::new(0),
            count: AtomicUsize::new(0),
            failed: Notify::new(),
            last_failure: Mutex::default(),
        });
        lanes.insert(runtime, Arc::clone(&lane));
        lane
    }
}

impl Lane {
    /// The connection that was used last, if one is idle: the others may close after a while without use.
    fn take_idle(&self) -> Option<Link> {
        while let Ok(permit) = self.ready.try_acquire() {
            if let Some(link) = self.take(permit) {
                return Some(link);
            }
        }
        None
    }

    /// The connection that a permit stands for, unless it has died.
    fn take(&self, permit: SemaphorePermit<'_>) -> Option<Link> {
        permit.forget();
        let link = self.idle.lock().pop().filter(|link| !link.client.is_closed());
        if link.is_none() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        link
    }

    fn put(&self, link: Link) {
        self.idle.lock().push(link);
        self.ready.add_permits(1);
    }
}

impl Lent {
    pub(crate) fn client(&self) -> &Client {
        &self.link.as_ref().expect("it is lent until it is given back").client
    }

    /// Whether the server ended its transaction for standing still.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.link.as_ref().is_some_and(Link::was_interrupted)
    }

    /// Gives back a connection on which nothing is under way.
    pub(crate) fn give_back(mut self) {
        if let Some(link) = self.link.take() {
            self.lane.put(link);
        }
    }

    /// Ends the transaction without its changes, while the caller goes on.
    pub(crate) fn roll_back(self) {
        tokio::spawn(async move {
            if self.client().batch_execute("ROLLBACK").await.is_ok() {
                self.give_back();
            }
        });
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.link.is_some() {
            self.lane.count.fetch_sub(1, Ordering::Relaxed);
            // A caller that waits for a connection may make one.
            self.lane.failed.notify_waiters();
        }
    }
}
