//! Asks, decides, and sends one message per interval in the background.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use tidegate_core::{Micros, Timestamp};
use tokio::sync::{Mutex, Notify};
use tokio::time::{sleep, timeout};

use crate::clock::Uptime;
use crate::connection::{Connection, Reply};
use crate::keys::{Keys, Message, Slot};
use crate::purse::{Found, SOON};
use crate::wire::{self, Attributes, Check, Checked, Problem, TakeReply};
use crate::{Decision, Error, OnFailure, Source, random};

/// How often returns are gathered, and keys forgotten that nobody uses.
const SWEEP: Duration = Duration::from_millis(250);
/// After a call failed, requests are decided by policy for so long, and then ask again.
const DOWN_FOR: Micros = Micros::from_millis(250);
/// How long requests are asked for after a server refused to lend: it may be replaced by one that does.
const NOT_LENT_FOR: Micros = Micros::from_secs(30);

/// A client of tidegate that decides on its own wherever a rule says `lease_to_clients: true`, and asks everywhere else.
///
/// A handle that is cheap to clone; all handles share one connection and the hits that were taken. When the last one is dropped,
/// the background task ends, and what it held expires within a second: [`Client::shutdown`] returns it at once.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// The requests of one set of attributes, looked up once.
#[derive(Clone)]
pub struct Key {
    client: Client,
    slot: Arc<Slot>,
    /// There was no room for another key: each request is asked for.
    is_beyond: bool,
}

/// What a client holds and has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are kept.
    pub keys: usize,
    /// Messages that took or returned hits.
    pub messages: u64,
    /// Requests that the server was asked for.
    pub asked: u64,
}

pub(crate) struct Settings {
    pub(crate) domain: String,
    pub(crate) on_failure: OnFailure,
    pub(crate) most_keys: usize,
    pub(crate) retries: u32,
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    clock: Uptime,
    keys: Keys,
    pub(crate) connection: Connection,
    wake: Arc<Notify>,
    /// Messages go one after another: the last one returns what those before it took.
    turn: Mutex<()>,
    is_closed: AtomicBool,
    down_until: AtomicU64,
    not_lent_until: AtomicU64,
    messages: AtomicU64,
    asked: AtomicU64,
}

impl Client {
    /// Starts the background task on this runtime.
    pub(crate) fn start(settings: Settings, connection: Connection) -> Self {
        let (keys, wake) = (Keys::new(settings.most_keys), Arc::new(Notify::new()));
        let inner = Arc::new(Inner {
            settings,
            clock: Uptime::begin(),
            keys,
            connection,
            wake: Arc::clone(&wake),
            turn: Mutex::default(),
            is_closed: AtomicBool::new(false),
            down_until: AtomicU64::new(0),
            not_lent_until: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        });
        tokio::spawn(run(Arc::downgrade(&inner), wake));
        Client { inner }
    }

    /// Asks the server whether it takes messages of this client: with this token, for this domain.
    pub(crate) async fn greet(&self) -> Result<(), Error> {
        let body = wire::take(&self.inner.settings.domain, Vec::new(), Vec::new());
        let reply = self.inner.connection.call("/v1/take", body).await?;
        match refused(&reply) {
            // A server that lends nothing is asked for each request.
            Some(Refused { error, field }) if is_of_protocol(&error, field.as_deref()) => {
                self.inner.not_lent();
                Ok(())
            }
            Some(Refused { error, .. }) => Err(error),
            None => Ok(()),
        }
    }

    /// Decides a request of one hit.
    ///
    /// # Errors
    /// When the server does not take the request at all: a wrong token, an unknown domain. A server that does not answer is no error:
    /// [`OnFailure`] decides.
    pub async fn check(&self, attributes: &[(&str, &str)]) -> Result<Decision, Error> {
        self.key(attributes).check(1).await
    }

    /// The key with these attributes, for callers that ask often.
    #[must_use]
    pub fn key(&self, attributes: &[(&str, &str)]) -> Key {
        let now = self.inner.clock.now();
        let known = self.inner.keys.slot(attributes, now);
        let is_beyond = known.is_none();
        let slot = known.unwrap_or_else(|| Arc::new(Slot::new(attributes, now)));
        Key { client: self.clone(), slot, is_beyond }
    }

    pub(crate) fn slot(&self, attributes: &Attributes) -> Arc<Slot> {
        let pairs: Vec<(&str, &str)> = attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        self.key(&pairs).slot
    }

