//! Versions: immutable, one after another, and of two editors one wins.

use std::time::Duration;

use tidegate_rules::Timestamp;
use tidegate_rulestore::{AuditFilter, Grant, NewToken, Origin, PublishError, Redeem, Revision, Role};

use crate::world::{NOW, ann, on_both, publish, set};

on_both!(a_new_database_has_no_version, |database| {
    let store = database.store().await;
    let head = store.head().await.unwrap();
    assert_eq!(head, Revision { lineage: head.lineage.clone(), ..Revision::default() });
    assert_eq!(store.documents(0).await.unwrap(), set(&[]));
    assert!(store.versions(u64::MAX, 10).await.unwrap().is_empty());
});

on_both!(a_version_reads_back_byte_for_byte, |database| {
    let store = database.store().await;
    let documents = set(&[
        ("api", "# naïve “quotes” 日本\ndomain: api\r\nrules: []\n\n# end"),
        ("web", "domain: web\nrules: []\n"),
    ]);
    let published = publish(&store, 0, &documents, "it's a \"first\"; DROP TABLE head").await.unwrap();
    assert_eq!(published.number, 1);
    assert_eq!(store.documents(1).await.unwrap(), documents);
    assert_eq!(store.version(1).await.unwrap(), Some(published.clone()));
    assert_eq!(
        (published.at, published.parent, published.domains),
        (NOW, None, vec!["api".into(), "web".into()])
    );
});

on_both!(earlier_versions_stay_as_they_were, |database| {
    let store = database.store().await;
    let (first, second) = (set(&[("api", "one"), ("web", "same")]), set(&[("api", "two"), ("web", "same")]));
    publish(&store, 0, &first, "first").await.unwrap();
    publish(&store, 1, &second, "second").await.unwrap();
    assert_eq!(store.documents(1).await.unwrap(), first);
    assert_eq!(store.documents(2).await.unwrap(), second);
    let history = store.versions(u64::MAX, 10).await.unwrap();
    let told: Vec<_> = history.iter().map(|one| (one.number, one.parent, one.reason.as_str())).collect();
    assert_eq!(told, [(2, Some(1), "second"), (1, None, "first")]);
});

on_both!(history_is_read_page_by_page, |database| {
    let store = database.store().await;
    for number in 0..5 {
        publish(&store, number, &set(&[("api", &format!("{number}"))]), "").await.unwrap();
    }
    let numbers = async |before, most| -> Vec<u64> {
        store.versions(before, most).await.unwrap().iter().map(|version| version.number).collect()
    };
    assert_eq!(numbers(u64::MAX, 2).await, [5, 4]);
    assert_eq!(numbers(4, 2).await, [3, 2]);
    assert_eq!(numbers(2, 2).await, [1]);
});

on_both!(a_change_made_on_an_older_version_is_refused_and_changes_nothing, |database| {
    let store = database.store().await;
    publish(&store, 0, &set(&[("api", "one")]), "first").await.unwrap();
    let late = publish(&store, 0, &set(&[("api", "late")]), "late").await;
    let Err(PublishError::Conflict { on: 0, head }) = late else { panic!("{late:?}") };
    assert_eq!(head.version, 1);
    assert_eq!(store.documents(1).await.unwrap(), set(&[("api", "one")]));
    assert_eq!(store.audit(&AuditFilter::default(), 10).await.unwrap().len(), 1);
});

