//! One connection to one server, maintained for the tasks of one runtime.
//!
//! A background task, the keeper, makes the connection, runs it, and reconnects when it is lost, after pauses that grow to a
//! second. While the server is unavailable, calls fail at once instead of waiting. Once another core has connected, calls wait
//! for this connection too, and the keeper cuts its pause short. No lock is held across an await.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tidegate_store::{BoxError, MOST_LAG, Slice};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::backoff::Backoff;
use crate::dial::{Dialed, Dialer, Greeting};
use crate::failure::Failure;
use crate::observer::Reason;
use crate::sentinel::Sentinels;
use crate::url::Endpoint;

/// After this long without an answer in time, the link checks whether its connection returns its own answers, and gives it up if
/// that takes longer than `CHECKED_WITHIN`: the server or the network may be gone without notice, or a reply was lost, and each
/// answer is taken for an earlier call's.
const SILENT_FOR: Duration = Duration::from_millis(200);
const CHECKED_WITHIN: Duration = Duration::from_millis(500);
/// How much longer than anybody waits for late answers they are still read from a connection that was replaced.
const HEARD_LONGER: Duration = Duration::from_millis(500);
/// A connection that lived shorter than this does not reset the backoff.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// A connection made on first use and then maintained.
pub(crate) struct Link {
    shared: Arc<SharedLink>,
}

/// The server of a link.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A fixed server.
    Server(Endpoint),
    /// The master according to the sentinels.
    Master(Arc<Sentinels>),
}

struct SharedLink {
    target: Target,
    dialer: Arc<Dialer>,
    max_in_flight: usize,
    /// How long answers are still read from a connection that was replaced.
    heard_for: Duration,
    state: Mutex<LinkState>,
    /// Signals a change of state.
    news: Notify,
    /// Signals that the connection must be dropped.
    give_up: Notify,
    in_flight: AtomicUsize,
    /// Since when no call was answered in time.
    silent_since: Mutex<Option<Instant>>,
    /// Whether `silent_since` is set, to avoid the lock.
    is_silent: AtomicBool,
    /// Whether a check is running that answers match their calls.
    is_checked: AtomicBool,
}

struct LinkState {
    status: Status,
    /// The current or last server.
    server: Option<Endpoint>,
    /// How many connections were made.
    number: u64,
    keeper: Option<AbortHandle>,
}

#[derive(Clone)]
enum Status {
    Connecting,
    Up(MultiplexedConnection),
    /// The server is unavailable, for this reason. `reached` is the count of connections made when it was last tried.
    Down {
        why: Arc<str>,
        reached: u64,
    },
}

impl Link {
    pub(crate) fn new(target: Target, dialer: Arc<Dialer>, max_in_flight: usize, timeout: Duration) -> Self {
        let server = match &target {
            Target::Server(endpoint) => Some(endpoint.clone()),
            Target::Master(_) => None,
        };
        let shared = SharedLink {
            target,
            dialer,
            max_in_flight,
            heard_for: timeout + 2 * Duration::from(MOST_LAG) + HEARD_LONGER,
            state: Mutex::new(LinkState { status: Status::Connecting, server, number: 0, keeper: None }),
            news: Notify::new(),
            give_up: Notify::new(),
            in_flight: AtomicUsize::new(0),
            silent_since: Mutex::default(),
            is_silent: AtomicBool::new(false),
            is_checked: AtomicBool::new(false),
        };
        Link { shared: Arc::new(shared) }
    }

    /// Sends one command and returns its answer.
    pub(crate) async fn call(&self, command: &Cmd, deadline: Deadline) -> Result<Value, Failure> {
        let _place = self.place()?;
        let mut connection = self.connection(deadline).await?;
        let answer = self.answer(connection.send_packed_command(command), deadline).await;
        match answer? {
            Value::ServerError(error) => Err(self.refused(Failure::Answered(error))),
            value => Ok(value),
        }
    }

    /// Sends commands as one pipeline and returns the last answer.
    pub(crate) async fn call_all(&self, commands: &Pipeline, deadline: Deadline) -> Result<Value, Failure> {
        let _place = self.place()?;
        let mut connection = self.connection(deadline).await?;
        let answers = connection.send_packed_commands(commands, 0, commands.len());
        let answers = self.answer(answers, deadline).await?;
        match answers.into_iter().last() {
            Some(Value::ServerError(error)) => Err(self.refused(Failure::Answered(error))),
            Some(value) => Ok(value),
            None => Err(Failure::Lost("an empty answer".into())),
        }
    }

