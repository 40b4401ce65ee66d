//! Versions: published in one transaction, and immutable.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use tidegate_rules::Timestamp;

use crate::audit::{self, Actor};
use crate::connect::{Kind, RuleStore, commit};
use crate::document::{Document, DocumentSet};
use crate::error::{Error, Result};
use crate::override_changes::MOST_CHANGES;
use crate::schema;
use crate::secret;
use crate::watch::CHANNEL;

/// What a database has published: its rules and its key overrides at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// The unique name of the database.
    pub lineage: String,
    /// The newest version; 0 before the first, and if rules come from files.
    pub version: u64,
    /// The number of changes of key overrides.
    pub overrides: u64,
    /// Distinguishes both from equal numbers in a restored database.
    #[serde(default)]
    pub marks: Marks,
}

impl Revision {
    /// Grows with every change of rules or overrides.
    #[must_use]
    pub fn number(&self) -> u64 {
        // Saturating: other nodes' numbers come from the shared store.
        self.version.saturating_add(self.overrides)
    }
}

/// Random numbers of the last changes. A restored database counts to the same numbers again, but its marks differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// The newest version's; 0 before the first, or if an earlier release published it.
    pub version: u64,
    /// That of the last change of overrides.
    pub overrides: u64,
}

/// A version without its documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its number: one more than the one it was made on.
    pub number: u64,
    /// The version it was made on; `None` for the first.
    pub parent: Option<u64>,
    /// Who published it.
    pub author: String,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: String,
    /// The domains of its documents.
    pub domains: Vec<String>,
}

/// A set of documents to publish.
#[derive(Clone, Debug)]
pub struct Publication<'a> {
    /// The version that the change was made on.
    pub on: u64,
    /// The whole set.
    pub documents: &'a DocumentSet,
    /// Who publishes it.
    pub by: &'a Actor,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: &'a str,
    /// Its name in the audit log: `publish`, `rollback`, `import`.
    pub action: &'a str,
}

/// Why nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Another version was published first.
    #[error("version {} is in force, and the change was made on {on}", .head.version)]
    Conflict {
        /// The version that the change was made on.
        on: u64,
        /// What is in force.
        head: Revision,
    },
    /// The database failed.
    #[error(transparent)]
    Store(#[from] Error),
}

impl From<sqlx::Error> for PublishError {
    fn from(error: sqlx::Error) -> Self {
        PublishError::Store(error.into())
    }
}

const VERSION: &str = "SELECT number, parent, author, at_us, reason FROM versions";

