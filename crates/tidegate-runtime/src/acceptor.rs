//! The thread that accepts connections and assigns them to workers; it never reads from one.

use super::load::{Loads, Place};
use super::occasional::Occasional;
use super::worker::{Dealt, Queue};
use super::{Listener, WorkerId};
use socket2::TcpKeepalive;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// The wait after a failed accept: a lack of file descriptors lasts for a while, and retrying at once would take a core from
/// the workers.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The least time between two log lines of the same kind.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// A silent peer is probed after this long, then this often; three silent probes close the connection.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

/// The system closes a connection whose peer has not acknowledged data for this long (for example because it stopped
/// reading), so a stalled reader cannot hold a place for ever.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(30);

pub(super) fn spawn(
    listeners: Vec<Listener>,
    queues: Vec<Queue>,
    loads: Arc<Loads>,
    stopping: watch::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let sockets = listeners
        .into_iter()
        .map(|listener| {
            listener.socket.set_nonblocking(true)?;
            Ok((listener.name, TcpListener::from_std(listener.socket)?))
        })
        .collect::<io::Result<Vec<_>>>()?;
    drop(guard);

    std::thread::Builder::new().name("tidegate-accept".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let mut accepting = tokio::task::JoinSet::new();
            for (index, (name, socket)) in sockets.into_iter().enumerate() {
                let dealer = Dealer {
                    name,
                    index,
                    queues: queues.clone(),
                    loads: Arc::clone(&loads),
                    waiting: Vec::new(),
                    refusals: Occasional::every(LOG_PAUSE),
                    failures: Occasional::every(LOG_PAUSE),
                };
                let mut stopping = stopping.clone();
                accepting.spawn(async move {
                    tokio::select! {
                        // An error means that the sender was dropped, which is the signal to stop.
                        _ = stopping.changed() => {}
                        () = dealer.accept_all(socket) => {}
                    }
                });
            }
            drop(queues);
            accepting.join_all().await;
        });
    })
}

struct Dealer {
    name: &'static str,
    index: usize,
    queues: Vec<Queue>,
    loads: Arc<Loads>,
    /// Connections that wait for others to leave; at most [`MOST_WAITING`].
    waiting: Vec<WaitingPeer>,
    /// Refused connections, and failed accepts: a flood of them is one log line.
    refusals: Occasional,
    failures: Occasional,
}

/// An accepted connection for which there may be room in a moment.
struct WaitingPeer {
    stream: TcpStream,
    peer: SocketAddr,
    looks: usize,
}

/// How often, and how many times, to check whether one has left.
const LEAVE_PAUSE: Duration = Duration::from_millis(1);
const LEAVE_LOOKS: usize = 200;
/// The most connections that wait for that; beyond it one is refused. Few: their files are not part of any listener's share.
const MOST_WAITING: usize = 16;

impl Dealer {
    async fn accept_all(mut self, socket: TcpListener) {
        let mut looks = tokio::time::interval(LEAVE_PAUSE);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                _ = looks.tick(), if !self.waiting.is_empty() => {
                    self.look_again();
                    continue;
                }
            };
            match accepted {
                Ok((stream, peer)) => self.deal(WaitingPeer { stream, peer, looks: 0 }),
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    if let Some(times) = self.failures.happened() {
                        tracing::error!(listener = self.name, %error, times, "cannot accept connections");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Looks for a place for each waiting connection.
    fn look_again(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.deal(waiting);
        }
    }

    /// Takes a place for a connection. If others are leaving, it waits for them, and nobody waits for it: the next one may
    /// be of an address that has room.
    fn deal(&mut self, mut new: WaitingPeer) {
        if let Some((worker, place)) = self.loads.take_place(self.index, new.peer.ip()) {
            return self.hand_over(new, worker, place);
        }
        new.looks += 1;
        if new.looks >= LEAVE_LOOKS || !self.loads.some_are_leaving(self.index) {
            return self.refuse(&new);
        }
        self.waiting.push(new);
        if self.waiting.len() > MOST_WAITING {
            let crowded_out = self.first_of_the_most();
            self.refuse(&crowded_out);
        }
    }

    /// Takes the first waiting connection of the address that has the most of them: of a flood the newest stay, as on seats.
    fn first_of_the_most(&mut self) -> WaitingPeer {
        let of =
            |one: &WaitingPeer| self.waiting.iter().filter(|other| other.peer.ip() == one.peer.ip()).count();
        let most = self.waiting.iter().map(of).max();
        let at = self.waiting.iter().position(|one| Some(of(one)) == most).unwrap_or_default();
        self.waiting.remove(at)
    }

    fn refuse(&mut self, refused: &WaitingPeer) {
        self.loads.count_refused(self.index);
        if let Some(connections) = self.refusals.happened() {
            let address = refused.peer.ip();
            tracing::warn!(listener = self.name, connections, %address,
                "too many connections: closing new ones at once");
        }
    }

    fn hand_over(&self, WaitingPeer { stream, peer, .. }: WaitingPeer, worker: WorkerId, place: Place) {
        // If the peer is already gone this fails; the worker would find out a moment later.
        let Ok(stream) = prepare(stream) else { return };
        // The queue is as long as there are places, so it may be closed but never full.
        let _ = self.queues[worker.0].try_send(Dealt { stream, peer, place });
    }
}

/// Detaches the socket from this thread's runtime: from here on it belongs to a worker's.
fn prepare(stream: TcpStream) -> io::Result<std::net::TcpStream> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(&stream);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_LIMIT))?;
    stream.into_std()
}

fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::super::load::MOST_LEAVING;
    use super::*;
    use std::num::NonZeroUsize;
    use tokio::sync::mpsc;

    const ALICE: [u8; 4] = [10, 0, 0, 1];
    const BOB: [u8; 4] = [10, 0, 0, 2];

    /// A dealer for ten connections at most, and the queue of its worker.
    fn dealer() -> (Dealer, mpsc::Receiver<Dealt>) {
        let (workers, max_connections) = (NonZeroUsize::MIN, NonZeroUsize::new(10).unwrap());
        let settings = Settings { workers, max_connections, ..Settings::default() };
        let loads = Arc::new(Loads::new(vec!["http"], &settings));
        let (queue, dealt) = mpsc::channel(100);
        let (refusals, failures) = (Occasional::every(LOG_PAUSE), Occasional::every(LOG_PAUSE));
        let (queues, waiting) = (vec![queue], Vec::new());
        (Dealer { name: "http", index: 0, queues, loads, waiting, refusals, failures }, dealt)
    }

    /// Accepted connections, as if they came from `address`.
    struct Accepting(TcpListener);

    impl Accepting {
        async fn one_of(&self, address: [u8; 4]) -> WaitingPeer {
            let client = TcpStream::connect(self.0.local_addr().unwrap());
            let (accepted, _) = tokio::join!(self.0.accept(), client);
            WaitingPeer { stream: accepted.unwrap().0, peer: SocketAddr::from((address, 1)), looks: 0 }
        }
    }

    #[tokio::test]
    async fn a_peer_that_waits_for_a_place_delays_nobody() {
        let accepting = Accepting(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (mut dealer, mut dealt) = dealer();
        let mut seated = Vec::new();
        for _ in 0..8 + MOST_LEAVING {
            dealer.deal(accepting.one_of(ALICE).await);
            seated.push(dealt.try_recv().unwrap());
        }
        dealer.deal(accepting.one_of(ALICE).await);
        assert!(dealt.try_recv().is_err(), "all that leave are still there");
        dealer.deal(accepting.one_of(BOB).await);
        assert_eq!(dealt.try_recv().unwrap().peer.ip(), SocketAddr::from((BOB, 1)).ip());
        drop(seated.remove(0));
        dealer.look_again();
        assert_eq!(dealt.try_recv().unwrap().peer.ip(), SocketAddr::from((ALICE, 1)).ip());
    }

    #[tokio::test]
    async fn who_waits_in_vain_is_refused_in_the_end() {
        let accepting = Accepting(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (mut dealer, mut dealt) = dealer();
        let mut seated = Vec::new();
        for _ in 0..8 + MOST_LEAVING {
            dealer.deal(accepting.one_of(ALICE).await);
            seated.push(dealt.try_recv().unwrap());
        }
        for _ in 0..=MOST_WAITING {
            dealer.deal(accepting.one_of(ALICE).await);
        }
        assert_eq!(dealer.loads.read().next().unwrap().refused, 1, "there is no room to wait");
        (0..LEAVE_LOOKS).for_each(|_| dealer.look_again());
        assert!(dealer.waiting.is_empty());
        assert_eq!(dealer.loads.read().next().unwrap().refused, 1 + MOST_WAITING as u64);
    }
}
