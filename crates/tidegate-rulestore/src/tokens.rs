//! Access to the admin API: tokens, dashboard sessions, and one-time log-in codes. Only digests are stored.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use sqlx::any::AnyRow;
use tidegate_rules::Timestamp;

use crate::audit::{self, Actor};
use crate::connect::{RuleStore, commit};
use crate::error::{Error, Result};
use crate::overrides::ended_long_ago;
use crate::schema;
use crate::secret::Secret;
use crate::versions::{number, signed};

/// The most tokens, and the most sessions.
const MOST_TOKENS: u64 = 10_000;

/// A role; each includes the permissions of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read only.
    Viewer,
    /// May change rules and keys.
    Editor,
    /// May also manage tokens.
    Admin,
}

impl Role {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Editor => "editor",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known = [Role::Viewer, Role::Editor, Role::Admin].into_iter().find(|role| role.name() == text);
        known.ok_or_else(|| format!("`{text}` is no role\nroles are viewer, editor and admin"))
    }
}

/// The kind of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// For a program, or a person at a shell.
    Token,
    /// For a browser, in a cookie.
    Session,
    /// The code of a log-in link.
    LogIn,
}

impl TokenKind {
    fn name(self) -> &'static str {
        match self {
            TokenKind::Token => "token",
            TokenKind::Session => "session",
            TokenKind::LogIn => "login",
        }
    }
}

/// A token to create.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its kind.
    pub kind: TokenKind,
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// When it expires; `None` for never.
    pub expires: Option<Timestamp>,
}

/// A stored token, without the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredToken {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its author.
    pub author: String,
    /// When it was created.
    pub at: Timestamp,
    /// When it expires; `None` for never.
    pub expires: Option<Timestamp>,
}

const COLUMNS: &str = "id, name, role, author, at_us, expires_us, digest";

impl RuleStore {
    /// Creates a token and returns its secret, which is stored nowhere.
    ///
    /// # Errors
    /// There are too many, or the database does not answer.
    pub async fn create_token(
        &self,
        token: &NewToken,
        by: &Actor,
        at: Timestamp,
    ) -> Result<(StoredToken, Secret)> {
        let secret = Secret::generate()?;
        self.change(self.insert_token(token, &secret, by, at)).await?;
        let stored = StoredToken {
            id: secret.id().to_owned(),
            name: token.name.clone(),
            role: token.role,
            author: by.name.clone(),
            at,
            expires: token.expires,
        };
        Ok((stored, secret))
    }

