//! Asks, decides, and sends one message per interval in the background.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::StatusCode;
use tidegate_core::{Micros, Timestamp};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::clock::Uptime;
use crate::connection::Connection;
use crate::keys::{Keys, Message, Slot};
use crate::purse::{Found, SOON};
use crate::wire::{self, Checked, Problem, TakeReply};
use crate::{Decision, Error, OnFailure, Source};

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
    inner: Arc<Inner>,
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
}

struct Inner {
    settings: Settings,
    clock: Uptime,
    keys: Keys,
    connection: Connection,
    wake: Arc<Notify>,
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
        let (status, body) = self.inner.connection.call("/v1/take", body).await?;
        match refused(status, &body) {
            // A server that lends nothing is asked for each request.
            Some(error) if is_of_protocol(&error) => {
                self.inner.not_lent();
                Ok(())
            }
            Some(error) => Err(error),
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

    /// What it holds and has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let Inner { keys, messages, asked, .. } = &*self.inner;
        Stats { keys: keys.len(), messages: count(messages), asked: count(asked) }
    }

    /// Returns all hits that it holds.
    pub async fn shutdown(self) {
        let inner = &self.inner;
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
        if self.is_beyond || inner.is_before(&inner.not_lent_until, now) {
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
        if self.is_before(&self.down_until, self.clock.now()) {
            return Ok(self.by_policy(slot, hits));
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        let body = wire::check(&self.settings.domain, &slot.attributes, hits);
        let Ok((status, body)) = self.connection.call("/v1/check", body).await else {
            self.is_down();
            return Ok(self.by_policy(slot, hits));
        };
        if let Ok(checked) = serde_json::from_slice::<Checked>(&body) {
            let Checked { allowed, retry_after_ms } = checked;
            if !allowed && hits == 1 {
                slot.with(|state| state.refused(self.clock.now(), retry_after_ms));
            }
            let retry_after = retry_after_ms.map(Duration::from_millis);
            return Ok(Decision { allowed, source: Source::Server, retry_after });
        }
        match refused(status, &body) {
            Some(error) => Err(error),
            None => Ok(self.by_policy(slot, hits)),
        }
    }

    fn by_policy(&self, slot: &Slot, hits: u64) -> Decision {
        let allowed = match self.settings.on_failure {
            OnFailure::Open => true,
            OnFailure::Closed => false,
            OnFailure::Local => slot.with(|state| state.alone(self.clock.now(), hits)),
        };
        Decision { allowed, source: Source::Policy, retry_after: None }
    }

    /// Sends messages until nothing waits for one.
    async fn exchange(&self) {
        while let Some(message) = self.keys.message(&self.settings.domain, self.clock.now()) {
            self.messages.fetch_add(1, Ordering::Relaxed);
            if !self.send(&message).await {
                self.keys.not_answered(&message);
                return;
            }
        }
    }

    async fn send(&self, message: &Message) -> bool {
        let Ok((status, body)) = self.connection.call("/v1/take", message.body.clone()).await else {
            self.is_down();
            return false;
        };
        if refused(status, &body).is_some() {
            self.not_lent();
            return false;
        }
        match serde_json::from_slice::<TakeReply>(&body) {
            Ok(reply) => self.keys.answered(message, &reply, self.clock.now()),
            Err(_) => return false,
        }
        true
    }

    fn is_down(&self) {
        self.down_until.store((self.clock.now() + DOWN_FOR).as_micros(), Ordering::Relaxed);
    }

    fn not_lent(&self) {
        self.not_lent_until.store((self.clock.now() + NOT_LENT_FOR).as_micros(), Ordering::Relaxed);
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
        inner.exchange().await;
        drop(inner);
        sleep(SOON.into()).await;
    }
}

/// Why a server does not take a message at all; none if it does, or cannot at this time.
fn refused(status: StatusCode, body: &[u8]) -> Option<Error> {
    if !status.is_client_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    let Problem { detail, hint } = serde_json::from_slice(body).unwrap_or_default();
    Some(Error::Refused { status: status.as_u16(), detail, hint: hint.unwrap_or_default() })
}

/// Whether a server is older than this client, or newer.
fn is_of_protocol(error: &Error) -> bool {
    matches!(error, Error::Refused { status: 404, .. })
        || matches!(error, Error::Refused { detail, .. } if detail.starts_with("protocol:"))
}
