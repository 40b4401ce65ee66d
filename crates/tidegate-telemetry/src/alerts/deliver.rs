//! Delivers notices to a webhook: batched, signed, and retried until they are accepted.
//!
//! Notices of one moment form one body. A body that is not accepted is retried with growing pauses. Meanwhile others
//! overtake it, except those about the same alerts: the end of an alert is sent after its beginning. When too many wait, the
//! oldest are dropped. Every body has an id, the same in every attempt.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::active::Notice;
use super::payload::{as_cloud_event, as_json, as_slack, signature};
use crate::http_client::Endpoint;

/// The most bodies waiting.
const MOST_WAITING: usize = 64;
/// The most alerts in one JSON body: about 60 kB.
const MOST_IN_BODY: usize = 100;
/// The timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(5);
/// Attempts per body: with doubling pauses, about eight minutes.
const MOST_TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// The format of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Our own, for programs.
    #[default]
    Json,
    /// The same as a CloudEvent.
    CloudEvents,
    /// For Slack and compatible receivers.
    Slack,
}

/// The receiver of notices.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Its address.
    pub endpoint: Endpoint,
    /// The key to sign bodies with, if any.
    pub secret: Option<Arc<[u8]>>,
    /// The format of bodies.
    pub payload: Payload,
}

/// Counts of bodies.
#[derive(Debug, Default)]
pub struct WebhookStats {
    /// Accepted by the receiver.
    pub delivered: AtomicU64,
    /// Failed attempts.
    pub failed_tries: AtomicU64,
    /// Given up, or dropped because too many waited.
    pub dropped: AtomicU64,
}

/// Delivers notices to one receiver.
#[derive(Debug)]
pub struct WebhookQueue {
    receiver: Receiver,
    waiting: Mutex<Waiting>,
    more: Notify,
    idle: Notify,
    stats: Arc<WebhookStats>,
    node: String,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    /// In chronological order, including the one in flight.
    bodies: VecDeque<Body>,
    /// The id of the one in flight.
    under_way: Option<u64>,
}

#[derive(Clone, Debug)]
struct Body {
    number: u64,
    id: String,
    /// When it happened, by the wall clock and by a monotonic one.
    at_s: u64,
    taken: Instant,
    bytes: Bytes,
    /// Fingerprints of its alerts.
    about: Arc<[String]>,
    tries: u32,
    /// When the next attempt is due.
    due: Instant,
}

/// What to do next.
enum Next {
    Try(Body),
    WaitUntil(Instant),
    WaitForMore,
}

impl Waiting {
    /// What to send at `now`: of the bodies that are due and not behind one about the same alert, the one with the fewest
    /// attempts.
    fn next(&mut self, now: Instant) -> Next {
        let (mut before, mut best, mut soonest) = (HashSet::new(), None::<&Body>, None::<Instant>);
        for body in &self.bodies {
            let is_first = !body.about.iter().any(|one| before.contains(one.as_str()));
            before.extend(body.about.iter().map(String::as_str));
            if !is_first {
                continue;
            }
            soonest = Some(soonest.map_or(body.due, |soonest| soonest.min(body.due)));
            if body.due <= now && best.is_none_or(|best| body.tries < best.tries) {
                best = Some(body);
            }
        }
        let next = match (best, soonest) {
            (Some(body), _) => Next::Try(body.clone()),
            (None, Some(soonest)) => Next::WaitUntil(soonest),
            (None, None) => Next::WaitForMore,
        };
        self.under_way = best.map(|body| body.number);
        next
    }

    /// Makes room for one more. False if the oldest had to be dropped.
    fn make_room(&mut self) -> bool {
        if self.bodies.len() < MOST_WAITING {
            return true;
        }
        let oldest = self.bodies.iter().position(|body| Some(body.number) != self.under_way);
        oldest.and_then(|oldest| self.bodies.remove(oldest)).is_none()
    }
}

impl WebhookQueue {
    /// A courier for `receiver`, sending as `node`.
    #[must_use]
    pub fn new(receiver: Receiver, node: &str) -> Self {
        let (waiting, more, idle, stats) = (Mutex::default(), Notify::new(), Notify::new(), Arc::default());
        WebhookQueue { receiver, waiting, more, idle, stats, node: node.to_owned(), next: AtomicU64::new(1) }
    }

    /// The counts of bodies.
    #[must_use]
    pub fn stats(&self) -> Arc<WebhookStats> {
        Arc::clone(&self.stats)
    }

