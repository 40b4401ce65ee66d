//! The service behind a gateway under test: it tells what reached it.

use std::io::{self, BufReader, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::acceptor::{Acceptor, Connection};
use crate::clock::{now, sleep};
use crate::http::{Head, Unframed, read_body, read_head};

/// An HTTP/1.1 server that counts requests and answers each with what it received.
///
/// The answer is JSON: `{"method":"GET","path":"/a?b","headers":{"host":"…"},"body":"…"}`. A header sent twice is shown
/// as one, its values joined by `, `.
#[derive(Debug)]
pub struct Upstream {
    acceptor: Acceptor,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    requests: AtomicU64,
    status: AtomicU16,
    delay_us: AtomicU64,
    workers: Workers,
    /// What came, where somebody wants to know.
    received: Option<Mutex<Vec<Received>>>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    /// Path and query.
    pub path: String,
    /// Header names in lower case, and values, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// When all of it was there.
    pub at: Instant,
}

impl Upstream {
    /// Starts one that answers 200 at once.
    #[must_use]
    pub fn start() -> Self {
        Self::with_workers(usize::MAX)
    }

    /// Starts one that works on so many requests at once: those beyond wait for a worker, however long that takes.
    #[must_use]
    pub fn with_workers(workers: usize) -> Self {
        Self::of(workers, None)
    }

    /// Starts one that keeps every request, for [`Upstream::received`].
    #[must_use]
    pub fn recording() -> Self {
        Self::of(usize::MAX, Some(Mutex::default()))
    }

    /// Every request so far, in order.
    ///
    /// # Panics
    /// When it was not started to keep them.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        let received = self.state.received.as_ref().expect("it was started with `recording`");
        received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn of(workers: usize, received: Option<Mutex<Vec<Received>>>) -> Self {
        let (requests, status, delay_us) = (AtomicU64::new(0), AtomicU16::new(200), AtomicU64::new(0));
        let state = Arc::new(State { requests, status, delay_us, workers: Workers::new(workers), received });
        let for_threads = Arc::clone(&state);
        // A broken connection is the peer's business; the test sees it there.
        let acceptor = Acceptor::start(move |connection| drop(serve(&connection, &for_threads)));
        Self { acceptor, state }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.acceptor.addr()
    }

    /// How many requests reached it so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// Answers with `status` from now on.
    pub fn set_status(&self, status: u16) {
        self.state.status.store(status, Ordering::SeqCst);
    }

    /// Waits before each answer from now on.
    pub fn set_delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).expect("a delay that ends");
        self.state.delay_us.store(micros, Ordering::SeqCst);
    }
}

/// Workers that are free.
#[derive(Debug)]
struct Workers {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Workers {
    fn new(count: usize) -> Self {
        Workers { free: Mutex::new(count), freed: Condvar::new() }
    }

    fn take(&self) {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
    }

    fn give_back(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
    }
}

/// Answers requests until the connection ends.
fn serve(connection: &Connection, state: &State) -> io::Result<()> {
    let mut reader = BufReader::new(&connection.stream);
    while let Some(head) = read_head(&mut reader)? {
        let body = read_body(&mut reader, &head.headers, Unframed::Empty)?;
        state.requests.fetch_add(1, Ordering::SeqCst);
        if let Some(received) = &state.received {
            let path = head.first.split(' ').nth(1).unwrap_or_default().to_owned();
            let one = Received { path, headers: head.headers.clone(), body: body.clone(), at: now() };
            received.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        }
        state.workers.take();
        sleep(Duration::from_micros(state.delay_us.load(Ordering::SeqCst)));
        state.workers.give_back();
        let answer = answer(&head, &body, state.status.load(Ordering::SeqCst));
        (&connection.stream).write_all(answer.as_bytes())?;
        let last = head
            .headers
            .iter()
            .any(|(name, value)| name == "connection" && value.eq_ignore_ascii_case("close"));
        if last {
            break;
        }
    }
    Ok(())
}

fn answer(head: &Head, body: &[u8], status: u16) -> String {
    let mut words = head.first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = Map::new();
    for (name, value) in &head.headers {
        match headers.get_mut(name) {
            Some(Value::String(first)) => *first += &format!(", {value}"),
            _ => drop(headers.insert(name.clone(), json!(value))),
        }
    }
    let text =
        json!({ "method": method, "path": path, "headers": headers, "body": String::from_utf8_lossy(body) });
    let text = if method == "HEAD" { String::new() } else { text.to_string() };
    format!(
        "HTTP/1.1 {status} As-Told\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    )
}
