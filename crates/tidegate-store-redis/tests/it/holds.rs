//! Requests that are refused while another one, whose cells live on several servers, holds what they need.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_core::{Limit, Micros, Outcome, RefusedHits, SlidingLog};
use tidegate_store::{HELD_RETRY_AFTER, Request, Store};
use tidegate_store_redis::RedisStore;
use tidegate_testkit::resp::Value;
use tidegate_testkit::{Redis, RedisCluster, ShardedRedis};

use crate::subject::{Target, a_bucket, a_day, ask, eventually, left, patient, prompt, store};

/// A cell with one hit left on one of two servers, and cells on the other one, which is made to wait.
struct Scene {
    sharded: ShardedRedis,
    store: RedisStore,
    wanted: Target,
    full: Target,
    roomy: Target,
    home: usize,
}

impl Scene {
    fn new(config: &tidegate_store_redis::RedisConfig) -> Self {
        let sharded = ShardedRedis::start(2);
        let store = store(&sharded.url(), config);
        let wanted = Target::new("wanted", "w", a_day(1));
        let home = store.node_of(&wanted.key);
        let elsewhere = |name: &str, quota| {
            let mut names = (0..).map(|number| Target::new(name, &format!("{name}-{number}"), a_day(quota)));
            names.find(|target| store.node_of(&target.key) != home).unwrap()
        };
        let (full, roomy) = (elsewhere("full", 0), elsewhere("roomy", 10));
        Scene { full, roomy, wanted, home, sharded, store }
    }

    fn near(&self) -> &Redis {
        &self.sharded.nodes()[self.home]
    }

    fn far(&self) -> &Redis {
        &self.sharded.nodes()[1 - self.home]
    }

    /// Whoever is refused by what is held asks again.
    async fn somebody_asks_again(&self, before: u64) {
        eventually("somebody asks again", async || match scripts_run(self.near()) {
            run if run >= before + 3 => Ok(()),
            run => Err((before, run)),
        })
        .await;
    }

    async fn is_held(&self) {
        eventually("the hit is held", async || match lists_with_holders(self.near()).len() {
            1 => Ok(()),
            lists => Err(lists),
        })
        .await;
    }
}

