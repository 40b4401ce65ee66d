//! Whether the other nodes can learn of what was changed here.
//!
//! A change is made in the database, and then published through the shared store. The store may refuse that (it is full, or
//! the set is larger than it takes), while everything else works. So who made the change is told, the log says so once per
//! reason, an alert is raised, and publishing is tried again.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_limiter::Health;
use tidegate_rulestore::{Revision, RuleStore};
use tokio::time::{Instant, timeout};

use super::fleet::{FleetError, NodeStatus};
use super::published::PublishedRules;

/// How long the answer to a change waits for the change to be published.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(3);
/// The wait before a failed publication is tried again; it doubles up to the second.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AT_MOST: Duration = Duration::from_secs(10);

/// What this node last published to the others, or could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Distribution {
    /// What was to be published.
    pub(crate) head: Option<Revision>,
    /// Why it was not.
    pub(crate) failed: Option<String>,
}

/// When a failed publication is tried again.
#[derive(Debug, Default)]
pub(super) struct Retry {
    failed: Option<(Revision, Instant)>,
    tries: u32,
}

impl Retry {
    /// Whether this may be published now. A new change is not delayed by the failure of an older one.
    pub(super) fn is_due(&self, head: &Revision, now: Instant) -> bool {
        self.failed.as_ref().is_none_or(|(failed, at)| failed != head || now >= *at)
    }

    /// Records a result.
    pub(super) fn ended(&mut self, head: &Revision, result: &Result<(), FleetError>, now: Instant) {
        match result {
            Ok(()) => *self = Retry::default(),
            Err(_) => {
                let wait = RETRY_AFTER.saturating_mul(1 << self.tries.min(8)).min(RETRY_AT_MOST);
                (self.failed, self.tries) = (Some((head.clone(), now + wait)), self.tries.saturating_add(1));
            }
        }
    }

    /// Whether the last publication failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}

impl PublishedRules {
    /// Records whether `head` was published, and logs a change of that.
    pub(super) fn note_distribution(&self, head: &Revision, result: &Result<(), FleetError>) {
        let failed = result.as_ref().err().map(ToString::to_string);
        let new = Distribution { head: Some(head.clone()), failed: failed.clone() };
        let before = self.distribution.send_replace(new).failed;
        match (before, failed) {
            (None, None) => {}
            (Some(_), None) => tracing::info!("the rules are published to the other nodes again"),
            (before, Some(why)) if before.as_ref() == Some(&why) => {}
            // The limiter logs a store that does not answer, once.
            (_, Some(why)) if self.limiter().health() != Health::Healthy => {
                tracing::debug!(%why, "cannot publish the rules to the other nodes");
            }
            (_, Some(why)) => tracing::warn!(
                "the other nodes do not learn of the newest rules and bans, because they cannot be published: {why}; \
                 this node tries again (nodes that take their rules from files need no database: admin.database: none)"
            ),
        }
    }

    /// Why the newest change could not be published to the other nodes, if so.
    #[must_use]
    pub(super) fn not_distributed(&self) -> Option<String> {
        self.distribution.borrow().failed.clone()
    }

    /// Whether the change that this node has just made is published to the other nodes, and which of them have said that they
    /// run it: `null` if there can be none.
    pub(crate) async fn distributed(&self, store: &RuleStore) -> Value {
        if !self.fleet().is_shared() {
            return Value::Null;
        }
        let pending = |why: &str| {
            json!({
                "state": "pending",
                "why": why,
                "hint": "this node tries again; GET /admin/v1/nodes says which nodes run the change",
            })
        };
        let Ok(wanted) = store.head().await else { return pending("the database does not answer") };
        let mut distribution = self.distribution.subscribe();
        let is_decided = |known: &Distribution| {
            known.head.as_ref().is_some_and(|head| *head == wanted || head.number() > wanted.number())
        };
        let failed = match timeout(PUBLISHED_WITHIN, distribution.wait_for(is_decided)).await {
            Ok(Ok(known)) => known.failed.clone(),
            _ => Some("the shared store has not confirmed it within 3 s".to_owned()),
        };
        if let Some(why) = failed {
            return pending(&why);
        }
        let (running, not_yet) = self.nodes_with(&wanted).await;
        json!({ "state": "published", "running": running, "not_yet": not_yet })
    }

    /// The names of the live nodes that run `head` or something newer, and of those that have not said so yet.
    async fn nodes_with(&self, head: &Revision) -> (Vec<String>, Vec<String>) {
        let notes = self.fleet().known_nodes().await.unwrap_or_default();
        let runs = |note: &NodeStatus| {
            note.version >= head.version && note.overrides >= head.overrides && note.error.is_none()
        };
        let others = notes.into_iter().filter(|note| !note.lost && note.name != self.node);
        let (running, not_yet): (Vec<_>, Vec<_>) = others.partition(runs);
        let names = |notes: Vec<NodeStatus>| notes.into_iter().map(|note| note.name);
        let own = std::iter::once(self.node.clone());
        (own.chain(names(running)).collect(), names(not_yet).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retry_waits_longer_each_time_and_not_for_new_changes() {
        let (mut retry, now) = (Retry::default(), Instant::now());
        let head = |version| Revision { version, ..Revision::default() };
        assert!(retry.is_due(&head(1), now) && !retry.has_failed());
        let refused = || Err(FleetError::Refused("too large".to_owned()));
        let mut waits = Vec::new();
        for _ in 0..6 {
            retry.ended(&head(1), &refused(), now);
            waits.push((0..).find(|s| retry.is_due(&head(1), now + Duration::from_secs(*s))).unwrap());
        }
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        assert!(retry.is_due(&head(2), now) && retry.has_failed());
        retry.ended(&head(2), &Ok(()), now);
        assert!(retry.is_due(&head(1), now) && !retry.has_failed());
    }
}