    /// What it holds and has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let Inner { keys, messages, asked, .. } = &*self.inner;
        Stats { keys: keys.len(), messages: count(messages), asked: count(asked) }
    }

    /// Returns all hits that it holds. Other handles of this client ask for each request from then on.
    pub async fn shutdown(self) {
        let inner = &self.inner;
        inner.is_closed.store(true, Ordering::Relaxed);
        // What a message took that is under way is returned as well.
        let _turn = inner.turn.lock().await;
        inner.keys.empty(inner.clock.now());
        inner.exchange().await;
    }
}

impl Key {
    /// Decides a request that costs `hits`; 0 looks without spending.
    ///
    /// # Errors
    /// As [`Client::check`].
    pub async fn check(&self, hits: u64) -> Result<Decision, Error> {
        match self.check_now(hits) {
            Some(decision) => Ok(decision),
            None => self.client.inner.ask(&self.slot, hits).await,
        }
    }

    /// Decides without the server, if that is possible now: it takes less than a microsecond.
    #[must_use]
    pub fn check_now(&self, hits: u64) -> Option<Decision> {
        let inner = &*self.client.inner;
        let now = inner.clock.now();
        if self.is_beyond || !inner.is_lent() {
            return None;
        }
        let (found, is_due) = inner.keys.pay(&self.slot, now, hits);
        if is_due {
            inner.wake.notify_one();
        }
        match found {
            Found::Paid => Some(Decision { allowed: true, source: Source::Held, retry_after: None }),
            Found::Refused(retry_after) => {
                let retry_after = retry_after.map(Duration::from);
                Some(Decision { allowed: false, source: Source::Held, retry_after })
            }
            Found::Unknown => None,
        }
    }
}

impl Inner {
    async fn ask(&self, slot: &Slot, hits: u64) -> Result<Decision, Error> {
        let body = wire::check(&self.as_sent(&slot.attributes, hits, None));
        match self.reply_to::<Checked>("/v1/check", body, self.settings.retries).await {
            Ok((Checked { allowed, retry_after_ms, .. }, _)) => {
                if !allowed && hits == 1 {
                    slot.with(|state| state.refused(self.clock.now(), retry_after_ms));
                }
                let retry_after = retry_after_ms.map(Duration::from_millis);
                Ok(Decision { allowed, source: Source::Server, retry_after })
            }
            Err(Error::Unreachable { .. }) => {
                let allowed = self.policy_allows(slot, hits);
                Ok(Decision { allowed, source: Source::Policy, retry_after: None })
            }
            Err(error) => Err(error),
        }
    }

