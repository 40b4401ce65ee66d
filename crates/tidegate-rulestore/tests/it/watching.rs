//! A watcher notices a change: at once, or within the poll interval if notifications are lost.

use std::time::Duration;

use tidegate_rulestore::{Action, NewOverride, RuleStore};
use tidegate_testkit::{Fault, FaultProxy, Postgres};

use crate::world::{Database, NOW, ann, on_both, publish, run, set};

/// Longer than a busy machine takes, and shorter than the poll.
const AT_ONCE: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::from_secs(3600);

on_both!(a_change_wakes_who_watches_in_the_same_process_also_if_it_looked_away, |database| {
    let store = database.store().await;
    let mut watch = store.watch().polling_every(NEVER);
    publish(&store, 0, &set(&[("api", "one")]), "").await.unwrap();
    let woken = tokio::time::timeout(AT_ONCE, watch.next()).await.expect("it was woken");
    assert_eq!(woken.unwrap().version, 1);
    let (when, limits) = ([("user".to_owned(), "1".to_owned())].into(), Vec::new());
    let (domain, reason) = ("api".into(), String::new());
    let ban = NewOverride { domain, rule: None, when, action: Action::Ban, limits, until_us: None, reason };
    store.add_override(ban, &ann(), NOW).await.unwrap();
    let woken = async { while watch.next().await.unwrap().overrides == 0 {} };
    tokio::time::timeout(AT_ONCE, woken).await.expect("it was woken");
});

#[test]
fn another_node_on_postgres_is_notified() {
    let database = Database::postgres();
    run(async {
        let (here, there) = (database.store().await, database.store().await);
        let mut watch = there.watch().polling_every(NEVER);
        // The first answer shows that it listens.
        assert_eq!(watch.next().await.unwrap().version, 0);
        publish(&here, 0, &set(&[("api", "one")]), "").await.unwrap();
        let heard = tokio::time::timeout(AT_ONCE, watch.next()).await.expect("a notification");
        assert_eq!(heard.unwrap().version, 1);
    });
}

#[test]
fn a_notification_that_was_lost_is_made_up_for_by_the_poll() {
    let proxy = FaultProxy::start(Postgres::shared().addr());
    let url = Postgres::shared().new_database_at(proxy.addr());
    let direct = url.replace(&proxy.addr().to_string(), &Postgres::shared().addr().to_string());
    run(async {
        let here = RuleStore::open(&direct.parse().unwrap()).unwrap();
        here.migrate().await.unwrap();
        let there = RuleStore::open(&url.parse().unwrap()).unwrap();
        let mut watch = there.watch().polling_every(Duration::from_millis(50));
        assert_eq!(watch.next().await.unwrap().version, 0);
        // Nothing gets through, not even the notification; queries meanwhile fail.
        proxy.set(Fault::Refuse);
        publish(&here, 0, &set(&[("api", "one")]), "").await.unwrap();
        assert!(watch.next().await.is_err());
        proxy.set(Fault::None);
        let heard = async {
            loop {
                if let Ok(head) = watch.next().await {
                    return head.version;
                }
            }
        };
        assert_eq!(tokio::time::timeout(AT_ONCE, heard).await.expect("it asks again"), 1);
    });
}
