//! Connections: one per runtime and server, on which calls follow each other without waiting.
//!
//! A server runs one single-threaded runtime per core, and a connection is driven by the runtime that made it. It is made by a task of
//! its own, so that a caller that gives up after its 10 ms does not end a connection that takes 20.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_store_items::{Deadline, Failure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::url::name;
use crate::wire::{Reply, take_reply};

/// Only short-lived test runtimes exceed this: all but the newest are forgotten, and their connections closed.
const MOST_RUNTIMES: usize = 1_024;
/// After a connection could not be made, none is tried for so long: the reason is known.
const PAUSE: Duration = Duration::from_millis(20);
/// A connection on which calls wait and nothing arrives is closed after so long: the server or the path may be gone without notice.
const SILENCE: Duration = Duration::from_secs(3);
/// The oldest version that has all commands as they are used here.
const OLDEST: (u32, u32, u32) = (1, 6, 14);

/// All connections of a store.
pub(crate) struct Links {
    servers: Arc<[(String, u16)]>,
    connect_timeout: Duration,
    max_in_flight: usize,
    lanes: Mutex<HashMap<Id, Arc<[Lane]>>>,
}

/// The connection of one runtime to one server.
struct Lane {
    state: Arc<Mutex<LaneState>>,
    news: Arc<Notify>,
    in_flight: AtomicUsize,
}

#[derive(Default)]
struct LaneState {
    calls: Option<mpsc::UnboundedSender<Call>>,
    is_connecting: bool,
    failed: Option<(Instant, &'static str, String)>,
}

/// A call on its way: as bytes, and how many replies they have.
struct Call {
    bytes: Vec<u8>,
    replies: usize,
    answer: oneshot::Sender<Vec<Reply>>,
}

impl Links {
    pub(crate) fn new(servers: &[(String, u16)], connect_timeout: Duration, max_in_flight: usize) -> Self {
        Links { servers: servers.into(), connect_timeout, max_in_flight, lanes: Mutex::default() }
    }

    pub(crate) fn servers(&self) -> &[(String, u16)] {
        &self.servers
    }

    /// Sends commands to a server: their replies, in order.
    pub(crate) async fn call(
        &self,
        server: usize,
        bytes: &[u8],
        replies: usize,
        deadline: Deadline,
    ) -> Result<Vec<Reply>, Failure> {
        let lanes = self.lanes();
        let lane = &lanes[server];
        let _place = lane.place(self.max_in_flight)?;
        let (answer, answered) = oneshot::channel();
        let mut call = Some(Call { bytes: bytes.to_vec(), replies, answer });
        loop {
            // Before the first look, so that no news is missed.
            let news = lane.news.notified();
            self.send(server, lane, &mut call)?;
            if call.is_none() {
                break;
            }
            if timeout_at(deadline.at, news).await.is_err() {
                return Err(Failure::TooLate(deadline.span));
            }
        }
        match timeout_at(deadline.last(), answered).await {
            Ok(Ok(replies)) => Ok(replies),
            Ok(Err(_)) => Err(Failure::Lost("the connection was lost".into())),
            Err(_) => Err(Failure::TimedOut(deadline.span + deadline.late)),
        }
    }

    /// Hands `call` to the connection, or starts to make one.
    fn send(&self, server: usize, lane: &Lane, call: &mut Option<Call>) -> Result<(), Failure> {
        let mut state = lane.state.lock();
        if let Some(calls) = &state.calls {
            match call.take().map(|call| calls.send(call)) {
                Some(Err(unsent)) => *call = Some(unsent.0),
                _ => return Ok(()),
            }
            state.calls = None;
        }
        if let Some((at, reason, why)) = &state.failed
            && at.elapsed() < PAUSE
        {
            return Err(Failure::NotApplied(reason, why.clone().into()));
        }
        if !state.is_connecting {
            state.is_connecting = true;
            let (servers, within) = (Arc::clone(&self.servers), self.connect_timeout);
            let (state, news) = (Arc::clone(&lane.state), Arc::clone(&lane.news));
            tokio::spawn(async move { connect(&servers[server], within, &state, &news).await });
        }
        Ok(())
    }

    fn lanes(&self) -> Arc<[Lane]> {
        let mut lanes = self.lanes.lock();
        let runtime = Handle::current().id();
        if let Some(known) = lanes.get(&runtime) {
            return Arc::clone(known);
        }
        if lanes.len() == MOST_RUNTIMES {
            lanes.clear();
        }
        let lane = |_| Lane { state: Arc::default(), news: Arc::default(), in_flight: AtomicUsize::new(0) };
        let made: Arc<[Lane]> = self.servers.iter().map(lane).collect();
        lanes.insert(runtime, Arc::clone(&made));
        made
    }
}

impl Lane {
    /// Counts a call as in flight until it is dropped.
    fn place(&self, most: usize) -> Result<impl Drop + use<'_>, Failure> {
        struct Place<'a>(&'a AtomicUsize);
        impl Drop for Place<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let place = Place(&self.in_flight);
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= most {
            let why = format!("too many calls in flight (max_in_flight {most})");
            return Err(Failure::NotApplied("overload", why.into()));
        }
        Ok(place)
    }
}

