//! Asks sentinels for the master, and listens for changes.
//!
//! All sentinels are asked at once and the newest answer wins: a partitioned sentinel keeps naming a master that the
//! others have replaced.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{join_all, select_all};
use redis::{Cmd, Value};
use tidegate_store::BoxError;
use tokio::time::{sleep, timeout};

use crate::backoff::Backoff;
use crate::dial::{Dialer, Greeting};
use crate::url::Endpoint;

/// How long to wait for each sentinel.
const PATIENCE: Duration = Duration::from_millis(500);
/// The channel that announces a new master.
const CHANNEL: &str = "+switch-master";

/// The sentinels of one service.
#[derive(Debug)]
pub(crate) struct Sentinels {
    endpoints: Vec<Endpoint>,
    service: String,
    dialer: Arc<Dialer>,
}

/// The master that one sentinel names, and its config epoch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Word {
    epoch: u64,
    master: Endpoint,
}

impl Sentinels {
    pub(crate) fn new(endpoints: Vec<Endpoint>, service: String, dialer: Arc<Dialer>) -> Self {
        Sentinels { endpoints, service, dialer }
    }

    /// The newest master among the sentinels' answers.
    pub(crate) async fn master(&self) -> Result<Endpoint, BoxError> {
        let words = join_all(self.endpoints.iter().map(|sentinel| async move {
            let word = timeout(PATIENCE, self.ask(sentinel)).await;
            word.unwrap_or_else(|_| Err("it does not answer".into()))
                .map_err(|error| format!("sentinel {sentinel}: {error}"))
        }))
        .await;
        let newest = words.iter().flatten().max();
        match newest {
            Some(word) => Ok(word.master.clone()),
            None => {
                let problems: Vec<String> = words.into_iter().filter_map(Result::err).collect();
                Err(problems.join("; ").into())
            }
        }
    }

    /// Waits until the sentinels name a master other than `current`. All of them are listened to: the one that leads a failover
    /// announces it first, and any of them may be the next to fall silent.
    pub(crate) async fn master_moves_from(&self, current: &Endpoint) {
        let listening =
            self.endpoints.iter().map(|sentinel| Box::pin(self.hear_of_another(sentinel, current)));
        select_all(listening).await;
    }

    /// Listens to one sentinel, again and again, until it names another master.
    async fn hear_of_another(&self, sentinel: &Endpoint, current: &Endpoint) {
        let mut backoff = Backoff::default();
        while self.listen(sentinel, current).await.is_none() {
            sleep(backoff.next()).await;
        }
    }

    /// Listens to one sentinel until it names another master; none if its connection ends first.
    async fn listen(&self, sentinel: &Endpoint, current: &Endpoint) -> Option<Endpoint> {
        let mut messages = self.dialer.listen(sentinel, CHANNEL).await.ok()?.into_on_message();
        // The change may have been announced before the subscription.
        let named = self.master().await.ok()?;
        if named != *current {
            return Some(named);
        }
        while let Some(message) = messages.next().await {
            let text: String = message.get_payload().ok()?;
            if let Some(master) = announced(&text, &self.service).filter(|master| master != current) {
                return Some(master);
            }
        }
        None
    }

    async fn ask(&self, sentinel: &Endpoint) -> Result<Word, BoxError> {
        let mut dialed = self.dialer.dial(sentinel, Greeting::Answer).await?;
        let mut command = Cmd::new();
        command.arg("SENTINEL").arg("MASTER").arg(&self.service);
        let answer = tokio::select! {
            answer = dialed.connection.send_packed_command(&command) => answer?.extract_error()?,
            () = &mut dialed.driver => return Err("it hung up".into()),
        };
        word(answer).ok_or_else(|| "its answer makes no sense".into())
    }
}

/// Parses a `SENTINEL MASTER` reply: alternating names and values.
fn word(answer: Value) -> Option<Word> {
    let fields: Vec<String> = redis::from_redis_value(answer).ok()?;
    let field = |name: &str| Some(fields.chunks_exact(2).find(|pair| pair[0] == name)?[1].as_str());
    let master = Endpoint { host: field("ip")?.to_owned(), port: field("port")?.parse().ok()? };
    Some(Word { epoch: field("config-epoch")?.parse().ok()?, master })
}

/// Parses the new master of `service`: `name old-host old-port new-host new-port`.
fn announced(message: &str, service: &str) -> Option<Endpoint> {
    let mut words = message.split(' ');
    if words.next()? != service {
        return None;
    }
    let host = words.nth(2)?;
    Some(Endpoint { host: host.to_owned(), port: words.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_announcement_of_our_service_counts() {
        let message = "mymaster 10.0.0.1 6379 10.0.0.2 6380";
        let master = Endpoint { host: "10.0.0.2".to_owned(), port: 6380 };
        assert_eq!(announced(message, "mymaster"), Some(master));
        assert_eq!(announced(message, "other"), None);
        assert_eq!(announced("mymaster 10.0.0.1", "mymaster"), None);
    }

    #[test]
    fn the_newest_word_wins() {
        let word = |epoch, port| Word { epoch, master: Endpoint { host: "h".to_owned(), port } };
        assert_eq!([word(2, 1), word(9, 2), word(8, 3)].iter().max(), Some(&word(9, 2)));
    }
}