    /// A check as it is sent: with an id if it may be sent again, so that it is charged once.
    pub(crate) fn as_sent<'m>(
        &'m self,
        attributes: &'m Attributes,
        cost: u64,
        id: Option<&'m str>,
    ) -> Check<'m> {
        let request_id = id.map(Cow::Borrowed).or_else(|| self.new_id().map(Cow::Owned));
        Check { domain: &self.settings.domain, attributes, cost, request_id }
    }

    pub(crate) fn new_id(&self) -> Option<String> {
        (self.settings.retries > 0).then(random::id)
    }

    /// What the server answers, and the headers of its answer.
    pub(crate) async fn reply_to<T: DeserializeOwned>(
        &self,
        path: &'static str,
        body: Vec<u8>,
        retries: u32,
    ) -> Result<(T, HeaderMap), Error> {
        if self.is_before(&self.down_until, self.clock.now()) {
            return Err(self.connection.unreachable("the last call failed a moment ago".into()));
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        let reply = self.connection.call_again(path, body.into(), retries).await;
        let reply = reply.inspect_err(|_| self.is_down())?;
        if let Ok(read) = serde_json::from_slice(&reply.body) {
            return Ok((read, reply.headers));
        }
        let status = reply.status;
        match refused(&reply) {
            Some(Refused { error, .. }) => Err(error),
            None => {
                Err(self.connection.unreachable(format!("it answers {status}, without what was asked for")))
            }
        }
    }

    /// Whether what was sent was done.
    pub(crate) fn done(&self, reply: &Reply) -> Result<(), Error> {
        match refused(reply) {
            Some(Refused { error, .. }) => Err(error),
            None if reply.status.is_success() => Ok(()),
            None => Err(self.connection.unreachable(format!("it answers {}", reply.status))),
        }
    }

    /// What the client's policy says of a request that nobody answered.
    pub(crate) fn policy_allows(&self, slot: &Slot, hits: u64) -> bool {
        match self.settings.on_failure {
            OnFailure::Open => true,
            OnFailure::Closed => false,
            OnFailure::Local => slot.with(|state| state.alone(self.clock.now(), hits)),
        }
    }

    /// Sends messages until nothing waits for one.
    async fn exchange(&self) {
        while let Some(message) = self.keys.message(self.clock.now()) {
            let mut parts = vec![message];
            while let Some(message) = parts.pop() {
                self.messages.fetch_add(1, Ordering::Relaxed);
                match self.send(&message).await {
                    Sent::Answered => {}
                    Sent::Refused { field } => {
                        parts.extend(message.without_refused(field.as_deref(), self.clock.now()));
                    }
                    Sent::NotAnswered => {
                        self.keys.not_answered(&message);
                        parts.iter().for_each(|part| self.keys.not_answered(part));
                        return;
                    }
                }
            }
        }
    }

    async fn send(&self, message: &Message) -> Sent {
        let body = message.body(&self.settings.domain);
        let Ok(reply) = self.connection.call("/v1/take", body).await else {
            self.is_down();
            return Sent::NotAnswered;
        };
        match refused(&reply) {
            Some(Refused { error, field }) if is_of_all(&error, field.as_deref()) => {
                self.not_lent();
                return Sent::NotAnswered;
            }
            Some(Refused { field, .. }) => return Sent::Refused { field },
            None => {}
        }
        match serde_json::from_slice::<TakeReply>(&reply.body) {
            Ok(reply) => self.keys.answered(message, &reply, self.clock.now()),
            Err(_) => return Sent::NotAnswered,
        }
        Sent::Answered
    }

    fn is_down(&self) {
        self.down_until.store((self.clock.now() + DOWN_FOR).as_micros(), Ordering::Relaxed);
    }

    fn not_lent(&self) {
        self.not_lent_until.store((self.clock.now() + NOT_LENT_FOR).as_micros(), Ordering::Relaxed);
    }

    /// Whether hits are taken ahead at all.
    pub(crate) fn is_lent(&self) -> bool {
        let is_closed = self.is_closed.load(Ordering::Relaxed);
        !is_closed && !self.is_before(&self.not_lent_until, self.clock.now())
    }

    fn is_before(&self, until: &AtomicU64, now: Timestamp) -> bool {
        now.as_micros() < until.load(Ordering::Relaxed)
    }
}

/// One message for all keys that want more, as often as one is wanted but not more often than every interval.
async fn run(client: Weak<Inner>, wake: Arc<Notify>) {
    let mut swept = Timestamp::default();
    loop {
        let _ = timeout(SWEEP, wake.notified()).await;
        let Some(inner) = client.upgrade() else { return };
        let now = inner.clock.now();
        if now.since(swept) >= Micros::from_millis(SWEEP.as_millis() as u64) {
            inner.keys.sweep(now);
            swept = now;
        }
        let turn = inner.turn.lock().await;
        if inner.is_closed.load(Ordering::Relaxed) {
            return;
        }
        inner.exchange().await;
        drop(turn);
        drop(inner);
        sleep(SOON.into()).await;
    }
}

/// What became of a message.
enum Sent {
    Answered,
    /// The server takes no message with one of these keys, which `field` may name. Nothing was counted.
    Refused {
        field: Option<String>,
    },
    NotAnswered,
}

/// Why a server does not take a message at all.
struct Refused {
    error: Error,
    field: Option<String>,
}

/// None if it takes it, or cannot at this time.
fn refused(reply: &Reply) -> Option<Refused> {
    let status = reply.status;
    let for_now = [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT];
    if !status.is_client_error() || for_now.contains(&status) {
        return None;
    }
    let Problem { detail, field, hint } = serde_json::from_slice(&reply.body).unwrap_or_default();
    let error = Error::Refused { status: status.as_u16(), detail, hint: hint.unwrap_or_default() };
    Some(Refused { error, field })
}

/// Whether a server is older than this client, or newer.
fn is_of_protocol(error: &Error, field: Option<&str>) -> bool {
    matches!(error, Error::Refused { status: 404, .. }) || field == Some("protocol")
}

/// Whether it refuses every message of this client, whichever keys are in it.
fn is_of_all(error: &Error, field: Option<&str>) -> bool {
    let is_of_client = matches!(error, Error::Refused { status: 401 | 403, .. }) || field == Some("domain");
    is_of_client || is_of_protocol(error, field)
}
