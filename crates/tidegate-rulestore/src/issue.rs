//! Issues secrets, within a transaction: what they come from must exist, and there are never too many.
//!
//! Sessions have bounds of their own, and the oldest make room: nobody can keep others from signing in. A sign-in link
//! replaces the one before it.

use sqlx::{AnyConnection, Row as _};
use tidegate_rules::Timestamp;

use crate::error::{Error, Result};
use crate::grant::Origin;
use crate::secret::{self, Secret};
use crate::tokens::{Role, StoredToken, TokenKind, read_all, select};
use crate::versions::{number, signed};

/// The most tokens, and the most sessions.
const MOST_TOKENS: u64 = 10_000;
const MOST_SESSIONS: usize = 10_000;

/// The most sessions of one token, and of one address.
const MOST_SESSIONS_OF_TOKEN: usize = 100;
const MOST_SESSIONS_OF_ADDRESS: usize = 400;

/// The most tokens that were made with sign-in links of one token.
const MOST_TOKENS_OF_TOKEN: usize = 32;

/// The name in `meta` of the key that marks secrets of this database.
const KEY: &str = "secret_key";

/// A secret to issue.
pub(crate) struct Issue<'i> {
    pub(crate) kind: TokenKind,
    pub(crate) name: &'i str,
    pub(crate) role: Role,
    pub(crate) author: &'i str,
    pub(crate) origin: &'i Origin,
    /// The session that it comes from.
    pub(crate) session: &'i str,
    pub(crate) peer: &'i str,
    pub(crate) expires: Option<Timestamp>,
    /// For a sign-in link: when what is made of it ends.
    pub(crate) until: Option<Timestamp>,
}

/// Issues a secret, and returns what is stored of it; `None` if what it comes from has ended.
pub(crate) async fn issue(
    connection: &mut AnyConnection,
    new: &Issue<'_>,
    now: Timestamp,
) -> Result<Option<(StoredToken, Secret)>> {
    if let Origin::Token(id) = new.origin
        && !holds(connection, id, TokenKind::Token, now).await?
    {
        return Ok(None);
    }
    if !new.session.is_empty() && !holds(connection, new.session, TokenKind::Session, now).await? {
        return Ok(None);
    }
    make_room(connection, new, now).await?;
    let secret = Secret::generate(&key(connection).await?)?;
    let end = |at: Option<Timestamp>| at.map_or(i64::MAX, |at| signed(at.as_micros()));
    sqlx::query(
        "INSERT INTO tokens (id, kind, name, role, digest, author, at_us, expires_us, origin, session, peer, until_us) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(secret.id())
    .bind(new.kind.name())
    .bind(new.name)
    .bind(new.role.name())
    .bind(secret.digest())
    .bind(new.author)
    .bind(signed(now.as_micros()))
    .bind(end(new.expires))
    .bind(new.origin.text())
    .bind(new.session)
    .bind(new.peer)
    .bind(end(new.until))
    .execute(&mut *connection)
    .await?;
    let stored = sqlx::query(select("id = $1")).bind(secret.id()).fetch_all(connection).await?;
    Ok(read_all(&stored)?.pop().map(|stored| (stored, secret)))
}

/// Whether it exists. Its row is written, which changes nothing but locks it until this transaction ends: whoever deletes it
/// waits, and then also finds what was issued here.
async fn holds(connection: &mut AnyConnection, id: &str, kind: TokenKind, now: Timestamp) -> Result<bool> {
    let written =
        sqlx::query("UPDATE tokens SET kind = kind WHERE id = $1 AND kind = $2 AND expires_us > $3")
            .bind(id)
            .bind(kind.name())
            .bind(signed(now.as_micros()))
            .execute(connection)
            .await?;
    Ok(written.rows_affected() == 1)
}

async fn make_room(connection: &mut AnyConnection, new: &Issue<'_>, now: Timestamp) -> Result<()> {
    match (new.kind, new.origin) {
        (TokenKind::Session, _) => {
            for (column, value, most) in [
                ("origin", new.origin.text(), MOST_SESSIONS_OF_TOKEN),
                ("peer", new.peer.to_owned(), MOST_SESSIONS_OF_ADDRESS),
                ("kind", new.kind.name().to_owned(), MOST_SESSIONS),
            ] {
                for id in beyond(connection, new.kind, (column, &value), most).await? {
                    forget_session(connection, &id).await?;
                }
            }
        }
        (TokenKind::LogIn, origin) => {
            sqlx::query("DELETE FROM tokens WHERE kind = $1 AND origin = $2")
                .bind(new.kind.name())
                .bind(origin.text())
                .execute(connection)
                .await?;
        }
        (TokenKind::Token, Origin::Operator) => {
            let count = sqlx::query("SELECT COUNT(*) FROM tokens WHERE kind = $1 AND expires_us > $2")
                .bind(new.kind.name())
                .bind(signed(now.as_micros()))
                .fetch_one(connection)
                .await?;
            if number(&count, 0)? >= MOST_TOKENS {
                return Err(Error::Full { what: "tokens", most: MOST_TOKENS as usize });
            }
        }
        (TokenKind::Token, origin) => {
            let of_origin = ("origin", &*origin.text());
            for id in beyond(connection, new.kind, of_origin, MOST_TOKENS_OF_TOKEN).await? {
                end(connection, &id).await?;
            }
        }
    }
    Ok(())
}

/// The oldest of those with this value in this column, if one more would make them more than `most`.
async fn beyond(
    connection: &mut AnyConnection,
    kind: TokenKind,
    (column, value): (&str, &str),
    most: usize,
) -> Result<Vec<String>> {
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
        "SELECT id FROM tokens WHERE kind = $1 AND {column} = $2 ORDER BY at_us DESC, id LIMIT 1000 OFFSET {}",
        most - 1
    )))
    .bind(kind.name())
    .bind(value)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Deletes a session that makes room. What came from it goes on: it now comes from what that session came from.
