//! The tables, and migrations from earlier releases.
//!
//! The statements are the same for both databases, except for row numbering. A released migration never changes; the next
//! one fixes its mistakes.
//!
//! No column is ever null, because drivers differ in how they pass nulls. An absent value is 0, the empty text, or the last
//! possible time.

use sqlx::{AnyConnection, AnyPool, Row as _};

use crate::connect::Kind;
use crate::error::{Error, Result};
use crate::issue;
use crate::secret;

/// The schema version of this release.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// Each migrates a database from the schema before. `{ID}` is an auto-incremented column.
const MIGRATIONS: [&[&str]; 4] = [
    &[
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        // One row: the current version and overrides. Changing it is what publishes.
        "CREATE TABLE head (version BIGINT NOT NULL, overrides BIGINT NOT NULL)",
        "CREATE TABLE versions (number BIGINT PRIMARY KEY, parent BIGINT NOT NULL, author TEXT NOT NULL, \
     at_us BIGINT NOT NULL, reason TEXT NOT NULL)",
        // Most versions change one document of many: each text is stored once.
        "CREATE TABLE texts (digest TEXT PRIMARY KEY, text TEXT NOT NULL)",
        "CREATE TABLE documents (version BIGINT NOT NULL, domain TEXT NOT NULL, digest TEXT NOT NULL, \
     PRIMARY KEY (version, domain))",
        "CREATE TABLE key_overrides (id TEXT PRIMARY KEY, domain TEXT NOT NULL, rule TEXT NOT NULL, \
     key_values TEXT NOT NULL, action TEXT NOT NULL, limits TEXT NOT NULL, until_us BIGINT NOT NULL, \
     author TEXT NOT NULL, reason TEXT NOT NULL, at_us BIGINT NOT NULL)",
        "CREATE INDEX key_overrides_until ON key_overrides (until_us)",
        "CREATE TABLE tokens (id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL, \
     digest TEXT NOT NULL, author TEXT NOT NULL, at_us BIGINT NOT NULL, expires_us BIGINT NOT NULL)",
        "CREATE TABLE audit (id {ID}, at_us BIGINT NOT NULL, actor TEXT NOT NULL, role TEXT NOT NULL, \
     action TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL)",
        "INSERT INTO head (version, overrides) VALUES (0, 0)",
    ],
    &[
        // The latest changes of overrides, by the count in `head` after each: `made` is empty if one was lifted.
        "CREATE TABLE override_changes (revision BIGINT PRIMARY KEY, id TEXT NOT NULL, made TEXT NOT NULL)",
    ],
    &[
        // Random for each change: a restored database counts to the same numbers again.
        "ALTER TABLE head ADD COLUMN version_mark BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE head ADD COLUMN overrides_mark BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE override_changes ADD COLUMN mark BIGINT NOT NULL DEFAULT 0",
    ],
    &[
        // The token that a session, a sign-in link or a token made with one belongs to, and the session that it came from.
        "ALTER TABLE tokens ADD COLUMN origin TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tokens ADD COLUMN session TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tokens ADD COLUMN peer TEXT NOT NULL DEFAULT ''",
        // When what is made with a sign-in link ends at the latest.
        "ALTER TABLE tokens ADD COLUMN until_us BIGINT NOT NULL DEFAULT 9223372036854775807",
        "CREATE INDEX tokens_origin ON tokens (origin)",
        "CREATE INDEX tokens_session ON tokens (session)",
        "INSERT INTO meta (name, value) SELECT 'claimed', '1' \
     WHERE EXISTS (SELECT 1 FROM tokens WHERE kind <> 'login') \
     OR EXISTS (SELECT 1 FROM audit WHERE action IN ('login', 'token.create'))",
        // Nobody knows which token they belong to: everybody signs in again.
        "DELETE FROM tokens WHERE kind <> 'token'",
    ],
];

/// The schema that brought the key that marks secrets.
const MARKS_SECRETS: usize = 4;

/// An arbitrary number, the same for all nodes: its holder migrates.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7466521)";

pub(crate) async fn migrate(pool: &AnyPool, kind: Kind) -> Result<()> {
    let found = sqlx::query("SELECT version FROM schema_version").fetch_optional(pool).await;
    // Every query begins here: it should be cheap.
    if let Ok(Some(row)) = found
        && row.try_get::<i64, _>(0)? == SCHEMA_VERSION
    {
        return Ok(());
    }
    let mut transaction = match kind {
        // Takes SQLite's write lock at once, so that what is read below stays true.
        Kind::Sqlite => pool.begin_with("BEGIN IMMEDIATE").await?,
        Kind::Postgres => pool.begin().await?,
    };
    if kind == Kind::Postgres {
        sqlx::query(LOCK).execute(&mut *transaction).await?;
    }
    let found = current(&mut transaction).await?;
    known(found)?;
    let done = usize::try_from(found).unwrap_or_default();
    let statements: Vec<String> = MIGRATIONS[done..]
        .concat()
        .iter()
        .map(|statement| statement.replace("{ID}", numbered(kind)))
        .collect();
    for statement in statements {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *transaction).await?;
    }
    if done == 0 {
        let lineage = secret::random_hex::<16>()?;
        sqlx::query("INSERT INTO meta (name, value) VALUES ('lineage', $1)")
            .bind(lineage)
            .execute(&mut *transaction)
            .await?;
    }
    if done < MARKS_SECRETS {
        issue::create_key(&mut transaction).await?;
    }
    if found < SCHEMA_VERSION {
        sqlx::query("UPDATE schema_version SET version = $1")
            .bind(SCHEMA_VERSION)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Refuses to change a database that a newer release has migrated while this one ran: it may maintain more than this one
/// knows of.
pub(crate) async fn check(connection: &mut AnyConnection) -> Result<()> {
    let row = sqlx::query("SELECT version FROM schema_version").fetch_one(connection).await?;
    known(row.try_get(0)?)
}

fn known(found: i64) -> Result<()> {
    if found > SCHEMA_VERSION {
        return Err(Error::NewerSchema { found, known: SCHEMA_VERSION });
    }
    Ok(())
}

/// The schema version of the database; 0 for an empty one.
async fn current(connection: &mut AnyConnection) -> Result<i64> {
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
        .execute(&mut *connection)
        .await?;
    let row = sqlx::query("SELECT version FROM schema_version").fetch_optional(&mut *connection).await?;
    if let Some(row) = row {
        return Ok(row.try_get(0)?);
    }
    sqlx::query("INSERT INTO schema_version (version) VALUES (0)").execute(connection).await?;
    Ok(0)
}

fn numbered(kind: Kind) -> &'static str {
    match kind {
        Kind::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
        Kind::Postgres => "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    }
}
