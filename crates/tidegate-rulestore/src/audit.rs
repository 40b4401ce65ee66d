//! The audit log: written in the same transaction as the change.

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use tidegate_rules::Timestamp;

use crate::connect::RuleStore;
use crate::error::Result;
use crate::tokens::Role;
use crate::versions::{number, signed};

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
    sqlx::query(
        "INSERT INTO audit (at_us, actor, role, action, target, detail) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(signed(at.as_micros()))
    .bind(&by.name)
    .bind(by.role.name())
    .bind(action)
    .bind(target)
    .bind(detail.to_string())
    .execute(connection)
    .await?;
    Ok(())
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
