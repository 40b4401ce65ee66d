//! The audit log: written in the same transaction as the change.
//!
//! Whoever may sign in could fill it by doing so again and again. So sign-ins, and failed ones, are kept apart from changes,
//! with bounds of their own, and what one actor repeats is counted in its last entry.

use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use tidegate_rules::Timestamp;

use crate::connect::RuleStore;
use crate::error::Result;
use crate::tokens::Role;
use crate::versions::{number, signed};

/// Every action that is written.
pub const AUDIT_ACTIONS: [&str; 16] = [
    "publish",
    "rollback",
    "key.reset",
    "key.ban",
    "key.override",
    "key.lift",
    "token.create",
    "token.revoke",
    "silence.create",
    "silence.end",
    "nodes.lead",
    "login",
    "login.link",
    "login.token",
    "logout",
    FAILED_LOG_IN,
];

const FAILED_LOG_IN: &str = "login.failed";

/// The actions of each kind, as SQL: what one kind holds does not displace another.
pub(crate) const KINDS: [&str; 3] = [
    "action NOT IN ('login', 'login.link', 'login.token', 'logout', 'login.failed')",
    "action IN ('login', 'login.link', 'login.token', 'logout')",
    "action = 'login.failed'",
];

/// The most entries of one kind of sign-in, actor and target in an hour; further ones are counted in the last. Of the newest
/// entries only so many are searched for them.
const MOST_ALIKE: usize = 10;
const ALIKE_WITHIN: Duration = Duration::from_secs(3_600);
const SEARCHED: i64 = 1_000;

/// The author of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The name of the token or session.
    pub name: String,
    /// Its role.
    pub role: Role,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number, ascending.
    pub id: u64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// The actor's role.
    pub role: String,
    /// The action, in one word: `publish`.
    pub action: String,
    /// The subject of the action.
    pub target: String,
    /// Details, depending on the action.
    pub detail: serde_json::Value,
}

/// Which entries to read.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Only entries before this one; `None` starts with the newest.
    pub before: Option<u64>,
    /// Only of this actor.
    pub actor: Option<String>,
    /// Only of this action.
    pub action: Option<String>,
}

impl RuleStore {
    /// Records an action that is not part of another change.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn note(
        &self,
        by: &Actor,
        at: Timestamp,
        action: &str,
        target: &str,
        detail: &serde_json::Value,
    ) -> Result<()> {
        self.change(async { insert(&mut *self.pool.acquire().await?, by, at, action, target, detail).await })
            .await
    }

    /// Records a failed sign-in, of which only the address is known.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn note_failed_log_in(&self, from: &str, at: Timestamp) -> Result<()> {
        let entry = Entry { actor: "unknown", role: "none", at, action: FAILED_LOG_IN, target: from };
        let write = async { entry.write(&mut *self.pool.acquire().await?, &serde_json::json!({})).await };
        self.change(write).await
    }

    /// Up to `most` entries, newest first.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn audit(&self, filter: &AuditFilter, most: u32) -> Result<Vec<AuditEntry>> {
        let rows = sqlx::query(
            "SELECT id, at_us, actor, role, action, target, detail FROM audit \
             WHERE id < $1 AND ($2 = '' OR actor = $2) AND ($3 = '' OR action = $3) ORDER BY id DESC LIMIT $4",
        )
        .bind(filter.before.map_or(i64::MAX, signed))
        .bind(filter.actor.clone().unwrap_or_default())
        .bind(filter.action.clone().unwrap_or_default())
        .bind(i64::from(most));
        let rows = self.soon(rows.fetch_all(&self.pool)).await?;
        rows.iter().map(read).collect()
    }
}

pub(crate) async fn insert(
    connection: &mut AnyConnection,
    by: &Actor,
    at: Timestamp,
    action: &str,
    target: &str,
    detail: &serde_json::Value,
) -> Result<()> {
    let entry = Entry { actor: &by.name, role: by.role.name(), at, action, target };
    entry.write(connection, detail).await
}

/// A new entry.
struct Entry<'e> {
    actor: &'e str,
    role: &'e str,
    at: Timestamp,
    action: &'e str,
    target: &'e str,
}

impl Entry<'_> {
    async fn write(&self, connection: &mut AnyConnection, detail: &serde_json::Value) -> Result<()> {
        debug_assert!(AUDIT_ACTIONS.contains(&self.action), "{} is not listed", self.action);
        if self.action.starts_with("log")
            && let Some((id, mut told)) = self.last_of_many(connection).await?
        {
            told["repeated"] = (told["repeated"].as_u64().unwrap_or(0) + 1).into();
            let update = sqlx::query("UPDATE audit SET detail = $1 WHERE id = $2").bind(told.to_string());
            update.bind(signed(id)).execute(connection).await?;
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO audit (at_us, actor, role, action, target, detail) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(signed(self.at.as_micros()))
        .bind(self.actor)
        .bind(self.role)
        .bind(self.action)
        .bind(self.target)
        .bind(detail.to_string())
        .execute(connection)
        .await?;
        Ok(())
    }

    /// The last entry like this one, where there are enough of them.
    async fn last_of_many(&self, connection: &mut AnyConnection) -> Result<Option<(u64, serde_json::Value)>> {
        let within = u64::try_from(ALIKE_WITHIN.as_micros()).unwrap_or(u64::MAX);
        let since = self.at.as_micros().saturating_sub(within);
        let rows = sqlx::query(
            "SELECT id, detail FROM (SELECT * FROM audit ORDER BY id DESC LIMIT $1) AS newest \
             WHERE actor = $2 AND action = $3 AND target = $4 AND at_us > $5 ORDER BY id DESC",
        )
        .bind(SEARCHED)
        .bind(self.actor)
        .bind(self.action)
        .bind(self.target)
        .bind(signed(since))
        .fetch_all(connection)
        .await?;
        match rows.first().filter(|_| rows.len() >= MOST_ALIKE) {
            Some(row) => {
                let told = serde_json::from_str(row.try_get(1)?).unwrap_or(serde_json::json!({}));
                Ok(Some((number(row, 0)?, told)))
            }
            None => Ok(None),
        }
    }
}

fn read(row: &AnyRow) -> Result<AuditEntry> {
    Ok(AuditEntry {
        id: number(row, 0)?,
        at: Timestamp::from_micros(number(row, 1)?),
        actor: row.try_get(2)?,
        role: row.try_get(3)?,
        action: row.try_get(4)?,
        target: row.try_get(5)?,
        detail: serde_json::from_str(row.try_get(6)?).unwrap_or_default(),
    })
}
