//! Overrides and bans of single keys: rows, not versions, because there may be very many and each expires on its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use tidegate_rules::Timestamp;

use crate::audit::{self, Actor};
use crate::connect::{RuleStore, commit};
use crate::error::{Error, Result};
use crate::override_changes;
use crate::schema;
use crate::secret;
use crate::versions::{notify, number, signed};

/// The most overrides: all of them are compiled into every node's rules.
pub const MOST_OVERRIDES: usize = 200_000;
/// How long expired overrides are kept: a clock may be hours ahead until it is corrected.
const KEPT_AFTER_END_US: u64 = 24 * 3_600 * 1_000_000;

/// Overrides that expired before this are expired for good, even if a clock is some hours ahead of others.
#[must_use]
pub fn ended_long_ago(now: Timestamp) -> Timestamp {
    Timestamp::from_micros(now.as_micros().saturating_sub(KEPT_AFTER_END_US))
}

/// The effect of an override on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It gets limits of its own.
    Limits,
    /// It is refused.
    Ban,
    /// It is admitted uncounted.
    Unlimited,
}

impl Action {
    /// Its name in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Action::Limits => "limits",
            Action::Ban => "ban",
            Action::Unlimited => "unlimited",
        }
    }

    fn of(name: &str) -> Action {
        [Action::Limits, Action::Unlimited]
            .into_iter()
            .find(|action| action.name() == name)
            .unwrap_or(Action::Ban)
    }
}

/// An override to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOverride {
    /// The domain.
    pub domain: String,
    /// The rule; `None` for every rule of the domain.
    pub rule: Option<String>,
    /// The key: attributes and their values.
    pub when: BTreeMap<String, String>,
    /// Its effect.
    pub action: Action,
    /// Its limits as in a rule file, if any.
    pub limits: Vec<serde_json::Value>,
    /// When it expires, in microseconds since 1970; `None` for never.
    pub until_us: Option<u64>,
    /// Why.
    pub reason: String,
}

/// A stored override.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOverride {
    /// Its id.
    pub id: String,
    /// Its content.
    #[serde(flatten)]
    pub what: NewOverride,
    /// Who made it.
    pub author: String,
    /// When, in microseconds since 1970.
    pub at_us: u64,
}

/// Which overrides to read.
#[derive(Clone, Debug, Default)]
pub struct OverrideFilter {
    /// Only of this domain.
    pub domain: Option<String>,
    /// Only of this rule.
    pub rule: Option<String>,
    /// Only with this action.
    pub action: Option<Action>,
    /// Only with this text in the key.
    pub search: Option<String>,
    /// Only those after this id.
    pub after: Option<String>,
}

const COLUMNS: &str = "id, domain, rule, key_values, action, limits, until_us, author, reason, at_us";
const FITS: &str = "until_us > $1 AND ($2 = '' OR domain = $2) AND ($3 = '' OR rule = $3) \
    AND ($4 = '' OR action = $4) AND ($5 = '' OR key_values LIKE $5 ESCAPE '!')";

impl RuleStore {
    /// Creates an override. An existing one for the same key, domain and rule is replaced.
    ///
    /// # Errors
    /// There are too many, or the database does not answer.
    pub async fn add_override(&self, what: NewOverride, by: &Actor, at: Timestamp) -> Result<KeyOverride> {
        let id = secret::random_hex::<8>()?;
        let made = KeyOverride { id, what, author: by.name.clone(), at_us: at.as_micros() };
        self.change(self.insert_override(&made, by, at)).await?;
        Ok(made)
    }

    async fn insert_override(&self, made: &KeyOverride, by: &Actor, at: Timestamp) -> Result<()> {
        let key = key_text(&made.what);
        let mut transaction = self.pool.begin().await?;
        count_change(&mut transaction).await?;
        sqlx::query("DELETE FROM key_overrides WHERE domain = $1 AND rule = $2 AND key_values = $3")
            .bind(&made.what.domain)
            .bind(made.what.rule.clone().unwrap_or_default())
            .bind(&key)
            .execute(&mut *transaction)
            .await?;
        make_room(&mut transaction, at).await?;
        sqlx::query(
            "INSERT INTO key_overrides (id, domain, rule, key_values, action, limits, until_us, author, reason, at_us) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        )
        .bind(&made.id)
        .bind(&made.what.domain)
        .bind(made.what.rule.clone().unwrap_or_default())
        .bind(&key)
        .bind(made.what.action.name())
        .bind(serde_json::Value::from(made.what.limits.clone()).to_string())
        .bind(made.what.until_us.map_or(i64::MAX, signed))
        .bind(&made.author)
        .bind(&made.what.reason)
        .bind(signed(made.at_us))
        .execute(&mut *transaction)
        .await?;
        override_changes::insert(&mut transaction, &made.id, Some(made)).await?;
        let action = if made.what.action == Action::Ban { "key.ban" } else { "key.override" };
        audit::insert(&mut transaction, by, at, action, &target(made), &detail(made)).await?;
        notify(&mut transaction, self.url.kind).await?;
        commit(transaction).await?;
        self.changed.send_replace(());
        Ok(())
    }

    /// Lifts an override; `None` if there is none with this id.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn lift_override(
        &self,
        id: &str,
        reason: &str,
        by: &Actor,
        at: Timestamp,
    ) -> Result<Option<KeyOverride>> {
        self.change(self.delete_override(id, reason, by, at)).await
    }

