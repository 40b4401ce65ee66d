//! Overrides and bans of single keys.

use std::collections::BTreeMap;

use tidegate_rules::Timestamp;
use tidegate_rulestore::{
    Action, AuditFilter, KeyOverride, MOST_CHANGES, NewOverride, OverrideFilter, Revision, RuleStore,
};

use crate::world::{NOW, ann, on_both};

fn ban(user: &str) -> NewOverride {
    NewOverride {
        domain: "api".into(),
        rule: None,
        when: BTreeMap::from([("user".to_owned(), user.to_owned())]),
        action: Action::Ban,
        limits: Vec::new(),
        until_us: None,
        reason: "abuse".into(),
    }
}

async fn all(store: &RuleStore) -> Vec<KeyOverride> {
    store.all_overrides(NOW).await.unwrap()
}

on_both!(an_override_reads_back_as_it_was_made, |database| {
    let store = database.store().await;
    let limits =
        vec!["5000/minute".into(), serde_json::json!({ "algorithm": "token_bucket", "rate": "5/s" })];
    let what = NewOverride {
        rule: Some("per-user".into()),
        action: Action::Limits,
        limits,
        until_us: Some(NOW.as_micros() + 1),
        ..ban("acme \"quoted\" ' 日本")
    };
    let made = store.add_override(what.clone(), &ann(), NOW).await.unwrap();
    assert_eq!((&made.what, &*made.author, made.at_us), (&what, "ann", NOW.as_micros()));
    assert_eq!(all(&store).await, [made]);
    assert_eq!(store.head().await.unwrap().overrides, 1);
});

on_both!(a_second_override_of_a_key_replaces_the_first, |database| {
    let store = database.store().await;
    store.add_override(ban("42"), &ann(), NOW).await.unwrap();
    let lenient = NewOverride { action: Action::Unlimited, ..ban("42") };
    let second = store.add_override(lenient, &ann(), NOW).await.unwrap();
    let of_one_rule = NewOverride { rule: Some("login".into()), ..ban("42") };
    store.add_override(of_one_rule, &ann(), NOW).await.unwrap();
    let found = all(&store).await;
    assert_eq!(found.len(), 2);
    assert!(found.contains(&second));
});

on_both!(what_has_ended_is_listed_no_more_and_can_be_deleted, |database| {
    let store = database.store().await;
    let short = NewOverride { until_us: Some(NOW.as_micros() + 10), ..ban("1") };
    store.add_override(short, &ann(), NOW).await.unwrap();
    store.add_override(ban("2"), &ann(), NOW).await.unwrap();
    let after = |us: u64| Timestamp::from_micros(NOW.as_micros() + us);
    let listed = async |at| store.overrides(&OverrideFilter::default(), at, 10).await.unwrap().1;
    assert_eq!(listed(after(10)).await, 1);
    // A clock may be hours ahead; a node with a correct one still finds the ban.
    let day_us = 24 * 3_600 * 1_000_000;
    assert_eq!(store.delete_ended_overrides(after(day_us)).await.unwrap(), 0);
    assert_eq!((listed(NOW).await, store.all_overrides(after(day_us)).await.unwrap().len()), (2, 2));
    assert_eq!(store.all_overrides(after(day_us + 10)).await.unwrap().len(), 1);
    assert_eq!(store.delete_ended_overrides(after(day_us + 10)).await.unwrap(), 1);
    assert_eq!(all(&store).await.len(), 1);
});

on_both!(changes_that_follow_what_was_lost_in_a_restore_are_not_taken_for_the_next, |database| {
    let store = database.store().await;
    store.add_override(ban("1"), &ann(), NOW).await.unwrap();
    let kept = store.head().await.unwrap();
    store.add_override(ban("lost"), &ann(), NOW).await.unwrap();
    let lost = store.head().await.unwrap();
    // A backup from before the second change is restored, and two other changes follow.
    database.raw("DELETE FROM override_changes WHERE revision = 2; UPDATE head SET overrides = 1").await;
    for user in ["2", "3"] {
        store.add_override(ban(user), &ann(), NOW).await.unwrap();
    }
    let changes = async |since: Revision| {
        store.override_changes((since.overrides, since.marks.overrides), 3).await.unwrap()
    };
    assert_eq!(changes(lost).await, None);
    assert_eq!(changes(kept).await.unwrap().len(), 2);
});

