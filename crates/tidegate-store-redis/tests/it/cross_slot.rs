//! Requests whose cells live on different servers.

use std::num::{NonZeroU32, NonZeroU64};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::{
    Ask, Concurrency, FixedWindow, Group, LeaseId, Limit, Micros, Rate, RefusedHits, SlidingLog,
    SlidingWindow, Timestamp, Touch,
};
use tidegate_store::{Clock, LeaseRef, Request, Spend, Store, StoreError, SystemClock};
use tidegate_store_redis::{RedisStore, TimeSource};
use tidegate_testkit::{Redis, RedisCluster, ShardedRedis};

use crate::subject::{Target, a_bucket, a_day, ask, left, patient, store};

/// A user, a tenant and everybody, on three servers or slots.
struct Rules {
    user: Target,
    tenant: Target,
    everybody: Target,
}

impl Rules {
    fn new(user: u64, tenant: u64, everybody: u64) -> Self {
        Rules {
            user: Target::new("user", "u-17", a_day(user)),
            tenant: Target::new("tenant", "acme", a_bucket(tenant)),
            everybody: Target::new("everybody", "", a_day(everybody)),
        }
    }

    fn spends(&self) -> [Spend<'_>; 3] {
        [self.user.spend(1), self.tenant.spend(1), self.everybody.spend(1)]
    }

    async fn left(&self, store: &RedisStore) -> [u64; 3] {
        [left(store, &self.user).await, left(store, &self.tenant).await, left(store, &self.everybody).await]
    }
}

#[tokio::test]
async fn a_request_that_is_refused_by_one_server_spends_on_none() {
    let sharded = ShardedRedis::start(5);
    let store = store(&sharded.url(), &patient());
    let rules = Rules::new(10, 1, 10);
    assert!(ask(&store, &rules.spends()).await.unwrap().iter().all(|outcome| outcome.is_admitted()));
    for _ in 0..5 {
        let outcomes = ask(&store, &rules.spends()).await.unwrap();
        let admitted: Vec<bool> = outcomes.iter().map(|outcome| outcome.is_admitted()).collect();
        assert_eq!(admitted, [true, false, true]);
        assert_eq!([outcomes[0].remaining, outcomes[2].remaining], [9, 9], "what is left unspent");
    }
    assert_eq!(rules.left(&store).await, [9, 0, 9]);
}

