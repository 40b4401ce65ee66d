//! Notices that something was published: at once where a notification comes, within seconds where it was lost.
//!
//! PostgreSQL's notifications are lost while nobody is connected, and a reconnecting listener is not told of that. So what
//! is in force is asked for every few seconds, too, and a notification is only a reason to ask earlier.

use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::watch;

use crate::connect::{Kind, RuleStore};
use crate::error::Result;
use crate::versions::Head;

/// The channel of notifications.
pub(crate) const CHANNEL: &str = "tidegate_rules";

/// How often what is in force is asked for where no notification comes.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// Looks out for changes of what is in force.
#[derive(Debug)]
pub struct Watch {
    store: RuleStore,
    /// Changes that were made in this process.
    here: watch::Receiver<()>,
    poll_every: Duration,
    listener: Option<PgListener>,
}

impl RuleStore {
    /// Looks out for changes from now on.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch { store: self.clone(), here: self.changed.subscribe(), poll_every: POLL_EVERY, listener: None }
    }
}

impl Watch {
    /// The same, asking this often where no notification comes.
    #[must_use]
    pub fn polling_every(self, poll_every: Duration) -> Self {
        Watch { poll_every, ..self }
    }

    /// Waits until something may have changed, and returns what is in force.
    ///
    /// # Errors
    /// When the database does not answer; to be called again, it waits before it asks.
    pub async fn next(&mut self) -> Result<Head> {
        tokio::select! {
            _ = self.here.changed() => {}
            () = tokio::time::sleep(self.poll_every) => {}
            () = Self::notified(&mut self.listener, &self.store) => {}
        }
        self.store.head().await
    }

    /// Waits for a notification; for ever where there are none, or the connection for them cannot be made.
    async fn notified(listener: &mut Option<PgListener>, store: &RuleStore) {
        if store.url.kind == Kind::Postgres {
            match listener {
                Some(connected) => {
                    let told = connected.try_recv().await;
                    // The connection was lost, and with it perhaps a notification: ask now, listen anew the next time.
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