on_both!(of_many_editors_at_once_exactly_one_wins_each_round, |database| {
    for on in 0..5 {
        let mut editors = tokio::task::JoinSet::new();
        for editor in 0..8 {
            let store = database.store().await;
            let documents = set(&[("api", &format!("by {editor} on {on}"))]);
            editors.spawn(async move { publish(&store, on, &documents, &format!("{editor}")).await });
        }
        let (mut won, mut lost) = (Vec::new(), 0);
        while let Some(editor) = editors.join_next().await {
            match editor.unwrap() {
                Ok(version) => won.push(version),
                Err(PublishError::Conflict { .. }) => lost += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!((won.len(), lost), (1, 7));
        let expected = format!("by {} on {on}", won[0].reason);
        assert_eq!(database.store().await.documents(on + 1).await.unwrap(), set(&[("api", &expected)]));
    }
});

on_both!(what_was_published_is_in_the_audit_log, |database| {
    let store = database.store().await;
    publish(&store, 0, &set(&[("api", "one")]), "because").await.unwrap();
    let entries = store.audit(&AuditFilter::default(), 10).await.unwrap();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((&*entry.actor, &*entry.role, &*entry.action, entry.at), ("ann", "editor", "publish", NOW));
    assert_eq!((&entry.detail["version"], &entry.detail["reason"]), (&1.into(), &"because".into()));
    let others = AuditFilter { actor: Some("bob".into()), ..AuditFilter::default() };
    assert!(store.audit(&others, 10).await.unwrap().is_empty());
});

on_both!(old_versions_can_be_forgotten_and_what_is_in_force_stays, |database| {
    let store = database.store().await;
    for number in 0..5 {
        publish(&store, number, &set(&[("api", &format!("{number}")), ("web", "same")]), "").await.unwrap();
    }
    store.forget_old(2, 3).await.unwrap();
    assert_eq!(store.versions(u64::MAX, 10).await.unwrap().len(), 2);
    assert_eq!(store.documents(5).await.unwrap(), set(&[("api", "4"), ("web", "same")]));
    assert_eq!(store.documents(3).await.unwrap(), set(&[]));
    assert_eq!(store.audit(&AuditFilter::default(), 10).await.unwrap().len(), 3);
    assert_eq!(publish(&store, 5, &set(&[("api", "0")]), "").await.unwrap().number, 6);
});

fn of(action: &str) -> AuditFilter {
    AuditFilter { action: Some(action.into()), ..AuditFilter::default() }
}

on_both!(sign_ins_displace_no_change_from_the_audit_log, |database| {
    let store = database.store().await;
    publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
    let none = serde_json::json!({});
    for number in 0..5 {
        let name = number.to_string();
        store.note(&ann(), NOW, "login", &name, &none).await.unwrap();
        store.note_failed_log_in(&name, NOW).await.unwrap();
    }
    store.forget_old(2, 3).await.unwrap();
    let mut kept = Vec::new();
    for action in ["publish", "login", "login.failed"] {
        kept.push(store.audit(&of(action), 10).await.unwrap().len());
    }
    assert_eq!(kept, [1, 3, 3]);
});

on_both!(tokens_made_with_links_displace_no_change_from_the_audit_log, |database| {
    let store = database.store().await;
    publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
    let viewer = NewToken { name: "viewer".into(), role: Role::Viewer, expires: None };
    let (viewer, _) = store.create_token(&viewer, &ann(), NOW).await.unwrap();
    let from = Grant {
        origin: Origin::Token(viewer.id),
        session: None,
        name: viewer.name,
        role: viewer.role,
        until: None,
    };
    let hour = Duration::from_secs(3_600);
    for number in 0..15 {
        let (_, code) = store.make_link(&from, hour, NOW).await.unwrap().unwrap();
        let into = Redeem::Token { name: &number.to_string() };
        store.redeem(&code, into, hour, NOW).await.unwrap().unwrap();
    }
    let entries = store.audit(&of("login.token"), 100).await.unwrap();
    assert_eq!((entries.len(), &entries[0].detail["repeated"]), (10, &5.into()), "whatever their names are");
    store.forget_old(2, 3).await.unwrap();
    let mut kept = Vec::new();
    for action in ["publish", "token.create", "login.token"] {
        kept.push(store.audit(&of(action), 100).await.unwrap().len());
    }
    assert_eq!(kept, [1, 1, 3]);
});

on_both!(repeated_sign_ins_are_counted_in_the_last_entry, |database| {
    let store = database.store().await;
    let from = serde_json::json!({ "from": "here" });
    for _ in 0..25 {
        store.note(&ann(), NOW, "login", "ann", &from).await.unwrap();
        store.note_failed_log_in("10.0.0.1", NOW).await.unwrap();
    }
    for action in ["login", "login.failed"] {
        let entries = store.audit(&of(action), 100).await.unwrap();
        assert_eq!((entries.len(), &entries[0].detail["repeated"]), (10, &15.into()), "{action}");
    }
    let entries = store.audit(&of("login"), 1).await.unwrap();
    assert_eq!(entries[0].detail["from"], "here");
    // Others, and the same one an hour later, are entries again.
    let later = Timestamp::from_micros(NOW.as_micros() + 3_600_000_000);
    store.note(&ann(), later, "login", "ann", &from).await.unwrap();
    store.note_failed_log_in("10.0.0.2", NOW).await.unwrap();
    assert_eq!(store.audit(&of("login"), 100).await.unwrap().len(), 11);
    assert_eq!(store.audit(&of("login.failed"), 100).await.unwrap().len(), 11);
});
