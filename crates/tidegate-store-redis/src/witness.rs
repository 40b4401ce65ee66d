//! Whether a server lives, as one sees who has nothing else to do.
//!
//! A worker that misses a deadline cannot say whose fault that is: its own, because it had too much to do to send or to read in
//! time, or the server's. The witness can. From the first missed deadline on, it asks the server again and again, on a thread
//! and a connection of its own, until nobody has missed one for a while. What it hears goes to [`Heard`].
//!
//! It decides nothing, and a server that nobody doubts is not asked.

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

/// A server is asked for so long after the last missed deadline.
const DOUBTED_FOR: Duration = Duration::from_secs(1);
/// The pause between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);
/// An answer that has not come after so long never will: the next question goes over another connection.
const LONGEST_ANSWER: Duration = Duration::from_secs(2);
/// A connection that nobody needed for so long is closed.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Asks servers that are in doubt.
pub(crate) struct Witness {
    dialer: Arc<Dialer>,
    heard: Arc<Heard>,
    /// Of each server that is watched: the members of a cluster, or of a list, are few.
    watched: Mutex<HashMap<Endpoint, Arc<Watched>>>,
}

/// A server that was in doubt lately.
struct Watched {
    /// Which node it is.
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

    /// Somebody missed a deadline of the server at `endpoint`, which is `node`.
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

    /// Whether the server at `endpoint` answers the witness: it may be silent for `patience`, or longer where it was that slow.
    pub(crate) fn hears(&self, endpoint: &Endpoint, patience: Duration) -> bool {
        let Some(node) = self.watched.lock().get(endpoint).map(|server| server.node) else { return false };
        let shortest = Micros::new(u64::try_from(patience.as_micros()).unwrap_or(u64::MAX));
        let patience = shortest..shortest.max(WitnessReport::LONGEST_LATENESS);
        self.heard.last(node).witness.is_some_and(|report| !report.is_silent(patience))
    }

    /// Asks once; false if the connection is no good, or there is none.
    async fn ask(
        &self,
        endpoint: &Endpoint,
        node: usize,
        connection: &mut Option<MultiplexedConnection>,
    ) -> bool {
        self.heard.is_asked(node);
        let began = Instant::now();
        // What it has to do for us before it gets to the question.
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

/// Asks a server while it is in doubt, until the store is gone or nobody had doubts for long.
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
    /// Within the time that a decision may take.
    Promptly,
    /// After that.
    Late,
}

async fn is_answered(connection: &mut MultiplexedConnection) -> bool {
    let mut ping = Cmd::new();
    ping.arg("PING");
    // Whatever it answers, it does.
    matches!(connection.send_packed_command(&ping).await, Ok(Value::SimpleString(_) | Value::ServerError(_)))
}

/// The thread of all witnesses of this process, started when the first is needed; none if the system gives no thread.
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