    async fn delete_override(
        &self,
        id: &str,
        reason: &str,
        by: &Actor,
        at: Timestamp,
    ) -> Result<Option<KeyOverride>> {
        let mut transaction = self.pool.begin().await?;
        count_change(&mut transaction).await?;
        let row =
            sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM key_overrides WHERE id = $1")))
                .bind(id)
                .fetch_optional(&mut *transaction)
                .await?;
        let Some(row) = row else { return Ok(None) };
        let lifted = read(&row)?;
        sqlx::query("DELETE FROM key_overrides WHERE id = $1").bind(id).execute(&mut *transaction).await?;
        override_changes::insert(&mut transaction, id, None).await?;
        let mut told = detail(&lifted);
        told["lifted_because"] = reason.into();
        audit::insert(&mut transaction, by, at, "key.lift", &target(&lifted), &told).await?;
        notify(&mut transaction, self.url.kind).await?;
        commit(transaction).await?;
        self.changed.send_replace(());
        Ok(Some(lifted))
    }

    /// Up to `most` overrides that have not expired at `now`, sorted by id, and their total number.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn overrides(
        &self,
        filter: &OverrideFilter,
        now: Timestamp,
        most: u32,
    ) -> Result<(Vec<KeyOverride>, u64)> {
        let search = filter
            .search
            .as_ref()
            .map(|part| format!("%{}%", part.replace('!', "!!").replace('%', "!%").replace('_', "!_")));
        let fill = |statement: String| {
            sqlx::query(sqlx::AssertSqlSafe(statement))
                .bind(signed(now.as_micros()))
                .bind(filter.domain.clone().unwrap_or_default())
                .bind(filter.rule.clone().unwrap_or_default())
                .bind(filter.action.map(Action::name).unwrap_or_default())
                .bind(search.clone().unwrap_or_default())
        };
        let count = format!("SELECT COUNT(*) FROM key_overrides WHERE {FITS}");
        let total = number(&self.soon(fill(count).fetch_one(&self.pool)).await?, 0)?;
        let list =
            format!("SELECT {COLUMNS} FROM key_overrides WHERE {FITS} AND id > $6 ORDER BY id LIMIT $7");
        let rows = fill(list).bind(filter.after.clone().unwrap_or_default()).bind(i64::from(most));
        let rows = self.soon(rows.fetch_all(&self.pool)).await?;
        Ok((rows.iter().map(read).collect::<Result<_>>()?, total))
    }

    /// Every override that has not expired at `now`, or only recently: what nodes compile. Each node checks its own clock
    /// for every request, so an expired one has no effect, and one that a wrong clock took for expired works again once the
    /// clock is corrected.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn all_overrides(&self, now: Timestamp) -> Result<Vec<KeyOverride>> {
        let most = u32::try_from(MOST_OVERRIDES).unwrap_or(u32::MAX);
        Ok(self.overrides(&OverrideFilter::default(), ended_long_ago(now), most).await?.0)
    }

    /// Deletes overrides that expired long ago. Nodes already ignore them.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn delete_ended_overrides(&self, now: Timestamp) -> Result<u64> {
        self.change(async {
            let mut connection = self.pool.acquire().await?;
            delete_ended(&mut connection, ended_long_ago(now)).await
        })
        .await
    }
}

/// Counts a change: before anything else, so that other transactions wait here, and SQLite need not upgrade the transaction.
async fn count_change(connection: &mut AnyConnection) -> Result<()> {
    sqlx::query("UPDATE head SET overrides = overrides + 1, overrides_mark = $1")
        .bind(secret::random_mark()?)
        .execute(&mut *connection)
        .await?;
    schema::check(connection).await
}

/// Rejects an override beyond the bound, after deleting expired ones.
async fn make_room(connection: &mut AnyConnection, now: Timestamp) -> Result<()> {
    for has_room_made in [false, true] {
        let count = sqlx::query("SELECT COUNT(*) FROM key_overrides").fetch_one(&mut *connection).await?;
        if number(&count, 0)? < MOST_OVERRIDES as u64 {
            return Ok(());
        }
        if !has_room_made {
            delete_ended(connection, now).await?;
        }
    }
    Err(Error::Full { what: "key overrides", most: MOST_OVERRIDES })
}

async fn delete_ended(connection: &mut AnyConnection, before: Timestamp) -> Result<u64> {
    let deleted = sqlx::query("DELETE FROM key_overrides WHERE until_us <= $1")
        .bind(signed(before.as_micros()))
        .execute(connection)
        .await?;
    Ok(deleted.rows_affected())
}

fn key_text(what: &NewOverride) -> String {
    serde_json::to_string(&what.when).expect("a map of texts is JSON")
}

/// Its name in the audit log: values may be callers' secrets, so only attribute names appear.
fn target(made: &KeyOverride) -> String {
    let names: Vec<&str> = made.what.when.keys().map(String::as_str).collect();
    format!("{}/{} {}", made.what.domain, made.what.rule.as_deref().unwrap_or("*"), names.join(","))
}

fn detail(made: &KeyOverride) -> serde_json::Value {
    serde_json::to_value(made).expect("an override is JSON")
}

fn read(row: &AnyRow) -> Result<KeyOverride> {
    let until: i64 = row.try_get(6)?;
    let rule: String = row.try_get(2)?;
    Ok(KeyOverride {
        id: row.try_get(0)?,
        what: NewOverride {
            domain: row.try_get(1)?,
            rule: Some(rule).filter(|rule| !rule.is_empty()),
            when: serde_json::from_str(row.try_get(3)?).unwrap_or_default(),
            action: Action::of(row.try_get(4)?),
            limits: serde_json::from_str(row.try_get(5)?).unwrap_or_default(),
            until_us: (until != i64::MAX).then(|| u64::try_from(until).unwrap_or_default()),
            reason: row.try_get(8)?,
        },
        author: row.try_get(7)?,
        at_us: number(row, 9)?,
    })
}
