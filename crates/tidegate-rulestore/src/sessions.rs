//! Sessions of the dashboard, and the sign-in links that open them.

use std::time::Duration;

use sqlx::AnyConnection;
use tidegate_rules::Timestamp;

use crate::audit::{self, Actor};
use crate::connect::{RuleStore, commit};
use crate::error::{Error, Result};
use crate::grant::{Grant, Origin};
use crate::issue::{self, Issue, issue};
use crate::secret::Secret;
use crate::tokens::{StoredToken, TokenKind, begin_issuing, find, read_all, select};
use crate::versions::signed;

/// What becomes of a sign-in link.
#[derive(Clone, Copy, Debug)]
pub enum Redeem<'r> {
    /// A session of a browser at this address.
    Session {
        /// The address.
        peer: &'r str,
    },
    /// A token for a machine.
    Token {
        /// Its name.
        name: &'r str,
    },
}

impl RuleStore {
    /// Opens a session; `None` if what it comes from has ended.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn open_session(
        &self,
        from: &Grant,
        peer: &str,
        lasts: Duration,
        now: Timestamp,
    ) -> Result<Option<(StoredToken, Secret)>> {
        self.change(async {
            let mut transaction = begin_issuing(self, now).await?;
            let issued = pass_on(&mut transaction, from, Redeem::Session { peer }, lasts, now).await?;
            commit(transaction).await?;
            Ok(issued)
        })
        .await
    }

    /// Makes a sign-in link, in place of the last one of the same token; `None` if what it comes from has ended.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn make_link(
        &self,
        from: &Grant,
        lasts: Duration,
        now: Timestamp,
    ) -> Result<Option<(StoredToken, Secret)>> {
        self.change(async {
            let mut transaction = begin_issuing(self, now).await?;
            let new = Issue {
                kind: TokenKind::LogIn,
                name: &from.name,
                role: from.role,
                author: &from.name,
                origin: &from.origin,
                session: from.session.as_deref().unwrap_or_default(),
                peer: "",
                expires: Some(from.end_after(now, lasts)),
                until: from.until,
            };
            let issued = issue(&mut transaction, &new, now).await?;
            commit(transaction).await?;
            Ok(issued)
        })
        .await
    }

    /// Exchanges the code of a sign-in link, which works once, for something that lasts for `lasts` and never longer than what
    /// the link came from. `None` if there is no such link; after an error it still works.
    ///
    /// # Errors
    /// The database does not answer, or the link is of a token that itself came from a link and would become another token.
    pub async fn redeem(
        &self,
        code: &Secret,
        into: Redeem<'_>,
        lasts: Duration,
        now: Timestamp,
    ) -> Result<Option<(StoredToken, Secret)>> {
        // Most codes that are wrong are found so without a write.
        if self.verify(code, TokenKind::LogIn, now).await?.is_none() {
            return Ok(None);
        }
        self.change(async {
            let mut transaction = begin_issuing(self, now).await?;
            let Some(link) = find(&mut transaction, code, TokenKind::LogIn, now).await? else {
                return Ok(None);
            };
            let deleted = sqlx::query("DELETE FROM tokens WHERE id = $1")
                .bind(code.id())
                .execute(&mut *transaction)
                .await?;
            if deleted.rows_affected() == 0 {
                return Ok(None);
            }
            let from = Grant {
                origin: link.origin,
                session: link.session,
                name: link.name,
                role: link.role,
                until: link.until,
            };
            let Some(issued) = pass_on(&mut transaction, &from, into, lasts, now).await? else {
                return Ok(None);
            };
            commit(transaction).await?;
            Ok(Some(issued))
        })
        .await
    }

    /// The sessions of a token, or of everybody, newest first.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn sessions(&self, of: Option<&Origin>, now: Timestamp) -> Result<Vec<StoredToken>> {
        let rows = select(
            "kind = 'session' AND expires_us > $1 AND ($2 = '' OR origin = $3) ORDER BY at_us DESC, id",
        );
        let rows = sqlx::query(rows)
            .bind(signed(now.as_micros()))
            .bind(if of.is_some() { "one" } else { "" })
            .bind(of.map(Origin::text).unwrap_or_default());
        read_all(&self.soon(rows.fetch_all(&self.pool)).await?)
    }

    /// Ends a session, and everything that came from it; false if there is none with this id, or it is another token's than
    /// `of`.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn end_session(
        &self,
        id: &str,
        of: Option<&Origin>,
        by: &Actor,
        at: Timestamp,
    ) -> Result<bool> {
        self.change(async {
            let found = sqlx::query(select("kind = 'session' AND id = $1")).bind(id);
            let found = read_all(&self.soon(found.fetch_all(&self.pool)).await?)?;
            let Some(session) = found.first().filter(|one| of.is_none_or(|of| *of == one.origin)) else {
                return Ok(false);
            };
            let mut transaction = self.pool.begin().await?;
            if !issue::end(&mut transaction, id).await? {
                return Ok(false);
            }
            let detail = serde_json::json!({ "id": id, "from": session.peer });
            audit::insert(&mut transaction, by, at, "logout", &session.name, &detail).await?;
            commit(transaction).await?;
            Ok(true)
        })
        .await
    }

    /// Gives a session that was opened with an operator's link the name of the person who uses it, for the history and the audit
    /// log. False if there is no such session.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn name_session(&self, id: &str, name: &str, by: &Actor, at: Timestamp) -> Result<bool> {
        self.change(async {
            let mut transaction = self.pool.begin().await?;
            // Other sessions have the name of their token: nobody takes another's.
            let named =
                sqlx::query("UPDATE tokens SET name = $1 WHERE kind = 'session' AND id = $2 AND origin = $3")
                    .bind(name)
                    .bind(id)
                    .bind(Origin::Operator.text())
                    .execute(&mut *transaction)
                    .await?;
            if named.rows_affected() == 0 {
                return Ok(false);
            }
            audit::insert(
                &mut transaction,
                by,
                at,
                "login",
                name,
                &serde_json::json!({ "id": id, "was": by.name }),
            )
            .await?;
            commit(transaction).await?;
            Ok(true)
        })
        .await
    }

    /// Whether nobody has ever signed in, and no token was ever made.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn is_unclaimed(&self) -> Result<bool> {
        let row = sqlx::query("SELECT value FROM meta WHERE name = 'claimed'");
        Ok(self.soon(row.fetch_optional(&self.pool)).await?.is_none())
    }
}

