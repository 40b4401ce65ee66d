//! Independent servers.

use tidegate_store::{Request, Spend, Store};

use tidegate_testkit::ShardedRedis;

use crate::subject::{Target, a_day, patient, prompt, spend, store};

fn users(count: usize) -> Vec<Target> {
    (0..count).map(|number| Target::new("rule", &number.to_string(), a_day(3))).collect()
}

fn keys_on(sharded: &ShardedRedis) -> Vec<i64> {
    sharded.nodes().iter().map(|node| node.cmd(&["DBSIZE"]).int()).collect()
}

#[tokio::test]
async fn a_batch_is_one_call_per_server() {
    let sharded = ShardedRedis::start(5);
    let store = store(&sharded.url(), &patient());
    let users = users(500);
    let spends: Vec<[Spend<'_>; 1]> = users.iter().map(|user| [user.spend(1)]).collect();
    let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
    let outcomes = store.decide(&batch).answer().await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.is_admitted() && outcome.remaining == 2));
    for node in sharded.nodes() {
        // The first call brings the script along.
        let calls = node.cmd(&["INFO", "commandstats"]).text();
        let line = calls.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
        assert!(line.starts_with("cmdstat_evalsha:calls=2,"), "{line}");
    }
    let keys = keys_on(&sharded);
    assert_eq!(keys.iter().sum::<i64>(), 500);
    assert!(keys.iter().all(|keys| (60..=140).contains(keys)), "{keys:?}");
}

#[tokio::test]
async fn a_lost_server_concerns_its_own_users_and_nobody_else() {
    let sharded = ShardedRedis::start(5);
    let store = store(&sharded.url(), &prompt());
    let users = users(100);
    for user in &users {
        assert!(spend(&store, user).await.unwrap());
    }
    sharded.nodes()[2].kill();
    for user in &users {
        let answer = spend(&store, user).await;
        match store.node_of(&user.key) {
            2 => drop(answer.unwrap_err()),
            _ => assert!(answer.unwrap()),
        }
    }
    let name = store.endpoint(2);
    assert_eq!(name, sharded.nodes()[2].addr().to_string());
    store.probe(2).answer().await.unwrap_err();
    store.probe(3).answer().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_added_takes_its_share_of_the_users() {
    let sharded = ShardedRedis::start(6);
    let five = format!(
        "redis+sharded://{}",
        sharded.nodes()[..5].iter().map(|node| node.addr().to_string()).collect::<Vec<_>>().join(",")
    );
    let (before, after) = (store(&five, &patient()), store(&sharded.url(), &patient()));
    let users = users(600);
    for user in &users {
        spend(&before, user).await.unwrap();
    }
    let mut moved = 0;
    for user in &users {
        // Who did not move finds what was spent.
        let left = crate::subject::left(&after, user).await;
        assert_eq!(
            left == 3,
            before.endpoint(before.node_of(&user.key)) != after.endpoint(after.node_of(&user.key))
        );
        moved += u32::from(left == 3);
    }
    assert!((60..=140).contains(&moved), "{moved} of 600 moved to one server of six");
}

#[tokio::test]
async fn limiters_that_are_alive_are_counted() {
    let sharded = ShardedRedis::start(3);
    let (one, other) = (store(&sharded.url(), &patient()), store(&sharded.url(), &patient()));
    let ttl = tidegate_core::Micros::from_secs(60);
    assert_eq!(one.heartbeat(1, ttl).answer().await.unwrap(), 1);
    assert_eq!(other.heartbeat(2, ttl).answer().await.unwrap(), 2);
    assert_eq!(one.heartbeat(1, ttl).answer().await.unwrap(), 2);
}
