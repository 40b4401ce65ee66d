//! The latest changes of overrides: a node that knows some revision need not read a hundred thousand overrides to learn of
//! one ban.

use serde::{Deserialize, Serialize};
use sqlx::{AnyConnection, Row as _};

use crate::connect::RuleStore;
use crate::error::Result;
use crate::overrides::KeyOverride;
use crate::versions::{number, signed};

/// The most changes kept. A node further behind reads all overrides.
pub const MOST_CHANGES: u64 = 256;

/// One change of overrides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideChange {
    /// Its revision: one more than that of the change before.
    pub revision: u64,
    /// The override's id.
    pub id: String,
    /// The new override; `None` if it was lifted.
    pub made: Option<KeyOverride>,
    /// Distinguishes it from an equal revision in a database that was restored since.
    #[serde(default)]
    pub mark: u64,
}

impl OverrideChange {
    /// Applies it to `all`, which are sorted by id and stay so: nodes must agree on the order, whichever way they learned of
    /// a change.
    pub fn apply(self, all: &mut Vec<KeyOverride>) {
        let OverrideChange { id, made, .. } = self;
        let Some(made) = made else { return all.retain(|one| one.id != id) };
        let key = |one: &KeyOverride| {
            one.what.domain == made.what.domain
                && one.what.rule == made.what.rule
                && one.what.when == made.what.when
        };
        all.retain(|one| !key(one));
        let place = all.partition_point(|one| one.id < made.id);
        all.insert(place, made);
    }
}

impl RuleStore {
    /// The changes after revision `since`, which has this mark, up to `until`, oldest first; `None` if some are no longer
    /// kept, or the database was restored to before that revision.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn override_changes(
        &self,
        (since, mark): (u64, u64),
        until: u64,
    ) -> Result<Option<Vec<OverrideChange>>> {
        if until < since || until - since > MOST_CHANGES {
            return Ok(None);
        }
        let query = sqlx::query(
            "SELECT revision, id, made, mark FROM override_changes WHERE revision >= $1 AND revision <= $2 \
             ORDER BY revision",
        );
        let rows = query.bind(signed(since)).bind(signed(until)).fetch_all(&self.pool);
        let rows = self.soon(rows).await?;
        // No change precedes the first one.
        let before = usize::from(since > 0);
        if rows.len() as u64 != until - since + before as u64 {
            return Ok(None);
        }
        if before == 1 && number(&rows[0], 3)? != mark {
            return Ok(None);
        }
        let mut changes = Vec::new();
        for row in &rows[before..] {
            let made: String = row.try_get(2)?;
            let made = match made.as_str() {
                "" => None,
                text => match serde_json::from_str(text) {
                    Ok(made) => Some(made),
                    // A later release may write another format: all overrides can still be read.
                    Err(_) => return Ok(None),
                },
            };
            let (revision, mark) = (number(row, 0)?, number(row, 3)?);
            changes.push(OverrideChange { revision, id: row.try_get(1)?, made, mark });
        }
        Ok(Some(changes))
    }
}

/// Records the change that the head has just counted, in the same transaction.
pub(crate) async fn insert(
    connection: &mut AnyConnection,
    id: &str,
    made: Option<&KeyOverride>,
) -> Result<()> {
    let made = made.map(|made| serde_json::to_string(made).expect("an override is JSON"));
    sqlx::query(
        "INSERT INTO override_changes (revision, id, made, mark) \
         SELECT overrides, $1, $2, overrides_mark FROM head",
    )
    .bind(id)
    .bind(made.unwrap_or_default())
    .execute(connection)
    .await?;
    Ok(())
}