/// Issues what a grant is passed on to.
async fn pass_on(
    connection: &mut AnyConnection,
    from: &Grant,
    into: Redeem<'_>,
    lasts: Duration,
    now: Timestamp,
) -> Result<Option<(StoredToken, Secret)>> {
    let (kind, name, peer) = match into {
        Redeem::Session { peer } => (TokenKind::Session, &*from.name, peer),
        Redeem::Token { name } => (TokenKind::Token, name, ""),
    };
    if kind == TokenKind::Token && comes_from_a_link(connection, &from.origin).await? {
        return Err(Error::TokenOfToken);
    }
    let new = Issue {
        kind,
        name,
        role: from.role,
        author: &from.name,
        origin: &from.origin,
        session: from.session.as_deref().unwrap_or_default(),
        peer,
        expires: Some(from.end_after(now, lasts)),
        until: None,
    };
    let Some((stored, secret)) = issue(connection, &new, now).await? else { return Ok(None) };
    claim(connection).await?;
    if kind == TokenKind::Token {
        let by = Actor { name: from.name.clone(), role: from.role };
        // Anybody may do this again and again under other names: a sign-in, which is counted, not a change of who may what.
        audit::insert(connection, &by, now, "login.token", &by.name, &stored.told()).await?;
    }
    Ok(Some((stored, secret)))
}

/// Whether this token was made with a link of another one. Tokens of such tokens could not be bounded by token.
async fn comes_from_a_link(connection: &mut AnyConnection, origin: &Origin) -> Result<bool> {
    let Origin::Token(id) = origin else { return Ok(false) };
    let row = sqlx::query(select("id = $1")).bind(id).fetch_all(connection).await?;
    Ok(read_all(&row)?.first().is_some_and(|token| token.origin != Origin::Operator))
}

/// Remembers that somebody has signed in: from now on the server prints no link by itself.
pub(crate) async fn claim(connection: &mut AnyConnection) -> Result<()> {
    sqlx::query("INSERT INTO meta (name, value) VALUES ('claimed', '1') ON CONFLICT (name) DO NOTHING")
        .execute(connection)
        .await?;
    Ok(())
}