/// Connects, says how that went, and carries calls until the connection ends.
async fn connect(server: &(String, u16), within: Duration, state: &Mutex<LaneState>, news: &Notify) {
    let opened = match timeout(within, open(server)).await {
        Ok(opened) => opened,
        Err(_) => Err(("unreachable", format!("no connection within {within:?}"))),
    };
    let (sender, calls) = mpsc::unbounded_channel();
    let stream = {
        let mut state = state.lock();
        state.is_connecting = false;
        match opened {
            Ok(stream) => {
                (state.calls, state.failed) = (Some(sender), None);
                Some(stream)
            }
            Err((reason, why)) => {
                state.failed = Some((Instant::now(), reason, why));
                None
            }
        }
    };
    news.notify_waiters();
    if let Some(stream) = stream {
        // Calls that are not answered learn of the end because their channels are dropped.
        carry(stream, calls).await;
        news.notify_waiters();
    }
}

/// An open connection to a server that has the commands, or why there is none.
async fn open(server: &(String, u16)) -> Result<TcpStream, (&'static str, String)> {
    let unreachable = |error: std::io::Error| ("unreachable", format!("{}: {error}", name(server)));
    let mut stream = TcpStream::connect((server.0.as_str(), server.1)).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    stream.write_all(b"version\r\n").await.map_err(unreachable)?;
    let mut read = Vec::new();
    loop {
        if stream.read_buf(&mut read).await.map_err(unreachable)? == 0 {
            return Err(("unreachable", format!("{} closed the connection", name(server))));
        }
        match take_reply(&read).map_err(|why| ("other", format!("{}: {why}", name(server))))? {
            Some((Reply::Version(version), _)) if is_new_enough(&version) => return Ok(stream),
            Some((Reply::Version(version), _)) => {
                let (major, minor, patch) = OLDEST;
                let why =
                    format!("Memcached {version} is too old: {major}.{minor}.{patch} or newer is needed");
                return Err(("other", why));
            }
            Some((other, _)) => {
                let why = format!(
                    "{} does not say its version but {other:?} (a login is not supported)",
                    name(server)
                );
                return Err(("not_allowed", why));
            }
            None => {}
        }
    }
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '_']).map(|number| number.parse().unwrap_or(0_u32));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next()) >= OLDEST
}

/// Writes calls and reads their replies, both at once: a server that waits for its replies to be read does not read.
async fn carry(stream: TcpStream, mut calls: mpsc::UnboundedReceiver<Call>) {
    let (mut reader, mut writer) = stream.into_split();
    let waiting: Mutex<VecDeque<(usize, oneshot::Sender<Vec<Reply>>)>> = Mutex::default();
    let sent = Notify::new();
    let write = async {
        let mut bytes = Vec::new();
        while let Some(call) = calls.recv().await {
            let mut next = Some(call);
            // What gathered meanwhile goes along.
            while let Some(call) = next {
                bytes.extend(&call.bytes);
                waiting.lock().push_back((call.replies, call.answer));
                next = calls.try_recv().ok();
            }
            sent.notify_one();
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
            bytes.clear();
        }
    };
    let read = async {
        let (mut bytes, mut replies) = (Vec::with_capacity(16 * 1024), Vec::new());
        loop {
            // While nothing is asked, only the end of the connection is news.
            let patience = if waiting.lock().is_empty() { Duration::MAX } else { SILENCE };
            let read = tokio::select! {
                () = sent.notified() => continue,
                read = timeout(patience, reader.read_buf(&mut bytes)) => read,
            };
            let is_asked = !waiting.lock().is_empty();
            match read {
                Ok(Ok(1..)) if is_asked => {}
                _ => return,
            }
            let mut taken = 0;
            while let Ok(Some((reply, length))) = take_reply(&bytes[taken..]) {
                taken += length;
                replies.push(reply);
                let mut waiting = waiting.lock();
                if waiting.front().is_some_and(|(expected, _)| *expected <= replies.len())
                    && let Some((_, answer)) = waiting.pop_front()
                {
                    let _ = answer.send(std::mem::take(&mut replies));
                }
            }
            if take_reply(&bytes[taken..]).is_err() {
                return;
            }
            bytes.drain(..taken);
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        for (version, new) in
            [("1.6.14", true), ("1.6.9", false), ("1.10.0", true), ("1.6.18_2-g1a", true), ("", false)]
        {
            assert_eq!(is_new_enough(version), new, "{version}");
        }
    }
}