async fn forget_session(connection: &mut AnyConnection, id: &str) -> Result<()> {
    let of = "SELECT session FROM tokens WHERE id = $1";
    sqlx::query(sqlx::AssertSqlSafe(format!("UPDATE tokens SET session = ({of}) WHERE session = $1")))
        .bind(id)
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM tokens WHERE id = $1").bind(id).execute(connection).await?;
    Ok(())
}

/// Ends a token or a session, and everything that came from it; false if there is none.
pub(crate) async fn end(connection: &mut AnyConnection, id: &str) -> Result<bool> {
    let ended = sqlx::query("DELETE FROM tokens WHERE id = $1")
        .bind(id)
        .execute(&mut *connection)
        .await?
        .rows_affected();
    // A second statement: it also sees what was issued while the first one waited.
    sqlx::query(
        "DELETE FROM tokens WHERE id IN ( \
           WITH RECURSIVE below (id) AS ( \
             SELECT id FROM tokens WHERE origin = 'token:' || $1 OR session = $1 \
             UNION SELECT tokens.id FROM tokens JOIN below ON tokens.origin = 'token:' || below.id OR tokens.session = below.id) \
           SELECT id FROM below)",
    )
    .bind(id)
    .execute(connection)
    .await?;
    Ok(ended == 1)
}

/// The key that marks the secrets of this database.
pub(crate) async fn key(connection: &mut AnyConnection) -> Result<String> {
    let row = sqlx::query("SELECT value FROM meta WHERE name = $1").bind(KEY).fetch_one(connection).await?;
    Ok(row.try_get(0)?)
}

/// Creates the key, once.
pub(crate) async fn create_key(connection: &mut AnyConnection) -> Result<()> {
    sqlx::query("INSERT INTO meta (name, value) VALUES ($1, $2)")
        .bind(KEY)
        .bind(secret::random_hex::<32>()?)
        .execute(connection)
        .await?;
    Ok(())
}
