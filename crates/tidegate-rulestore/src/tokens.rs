//! Access to the admin API: tokens, dashboard sessions, and one-time sign-in codes share a table. Only digests are stored.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;
use sqlx::{Any, AnyConnection, AssertSqlSafe, Row as _, Transaction};
use tidegate_rules::Timestamp;

use crate::audit::{self, Actor};
use crate::connect::{RuleStore, commit};
use crate::error::Result;
use crate::grant::Origin;
use crate::issue::{self, Issue, issue};
use crate::overrides::ended_long_ago;
use crate::schema;
use crate::secret::Secret;
use crate::sessions::claim;
use crate::versions::{number, signed};

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
    /// The code of a sign-in link.
    LogIn,
}

impl TokenKind {
    pub(crate) fn name(self) -> &'static str {
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
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// When it expires; `None` for never.
    pub expires: Option<Timestamp>,
}

/// A stored token, session or sign-in link, without the secret.
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
    /// What it belongs to and ends with; `Operator` for a token that an admin made.
    pub origin: Origin,
    /// The same, or what that was made with a link of: this comes from no other token. For bounds that links must not multiply.
    pub root: Origin,
    /// The session that it came from.
    pub session: Option<String>,
    /// The address that signed in.
    pub peer: String,
    /// For a sign-in link: when what is made of it ends at the latest.
    pub(crate) until: Option<Timestamp>,
}

impl StoredToken {
    /// What the audit log says of it.
    pub(crate) fn told(&self) -> serde_json::Value {
        serde_json::json!({ "name": self.name, "role": self.role, "id": self.id })
    }
}

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
        self.change(async {
            let mut transaction = begin_issuing(self, at).await?;
            let new = Issue {
                kind: TokenKind::Token,
                name: &token.name,
                role: token.role,
                author: &by.name,
                origin: &Origin::Operator,
                session: "",
                peer: "",
                expires: token.expires,
                until: None,
            };
            let issued = issue(&mut transaction, &new, at).await?;
            let (stored, secret) = issued.expect("what comes from nothing is always issued");
            claim(&mut transaction).await?;
            audit::insert(&mut transaction, by, at, "token.create", &token.name, &stored.told()).await?;
            commit(transaction).await?;
            Ok((stored, secret))
        })
        .await
    }

    /// The token with this secret, if it is of this kind and has not expired. Whether the origin of a session still exists,
    /// if it is a token of the configuration, only the node knows.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn verify(
        &self,
        secret: &Secret,
        kind: TokenKind,
        now: Timestamp,
    ) -> Result<Option<StoredToken>> {
        self.soon(async {
            let mut connection = self.pool.acquire().await?;
            Ok(find(&mut connection, secret, kind, now).await)
        })
        .await?
    }

    /// Whether this secret was valid once, of any kind: its holder is not guessing, but gets no access.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn has_ended(&self, secret: &Secret) -> Result<bool> {
        self.soon(async {
            let mut connection = self.pool.acquire().await?;
            Ok(was_issued(&mut connection, secret).await)
        })
        .await?
    }

    /// All tokens of programs and people, sorted by name.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn tokens(&self) -> Result<Vec<StoredToken>> {
        let rows = sqlx::query(select("kind = 'token' ORDER BY name, id"));
        read_all(&self.soon(rows.fetch_all(&self.pool)).await?)
    }

    /// Revokes a token, and with it its sessions, links and the tokens made with them; false if there is none with this id.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn revoke_token(&self, id: &str, by: &Actor, at: Timestamp) -> Result<bool> {
        self.change(async {
            let known = sqlx::query(select("kind = 'token' AND id = $1")).bind(id);
            if self.soon(known.fetch_all(&self.pool)).await?.is_empty() {
                return Ok(false);
            }
            let mut transaction = self.pool.begin().await?;
            if !issue::end(&mut transaction, id).await? {
                return Ok(false);
            }
            let detail = serde_json::json!({ "id": id });
            audit::insert(&mut transaction, by, at, "token.revoke", id, &detail).await?;
            commit(transaction).await?;
            Ok(true)
        })
        .await
    }
}

/// Begins a transaction that issues secrets. Expired ones make room first; writing first also spares SQLite an upgrade of
/// the transaction.
pub(crate) async fn begin_issuing(store: &RuleStore, now: Timestamp) -> Result<Transaction<'static, Any>> {
    let mut transaction = store.pool.begin().await?;
    sqlx::query("DELETE FROM tokens WHERE expires_us <= $1")
        .bind(signed(ended_long_ago(now).as_micros()))
        .execute(&mut *transaction)
        .await?;
    schema::check(&mut transaction).await?;
    Ok(transaction)
}

pub(crate) async fn find(
    connection: &mut AnyConnection,
    secret: &Secret,
    kind: TokenKind,
    now: Timestamp,
) -> Result<Option<StoredToken>> {
    let row = sqlx::query(select("id = $1 AND kind = $2 AND expires_us > $3"))
        .bind(secret.id())
        .bind(kind.name())
        .bind(signed(now.as_micros()))
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    if secret.has_digest(row.try_get(DIGEST)?) { read(&row).map(Some) } else { Ok(None) }
}

async fn was_issued(connection: &mut AnyConnection, secret: &Secret) -> Result<bool> {
    if secret.is_marked(&issue::key(connection).await?) {
        return Ok(true);
    }
    // Secrets of earlier releases have no mark.
    let row = sqlx::query("SELECT digest FROM tokens WHERE id = $1").bind(secret.id());
    let row = row.fetch_optional(connection).await?;
    row.map_or(Ok(false), |row| Ok(secret.has_digest(row.try_get(0)?)))
}

/// The last one is the origin of the token that is the origin of this one. There is none above that: `comes_from_a_link`.
const COLUMNS: &str = "id, name, role, author, at_us, expires_us, digest, origin, session, peer, until_us, \
     COALESCE((SELECT above.origin FROM tokens AS above WHERE above.id = SUBSTR(tokens.origin, 7)), '')";
const DIGEST: usize = 6;

/// A query for those that fit.
pub(crate) fn select(fitting: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("SELECT {COLUMNS} FROM tokens WHERE {fitting}"))
}

pub(crate) fn read_all(rows: &[AnyRow]) -> Result<Vec<StoredToken>> {
    rows.iter().map(read).collect()
}

fn read(row: &AnyRow) -> Result<StoredToken> {
    let end = |column: usize| -> Result<Option<Timestamp>> {
        let end: i64 = row.try_get(column)?;
        Ok((end != i64::MAX).then(|| Timestamp::from_micros(u64::try_from(end).unwrap_or_default())))
    };
    let (origin, above) = (Origin::of(row.try_get(7)?), Origin::of(row.try_get(11)?));
    Ok(StoredToken {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        // An unknown role of another release gets no permissions that this one does not know.
        role: row.try_get::<String, _>(2)?.parse().unwrap_or(Role::Viewer),
        author: row.try_get(3)?,
        at: Timestamp::from_micros(number(row, 4)?),
        expires: end(5)?,
        root: if above == Origin::Operator { origin.clone() } else { above },
        origin,
        session: Some(row.try_get::<String, _>(8)?).filter(|session| !session.is_empty()),
        peer: row.try_get(9)?,
        until: end(10)?,
    })
}
