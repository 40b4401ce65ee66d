//! Loopback ports that nobody else takes between choosing them and starting a server on them.
//!
//! Asking the kernel for port 0 and letting it go again is a race: the same port may be given at once to another
//! test, or to an outgoing connection, also later while a killed server waits to be restarted. So a port here lies
//! below the range that the kernel gives to outgoing connections, and is held by a lock on a file, which every test
//! process on the machine respects and which ends with the process. Only a stranger's server can still take it;
//! starters try another port then.

use std::env;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below 32768, where Linux starts to number outgoing connections; [`BUS`] above is free for twins.
const FIRST: u16 = 12_000;
const COUNT: u16 = 10_000;
/// A Redis Cluster node also listens this much higher.
const BUS: u16 = 10_000;

/// A free port on 127.0.0.1, ours until dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locks on files; their end is the end of the reservation.
    _held: Vec<File>,
}

impl Port {
    /// Reserves a port on which nothing listens.
    ///
    /// # Panics
    /// When thousands of ports in a row are taken.
    #[must_use]
    pub fn reserve() -> Self {
        Self::reserve_with(&[0])
    }

    /// Reserves a port, and the one 10,000 above it.
    pub(crate) fn reserve_with_bus() -> Self {
        Self::reserve_with(&[0, BUS])
    }

    fn reserve_with(offsets: &[u16]) -> Self {
        for _ in 0..COUNT {
            let number = next_candidate();
            let held: Option<Vec<File>> = offsets.iter().map(|offset| hold(number + offset)).collect();
            if let Some(held) = held {
                return Self { number, _held: held };
            }
        }
        panic!("no free port from {FIRST} to {}", FIRST + COUNT - 1);
    }

    /// The number of the port.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The port's address on loopback.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// Walks the range from a place of this process's own, so that test processes rarely meet.
fn next_candidate() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = (process::id() % u32::from(COUNT)) * 7;
    let step = NEXT.fetch_add(1, Ordering::Relaxed) % u32::from(COUNT);
    FIRST + u16::try_from((own + step) % u32::from(COUNT)).expect("below COUNT")
}

/// Locks `port` if nobody has it and nobody listens on it.
fn hold(port: u16) -> Option<File> {
    let file = File::create(lock_dir().join(port.to_string())).expect("the folder of port locks is writable");
    file.try_lock().ok()?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(file)
}

/// One folder per user: another user's lock files could not be opened.
fn lock_dir() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let dir = env::temp_dir().join(format!("tidegate-ports-{user}"));
    fs::create_dir_all(&dir).expect("the temporary folder is writable");
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reservations_never_share_a_port() {
        let held: Vec<Port> = (0..50).map(|_| Port::reserve()).collect();
        let mut numbers: Vec<u16> = held.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), held.len());
    }

    #[test]
    fn a_held_port_cannot_be_held_again_until_it_is_dropped() {
        let port = Port::reserve();
        let number = port.number();
        assert!(hold(number).is_none());
        drop(port);
        assert!(hold(number).is_some());
    }

    #[test]
    fn a_port_somebody_listens_on_is_passed_over() {
        let port = Port::reserve();
        let number = port.number();
        let _stranger = TcpListener::bind(port.addr()).unwrap();
        drop(port);
        assert!(hold(number).is_none());
    }
}
