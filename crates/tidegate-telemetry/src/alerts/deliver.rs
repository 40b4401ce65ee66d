//! Takes notices to a webhook: grouped, signed, and again until they are taken.
//!
//! What happened within a moment goes as one body. A receiver that fails is tried again, later each time; meanwhile new
//! notices wait behind, and the oldest are dropped once there are too many. Every body has an id, the same in every try.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::Notify;

use super::book::Notice;
use crate::post::Endpoint;

/// Bodies that wait.
const MOST_WAITING: usize = 64;
/// How long a receiver may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Tries of one body: with pauses that double, about a quarter of an hour.
const MOST_TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// What a body looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Our own, for programs.
    #[default]
    Json,
    /// What Slack and those who speak like it take.
    Slack,
}

/// Who is told.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Where.
    pub endpoint: Endpoint,
    /// What bodies are signed with, if they are.
    pub secret: Option<Arc<[u8]>>,
    /// What they look like.
    pub payload: Payload,
}

/// What became of bodies.
#[derive(Debug, Default)]
pub struct CourierStats {
    /// Taken by the receiver.
    pub delivered: AtomicU64,
    /// Tries that failed.
    pub failed_tries: AtomicU64,
    /// Given up, or dropped because too many waited.
    pub dropped: AtomicU64,
}

/// Takes notices to one receiver.
#[derive(Debug)]
pub struct Courier {
    receiver: Receiver,
    waiting: Mutex<Waiting>,
    more: Notify,
    idle: Notify,
    stats: Arc<CourierStats>,
    node: String,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    bodies: VecDeque<Body>,
    /// Whether one is on its way.
    under_way: bool,
}

#[derive(Clone, Debug)]
struct Body {
    id: String,
    at_s: u64,
    bytes: Bytes,
}

impl Courier {
    /// One for `receiver`, from `node`.
    #[must_use]
    pub fn new(receiver: Receiver, node: &str) -> Self {
        let (waiting, more, idle, stats) = (Mutex::default(), Notify::new(), Notify::new(), Arc::default());
        Courier { receiver, waiting, more, idle, stats, node: node.to_owned(), next: AtomicU64::new(1) }
    }

    /// What became of bodies.
    #[must_use]
    pub fn stats(&self) -> Arc<CourierStats> {
        Arc::clone(&self.stats)
    }

