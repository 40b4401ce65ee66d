//! Tests whether a server is alive, independently of busy workers.
//!
//! A worker that misses a deadline cannot tell the cause: its own load, which delayed the send or the read, or the server. The
//! witness can. From the first missed deadline on, it pings the server repeatedly, on its own thread and connection, until no
//! deadline has been missed for a while. It records the results in [`Heard`].
//!
//! It decides nothing, and it does not ping a server that meets its deadlines.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tidegate_core::Micros;
use tidegate_store::WitnessReport;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::dial::{Dialed, Dialer, Greeting};
use crate::heard::Heard;
use crate::link::{Deadline, in_time};
use crate::url::Endpoint;

/// How long after the last missed deadline a server is pinged.
const DOUBTED_FOR: Duration = Duration::from_secs(1);
/// The pause between an answer and the next ping.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);
/// After this long without an answer, the ping is lost and the next one uses a new connection.
const LONGEST_ANSWER: Duration = Duration::from_secs(2);
/// A connection unused for this long is closed.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Pings servers that missed a deadline.
pub(crate) struct Witness {
    dialer: Arc<Dialer>,
    heard: Arc<Heard>,
    /// The servers being watched. The map stays small: a cluster or a shard list has few members.
    watched: Mutex<HashMap<Endpoint, Arc<Watched>>>,
}

/// A server that recently missed a deadline.
struct Watched {
    /// Its node number.
    node: usize,
    doubted: Mutex<Instant>,
    again: Notify,
    has_ended: AtomicBool,
}

impl Watched {
    fn new(node: usize) -> Self {
        let (doubted, has_ended) = (Mutex::new(Instant::now()), AtomicBool::new(false));
        Watched { node, doubted, again: Notify::new(), has_ended }
    }

    fn doubted_ago(&self) -> Duration {
        self.doubted.lock().elapsed()
    }
}

impl Witness {
    pub(crate) fn new(dialer: Arc<Dialer>, heard: Arc<Heard>) -> Arc<Self> {
        Arc::new(Witness { dialer, heard, watched: Mutex::default() })
    }

    /// Reports that the server at `endpoint`, which is `node`, missed a deadline.
    pub(crate) fn doubt(self: &Arc<Self>, endpoint: &Endpoint, node: usize) {
        let mut watched = self.watched.lock();
        match watched
            .get(endpoint)
            .filter(|known| known.node == node && !known.has_ended.load(Ordering::Relaxed))
        {
            Some(known) => {
                let was_calm = known.doubted_ago() > DOUBTED_FOR;
                *known.doubted.lock() = Instant::now();
                if was_calm {
                    self.heard.is_asked(node);
                    known.again.notify_one();
                }
            }
            None => {
                let Some(thread) = thread().cloned().or_else(|| Handle::try_current().ok()) else { return };
                self.heard.is_asked(node);
                let new = Arc::new(Watched::new(node));
                watched.insert(endpoint.clone(), Arc::clone(&new));
                watched.retain(|_, server| !server.has_ended.load(Ordering::Relaxed));
                thread.spawn(watch(Arc::downgrade(self), endpoint.clone(), new));
            }
        }
    }

    /// Whether the server at `endpoint` answers the witness; it may be silent for `patience`, or longer if it was that slow.
    pub(crate) fn hears(&self, endpoint: &Endpoint, patience: Duration) -> bool {
        let Some(node) = self.watched.lock().get(endpoint).map(|server| server.node) else { return false };
        let shortest = Micros::from(patience);
        let patience = shortest..shortest.max(WitnessReport::LONGEST_LATENESS);
        self.heard.last(node).witness.is_some_and(|report| !report.is_silent(patience))
    }

    /// Pings once; false if the connection failed or cannot be made.
    async fn ask(
        &self,
        endpoint: &Endpoint,
        node: usize,
        connection: &mut Option<MultiplexedConnection>,
    ) -> bool {
        self.heard.is_asked(node);
        let began = Instant::now();
        // Includes the server's time for our calls queued before this one.
        let deadline = Deadline::from_now(self.heard.in_time() + self.heard.explained(node));
        let mut answer = Box::pin(timeout(LONGEST_ANSWER, async {
            match connection {
                Some(connection) => is_answered(connection).await,
                None => match self.dialer.dial(endpoint, Greeting::Answer).await {
                    Ok(Dialed { connection: new, driver }) => {
                        tokio::spawn(driver);
                        *connection = Some(new);
                        true
                    }
                    Err(_) => false,
                },
            }
        }));
        match in_time(answer.as_mut(), deadline).await {
            Some(Ok(true)) => {
                self.heard.answers_the_witness(node, Answers::Promptly, began.elapsed());
                true
            }
            Some(_) => false,
            None => {
                let has_answered = answer.await == Ok(true);
                if has_answered {
                    self.heard.answers_the_witness(node, Answers::Late, began.elapsed());
                }
                has_answered
            }
        }
    }
}

/// Pings a server while it is in doubt; ends when the store is dropped or no deadline was missed for `KEPT_FOR`.
async fn watch(witness: Weak<Witness>, endpoint: Endpoint, server: Arc<Watched>) {
    let mut connection = None;
    while let Some(witness) = witness.upgrade().filter(|_| server.doubted_ago() < KEPT_FOR) {
        if server.doubted_ago() > DOUBTED_FOR {
            witness.heard.is_not_asked(server.node);
            drop(witness);
            let _ = timeout(DOUBTED_FOR, server.again.notified()).await;
            continue;
        }
        let is_good = witness.ask(&endpoint, server.node, &mut connection).await;
        drop(witness);
        match is_good {
            true => sleep(PAUSE).await,
            false => {
                connection = None;
                sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
    server.has_ended.store(true, Ordering::Relaxed);
}

/// How a server answers the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Within the time allowed for a decision.
    Promptly,
    /// Later than that.
    Late,
}

async fn is_answered(connection: &mut MultiplexedConnection) -> bool {
    let mut ping = Cmd::new();
    ping.arg("PING");
    // Any reply, even an error, shows that the server is alive.
    matches!(connection.send_packed_command(&ping).await, Ok(Value::SimpleString(_) | Value::ServerError(_)))
}

/// The thread shared by all witnesses of this process, started on first use; none if the OS refuses one.
fn thread() -> Option<&'static Handle> {
    static THREAD: OnceLock<Option<Handle>> = OnceLock::new();
    let start = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("tidegate-witness".to_owned());
        thread.spawn(move || runtime.block_on(pending::<()>())).ok().map(|_| handle)
    };
    THREAD.get_or_init(start).as_ref()
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Witness").field("watched", &self.watched.lock().len()).finish_non_exhaustive()
    }
}