    /// Drops the connection, so that another server is looked up.
    pub(crate) fn give_up(&self) {
        self.shared.give_up.notify_waiters();
    }

    /// The connection; waits for the first one to be made.
    async fn connection(&self, deadline: Deadline) -> Result<MultiplexedConnection, Failure> {
        loop {
            let mut news = std::pin::pin!(self.shared.news.notified());
            news.as_mut().enable();
            {
                let mut state = self.shared.state.lock();
                self.look_after_keeper(&mut state);
                match &state.status {
                    Status::Up(connection) => return Ok(connection.clone()),
                    Status::Down { why, reached } if *reached == self.shared.dialer.times_reached() => {
                        return Err(unreachable(why.as_ref().into()));
                    }
                    // A connection made by any core closes the breaker for all: a call here waits for its own connection.
                    Status::Down { .. } | Status::Connecting => {}
                }
            }
            if in_time(news, deadline).await.is_none() {
                return Err(unreachable("the connection is still being made".into()));
            }
        }
    }

    /// Starts the keeper; restarts it if its runtime ended, as in tests, and a new one has the same ID.
    fn look_after_keeper(&self, state: &mut LinkState) {
        if state.keeper.as_ref().is_none_or(AbortHandle::is_finished) {
            state.status = Status::Connecting;
            state.keeper = Some(tokio::spawn(reconnect(Arc::clone(&self.shared))).abort_handle());
        }
    }

    /// The answer of `call` by `deadline`, or late.
    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, RedisError>>,
        deadline: Deadline,
    ) -> Result<T, Failure> {
        let mut call = pin!(call);
        if let Some(answer) = in_time(call.as_mut(), deadline).await {
            if answer.is_ok() {
                self.shared.is_heard();
            }
            return answer.map_err(lost);
        }
        self.is_silent();
        match timeout(deadline.late, call).await {
            // This does not end the silence: it may be an earlier call's answer.
            Ok(answer) => answer.map_err(lost),
            Err(_) => Err(Failure::TimedOut(deadline.span)),
        }
    }

    /// Records that a call missed its deadline.
    fn is_silent(&self) {
        self.shared.is_silent.store(true, Ordering::Relaxed);
        let since = *self.shared.silent_since.lock().get_or_insert_with(Instant::now);
        if since.elapsed() >= SILENT_FOR {
            self.check_answers();
        }
    }

    fn check_answers(&self) {
        // Every late call asks for a check: one at a time is enough.
        if !self.shared.is_checked.swap(true, Ordering::Relaxed) {
            tokio::spawn(prove_own_answers(Arc::clone(&self.shared)));
        }
    }

    fn refused(&self, failure: Failure) -> Failure {
        // The sentinels know the actual master.
        if failure.is_from_a_replica() && matches!(self.shared.target, Target::Master(_)) {
            self.give_up();
        }
        failure
    }

    /// Counts a call as in flight until it is dropped.
    fn place(&self) -> Result<impl Drop + use<'_>, Failure> {
        struct Place<'a>(&'a AtomicUsize);
        impl Drop for Place<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let shared = &self.shared;
        let place = Place(&shared.in_flight);
        if shared.in_flight.fetch_add(1, Ordering::Relaxed) >= shared.max_in_flight {
            let why = format!("too many calls in flight (max_in_flight {})", shared.max_in_flight);
            return Err(Failure::NotSent(Reason::Overload, why.into()));
        }
        Ok(place)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(keeper) = &self.shared.state.lock().keeper {
            keeper.abort();
        }
    }
}

/// Pings with a nonce: if the matching answer comes, the connection is good; otherwise it is dropped.
async fn prove_own_answers(shared: Arc<SharedLink>) {
    let (number, status) = {
        let state = shared.state.lock();
        (state.number, state.status.clone())
    };
    let Status::Up(mut connection) = status else {
        return shared.is_checked.store(false, Ordering::Relaxed);
    };
    let nonce = RandomState::new().hash_one(0).to_string();
    let mut ping = Cmd::new();
    ping.arg("PING").arg(&nonce);
    match in_time(connection.send_packed_command(&ping), Deadline::from_now(CHECKED_WITHIN)).await {
        Some(Ok(Value::BulkString(text))) if text == nonce.as_bytes() => shared.is_heard(),
        // The connection was lost meanwhile; a new one may be up.
        Some(Err(_)) => {}
        // It may have been replaced meanwhile.
        _ if shared.state.lock().number == number => shared.give_up.notify_waiters(),
        _ => {}
    }
    shared.is_checked.store(false, Ordering::Relaxed);
}

