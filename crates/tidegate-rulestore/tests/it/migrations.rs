//! The schema: made by whoever comes first, refused if newer.

use sqlx::any::AnyPoolOptions;
use tidegate_rulestore::{Error, SCHEMA_VERSION};

use crate::world::{Database, on_both, publish, set};

async fn raw(database: &Database, statement: &'static str) {
    let url = match database.url.strip_prefix("sqlite:") {
        Some(path) => format!("sqlite://{path}"),
        None => database.url.clone(),
    };
    let pool = AnyPoolOptions::new().connect(&url).await.unwrap();
    sqlx::raw_sql(statement).execute(&pool).await.unwrap();
    pool.close().await;
}

on_both!(many_nodes_may_start_at_once, |database| {
    let mut nodes = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = database.closed_store();
        nodes.spawn(async move { store.migrate().await.map(|()| store) });
    }
    let mut lineages = Vec::new();
    while let Some(node) = nodes.join_next().await {
        lineages.push(node.unwrap().unwrap().lineage().await.unwrap());
    }
    lineages.dedup();
    assert_eq!(lineages.len(), 1);
});

on_both!(a_second_start_changes_nothing, |database| {
    let store = database.store().await;
    publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
    let again = database.store().await;
    assert_eq!(again.documents(1).await.unwrap(), set(&[("api", "one")]));
});

on_both!(a_newer_schema_is_refused_and_left_as_it_is, |database| {
    let store = database.store().await;
    publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
    raw(&database, "UPDATE schema_version SET version = version + 1").await;
    let refused = database.closed_store().migrate().await;
    let newer = SCHEMA_VERSION + 1;
    assert!(
        matches!(refused, Err(Error::NewerSchema { found, known: SCHEMA_VERSION }) if found == newer),
        "{refused:?}"
    );
    assert_eq!(store.documents(1).await.unwrap(), set(&[("api", "one")]));
});
