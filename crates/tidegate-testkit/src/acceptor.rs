//! A listener with a thread per connection that can be closed from outside, all connections included.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Far above what a test opens at once; beyond it, connections are closed as they come.
const MAX_CONNECTIONS: usize = 1024;

/// Listens on a port of its own until dropped.
#[derive(Debug)]
pub(crate) struct Acceptor {
    addr: SocketAddr,
    shared: Arc<AcceptorState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct AcceptorState {
    stopped: AtomicBool,
    accepted: AtomicU64,
    /// The sockets of each live connection, so that they can be shut while their thread waits on them.
    live: Mutex<HashMap<u64, Vec<TcpStream>>>,
}

/// A live connection, as its handler sees it.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    id: u64,
    shared: Arc<AcceptorState>,
}

impl Acceptor {
    /// Runs `handle` in a thread of its own for each connection.
    pub(crate) fn start(handle: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let addr = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(AcceptorState::default());
        let (handle, for_thread) = (Arc::new(handle), Arc::clone(&shared));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if for_thread.stopped.load(Ordering::SeqCst) {
                    break;
                }
                if let Some(connection) = stream.ok().and_then(|stream| Connection::open(stream, &for_thread))
                {
                    let handle = Arc::clone(&handle);
                    thread::spawn(move || handle(connection));
                }
            }
        });
        Self { addr, shared, thread: Some(thread) }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections were accepted so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Shuts every connection that is open now.
    pub(crate) fn close_all(&self) {
        self.shared.live().values().flatten().for_each(shut);
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // The thread looks at the flag when a connection comes, so give it one.
        let _ = TcpStream::connect(self.addr);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.close_all();
    }
}

impl Connection {
    fn open(stream: TcpStream, shared: &Arc<AcceptorState>) -> Option<Self> {
        let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let _ = stream.set_nodelay(true);
        let mut live = shared.live();
        if live.len() >= MAX_CONNECTIONS {
            return None;
        }
        live.insert(id, vec![stream.try_clone().ok()?]);
        Some(Self { stream, id, shared: Arc::clone(shared) })
    }

    /// Ties another socket to this connection: it is shut together with it.
    pub(crate) fn adopt(&self, other: &TcpStream) {
        if let (Some(sockets), Ok(other)) = (self.shared.live().get_mut(&self.id), other.try_clone()) {
            sockets.push(other);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(sockets) = self.shared.live().remove(&self.id) {
            sockets.iter().for_each(shut);
        }
    }
}

impl AcceptorState {
    fn live(&self) -> MutexGuard<'_, HashMap<u64, Vec<TcpStream>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shut(socket: &TcpStream) {
    // An error means that the peer was faster.
    let _ = socket.shutdown(Shutdown::Both);
}
