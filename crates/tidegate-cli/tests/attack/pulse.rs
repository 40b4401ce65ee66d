//! Asks a store that is no Redis for something small, again and again, as somebody who has nothing to do with tidegate.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::watch::{EVERY, Watched};
use crate::world::{PATIENCE, Store, now, pass};

/// Notes when the machine kept a store from answering.
pub(crate) struct Pulse {
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<Watched>,
}

/// Asks once, and waits for the answer.
type Ask = Box<dyn FnMut() -> io::Result<()> + Send>;

impl Pulse {
    /// None of a store that is watched otherwise, or whose decisions are awaited for as long as they take.
    pub(crate) fn start(store: &Store) -> Option<Self> {
        let mut ask = match store {
            Store::Postgres(server, database) => of_postgres(server.addr(), database),
            Store::Memcached(server) => of_memcached(server.addr()),
            _ => return None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let watcher = std::thread::spawn(move || {
            let (mut watched, mut late_since) = (Watched::default(), None);
            while !stopped.load(Ordering::Relaxed) {
                pass(EVERY);
                let sent = now();
                if ask().is_err() {
                    break;
                }
                watched.note(sent, now(), &mut late_since);
            }
            watched
        });
        Some(Pulse { stop, watcher })
    }

    pub(crate) fn finish(self) -> Watched {
        self.stop.store(true, Ordering::Relaxed);
        self.watcher.join().expect("watching does not fail")
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("the store listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("patience is not zero");
    stream.set_nodelay(true).expect("it is a socket");
    stream
}

fn of_memcached(addr: SocketAddr) -> Ask {
    let mut stream = connect(addr);
    Box::new(move || {
        stream.write_all(b"mn\r\n")?;
        stream.read_exact(&mut [0; 4])
    })
}

/// A transaction is two round trips, as a decision.
fn of_postgres(addr: SocketAddr, database: &str) -> Ask {
    let mut stream = connect(addr);
    let hello = [&196_608_i32.to_be_bytes()[..], b"user\0postgres\0database\0", database.as_bytes(), b"\0\0"];
    send(&mut stream, &[], &hello.concat()).and_then(|()| until_ready(&mut stream)).expect("it trusts us");
    Box::new(move || {
        for statement in [b"BEGIN\0".as_slice(), b"COMMIT\0"] {
            send(&mut stream, b"Q", statement)?;
            until_ready(&mut stream)?;
        }
        Ok(())
    })
}

/// A message: its kind, how long it is, and what it says.
fn send(stream: &mut TcpStream, kind: &[u8], says: &[u8]) -> io::Result<()> {
    let length = i32::try_from(says.len() + 4).expect("it is short");
    stream.write_all(&[kind, &length.to_be_bytes(), says].concat())
}

/// Reads what it says until it waits for the next statement.
fn until_ready(stream: &mut TcpStream) -> io::Result<()> {
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let mut says = vec![0; usize::try_from(i32::from_be_bytes(length) - 4).unwrap_or(0)];
        stream.read_exact(&mut says)?;
        match kind {
            b'Z' => return Ok(()),
            b'E' => return Err(io::Error::other(String::from_utf8_lossy(&says).into_owned())),
            _ => {}
        }
    }
}