/// Nodes that ask at once, several requests in flight each, some in batches: the number of requests that passed.
async fn flood(stores: &[Arc<RedisStore>], rules: &Arc<Rules>, calls: usize) -> usize {
    let tasks = stores.iter().cycle().take(calls).enumerate().map(|(number, store)| {
        let (store, rules) = (Arc::clone(store), Arc::clone(rules));
        tokio::spawn(async move {
            let spends = rules.spends();
            let batch = vec![Request::once(&spends); 1 + number % 8];
            let outcomes = store.decide(&batch).answer().await.unwrap();
            outcomes.chunks(3).filter(|outcomes| outcomes.iter().all(|outcome| outcome.is_admitted())).count()
        })
    });
    let passed = futures_util::future::join_all(tasks).await;
    passed.into_iter().map(|passed| passed.unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_exceeded_and_all_that_was_not_used_comes_back() {
    let cluster = RedisCluster::start();
    let stores: Vec<_> = (0..2).map(|_| Arc::new(store(&cluster.url(), &patient()))).collect();
    // The tenant is the one that runs out; the others must end where the tenant does.
    let rules = Arc::new(Rules::new(10_000, 500, 20_000));
    let passed = flood(&stores, &rules, 400).await;
    assert!(passed <= 500, "{passed} passed");
    // What was put back may still be on its way when the last answer comes.
    let expected = [10_000 - passed as u64, 500 - passed as u64, 20_000 - passed as u64];
    crate::subject::eventually("all reservations are put back", async || {
        let left = rules.left(&stores[0]).await;
        if left == expected { Ok(()) } else { Err((left, expected)) }
    })
    .await;
    // Alone, the rest is there to the last hit.
    let mut alone = 0;
    while ask(&stores[0], &rules.spends()).await.unwrap().iter().all(|outcome| outcome.is_admitted()) {
        alone += 1;
    }
    assert_eq!(passed + alone, 500);
}

#[tokio::test]
async fn a_batch_is_decided_in_order_across_servers() {
    let sharded = ShardedRedis::start(5);
    let store = store(&sharded.url(), &patient());
    let rules = Rules::new(100, 3, 100);
    let spends = rules.spends();
    let batch = vec![Request::once(&spends); 8];
    let outcomes = store.decide(&batch).answer().await.unwrap();
    let left_for_tenant: Vec<(bool, u64)> =
        outcomes.chunks(3).map(|told| (told[1].is_admitted(), told[1].remaining)).collect();
    let expected =
        [(true, 2), (true, 1), (true, 0), (false, 0), (false, 0), (false, 0), (false, 0), (false, 0)];
    assert_eq!(left_for_tenant, expected);
    assert!(outcomes.chunks(3).skip(3).all(|told| told[0].remaining == 97), "refused ones spend nothing");
    assert_eq!(rules.left(&store).await, [97, 0, 97]);
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_nothing_spent_by_halves() {
    let sharded = ShardedRedis::start(5);
    let store = store(&sharded.url(), &patient());
    let rules = Rules::new(1_000, 1_000, 0);
    for _ in 0..100 {
        let spends = rules.spends();
        let batch = [Request::once(&spends)];
        // Polled a few times at most: wherever it stands, it is dropped.
        let asked = store.decide(&batch).answer();
        let _ = tokio::time::timeout(Duration::ZERO, asked).await;
    }
    crate::subject::eventually("all reservations are put back", async || match rules.left(&store).await {
        [1_000, 1_000, 0] => Ok(()),
        left => Err(left),
    })
    .await;
}

#[tokio::test]
async fn a_leaky_bucket_gives_no_slot_to_a_request_that_another_server_refuses() {
    use tidegate_core::LeakyBucket;
    let sharded = ShardedRedis::start(5);
    let store = store(&sharded.url(), &patient());
    let rate = Rate::new(1, Micros::from_secs(600)).unwrap();
    let queue = LeakyBucket::new(rate, Micros::from_secs(600)).unwrap();
    let queue = Target::new("queue", "q", Limit::LeakyBucket(queue));
    let full: Vec<Target> = (0..10).map(|n| Target::new("full", &n.to_string(), a_day(0))).collect();
    for full in &full {
        let touch = Touch { limit: &queue.limit, ask: Ask::hits(1), group: Group::ENFORCED };
        let spends = [Spend { cell: queue.cell(), touch }, full.spend(1)];
        assert!(!ask(&store, &spends).await.unwrap()[1].is_admitted());
    }
    let outcomes = ask(&store, &[queue.spend(1)]).await.unwrap();
    assert_eq!(outcomes[0].delay(), Micros::ZERO, "the queue is empty");
}

/// A clock that is right but for one reading, which is weeks late.
#[derive(Debug)]
struct Hiccup {
    right: SystemClock,
    readings: AtomicUsize,
    wrong: usize,
}

impl Clock for Hiccup {
    fn now(&self) -> Timestamp {
        let late = self.readings.fetch_add(1, Ordering::Relaxed) == self.wrong;
        self.right.now() + Micros::from_secs(if late { 40 * 86_400 } else { 0 })
    }
}

#[tokio::test]
async fn what_is_put_back_with_the_windows_of_another_time_is_put_back_again() {
    let sharded = ShardedRedis::start(5);
    let start = SystemClock::new().now().back(Micros::from_secs(100 * 86_400 + 43_200));
    let days = (0..300).map(|day| start + Micros::from_secs(day * 86_400));
    let calendar = Limit::FixedWindow(FixedWindow::calendar(5, days.collect()).unwrap());
    let full: Vec<Target> = (0..8).map(|n| Target::new("full", &n.to_string(), a_day(0))).collect();
    for wrong in 0..4 {
        let node_clock = Arc::new(Hiccup { right: SystemClock::new(), readings: AtomicUsize::new(0), wrong });
        let store = store(&sharded.url(), &patient().node_clock(node_clock));
        let user = Target::new("user", &format!("u-{wrong}"), calendar.clone());
        // One of them at least lives on another server than the user.
        for full in &full {
            assert!(!ask(&store, &[user.spend(1), full.spend(1)]).await.unwrap()[1].is_admitted());
        }
        crate::subject::eventually("all is put back", async || match left(&store, &user).await {
            5 => Ok(()),
            left => Err(left),
        })
        .await;
    }
}

/// A cell of each algorithm that gives back, small and large, with room for ten.
fn cells_with_room() -> Vec<Target> {
    let day = Micros::from_secs(86_400);
    let log =
        |limit| Limit::SlidingLog(SlidingLog::new(limit, day, Micros::ZERO, RefusedHits::Forget).unwrap());
    let leases = |limit| Limit::Concurrency(Concurrency::new(limit, day, RefusedHits::Forget).unwrap());
    let limits = [
        ("day", a_day(10)),
        ("bucket", a_bucket(10)),
        ("window", Limit::SlidingWindow(SlidingWindow::new(10, day).unwrap())),
        ("log", log(10)),
        ("large-log", log(5_000)),
        ("leases", leases(10)),
        ("many-leases", leases(5_000)),
    ];
    limits.into_iter().map(|(name, limit)| Target::new(name, "everybody", limit)).collect()
}

fn with_lease(target: &Target, number: u64) -> Spend<'_> {
    let lease = NonZeroU64::new(number).map(LeaseId);
    let touch = Touch { limit: &target.limit, ask: Ask { lease, ..Ask::hits(1) }, group: Group::ENFORCED };
    Spend { cell: target.cell(), touch }
}

#[tokio::test]
async fn what_others_spent_meanwhile_stays_spent_when_a_request_is_put_back() {
    let sharded = ShardedRedis::start(2);
    let store = store(&sharded.url(), &patient());
    let cells = cells_with_room();
    let home = store.node_of(&cells[0].key);
    let mut full = (0..).map(|number| Target::new("full", &format!("f-{number}"), a_day(0)));
    let full = full.find(|full| store.node_of(&full.key) != home).unwrap();
    for cell in &cells {
        let quota = cell.limit.quota();
        // One lease is held before, and asked for again by the request that will be refused.
        assert!(ask(&store, &[with_lease(cell, 1)]).await.unwrap()[0].is_admitted());
        for lease in [1, 2] {
            let before = left(&store, cell).await;
            sharded.nodes()[1 - home].pause();
            let spends = [with_lease(cell, lease), full.spend(1)];
            let (refused, ()) = tokio::join!(ask(&store, &spends), async {
                let renews = matches!(cell.limit, Limit::Concurrency(_)) && lease == 1;
                let reserved = before - u64::from(!renews);
                crate::subject::eventually("a hit is reserved", async || match left(&store, cell).await {
                    left if left == reserved => Ok(()),
                    left => Err(left),
                })
                .await;
                assert!(ask(&store, &[with_lease(cell, 10 + lease)]).await.unwrap()[0].is_admitted());
                sharded.nodes()[1 - home].resume();
            });
            assert!(!refused.unwrap()[1].is_admitted());
            crate::subject::eventually("the hit is put back", async || match left(&store, cell).await {
                left if left == before - 1 => Ok(()),
                left => Err((left, before, cell)),
            })
            .await;
        }
        assert_eq!(left(&store, cell).await, quota - 3);
        if let Limit::Concurrency(_) = cell.limit {
            let mut held = Vec::new();
            for lease in [1, 2, 11, 12] {
                let id = LeaseId(NonZeroU64::new(lease).unwrap());
                let lease = LeaseRef { cell: cell.cell(), limit: &cell.limit, id };
                held.push(store.release(lease).answer().await.unwrap().value);
            }
            assert_eq!(held, [true, false, true, true], "{cell:?}");
        }
    }
}

/// A clock that goes on by a minute once it has been looked at so many times.
#[derive(Debug, Default)]
struct Jumping {
    looks_left: AtomicU64,
    minutes: AtomicU64,
}

impl Clock for Jumping {
    fn now(&self) -> Timestamp {
        let one_less = |left: u64| left.checked_sub(1);
        if self.looks_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) == Ok(1) {
            self.minutes.fetch_add(1, Ordering::Relaxed);
        }
        Timestamp::from_micros(1_800_000_000_000_000 + 60_000_000 * self.minutes.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn equal_requests_that_were_refused_do_not_pass_when_quota_is_back_a_moment_later() {
    let sharded = ShardedRedis::start(2);
    let clock = Arc::new(Jumping::default());
    let time = TimeSource::Given(Arc::clone(&clock) as Arc<_>);
    let store = store(&sharded.url(), &patient().time(time));
    let log = SlidingLog::new(1, Micros::from_secs(30), Micros::ZERO, RefusedHits::Forget).unwrap();
    let user = Target::new("user", "u", Limit::SlidingLog(log));
    let home = store.node_of(&user.key);
    let mut tenants = (0..).map(|number| Target::new("tenant", &format!("t-{number}"), a_bucket(100)));
    let tenant = tenants.find(|tenant| store.node_of(&tenant.key) != home).unwrap();
    let spends = [user.spend(1), tenant.spend(1)];
    let equal = [Request { spends: &spends, count: NonZeroU32::new(3).unwrap() }];
    for looks in 1..20 {
        ask(&store, &[user.spend(1)]).await.unwrap();
        let before = left(&store, &tenant).await;
        clock.looks_left.store(looks, Ordering::Relaxed);
        let told = store.decide(&equal).answer().await.unwrap();
        clock.looks_left.store(0, Ordering::Relaxed);
        let each = told.per_request(&equal).next().unwrap();
        let passed =
            (0..3).filter(|place| each.at(*place).all(|outcome| outcome.is_admitted())).count() as u64;
        assert_eq!(before - left(&store, &tenant).await, passed, "who passes has spent: {told:?}");
    }
}

/// A cell on each of two servers, the second of which is away from now on.
struct Apart {
    sharded: ShardedRedis,
    near: Target,
    far: Target,
    away: usize,
}

impl Apart {
    async fn new(store: impl Fn(&str) -> RedisStore) -> (Self, RedisStore) {
        let sharded = ShardedRedis::start(2);
        let store = store(&sharded.url());
        let near = Target::new("near", "n", a_day(10));
        let home = store.node_of(&near.key);
        let mut names = (0..).map(|number| Target::new("far", &format!("f-{number}"), a_day(10)));
        let far = names.find(|target| store.node_of(&target.key) != home).unwrap();
        let apart = Apart { sharded, near, far, away: 1 - home };
        // Connections are made before the server goes away.
        assert_eq!(apart.left(&store).await, [10, 10]);
        apart.away().pause();
        (apart, store)
    }

    fn away(&self) -> &Redis {
        &self.sharded.nodes()[self.away]
    }

    async fn left(&self, store: &RedisStore) -> [u64; 2] {
        [left(store, &self.near).await, left(store, &self.far).await]
    }

    /// Waits until so much is left of the near cell.
    async fn left_near(&self, store: &RedisStore, expected: u64) {
        crate::subject::eventually("the near cell changes", async || match left(store, &self.near).await {
            left if left == expected => Ok(()),
            left => Err(left),
        })
        .await;
    }
}

#[tokio::test]
async fn that_a_call_came_too_late_is_told_once_it_is_undone() {
    let (apart, impatient) =
        Apart::new(|url| store(url, &patient().timeout(Duration::from_millis(300)))).await;
    let calm = store(&apart.sharded.url(), &patient());
    let spends = [apart.near.spend(1), apart.far.spend(1)];
    let mut asked = pin!(ask(&impatient, &spends));
    tokio::select! {
        told = asked.as_mut() => panic!("nothing is undone at the far server: {told:?}"),
        () = async {
            apart.left_near(&calm, 9).await;
            apart.left_near(&calm, 10).await;
        } => {}
    }
    apart.away().resume();
    let told = asked.await;
    assert!(matches!(told, Err(StoreError::TimedOut { .. })), "{told:?}");
    assert_eq!(apart.left(&calm).await, [10, 10]);
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_is_not_spent() {
    let (apart, store) = Apart::new(|url| store(url, &patient())).await;
    let spends = [apart.near.spend(1), apart.far.spend(1)];
    tokio::select! {
        told = ask(&store, &spends) => panic!("the far server is away: {told:?}"),
        () = apart.left_near(&store, 9) => {}
    }
    apart.away().resume();
    apart.left_near(&store, 10).await;
    assert_eq!(left(&store, &apart.far).await, 10);
}

#[tokio::test]
async fn an_answer_that_one_of_several_servers_gives_late_is_heard() {
    let config = patient().timeout(Duration::from_millis(50)).late_answers(Duration::from_secs(10));
    let (apart, store) = Apart::new(|url| store(url, &config)).await;
    let spends = [apart.far.spend(1)];
    let (told, ()) = tokio::join!(ask(&store, &spends), async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        apart.away().resume();
    });
    assert!(told.unwrap()[0].is_admitted());
}