on_both!(a_lifted_override_is_gone_and_the_log_says_who_and_why, |database| {
    let store = database.store().await;
    let made = store.add_override(ban("42"), &ann(), NOW).await.unwrap();
    let lifted = store.lift_override(&made.id, "sorry", &ann(), NOW).await.unwrap();
    assert_eq!(lifted, Some(made.clone()));
    assert!(all(&store).await.is_empty());
    assert_eq!(store.lift_override(&made.id, "", &ann(), NOW).await.unwrap(), None);
    let log = store
        .audit(&AuditFilter { action: Some("key.lift".into()), ..AuditFilter::default() }, 10)
        .await
        .unwrap();
    assert_eq!(log[0].detail["lifted_because"], "sorry");
    assert_eq!(store.head().await.unwrap().overrides, 2, "to lift none is no change");
});

on_both!(who_knows_the_overrides_of_a_revision_needs_the_changes_alone, |database| {
    let store = database.store().await;
    let first = store.add_override(ban("1"), &ann(), NOW).await.unwrap();
    store.add_override(ban("2"), &ann(), NOW).await.unwrap();
    let (mut known, mark) = (all(&store).await, store.head().await.unwrap().marks.overrides);
    store.add_override(NewOverride { action: Action::Unlimited, ..ban("2") }, &ann(), NOW).await.unwrap();
    store.add_override(ban("3"), &ann(), NOW).await.unwrap();
    store.lift_override(&first.id, "", &ann(), NOW).await.unwrap();
    assert_eq!(store.lift_override(&first.id, "", &ann(), NOW).await.unwrap(), None);
    let changes = store.override_changes((2, mark), 5).await.unwrap().expect("three changes are kept");
    changes.into_iter().for_each(|change| change.apply(&mut known));
    assert_eq!(known, all(&store).await, "in the same order, too");
    let head = store.head().await.unwrap();
    assert_eq!(store.override_changes((5, head.marks.overrides), 5).await.unwrap().unwrap(), []);
    assert_eq!(store.override_changes((2, mark), 6).await.unwrap(), None, "there is no sixth");
    assert_eq!(store.override_changes((6, mark), 5).await.unwrap(), None, "the database was set back");
});

on_both!(only_the_last_changes_of_overrides_are_kept, |database| {
    let store = database.store().await;
    for _ in 0..MOST_CHANGES + 2 {
        store.add_override(ban("1"), &ann(), NOW).await.unwrap();
    }
    assert_eq!(
        store.override_changes((0, 0), MOST_CHANGES + 1).await.unwrap(),
        None,
        "more than anybody wants"
    );
    let second =
        store.override_changes((0, 0), 2).await.unwrap().expect("nothing is forgotten yet").remove(1);
    store.forget_old(10, 10).await.unwrap();
    assert_eq!(store.override_changes((0, 0), 1).await.unwrap(), None);
    let kept = store.override_changes((2, second.mark), MOST_CHANGES + 2).await.unwrap().unwrap();
    assert_eq!(kept.len() as u64, MOST_CHANGES);
});

on_both!(overrides_are_found_by_part_of_a_key_and_page_by_page, |database| {
    let store = database.store().await;
    for user in ["alice", "al_fred", "bob", "100%"] {
        store.add_override(ban(user), &ann(), NOW).await.unwrap();
    }
    let find = async |search: &str| {
        let filter = OverrideFilter { search: Some(search.into()), ..OverrideFilter::default() };
        store.overrides(&filter, NOW, 10).await.unwrap().1
    };
    assert_eq!([find("al").await, find("al_").await, find("%").await, find("nobody").await], [2, 1, 1, 0]);
    let (first, total) = store.overrides(&OverrideFilter::default(), NOW, 3).await.unwrap();
    let after = OverrideFilter { after: Some(first[2].id.clone()), ..OverrideFilter::default() };
    let (rest, _) = store.overrides(&after, NOW, 3).await.unwrap();
    assert_eq!((first.len(), rest.len(), total), (3, 1, 4));
});