/// How often a script was run there.
fn scripts_run(redis: &Redis) -> u64 {
    let stats = redis.cmd(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn retry_after(outcome: &Outcome) -> Option<Duration> {
    outcome.retry_after().map(|wait| Duration::from_micros(wait.get()))
}

#[tokio::test]
async fn who_is_refused_by_what_another_then_puts_back_is_admitted() {
    let scene = Scene::new(&patient());
    scene.far().pause();
    let (other, own) = ([scene.wanted.spend(1), scene.full.spend(1)], [scene.wanted.spend(1)]);
    let (other, (own, ())) = tokio::join!(ask(&scene.store, &other), async {
        scene.is_held().await;
        let before = scripts_run(scene.near());
        tokio::join!(ask(&scene.store, &own), async {
            scene.somebody_asks_again(before).await;
            scene.far().resume();
        })
    });
    assert!(!other.unwrap()[1].is_admitted());
    assert!(own.unwrap()[0].is_admitted());
    assert_eq!(left(&scene.store, &scene.wanted).await, 0);
}

#[tokio::test]
async fn who_is_refused_by_what_another_then_keeps_is_told_how_long_that_lasts() {
    let scene = Scene::new(&patient());
    scene.far().pause();
    let (other, own) = ([scene.wanted.spend(1), scene.roomy.spend(1)], [scene.wanted.spend(1)]);
    let (other, (own, ())) = tokio::join!(ask(&scene.store, &other), async {
        scene.is_held().await;
        let before = scripts_run(scene.near());
        tokio::join!(ask(&scene.store, &own), async {
            scene.somebody_asks_again(before).await;
            scene.far().resume();
        })
    });
    assert!(other.unwrap().iter().all(Outcome::is_admitted));
    let wait = retry_after(&own.unwrap()[0]).unwrap();
    assert!(wait > Duration::from_secs(1), "{wait:?} of a day's window");
}

#[tokio::test]
async fn several_equal_requests_get_what_another_puts_back() {
    let scene = Scene::new(&patient());
    scene.far().pause();
    let (other, own) = ([scene.wanted.spend(1), scene.full.spend(1)], [scene.wanted.spend(1)]);
    let own = [Request { spends: &own, count: NonZeroU32::new(5).unwrap() }];
    let (other, (own, ())) = tokio::join!(ask(&scene.store, &other), async {
        scene.is_held().await;
        let before = scripts_run(scene.near());
        tokio::join!(scene.store.decide(&own).answer(), async {
            scene.somebody_asks_again(before).await;
            scene.far().resume();
        })
    });
    assert!(!other.unwrap()[1].is_admitted());
    assert_eq!(own.unwrap().folds[0].admitted, 1);
}

#[tokio::test]
async fn who_cannot_wait_for_what_another_holds_is_told_to_come_again_soon() {
    let scene = Scene::new(&prompt());
    let slow = store(&scene.sharded.url(), &patient());
    scene.far().pause();
    let (other, own) = ([scene.wanted.spend(1), scene.full.spend(1)], [scene.wanted.spend(1)]);
    let (other, own) = tokio::join!(ask(&slow, &other), async {
        scene.is_held().await;
        let own = ask(&scene.store, &own).await;
        scene.far().resume();
        own
    });
    assert!(!other.unwrap()[1].is_admitted());
    assert_eq!(retry_after(&own.unwrap()[0]), Some(HELD_RETRY_AFTER.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_stand_in_each_others_way_one_passes() {
    let cluster = RedisCluster::start();
    let stores = [store(&cluster.url(), &patient()), store(&cluster.url(), &patient())];
    for round in 0..200 {
        let user = Target::new("user", &format!("u-{round}"), a_day(1));
        let tenant = Target::new("tenant", &format!("t-{round}"), a_bucket(1));
        let there = [user.spend(1), tenant.spend(1)];
        let back = [tenant.spend(1), user.spend(1)];
        let (one, other) = tokio::join!(ask(&stores[0], &there), ask(&stores[1], &back));
        let passed = [one, other].map(|told| told.unwrap().iter().all(Outcome::is_admitted));
        assert_eq!(passed.iter().filter(|passed| **passed).count(), 1, "{passed:?} in round {round}");
    }
}

#[tokio::test]
async fn nothing_is_held_once_a_request_is_decided() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), &patient());
    let (user, tenant) = (Target::new("user", "u", a_day(5)), Target::new("tenant", "t", a_bucket(3)));
    for _ in 0..5 {
        ask(&store, &[user.spend(1), tenant.spend(1)]).await.unwrap();
    }
    eventually("nobody holds anything", async || {
        let left: Vec<Vec<u8>> = cluster.nodes().iter().flat_map(lists_with_holders).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

fn lists_with_holders(node: &Redis) -> Vec<Vec<u8>> {
    let of = |letter: &str| node.cmd(&["KEYS", &format!("*:2{letter}k{{*")]).array().to_vec();
    let bytes = |key: Value| if let Value::Bulk(key) = key { key } else { panic!("{key:?} is no key") };
    let is_held = |list: &Vec<u8>| node.cmd(&[b"ZCOUNT", &list[..], b"0", b"+inf"]) != Value::Int(0);
    let held = of("o").into_iter().map(bytes).filter(is_held);
    held.collect()
}

#[tokio::test]
async fn a_refusal_that_counts_is_noted_where_another_holds_what_it_needs() {
    let scene = Scene::new(&prompt());
    let slow = store(&scene.sharded.url(), &patient());
    let log = SlidingLog::new(3, Micros::from_secs(86_400), Micros::ZERO, RefusedHits::Count).unwrap();
    let mut names = (0..).map(|number| Target::new("log", &format!("log-{number}"), Limit::SlidingLog(log)));
    let wanted = names.find(|target| scene.store.node_of(&target.key) == scene.home).unwrap();
    scene.far().pause();
    let (other, own) = ([wanted.spend(2), scene.full.spend(1)], [wanted.spend(2)]);
    let (other, own) = tokio::join!(ask(&slow, &other), async {
        scene.is_held().await;
        let own = ask(&scene.store, &own).await;
        scene.far().resume();
        own
    });
    assert!(!other.unwrap()[1].is_admitted());
    assert!(!own.unwrap()[0].is_admitted());
    // Two hits of each count, where one of them alone would leave one of three.
    assert_eq!(left(&slow, &wanted).await, 0);
}

#[tokio::test]
async fn a_holder_from_the_future_holds_nobody_up() {
    let scene = Scene::new(&patient());
    assert!(ask(&scene.store, &[scene.wanted.spend(1)]).await.unwrap()[0].is_admitted());
    let ahead = now_us(scene.near()) + 3_600_000_000;
    scene.leak(ahead, 1).await;
    let before = scripts_run(scene.near());
    let own = ask(&scene.store, &[scene.wanted.spend(1)]).await.unwrap();
    assert_eq!(scripts_run(scene.near()), before + 1, "it was asked again");
    let wait = retry_after(&own[0]).unwrap();
    assert!(wait > Duration::from_secs(1), "{wait:?} of a day's window");
}

#[tokio::test]
async fn holders_that_died_do_not_fill_the_list() {
    let scene = Scene::new(&patient());
    // Whoever is refused elsewhere leaves the list.
    ask(&scene.store, &[scene.wanted.spend(1), scene.full.spend(1)]).await.unwrap();
    let now = now_us(scene.near());
    let list = scene.leak(now - 60_000_000, 500).await;
    scene.leak(now + 3_600_000_000, 500).await;
    let other = [scene.wanted.spend(1), scene.roomy.spend(1)];
    assert!(ask(&scene.store, &other).await.unwrap().iter().all(Outcome::is_admitted));
    let held = scene.near().cmd(&[b"ZCARD", &list[..]]);
    assert!(matches!(held, Value::Int(..=2)), "{held:?} are listed");
}

impl Scene {
    /// Lists so many holders of the wanted cell, at this time, that never let go.
    async fn leak(&self, at_us: u64, holders: usize) -> Vec<u8> {
        let list = eventually("the cell or its list is there", async || self.list_name().ok_or(())).await;
        let mut command = vec![b"ZADD".to_vec(), list.clone()];
        for holder in 0..holders {
            command.push(at_us.to_string().into_bytes());
            command.push(format!("{:08x}{holder:08}", at_us & 0xffff_ffff).into_bytes());
        }
        let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let added = i64::try_from(holders).unwrap();
        assert_eq!(self.near().cmd(&command), Value::Int(added));
        list
    }

    /// What the list of the wanted cell's holders is called: as the cell, with another letter.
    fn list_name(&self) -> Option<Vec<u8>> {
        let keys = self.near().cmd(&["KEYS", "*:2?k{*"]).array().to_vec();
        keys.into_iter().find_map(|key| {
            let Value::Bulk(mut key) = key else { return None };
            let letter = key.windows(2).position(|pair| pair == b":2")? + 2;
            let is_reservation = key[letter] == b'r';
            key[letter] = b'o';
            (!is_reservation).then_some(key)
        })
    }
}

fn now_us(redis: &Redis) -> u64 {
    let time: Vec<u64> =
        redis.cmd(&["TIME"]).array().iter().map(|part| part.text().parse().unwrap()).collect();
    time[0] * 1_000_000 + time[1]
}

#[tokio::test]
async fn a_refusal_that_is_undone_after_others_were_noted_frees_nobody() {
    let scene = Scene::new(&prompt());
    let slow = store(&scene.sharded.url(), &patient());
    let log = SlidingLog::new(5, Micros::from_secs(86_400), Micros::ZERO, RefusedHits::Count).unwrap();
    let mut names = (0..).map(|number| Target::new("log", &format!("log-{number}"), Limit::SlidingLog(log)));
    let full = names.find(|target| scene.store.node_of(&target.key) == scene.home).unwrap();
    assert!(ask(&slow, &[full.spend(5)]).await.unwrap()[0].is_admitted());
    scene.far().pause();
    // Each is noted where it is refused, and undone where nobody answers.
    let spends = [full.spend(1), scene.roomy.spend(1)];
    let undone = futures_util::future::join_all((0..6).map(|_| ask(&scene.store, &spends))).await;
    scene.far().resume();
    assert!(undone.iter().all(Result::is_err), "{undone:?}");
    eventually("all of them are undone", async || match left(&slow, &scene.roomy).await {
        10 => Ok(()),
        left => Err(left),
    })
    .await;
    assert!(!ask(&slow, &[full.spend(1)]).await.unwrap()[0].is_admitted());
}
