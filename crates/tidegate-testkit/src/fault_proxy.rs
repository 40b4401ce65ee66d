//! A bad network between a client and a real server, switched while both run.
//!
//! Requests are what flows from the client, replies what flows back. A fault acts on bytes that have not been passed
//! on when it is set; it does not know the protocol, and it never invents connections.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::acceptor::{Acceptor, Connection};
use crate::clock::now;

/// Bytes read at once, and chunks waiting to be passed on: beyond them the sender feels back-pressure.
const CHUNK: usize = 16 << 10;
const WAITING_CHUNKS: usize = 64;
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// What the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing bad.
    None,
    /// Every reply arrives this much later, in order.
    Delay(Duration),
    /// Requests vanish: the server never sees them.
    DropRequests,
    /// Replies vanish: the server did what it was asked, and nobody knows.
    DropReplies,
    /// Both vanish, and connections stay open.
    Blackhole,
    /// What arrives at once in more than this many bytes vanishes, as on a path that loses large packets.
    DropLarge(usize),
    /// A connection is cut instead of the first reply after a request that has these bytes in it: the server did that one.
    LoseReplyTo(&'static [u8]),
    /// Each connection is cut after passing on this many bytes of replies.
    CutRepliesAfter(usize),
    /// Replies keep their length and lose their meaning.
    GarbageReplies,
    /// Connections are closed, and new ones as soon as they are accepted.
    Refuse,
    /// Everything waits until the fault changes, and then arrives.
    Pause,
}

/// A TCP proxy in front of one server.
#[derive(Debug)]
pub struct FaultProxy {
    acceptor: Acceptor,
    control: Arc<Control>,
}

impl FaultProxy {
    /// Starts one in front of `server`, with no fault. The server need not run yet.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        let control = Arc::new(Control::default());
        let for_threads = Arc::clone(&control);
        let acceptor = Acceptor::start(move |client| {
            let server = for_threads.setting().moved_to.unwrap_or(server);
            carry(&client, server, &for_threads);
        });
        Self { acceptor, control }
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.acceptor.addr()
    }

    /// Changes the network from now on.
    pub fn set(&self, fault: Fault) {
        let mut setting = self.control.setting();
        setting.fault = fault;
        setting.changes += 1;
        drop(setting);
        self.control.changed.notify_all();
        if fault == Fault::Refuse {
            self.cut();
        }
    }

    /// Holds everything back.
    pub fn pause(&self) {
        self.set(Fault::Pause);
    }

    /// Ends any fault; what a pause held back arrives.
    pub fn resume(&self) {
        self.set(Fault::None);
    }

    /// Closes all connections that are open now; new ones are as good as the fault lets them be.
    pub fn cut(&self) {
        self.acceptor.close_all();
    }

    /// Leads to another server from now on, as a name that was moved: open connections are closed.
    pub fn lead_to(&self, server: SocketAddr) {
        self.control.setting().moved_to = Some(server);
        self.cut();
    }

    /// How many connections were accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.acceptor.accepted()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        // Threads that hold something back would otherwise wait for ever.
        self.control.setting().closed = true;
        self.control.changed.notify_all();
    }
}

/// The fault in force, shared with every thread that passes bytes on.
#[derive(Debug, Default)]
struct Control {
    setting: Mutex<Setting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Setting {
    fault: Fault,
    /// Counts the calls of `set`, so that a cut counts its bytes from the last one.
    changes: u64,
    moved_to: Option<SocketAddr>,
    closed: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Self { fault: Fault::None, changes: 0, moved_to: None, closed: false }
    }
}

