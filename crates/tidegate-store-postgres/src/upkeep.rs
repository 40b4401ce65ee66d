//! What a node does beside deciding: looks at the server, and sweeps what has ended.

use std::time::Duration;

use tidegate_store::StoreError;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::failure::Failure;
use crate::store::PostgresStore;

/// What a server reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// Its version.
    pub version: String,
    /// About how many rows there are, as its statistics say.
    pub rows: u64,
    /// The size of the table and its index.
    pub bytes: u64,
    /// What an operator should change.
    pub warnings: Vec<String>,
}

const LOOK: &str = "SELECT current_setting('server_version'), greatest(c.reltuples, 0)::bigint, \
                    pg_total_relation_size(c.oid)::bigint, current_setting('max_connections')::int, \
                    c.relpersistence = 'u' \
                    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                    WHERE n.nspname = 'tidegate' AND c.relname = 'cells'";
const SWEEP: &str = "SELECT deleted FROM tidegate.sweep_1($1)";
/// The most pages that one sweep visits: 8 MiB, some 50,000 rows.
const MOST_PAGES: i64 = 1_024;
const PATIENCE: Duration = Duration::from_secs(5);

impl PostgresStore {
    /// Looks at the server once, and writes to it: one whose disk is full answers every question.
    ///
    /// # Errors
    /// When it does not answer, or cannot be used: the error's source says why, on one line.
    pub async fn look(&self) -> Result<ServerReport, StoreError> {
        self.inner.write_something(self.inner.patient()).await?;
        let row = self.ask(LOOK, &[]).await?;
        let count = |column: usize| u64::try_from(row.get::<_, i64>(column)).unwrap_or_default();
        let mut warnings = Vec::new();
        if !row.get::<_, bool>(4) {
            warnings.push(
                "the table tidegate.cells is not unlogged: every decision is written to disk".to_owned(),
            );
        }
        Ok(ServerReport { version: row.get(0), rows: count(1), bytes: count(2), warnings })
    }

    /// Deletes what has ended from the next part of the table, unless another node did within the last second. Returns how many
    /// rows it deleted.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        let row = self.ask(SWEEP, &[(&MOST_PAGES, Type::INT8)]).await?;
        Ok(u64::try_from(row.get::<_, i64>(0)).unwrap_or_default())
    }

    /// Runs one statement on a connection of its own time: nobody waits for it.
    async fn ask(
        &self,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, StoreError> {
        let (inner, span) = (&self.inner, self.inner.patience());
        let asked = async {
            let lent = inner.pool.take(Instant::now() + span, span).await?;
            let until = Instant::now() + PATIENCE;
            let answer = timeout_at(until, lent.client().query_typed_one(statement, parameters)).await;
            let answer = answer.map_err(|_| Failure::TimedOut(PATIENCE))?;
            let answer = answer.map_err(|error| Failure::before_commit(error, PATIENCE));
            if !lent.client().is_closed() {
                lent.give_back();
            }
            answer
        };
        asked
            .await
            .map_err(|failure: Failure| failure.into_store_error(tidegate_store::Store::endpoint(self, 0)))
    }
}