    async fn insert_token(&self, token: &NewToken, secret: &Secret, by: &Actor, at: Timestamp) -> Result<()> {
        let mut transaction = self.pool.begin().await?;
        // Expired tokens make room first; writing first also spares SQLite an upgrade of the transaction.
        sqlx::query("DELETE FROM tokens WHERE expires_us <= $1")
            .bind(signed(ended_long_ago(at).as_micros()))
            .execute(&mut *transaction)
            .await?;
        schema::check(&mut transaction).await?;
        let count = sqlx::query("SELECT COUNT(*) FROM tokens WHERE kind = $1 AND expires_us > $2")
            .bind(token.kind.name())
            .bind(signed(at.as_micros()))
            .fetch_one(&mut *transaction)
            .await?;
        if number(&count, 0)? >= MOST_TOKENS {
            return Err(Error::Full { what: "tokens", most: MOST_TOKENS as usize });
        }
        sqlx::query(
            "INSERT INTO tokens (id, kind, name, role, digest, author, at_us, expires_us) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(secret.id())
        .bind(token.kind.name())
        .bind(&token.name)
        .bind(token.role.name())
        .bind(secret.digest())
        .bind(&by.name)
        .bind(signed(at.as_micros()))
        .bind(token.expires.map_or(i64::MAX, |expires| signed(expires.as_micros())))
        .execute(&mut *transaction)
        .await?;
        if token.kind == TokenKind::Token {
            let detail = serde_json::json!({ "name": token.name, "role": token.role, "id": secret.id() });
            audit::insert(&mut transaction, by, at, "token.create", &token.name, &detail).await?;
        }
        commit(transaction).await
    }

    /// The token with this secret, if it is of this kind and has not expired.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn verify(
        &self,
        secret: &Secret,
        kind: TokenKind,
        now: Timestamp,
    ) -> Result<Option<StoredToken>> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM tokens WHERE id = $1 AND kind = $2 AND expires_us > $3"
        )))
        .bind(secret.id())
        .bind(kind.name())
        .bind(signed(now.as_micros()));
        let row = self.soon(row.fetch_optional(&self.pool)).await?;
        let Some(row) = row else { return Ok(None) };
        let digest: String = row.try_get(6)?;
        if secret.has_digest(&digest) { read(&row).map(Some) } else { Ok(None) }
    }

    /// Whether this was a valid secret recently: its holder is not guessing, but gets no access.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn has_ended(&self, secret: &Secret, kind: TokenKind) -> Result<bool> {
        let row = sqlx::query("SELECT digest FROM tokens WHERE id = $1 AND kind = $2")
            .bind(secret.id())
            .bind(kind.name());
        let row = self.soon(row.fetch_optional(&self.pool)).await?;
        row.map_or(Ok(false), |row| Ok(secret.has_digest(row.try_get(0)?)))
    }

    /// Like [`RuleStore::verify`] for a log-in code, which works once.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn redeem(&self, secret: &Secret, now: Timestamp) -> Result<Option<StoredToken>> {
        let Some(token) = self.verify(secret, TokenKind::LogIn, now).await? else { return Ok(None) };
        Ok(self.delete_token(secret.id(), TokenKind::LogIn).await?.then_some(token))
    }

    /// All tokens of programs and people, sorted by name.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn tokens(&self) -> Result<Vec<StoredToken>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM tokens WHERE kind = 'token' ORDER BY name, id"
        )));
        let rows = self.soon(rows.fetch_all(&self.pool)).await?;
        rows.iter().map(read).collect()
    }

    /// Whether there is no token and no session.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn is_unclaimed(&self, now: Timestamp) -> Result<bool> {
        let row = sqlx::query("SELECT COUNT(*) FROM tokens WHERE kind <> $1 AND expires_us > $2")
            .bind(TokenKind::LogIn.name())
            .bind(signed(now.as_micros()));
        let row = self.soon(row.fetch_one(&self.pool)).await?;
        Ok(number(&row, 0)? == 0)
    }

    /// Revokes a token; false if there is none with this id.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn revoke_token(&self, id: &str, by: &Actor, at: Timestamp) -> Result<bool> {
        self.change(self.delete_revoked(id, by, at)).await
    }

    async fn delete_revoked(&self, id: &str, by: &Actor, at: Timestamp) -> Result<bool> {
        let mut transaction = self.pool.begin().await?;
        let deleted = sqlx::query("DELETE FROM tokens WHERE id = $1 AND kind = 'token'")
            .bind(id)
            .execute(&mut *transaction)
            .await?;
        if deleted.rows_affected() == 0 {
            return Ok(false);
        }
        audit::insert(&mut transaction, by, at, "token.revoke", id, &serde_json::json!({ "id": id })).await?;
        commit(transaction).await?;
        Ok(true)
    }

    /// Ends a session.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn end_session(&self, secret: &Secret) -> Result<bool> {
        self.delete_token(secret.id(), TokenKind::Session).await
    }

    async fn delete_token(&self, id: &str, kind: TokenKind) -> Result<bool> {
        let deleted =
            sqlx::query("DELETE FROM tokens WHERE id = $1 AND kind = $2").bind(id).bind(kind.name());
        let deleted = self.soon(deleted.execute(&self.pool)).await?;
        Ok(deleted.rows_affected() == 1)
    }
}

fn read(row: &AnyRow) -> Result<StoredToken> {
    let expires: i64 = row.try_get(5)?;
    Ok(StoredToken {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        // An unknown role of another release gets no permissions that this one does not know.
        role: row.try_get::<String, _>(2)?.parse().unwrap_or(Role::Viewer),
        author: row.try_get(3)?,
        at: Timestamp::from_micros(number(row, 4)?),
        expires: (expires != i64::MAX)
            .then(|| Timestamp::from_micros(u64::try_from(expires).unwrap_or_default())),
    })
}