/// The deadline of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) span: Duration,
    pub(crate) at: Instant,
    /// How long after it an answer is still accepted.
    pub(crate) late: Duration,
}

impl Deadline {
    pub(crate) fn from_now(span: Duration) -> Self {
        Deadline { span, at: Instant::now() + span, late: Duration::ZERO }
    }

    /// The remaining time.
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// The same, but accepts an answer up to `late` after it.
    pub(crate) fn heard_for(self, late: Duration) -> Self {
        Deadline { late, ..self }
    }
}

/// The result of `work` by `deadline`, or none. A busy thread reads answers, and notices its deadline, late: time in which this
/// thread did not run does not count against the server, up to a bound.
pub(crate) async fn in_time<T>(work: impl Future<Output = T>, deadline: Deadline) -> Option<T> {
    let mut work = pin!(work);
    let slice = Slice::of(deadline.span.into());
    let last = deadline.at + Duration::from(MOST_LAG);
    // A deadline that passed while this thread was busy still allows one poll.
    let mut until = deadline.at.max(Instant::now() + Duration::from(slice.span()));
    loop {
        let began = Instant::now();
        let left = until.saturating_duration_since(began);
        if left.is_zero() {
            return None;
        }
        let planned = left.min(slice.span().into());
        if let Ok(answer) = timeout(planned, work.as_mut()).await {
            return Some(answer);
        }
        until = (until + Duration::from(slice.lag(planned.into(), began.elapsed().into()))).min(last);
    }
}

fn lost(error: RedisError) -> Failure {
    Failure::Lost(error.into())
}

fn unreachable(why: BoxError) -> Failure {
    Failure::NotSent(Reason::Unreachable, why)
}

/// The keeper: connects, runs the connection, and repeats.
async fn reconnect(shared: Arc<SharedLink>) {
    let mut backoff = Backoff::default();
    let mut reached = shared.dialer.reached();
    loop {
        let began = Instant::now();
        let before = *reached.borrow_and_update();
        let status = match shared.dial().await {
            Ok((Dialed { connection, mut driver }, endpoint)) => {
                shared.is_heard();
                {
                    let mut state = shared.state.lock();
                    state.server = Some(endpoint.clone());
                    state.number += 1;
                }
                shared.set_status(Status::Up(connection));
                tokio::select! {
                    () = &mut driver => Status::Connecting,
                    () = shared.give_up.notified() => {
                        // A paused server applies what was sent once it resumes, and only this connection returns those answers.
                        tokio::spawn(timeout(shared.heard_for, driver));
                        Status::Down { why: "the server did not answer".into(), reached: *reached.borrow_and_update() }
                    }
                    () = shared.target.moves_from(&endpoint) => Status::Connecting,
                }
            }
            Err(error) => Status::Down { why: error.to_string().into(), reached: before },
        };
        let is_down = matches!(status, Status::Down { .. });
        shared.set_status(status);
        if began.elapsed() > SHORT_LIFE {
            backoff = Backoff::default();
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            // Only if connecting failed: after a lost connection, two cores would wake each other forever.
            _ = reached.changed(), if is_down => {}
        }
    }
}

impl SharedLink {
    async fn dial(&self) -> Result<(Dialed, Endpoint), BoxError> {
        let (endpoint, greeting) = match &self.target {
            Target::Server(endpoint) => (endpoint.clone(), Greeting::Answer),
            Target::Master(sentinels) => (sentinels.master().await?, Greeting::Master),
        };
        let dialed = self.dialer.dial(&endpoint, greeting).await;
        dialed.map(|dialed| (dialed, endpoint.clone())).map_err(|error| format!("{endpoint}: {error}").into())
    }

    /// The server has answered.
    fn is_heard(&self) {
        if self.is_silent.load(Ordering::Relaxed) {
            self.is_silent.store(false, Ordering::Relaxed);
            *self.silent_since.lock() = None;
        }
    }

    fn set_status(&self, status: Status) {
        self.state.lock().status = status;
        self.news.notify_waiters();
    }
}

impl Target {
    /// Waits until the target is a server other than `endpoint`.
    async fn moves_from(&self, endpoint: &Endpoint) {
        match self {
            Target::Server(_) => std::future::pending().await,
            Target::Master(sentinels) => sentinels.master_moves_from(endpoint).await,
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("target", &self.shared.target).finish_non_exhaustive()
    }
}