    /// The number of bodies waiting, including the one in flight.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.lock().bodies.len()
    }

    /// Waits until everything is delivered or given up, for at most `within`. False if something still waits.
    pub async fn settled(&self, within: Duration) -> bool {
        let idle = async {
            while self.waiting() > 0 {
                self.idle.notified().await;
            }
        };
        tokio::time::timeout(within, idle).await.is_ok()
    }

    /// Queues the notices of `now_s`: in one body, unless there are very many.
    pub fn take(&self, now_s: u64, notices: &[Notice]) {
        let most = match self.receiver.payload {
            Payload::Json | Payload::CloudEvents => MOST_IN_BODY,
            Payload::Slack => usize::MAX,
        };
        notices.chunks(most).for_each(|some| self.take_body(now_s, some));
    }

    fn take_body(&self, now_s: u64, notices: &[Notice]) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{now_s}-{number}", self.node);
        let value = match self.receiver.payload {
            Payload::Json => as_json(&id, &self.node, now_s, notices),
            Payload::CloudEvents => as_cloud_event(&id, &self.node, now_s, notices),
            Payload::Slack => as_slack(notices),
        };
        let (bytes, now) = (value.to_string().into(), Instant::now());
        let about = notices.iter().map(|notice| notice.alert().fingerprint.clone()).collect();
        let mut waiting = self.waiting.lock();
        if !waiting.make_room() {
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
        }
        waiting.bodies.push_back(Body {
            number,
            id,
            at_s: now_s,
            taken: now,
            bytes,
            about,
            tries: 0,
            due: now,
        });
        self.more.notify_one();
    }

    /// Delivers bodies. Runs until dropped.
    pub async fn run(&self) {
        loop {
            let next = self.waiting.lock().next(Instant::now());
            match next {
                Next::Try(body) => self.deliver(body).await,
                Next::WaitUntil(due) => {
                    // Whichever comes first; then look again.
                    let _ = tokio::time::timeout_at(due, self.more.notified()).await;
                }
                Next::WaitForMore => self.more.notified().await,
            }
        }
    }

    /// Tries a body once: it is accepted, given up, or waits for its next attempt.
    async fn deliver(&self, mut body: Body) {
        let endpoint = &self.receiver.endpoint;
        let content_type = match self.receiver.payload {
            Payload::CloudEvents => "application/cloudevents+json; charset=UTF-8",
            Payload::Json | Payload::Slack => "application/json",
        };
        let posted = endpoint.post(content_type, &self.headers(&body), body.bytes.clone(), PATIENCE).await;
        body.tries += 1;
        let Err(error) = posted else {
            self.stats.delivered.fetch_add(1, Ordering::Relaxed);
            if body.tries > 1 {
                tracing::info!(id = body.id, tries = body.tries, "an alert was delivered after retries");
            }
            return self.done(&body);
        };
        self.stats.failed_tries.fetch_add(1, Ordering::Relaxed);
        if !error.is_worth_a_retry() || body.tries == MOST_TRIES {
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
            tracing::error!(id = body.id, tries = body.tries, %error, "an alert was not delivered, giving up");
            return self.done(&body);
        }
        if body.tries == 1 {
            tracing::warn!(id = body.id, %error, "the webhook did not accept an alert, trying again");
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << (body.tries - 1)).min(LONGEST_PAUSE);
        body.due = Instant::now() + pause;
        let mut waiting = self.waiting.lock();
        waiting.under_way = None;
        if let Some(place) = waiting.bodies.iter().position(|one| one.number == body.number) {
            waiting.bodies[place] = body;
        }
    }

    /// Removes a body from the queue.
    fn done(&self, body: &Body) {
        let mut waiting = self.waiting.lock();
        waiting.under_way = None;
        waiting.bodies.retain(|one| one.number != body.number);
        if waiting.bodies.is_empty() {
            self.idle.notify_one();
        }
    }

    fn headers(&self, body: &Body) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = Vec::new();
        let mut add = |name: &'static str, value: &str| {
            headers.extend(
                HeaderValue::from_str(value).ok().map(|value| (HeaderName::from_static(name), value)),
            );
        };
        add("x-tidegate-delivery", &body.id);
        if let Some(secret) = &self.receiver.secret {
            // The time of this attempt: a receiver may reject an old signature.
            let now_s = body.at_s + body.taken.elapsed().as_secs();
            add("x-tidegate-signature", &signature(secret, now_s, &body.bytes));
        }
        headers
    }
}