impl Control {
    fn setting(&self) -> MutexGuard<'_, Setting> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault to apply to bytes that came at `received`, once the fault lets them through at all.
    fn wait_turn(&self, direction: Direction, received: Instant) -> Option<(Fault, u64)> {
        let mut setting = self.setting();
        loop {
            if setting.closed {
                return None;
            }
            let wait = match (setting.fault, direction) {
                (Fault::Pause, _) => Duration::MAX,
                (Fault::Delay(delay), Direction::Replies) => {
                    (received + delay).saturating_duration_since(now())
                }
                _ => Duration::ZERO,
            };
            if wait.is_zero() {
                return Some((setting.fault, setting.changes));
            }
            // Capped, because a condition variable cannot wait for ever with a time-out.
            let wait = wait.min(Duration::from_secs(60));
            (setting, _) = self.changed.wait_timeout(setting, wait).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

/// Carries one connection until either side ends it or a fault cuts it.
fn carry(client: &Connection, server: SocketAddr, control: &Control) {
    if control.setting().fault == Fault::Refuse {
        return;
    }
    let Ok(server) = TcpStream::connect_timeout(&server, CONNECT_PATIENCE) else { return };
    let _ = server.set_nodelay(true);
    client.adopt(&server);
    let loses_reply = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| pass_on(&client.stream, &server, Direction::Requests, control, &loses_reply));
        pass_on(&server, &client.stream, Direction::Replies, control, &loses_reply);
    });
}

/// Passes bytes on in one direction. The end of one side's bytes is passed on too; an error ends both sides.
fn pass_on(
    from: &TcpStream,
    to: &TcpStream,
    direction: Direction,
    control: &Control,
    loses_reply: &AtomicBool,
) {
    let (chunks, waiting) = mpsc::sync_channel(WAITING_CHUNKS);
    thread::scope(|threads| {
        threads.spawn(|| read_chunks(from, chunks));
        let ended = match write_chunks(to, waiting, direction, control, loses_reply) {
            Ok(()) => to.shutdown(Shutdown::Write),
            // Also wakes our reader, which may wait for bytes that nobody will pass on.
            Err(_) => to.shutdown(Shutdown::Both).and(from.shutdown(Shutdown::Both)),
        };
        // An error means that the peer was faster.
        drop(ended);
    });
}

fn read_chunks(mut from: &TcpStream, chunks: SyncSender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if chunks.send((now(), buffer[..length].to_vec())).is_err() {
            break;
        }
    }
}

fn write_chunks(
    mut to: &TcpStream,
    waiting: Receiver<(Instant, Vec<u8>)>,
    direction: Direction,
    control: &Control,
    loses_reply: &AtomicBool,
) -> io::Result<()> {
    let mut budget = (0, 0);
    for (received, mut chunk) in waiting {
        let (fault, changes) =
            control.wait_turn(direction, received).ok_or(io::ErrorKind::ConnectionAborted)?;
        match (fault, direction) {
            (Fault::Blackhole, _)
            | (Fault::DropRequests, Direction::Requests)
            | (Fault::DropReplies, Direction::Replies) => continue,
            (Fault::LoseReplyTo(bytes), Direction::Requests) => {
                let is_it = chunk.windows(bytes.len()).any(|window| window == bytes);
                loses_reply.fetch_or(is_it, Ordering::SeqCst);
            }
            (Fault::LoseReplyTo(_), Direction::Replies) if loses_reply.load(Ordering::SeqCst) => {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            (Fault::DropLarge(most), _) if chunk.len() > most => continue,
            (Fault::GarbageReplies, Direction::Replies) => chunk.iter_mut().for_each(|byte| *byte ^= 0xA5),
            (Fault::CutRepliesAfter(most), Direction::Replies) => {
                if budget.0 != changes {
                    budget = (changes, most);
                }
                let passed = chunk.len().min(budget.1);
                to.write_all(&chunk[..passed])?;
                budget.1 -= passed;
                if budget.1 == 0 {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                continue;
            }
            _ => {}
        }
        to.write_all(&chunk)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::clock::eventually;

    #[test]
    fn a_dropped_proxy_leaves_no_thread_waiting_with_what_it_held_back() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = FaultProxy::start(server.local_addr().unwrap());
        proxy.pause();
        let mut client = TcpStream::connect(proxy.addr()).unwrap();
        client.write_all(b"held back").unwrap();
        let _accepted = server.accept().unwrap();
        let control = Arc::clone(&proxy.control);
        drop(proxy);
        eventually("only this test knows the fault", Duration::from_secs(10), || {
            Arc::strong_count(&control) == 1
        });
    }
}
