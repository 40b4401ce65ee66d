//! One connection's socket: reads, answers, writes, and yields to others.
//!
//! Each read is answered with one write. Nothing is read while a peer does not read its replies, so its memory is bounded by
//! one read and the replies to it.

use std::future::poll_fn;
use std::io::{self, ErrorKind, Read as _};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::SockRef;
use tidegate_access::{PeerGroup, Stream};
use tidegate_core::Timestamp;
use tidegate_limiter::Transport;
use tokio::io::{AsyncRead as _, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::Sleep;

use super::RespWorker;
use super::answer::{Answerer, COMMANDS_PER_TURN, Pause, Progress};
use super::buffers::{Buffers, READ_BYTES};
use super::reply::Replies;
use super::session::Standing;
use tidegate_runtime::{Connection, Seat};

/// Serves a connection to its end.
pub(super) async fn serve(worker: Arc<RespWorker>, connection: Connection) {
    let connected = worker.stats.connected();
    let mut drained = pin!(connection.drain.requested());
    let peer = PeerGroup::of(connection.peer.ip());
    let answerer = Answerer::new(Arc::clone(&worker), connected.number, peer);
    let mut socket = Socket::new(worker, connection.stream, connection.seat, answerer);
    loop {
        let came = tokio::select! {
            came = socket.read() => came,
            () = &mut drained => return socket.answer_what_came().await,
        };
        match came {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        match socket.answer().await {
            Ok(StaysOpen::Yes) => {}
            Ok(StaysOpen::No) => return socket.hear_out().await,
            Err(_) => return,
        }
    }
}

struct Socket {
    worker: Arc<RespWorker>,
    stream: Stream,
    seat: Arc<Seat>,
    answerer: Answerer,
    /// Bytes received and not yet answered; takes no memory while empty.
    input: Vec<u8>,
    replies: Replies,
    /// Commands answered since this connection last had to wait.
    streak: u64,
    /// Expires when an incomplete command has been pending for too long.
    late: Option<Pin<Box<Sleep>>>,
}

/// Whether the connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StaysOpen {
    Yes,
    No,
}

/// The delay of the reply to a wrong password.
const WRONG_PASSWORD_PAUSE: Duration = Duration::from_millis(500);

/// Reads that are still answered after a drain was requested: what a peer had sent by then has arrived.
const LAST_READS: usize = 4;

/// How long, and how much, is read and discarded from a peer that was sent the reason for closing. Closing at once would
/// reset the connection before the peer reads it.
const LAST_WORDS: Duration = Duration::from_millis(500);
const LAST_WORDS_BYTES: usize = 1 << 20;

impl Socket {
    fn new(worker: Arc<RespWorker>, stream: Stream, seat: Arc<Seat>, answerer: Answerer) -> Self {
        let (input, replies) = (Vec::new(), Replies::default());
        Socket { worker, stream, seat, answerer, input, replies, streak: 0, late: None }
    }

    /// Waits for more bytes; returns how many came.
    async fn read(&mut self) -> io::Result<usize> {
        poll_fn(|context| {
            self.take_buffers();
            let poll = pin!(self.stream.read_buf(&mut self.input)).poll(context);
            if poll.is_pending() {
                self.streak = 0;
                return self.poll_patience(context);
            }
            poll
        })
        .await
    }

    /// Nothing came. Without an incomplete command the buffer is released; with one, its timeout runs.
    fn poll_patience<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.input.is_empty() {
            self.give_buffers_back();
            return Poll::Pending;
        }
        let timeout = self.worker.settings.command_timeout;
        let late = self.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        late.as_mut().poll(context).map(|()| Err(ErrorKind::TimedOut.into()))
    }

    /// Answers all complete commands.
    async fn answer(&mut self) -> io::Result<StaysOpen> {
        self.seat.set_busy();
        let open = self.answer_input().await;
        self.seat.set_idle();
        // Commands of an unauthenticated peer do not extend its time.
        if self.answerer.access() == Standing::Granted {
            self.seat.progressed();
        }
        open
    }

    async fn answer_input(&mut self) -> io::Result<StaysOpen> {
        let mut used = 0;
        let open = loop {
            let began = self.worker.service.clock.now();
            let progress = self.answerer.answer(&self.input[used..], &mut self.replies).await;
            used += progress.used;
            self.report(&progress, began);
            if progress.why == Pause::WrongPassword {
                tokio::time::sleep(WRONG_PASSWORD_PAUSE).await;
            }
            self.stream.write_all(self.replies.as_bytes()).await?;
            self.stream.flush().await?;
            self.replies.clear();
            self.streak += progress.commands;
            if progress.why == Pause::TurnOver || self.streak >= COMMANDS_PER_TURN {
                self.streak = 0;
                tokio::task::yield_now().await;
            }
            match progress.why {
                Pause::TurnOver | Pause::WrongPassword => {}
                Pause::NeedsMore => break StaysOpen::Yes,
                Pause::Close => break StaysOpen::No,
            }
        };
        if used > 0 {
            self.input.drain(..used);
            self.late = None;
        }
        Ok(open)
    }

    fn report(&self, progress: &Progress, began: Timestamp) {
        let RespWorker { service, stats, .. } = &*self.worker;
        stats.count_commands(progress.commands);
        if progress.decisions > 0 {
            let took = Duration::from(service.clock.now().since(began));
            service.observer.answered_together(Transport::Resp, took, progress.decisions);
        }
    }

    /// Answers what has arrived by now.
    async fn answer_what_came(&mut self) {
        for _ in 0..LAST_READS {
            self.take_buffers();
            // Nothing more, the end, or an error: there is nothing more to do.
            let Ok(1..) = self.read_now() else { return };
            let Ok(StaysOpen::Yes) = self.answer().await else { return };
        }
    }

    /// Reads what the system has. The runtime may not have been notified of it yet.
    fn read_now(&mut self) -> io::Result<usize> {
        let known = self.input.len();
        self.input.resize(known + READ_BYTES, 0);
        let room = &mut self.input[known..];
        let came = match &mut self.stream {
            Stream::Plain(socket) => (&*SockRef::from(&*socket)).read(room),
            Stream::Tls(stream) => {
                let mut buffer = ReadBuf::new(room);
                let context = &mut Context::from_waker(Waker::noop());
                match Pin::new(stream).poll_read(context, &mut buffer) {
                    Poll::Ready(read) => read.map(|()| buffer.filled().len()),
                    Poll::Pending => Err(ErrorKind::WouldBlock.into()),
                }
            }
        };
        self.input.truncate(known + came.as_ref().copied().unwrap_or(0));
        came
    }

    /// Closes the connection so that a peer that is still sending can read all replies.
    async fn hear_out(&mut self) {
        let last_words = async {
            self.stream.shutdown().await?;
            let mut heard = 0;
            while heard < LAST_WORDS_BYTES {
                self.input.clear();
                match self.stream.read_buf(&mut self.input).await? {
                    0 => break,
                    more => heard += more,
                }
            }
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
    }

    fn take_buffers(&mut self) {
        if self.input.capacity() == 0 {
            let Buffers { input, output } = self.worker.pool.take();
            self.input = input;
            self.replies.lend(output);
        } else if self.input.capacity() - self.input.len() < READ_BYTES / 4 {
            // Bounded by the largest command: a longer one is rejected as soon as its length is known.
            self.input.reserve(READ_BYTES);
        }
    }

    fn give_buffers_back(&mut self) {
        let buffers = Buffers { input: std::mem::take(&mut self.input), output: self.replies.take() };
        self.worker.pool.give_back(buffers);
    }
}
