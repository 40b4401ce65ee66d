//! The schema: created by the first node, rejected if newer.

use tidegate_rulestore::{Error, PublishError, SCHEMA_VERSION};

use crate::world::{Database, on_both, publish, run, set};

on_both!(many_nodes_may_start_at_once, |database| {
    let mut nodes = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = database.closed_store();
        nodes.spawn(async move { store.migrate().await.map(|()| store) });
    }
    let mut lineages = Vec::new();
    while let Some(node) = nodes.join_next().await {
        lineages.push(node.unwrap().unwrap().head().await.unwrap().lineage);
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
    database.raw("UPDATE schema_version SET version = version + 1").await;
    let refused = database.closed_store().migrate().await;
    let newer = SCHEMA_VERSION + 1;
    assert!(
        matches!(refused, Err(Error::NewerSchema { found, known: SCHEMA_VERSION }) if found == newer),
        "{refused:?}"
    );
    // Nor does a node change it that was started before the newer release.
    let changed = publish(&store, 1, &set(&[("api", "two")]), "").await;
    assert!(matches!(changed, Err(PublishError::Store(Error::NewerSchema { .. }))), "{changed:?}");
    assert_eq!(store.head().await.unwrap().version, 1);
    assert_eq!(store.documents(1).await.unwrap(), set(&[("api", "one")]));
});

#[test]
fn a_damaged_file_is_told_from_a_database_that_does_not_answer() {
    run(async {
        let database = Database::sqlite();
        let store = database.store().await;
        let long = "rule".repeat(20_000);
        publish(&store, 0, &set(&[("api", &long)]), "").await.unwrap();
        database.raw("PRAGMA wal_checkpoint(TRUNCATE)").await;
        store.close().await;
        let path = database.url.strip_prefix("sqlite:").unwrap();
        let whole = std::fs::read(path).unwrap();
        // Beyond the first page, so that it still looks like a database.
        let mut holed = whole.clone();
        holed[4096..].chunks_mut(4096).for_each(|page| page[..64].fill(0xa5));
        for (bytes, what) in [(vec![0xa5; whole.len()], "no SQLite database"), (holed, "")] {
            std::fs::write(path, bytes).unwrap();
            let told = database.closed_store().migrate().await.unwrap_err();
            assert!(matches!(&told, Error::Damaged { .. }), "{told:?}");
            assert!(told.to_string().contains(path) && told.to_string().contains(what), "{told}");
        }
        std::fs::write(path, &whole).unwrap();
        assert_eq!(database.store().await.head().await.unwrap().version, 1);
    });
}

on_both!(a_publish_that_the_disk_has_no_room_for_changes_nothing, |database| {
    let store = database.store().await;
    publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
    // The audit log is written last: like a disk that is full by then, the table is missing.
    database.raw("ALTER TABLE audit RENAME TO audit_elsewhere").await;
    let refused = publish(&store, 1, &set(&[("api", "two")]), "").await;
    assert!(refused.is_err());
    database.raw("ALTER TABLE audit_elsewhere RENAME TO audit").await;
    assert_eq!(store.head().await.unwrap().version, 1);
    assert_eq!(publish(&store, 1, &set(&[("api", "two")]), "").await.unwrap().number, 2);
});
