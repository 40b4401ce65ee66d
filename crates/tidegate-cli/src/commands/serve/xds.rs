//! Follows a management server that sends the limits: connects, takes into use what compiles, connects again.
//!
//! The limits that were accepted last stay in force, whatever the server sends, and while it is unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_admin::at_low_priority;
use tidegate_metrics::XdsCounts;
use tidegate_rules::{Format, Source};
use tidegate_server::xds::{LimitFile, XdsClient};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::reloader::log_each;
use super::rule_parts::RuleParts;
use crate::failure::Failure;
use crate::settings::rls::Xds;

/// How long the first limits are awaited before the server listens; it is not ready until they come.
const FIRST_WITHIN: Duration = Duration::from_secs(2);
/// The first and the longest pause before it connects again.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// What became of the server's answers.
#[derive(Default)]
pub(super) struct XdsFollower {
    connected: AtomicBool,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// Woken by the first accepted answer.
    first: Notify,
}

impl XdsFollower {
    /// Starts to follow the server, and waits a moment for its first limits.
    pub(super) async fn start(
        section: &Xds,
        parts: Arc<RuleParts>,
        background: &mut JoinSet<()>,
    ) -> Result<Arc<Self>, Failure> {
        let (client, follower) = (XdsClient::new(section.server()?), Arc::new(XdsFollower::default()));
        background.spawn(follower.clone().run(client, section.address.clone(), parts));
        if timeout(FIRST_WITHIN, follower.first.notified()).await.is_err() {
            tracing::warn!(
                server = section.address,
                "no limits from the xDS server yet: not ready until they come"
            );
        }
        Ok(follower)
    }

    pub(super) fn counts(&self) -> XdsCounts {
        XdsCounts {
            connected: self.connected.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    async fn run(self: Arc<Self>, mut client: XdsClient, server: String, parts: Arc<RuleParts>) {
        let [first, longest] = PAUSES;
        let mut pause = first;
        loop {
            let before = self.accepted.load(Ordering::Relaxed);
            let ended = client.follow(|files| self.take(files, &parts)).await;
            self.connected.store(false, Ordering::Relaxed);
            // Who was connected is asked again soon.
            if self.accepted.load(Ordering::Relaxed) > before {
                pause = first;
            }
            tracing::warn!(
                server,
                hint = client.is_encrypted().then(|| hint(ended.message())).flatten(),
                "the xDS server is unavailable, its last limits stay in force: {}",
                ended.message()
            );
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(longest);
        }
    }

    async fn take(&self, files: Vec<LimitFile>, parts: &Arc<RuleParts>) -> Result<(), String> {
        self.connected.store(true, Ordering::Relaxed);
        let limits = files.len();
        let sources: Vec<(Source, Format)> = files
            .into_iter()
            .map(|file| (Source::new(file.name, file.text), Format::EnvoyRatelimit))
            .collect();
        let parts = parts.clone();
        // Compiling takes long, and requests are decided on the same cores.
        let taken = at_low_priority(move || parts.take_pushed(sources)).await;
        match taken {
            Ok(changes) => {
                self.accepted.fetch_add(1, Ordering::Relaxed);
                self.first.notify_one();
                tracing::info!(domains = limits, "limits from the xDS server: {changes}");
                Ok(())
            }
            Err(failure) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tracing::error!("limits from the xDS server refused, the old ones stay in force");
                log_each(&failure.0);
                Err(failure.0.to_string())
            }
        }
    }
}

/// What to check where TLS may have failed. In TLS 1.3 a server refuses a certificate only after the handshake, by closing the
/// connection; its alert with the reason is often lost.
fn hint(message: &str) -> Option<&'static str> {
    if message.contains("invalid peer certificate") {
        return Some("check `ca` and `server_name` under `rls.xds.tls`");
    }
    let is_closed = ["fatal alert", "connection closed", "broken pipe", "connection reset"];
    is_closed.iter().any(|words| message.to_lowercase().contains(words)).then_some(
        "if the server asks for a certificate, check `certificate` and `key` under `rls.xds.tls`: it may not accept yours",
    )
}

/// Up to half as long again, so that a fleet does not come back in step.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0; 1];
    // Without random numbers the pause is as it is.
    let _ = getrandom::fill(&mut random);
    pause + pause.mul_f64(f64::from(random[0]) / 512.0)
}