impl RuleStore {
    /// What is published now.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn head(&self) -> Result<Revision> {
        let query = sqlx::query(
            "SELECT version, overrides, version_mark, overrides_mark, value FROM head, meta WHERE name = 'lineage'",
        );
        let row = self.soon(query.fetch_one(&self.pool)).await?;
        let marks = Marks { version: number(&row, 2)?, overrides: number(&row, 3)? };
        Ok(Revision {
            lineage: row.try_get(4)?,
            version: number(&row, 0)?,
            overrides: number(&row, 1)?,
            marks,
        })
    }

    /// Publishes a set of documents as the next version: whole, or not at all.
    ///
    /// # Errors
    /// The current version is not the one it was made on, or the database does not answer.
    pub async fn publish(&self, publication: &Publication<'_>) -> std::result::Result<Version, PublishError> {
        self.change(self.insert_version(publication)).await
    }

    async fn insert_version(
        &self,
        publication: &Publication<'_>,
    ) -> std::result::Result<Version, PublishError> {
        let mut transaction = self.pool.begin().await?;
        // First of all: the transaction that changes this row is the one that publishes, and all others wait here.
        let claim = "UPDATE head SET version = version + 1, version_mark = $2 WHERE version = $1";
        let claimed = sqlx::query(claim)
            .bind(signed(publication.on))
            .bind(secret::random_mark()?)
            .execute(&mut *transaction)
            .await?;
        if claimed.rows_affected() == 0 {
            drop(transaction);
            return Err(PublishError::Conflict { on: publication.on, head: self.head().await? });
        }
        schema::check(&mut transaction).await?;
        let number = publication.on + 1;
        sqlx::query(
            "INSERT INTO versions (number, parent, author, at_us, reason) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(signed(number))
        .bind(signed(publication.on))
        .bind(&publication.by.name)
        .bind(signed(publication.at.as_micros()))
        .bind(publication.reason)
        .execute(&mut *transaction)
        .await?;
        for (domain, text) in publication.documents.iter() {
            insert_document(&mut transaction, number, domain, text).await?;
        }
        let detail =
            serde_json::json!({ "version": number, "on": publication.on, "reason": publication.reason });
        let target = format!("version {number}");
        audit::insert(&mut transaction, publication.by, publication.at, publication.action, &target, &detail)
            .await?;
        notify(&mut transaction, self.url.kind).await?;
        commit(transaction).await?;
        self.changed.send_replace(());
        Ok(Version {
            number,
            parent: Some(publication.on).filter(|parent| *parent > 0),
            author: publication.by.name.clone(),
            at: publication.at,
            reason: publication.reason.to_owned(),
            domains: publication.documents.iter().map(|(domain, _)| domain.to_owned()).collect(),
        })
    }

    /// One version; `None` if it never existed, or was deleted.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn version(&self, wanted: u64) -> Result<Option<Version>> {
        Ok(self.versions(wanted.saturating_add(1), 1).await?.into_iter().find(|found| found.number == wanted))
    }

    /// Up to `most` versions before `before`, newest first.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn versions(&self, before: u64, most: u32) -> Result<Vec<Version>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "{VERSION} WHERE number < $1 ORDER BY number DESC LIMIT $2"
        )))
        .bind(signed(before))
        .bind(i64::from(most));
        let rows = self.soon(rows.fetch_all(&self.pool)).await?;
        let mut versions: Vec<Version> = rows.iter().map(read).collect::<Result<_>>()?;
        let Some(oldest) = versions.last().map(|version| version.number) else { return Ok(versions) };
        let rows = sqlx::query(
            "SELECT version, domain FROM documents WHERE version >= $1 AND version < $2 ORDER BY version, domain",
        )
        .bind(signed(oldest))
        .bind(signed(before));
        let rows = self.soon(rows.fetch_all(&self.pool)).await?;
        for row in &rows {
            let of = number(row, 0)?;
            if let Some(version) = versions.iter_mut().find(|version| version.number == of) {
                version.domains.push(row.try_get(1)?);
            }
        }
        Ok(versions)
    }

    /// The documents of a version; an empty set for version 0.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn documents(&self, version: u64) -> Result<DocumentSet> {
        let query = sqlx::query(
            "SELECT domain, text FROM documents JOIN texts ON texts.digest = documents.digest WHERE version = $1",
        );
        let rows = self.soon(query.bind(signed(version)).fetch_all(&self.pool)).await?;
        let document = |row: &AnyRow| Ok(Document { domain: row.try_get(0)?, text: row.try_get(1)? });
        let documents: Vec<Document> = rows.iter().map(document).collect::<Result<_>>()?;
        Ok(DocumentSet::new(documents))
    }

    /// Deletes all but the newest `versions` versions and `audit` entries of each kind, and texts that no version uses.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn forget_old(&self, versions: u64, audit: u64) -> Result<()> {
        self.change(self.delete_old(versions, audit)).await
    }

    async fn delete_old(&self, versions: u64, audit: u64) -> Result<()> {
        let mut transaction = self.pool.begin().await?;
        let kept = "(SELECT version FROM head) - $1";
        for statement in [
            format!("DELETE FROM versions WHERE number <= {kept}"),
            format!("DELETE FROM documents WHERE version <= {kept}"),
        ] {
            sqlx::query(sqlx::AssertSqlSafe(statement))
                .bind(signed(versions))
                .execute(&mut *transaction)
                .await?;
        }
        sqlx::query("DELETE FROM texts WHERE digest NOT IN (SELECT digest FROM documents)")
            .execute(&mut *transaction)
            .await?;
        sqlx::query("DELETE FROM override_changes WHERE revision <= (SELECT overrides FROM head) - $1")
            // And the one before them, on which they build.
            .bind(signed(MOST_CHANGES + 1))
            .execute(&mut *transaction)
            .await?;
        for kind in audit::KINDS {
            let first_too_many =
                format!("SELECT id FROM audit WHERE {kind} ORDER BY id DESC LIMIT 1 OFFSET $1");
            let delete = format!("DELETE FROM audit WHERE {kind} AND id <= ({first_too_many})");
            sqlx::query(sqlx::AssertSqlSafe(delete)).bind(signed(audit)).execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }
}

async fn insert_document(
    connection: &mut AnyConnection,
    version: u64,
    domain: &str,
    text: &str,
) -> Result<()> {
    let digest = hex::encode(Sha256::digest(text.as_bytes()));
    sqlx::query("INSERT INTO texts (digest, text) VALUES ($1, $2) ON CONFLICT (digest) DO NOTHING")
        .bind(&digest)
        .bind(text)
        .execute(&mut *connection)
        .await?;
    sqlx::query("INSERT INTO documents (version, domain, digest) VALUES ($1, $2, $3)")
        .bind(signed(version))
        .bind(domain)
        .bind(&digest)
        .execute(connection)
        .await?;
    Ok(())
}

/// Notifies other nodes, once the transaction is committed.
pub(crate) async fn notify(connection: &mut AnyConnection, kind: Kind) -> Result<()> {
    if kind == Kind::Postgres {
        sqlx::query("SELECT pg_notify($1, '')::text").bind(CHANNEL).execute(connection).await?;
    }
    Ok(())
}

fn read(row: &AnyRow) -> Result<Version> {
    Ok(Version {
        number: number(row, 0)?,
        parent: Some(number(row, 1)?).filter(|parent| *parent > 0),
        author: row.try_get(2)?,
        at: Timestamp::from_micros(number(row, 3)?),
        reason: row.try_get(4)?,
        domains: Vec::new(),
    })
}

/// Databases use signed integers; nothing here is negative.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn number(row: &AnyRow, column: usize) -> Result<u64> {
    Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or_default())
}