    /// Bodies that wait for a receiver that takes them, the one that is being tried included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let waiting = self.waiting.lock();
        waiting.bodies.len() + usize::from(waiting.under_way)
    }

    /// Waits until everything was delivered, or given up, for at most so long. False where it is not.
    pub async fn settled(&self, within: Duration) -> bool {
        let idle = async {
            while !self.is_idle() {
                self.idle.notified().await;
            }
        };
        tokio::time::timeout(within, idle).await.is_ok()
    }

    fn is_idle(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.bodies.is_empty() && !waiting.under_way
    }

    /// Takes what happened at `now_s` along: one body for all of it.
    pub fn take(&self, now_s: u64, notices: &[Notice]) {
        if notices.is_empty() {
            return;
        }
        let id = format!("{}-{now_s}-{}", self.node, self.next.fetch_add(1, Ordering::Relaxed));
        let value = match self.receiver.payload {
            Payload::Json => as_json(&id, &self.node, now_s, notices),
            Payload::Slack => as_slack(notices),
        };
        let mut waiting = self.waiting.lock();
        if waiting.bodies.len() >= MOST_WAITING {
            waiting.bodies.pop_front();
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
        }
        waiting.bodies.push_back(Body { id, at_s: now_s, bytes: value.to_string().into() });
        self.more.notify_one();
    }

    /// Delivers, in order. Runs until dropped.
    pub async fn run(&self) {
        loop {
            let next = self.next();
            match next {
                Some(body) => self.deliver(&body).await,
                None => self.more.notified().await,
            }
        }
    }

    fn next(&self) -> Option<Body> {
        let mut waiting = self.waiting.lock();
        let next = waiting.bodies.pop_front();
        waiting.under_way = next.is_some();
        if next.is_none() {
            self.idle.notify_one();
        }
        next
    }

    async fn deliver(&self, body: &Body) {
        let mut pause = FIRST_PAUSE;
        for number in 1..=MOST_TRIES {
            let headers = self.headers(body);
            let endpoint = &self.receiver.endpoint;
            match endpoint.post("application/json", &headers, body.bytes.clone(), PATIENCE).await {
                Ok(()) => {
                    self.stats.delivered.fetch_add(1, Ordering::Relaxed);
                    if number > 1 {
                        tracing::info!(id = body.id, tries = number, "an alert was delivered at last");
                    }
                    return;
                }
                Err(error) => {
                    self.stats.failed_tries.fetch_add(1, Ordering::Relaxed);
                    if number == 1 {
                        tracing::warn!(id = body.id, %error, "the webhook does not take an alert");
                    }
                    if !error.is_worth_a_retry() {
                        break;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.stats.dropped.fetch_add(1, Ordering::Relaxed);
        tracing::error!(id = body.id, "an alert was not delivered: the webhook never took it");
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
            add("x-tidegate-signature", &signature(secret, body.at_s, &body.bytes));
        }
        headers
    }
}

/// `t=SECONDS,v1=HEX`: HMAC-SHA256 over the seconds, a dot and the body. The time is in it so that an old body cannot be
/// sent again as a new one.
#[must_use]
pub fn signature(secret: &[u8], at_s: u64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(format!("{at_s}.").as_bytes());
    mac.update(body);
    let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={at_s},v1={hex}")
}

fn as_json(id: &str, node: &str, now_s: u64, notices: &[Notice]) -> Value {
    let alerts: Vec<Value> = notices
        .iter()
        .map(|notice| {
            let mut value = serde_json::to_value(notice.alert()).unwrap_or_default();
            value["state"] = notice.state().into();
            value
        })
        .collect();
    json!({ "id": id, "node": node, "at_s": now_s, "alerts": alerts })
}

fn as_slack(notices: &[Notice]) -> Value {
    let line = |notice: &Notice| {
        let alert = notice.alert();
        let sign = match (notice.state(), alert.severity) {
            ("resolved", _) => ":white_check_mark: over:",
            (_, super::Severity::Critical) => ":rotating_light:",
            (_, super::Severity::Warning) => ":warning:",
            (_, super::Severity::Info) => ":information_source:",
        };
        let link = match alert.link.is_empty() {
            true => String::new(),
            false => format!(" <{}|look>", plain(&alert.link)),
        };
        format!(
            "{sign} *{}* {}\n_next:_ {}{link}",
            alert.kind.name(),
            plain(&alert.summary),
            plain(&alert.next)
        )
    };
    let lines: Vec<String> = notices.iter().map(line).collect();
    json!({ "text": lines.join("\n") })
}

/// Rule names are not Slack's control characters.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::{Alert, Kind, Severity};
    use super::*;

    #[test]
    fn the_signature_is_what_openssl_makes_of_the_same() {
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret
        let expected = "49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        let made = signature(b"secret", 1_700_000_000, b"{\"a\":1}");
        assert_eq!(made, format!("t=1700000000,v1={expected}"));
    }

    #[test]
    fn slack_is_told_in_its_own_words_and_no_name_can_break_out() {
        let alert = Alert {
            fingerprint: String::new(),
            kind: Kind::TrafficSpike,
            subject: "api/<!channel>".to_owned(),
            severity: Severity::Warning,
            summary: "api/<!channel> has 900 requests".to_owned(),
            next: "look".to_owned(),
            link: "https://gate/#/top".to_owned(),
            since_s: 1,
            ended_s: None,
            silenced: false,
        };
        let text = as_slack(&[Notice::Begun(alert)])["text"].as_str().unwrap_or_default().to_owned();
        assert!(text.contains("&lt;!channel&gt;") && !text.contains("<!channel>"), "{text}");
        assert!(text.contains("<https://gate/#/top|look>"), "{text}");
    }
}
