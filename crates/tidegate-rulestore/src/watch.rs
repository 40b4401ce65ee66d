//! Detects publications: at once by a notification, within seconds if it was lost.
//!
//! PostgreSQL's notifications are lost while the listener is disconnected, and it does not learn of that when it reconnects.
//! So the current state is also polled every few seconds, and a notification only triggers an earlier poll.

use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::watch;

use crate::connect::{Kind, RuleStore};
use crate::error::Result;
use crate::versions::Revision;

/// The channel of notifications.
pub(crate) const CHANNEL: &str = "tidegate_rules";

/// How often the current state is polled without a notification.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// Watches for changes of the current state.
#[derive(Debug)]
pub struct Watch {
    store: RuleStore,
    /// Changes made in this process.
    here: watch::Receiver<()>,
    poll_every: Duration,
    listener: Option<PgListener>,
}

impl RuleStore {
    /// Watches for changes from now on.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch { store: self.clone(), here: self.changed.subscribe(), poll_every: POLL_EVERY, listener: None }
    }
}

impl Watch {
    /// Sets the poll interval.
    #[must_use]
    pub fn polling_every(self, poll_every: Duration) -> Self {
        Watch { poll_every, ..self }
    }

    /// Waits until something may have changed, and returns the current state.
    ///
    /// # Errors
    /// The database does not answer; call it again, it waits before the next query.
    pub async fn next(&mut self) -> Result<Revision> {
        tokio::select! {
            _ = self.here.changed() => {}
            () = tokio::time::sleep(self.poll_every) => {}
            () = Self::notified(&mut self.listener, &self.store) => {}
        }
        self.store.head().await
    }

    /// Waits for a notification; for ever if there are none, or the listener cannot connect.
    async fn notified(listener: &mut Option<PgListener>, store: &RuleStore) {
        if store.url.kind == Kind::Postgres {
            match listener {
                Some(connected) => {
                    let told = connected.try_recv().await;
                    // The connection was lost, and with it perhaps a notification: poll now, reconnect the next time.
                    if !matches!(told, Ok(Some(_))) {
                        *listener = None;
                    }
                    return;
                }
                None => {
                    if let Ok(connected) = listen(store).await {
                        *listener = Some(connected);
                        return;
                    }
                }
            }
        }
        std::future::pending().await
    }
}

async fn listen(store: &RuleStore) -> std::result::Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect(&store.url.url).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}
