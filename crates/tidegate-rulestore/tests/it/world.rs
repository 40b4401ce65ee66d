//! A database of each kind, and short helpers.

use std::future::Future;

use sqlx::any::AnyPoolOptions;
use tempfile::TempDir;
use tidegate_rules::Timestamp;
use tidegate_rulestore::{Actor, Document, DocumentSet, Publication, PublishError, Role, RuleStore, Version};
use tidegate_testkit::Postgres;

pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// An empty database of one kind.
pub(crate) struct Database {
    pub(crate) url: String,
    _dir: TempDir,
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Database { url: format!("sqlite:{}", dir.path().join("rules.db").display()), _dir: dir }
    }

    pub(crate) fn postgres() -> Self {
        Database { url: Postgres::shared().new_database(), _dir: tempfile::tempdir().unwrap() }
    }

    /// A store of it, as one node has it; with the schema of this release.
    pub(crate) async fn store(&self) -> RuleStore {
        let store = self.closed_store();
        store.migrate().await.unwrap();
        store
    }

    /// Runs a statement bypassing the store.
    pub(crate) async fn raw(&self, statement: &'static str) {
        let url = match self.url.strip_prefix("sqlite:") {
            Some(path) => format!("sqlite://{path}"),
            None => self.url.clone(),
        };
        let pool = AnyPoolOptions::new().connect(&url).await.unwrap();
        sqlx::raw_sql(statement).execute(&pool).await.unwrap();
        pool.close().await;
    }

    /// The same before its first query.
    pub(crate) fn closed_store(&self) -> RuleStore {
        RuleStore::open(&self.url.parse().unwrap()).unwrap()
    }
}

/// Runs a test on both databases.
macro_rules! on_both {
    ($(#[$meta:meta])* $name:ident, |$database:ident| $body:block) => {
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports, reason = "each test takes what it needs")]
            use super::*;

            #[test]
            fn on_sqlite() {
                $crate::world::run(async { on($crate::world::Database::sqlite()).await });
            }

            #[test]
            fn on_postgres() {
                $crate::world::run(async { on($crate::world::Database::postgres()).await });
            }

            async fn on($database: $crate::world::Database) $body
        }
    };
}
pub(crate) use on_both;

pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

pub(crate) fn ann() -> Actor {
    Actor { name: "ann".to_owned(), role: Role::Editor }
}

pub(crate) fn set(documents: &[(&str, &str)]) -> DocumentSet {
    let document =
        |(domain, text): &(&str, &str)| Document { domain: (*domain).into(), text: (*text).into() };
    DocumentSet::new(documents.iter().map(document))
}

pub(crate) async fn publish(
    store: &RuleStore,
    on: u64,
    documents: &DocumentSet,
    reason: &str,
) -> Result<Version, PublishError> {
    let by = ann();
    store.publish(&Publication { on, documents, by: &by, at: NOW, reason, action: "publish" }).await
}
