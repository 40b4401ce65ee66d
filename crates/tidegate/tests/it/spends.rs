//! Spends as values, in memory and on a real Redis by the same clock: what is refunded, charged and settled, and when that
//! still counts.

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::{
    BatchOutcomes, CellCharge, CellKey, CellLimit, LeaseRef, Refund, Reply, Request, Stamped, Store,
    StoreError,
};
use tidegate::{Ask, Clock, Limiter, ManualClock, RedisConfig, Setup, Timestamp};
use tidegate_testkit::{Fault, FaultProxy, Redis};

const RULES: &str = "domain: api
rules:
  - { name: window, match: { rule: window }, limits: [{ algorithm: fixed_window, limit: 100, window: 1h }] }
  - { name: log, match: { rule: log }, limits: [{ algorithm: sliding_log, limit: 100, window: 1h }] }
  - { name: bucket, match: { rule: bucket }, limits: [{ algorithm: token_bucket, rate: 100/h, burst: 100 }] }
  - { name: counter, match: { rule: counter }, limits: [{ algorithm: sliding_window, limit: 100, window: 1h }] }
  - { name: debt, match: { rule: debt }, overdraft: 50, limits: [{ algorithm: token_bucket, rate: 100/h, burst: 100 }] }
  - name: window-debt
    match: { rule: window-debt }
    overdraft: 50
    limits: [{ algorithm: fixed_window, limit: 100, window: 1h }]
  - { name: at-once, match: { rule: at-once }, limits: [{ algorithm: concurrency, limit: 1, ttl: 1h }] }";

struct World {
    limiter: Limiter,
    clock: Arc<ManualClock>,
    _redis: Option<Redis>,
}

/// The same limiter on both stores, at the beginning of an hour.
fn worlds() -> [World; 2] {
    let clock = || Arc::new(ManualClock::at(Timestamp::from_micros(3_600_000_000 * 400_000)));
    let (near, far) = (clock(), clock());
    let memory = Setup::new(RULES).clock(near.clone()).in_memory().unwrap();
    let redis = Redis::start();
    let time = tidegate::TimeSource::Given(Arc::clone(&far) as Arc<dyn Clock>);
    let config = RedisConfig::default().timeout(Duration::from_secs(30)).time(time);
    let shared = Setup::new(RULES).clock(far.clone()).redis(config).on_redis(&redis.url()).unwrap();
    [
        World { limiter: memory, clock: near, _redis: None },
        World { limiter: shared, clock: far, _redis: Some(redis) },
    ]
}

impl World {
    async fn left(&self, rule: &str) -> u64 {
        Ask::new("api").with("rule", rule).cost(0).check(&self.limiter).await.unwrap().remaining().unwrap()
    }
}

#[tokio::test]
async fn a_spend_is_corrected_up_and_down_on_both_stores() {
    for world in worlds() {
        for rule in ["window", "log", "bucket"] {
            let ask = Ask::new("api").with("rule", rule);
            let mut spend = ask.cost(10).spend(&world.limiter).await.unwrap();
            spend.refund(4).await.unwrap();
            assert_eq!((spend.spent(), world.left(rule).await), (6, 94), "{rule}");
            spend.charge(14).await.unwrap();
            assert_eq!((spend.spent(), world.left(rule).await), (20, 80), "{rule}");
            spend.settle(15).await.unwrap();
            spend.settle(33).await.unwrap();
            assert_eq!((spend.spent(), world.left(rule).await), (33, 67), "{rule}");
            // More than there is: the whole quota is gone, and the next request waits.
            spend.charge(1_000).await.unwrap();
            assert_eq!(world.left(rule).await, 0, "{rule}");
            // Never more back than was spent.
            spend.refund(u64::MAX).await.unwrap();
            assert_eq!((spend.spent(), world.left(rule).await), (0, 100), "{rule}");
        }
    }
}

#[tokio::test]
async fn what_is_corrected_after_its_window_touches_no_later_one_on_both_stores() {
    for world in worlds() {
        for rule in ["window", "log", "bucket"] {
            let ask = Ask::new("api").with("rule", rule);
            let mut spends = Vec::new();
            for _ in 0..3 {
                spends.push(ask.clone().cost(10).spend(&world.limiter).await.unwrap());
            }
            world.clock.advance(Duration::from_secs(3_600));
            assert!(ask.clone().cost(5).spend(&world.limiter).await.unwrap().is_allowed());
            spends[0].refund(10).await.unwrap();
            spends[1].charge(50).await.unwrap();
            spends[2].settle(90).await.unwrap();
            assert_eq!(world.left(rule).await, 95, "{rule}");
        }
    }
}

#[tokio::test]
async fn a_charge_counts_as_long_as_its_bucket_could_not_have_refilled() {
    for world in worlds() {
        let mut spend = Ask::new("api").with("rule", "bucket").spend(&world.limiter).await.unwrap();
        // The one hit is back since, but what it turned out to be is not.
        world.clock.advance(Duration::from_secs(60));
        spend.charge(40).await.unwrap();
        assert_eq!(world.left("bucket").await, 60);
    }
}

#[tokio::test]
async fn what_was_charged_later_can_be_given_back_on_both_stores() {
    for world in worlds() {
        let mut bucket = Ask::new("api").with("rule", "bucket").spend(&world.limiter).await.unwrap();
        let mut debt = Ask::new("api").with("rule", "debt").cost(10).spend(&world.limiter).await.unwrap();
        // Nobody knew how much it would be: nothing was set aside.
        let looked = |rule: &'static str| Ask::new("api").with("rule", rule).cost(0);
        let mut window = looked("window").spend(&world.limiter).await.unwrap();
        let mut log = looked("log").spend(&world.limiter).await.unwrap();
        // By then the one hit is back, but not what comes now.
        world.clock.advance(Duration::from_secs(60));
        for spend in [&mut bucket, &mut window, &mut log] {
            spend.charge(40).await.unwrap();
            spend.refund(30).await.unwrap();
        }
        assert_eq!((world.left("bucket").await, bucket.spent()), (90, 11));
        assert_eq!((world.left("window").await, world.left("log").await), (90, 90));
        // A bucket in debt takes longer to refill than a full one: after an hour and a quarter 150 are 25.
        debt.charge(1_000).await.unwrap();
        world.clock.advance(Duration::from_secs(75 * 60 - 60));
        assert_eq!(world.left("debt").await, 75);
        debt.refund(20).await.unwrap();
        assert_eq!(world.left("debt").await, 95);
        // After an hour and a half it would have been full, whatever was charged.
        assert!(Ask::new("api").with("rule", "debt").cost(95).check(&world.limiter).await.unwrap().allowed);
        world.clock.advance(Duration::from_secs(15 * 60));
        let left = world.left("debt").await;
        debt.refund(20).await.unwrap();
        assert_eq!(world.left("debt").await, left);
    }
}

/// A store in memory that can be away.
struct Leaving {
    store: tidegate::MemoryStore,
    is_away: std::sync::atomic::AtomicBool,
}

impl Leaving {
    fn or_away<'a, T>(&'a self, reply: impl FnOnce() -> Reply<'a, T>) -> Reply<'a, T> {
        match self.is_away.load(std::sync::atomic::Ordering::Relaxed) {
            true => {
                Reply::Now(Err(StoreError::NotApplied { endpoint: "here".into(), source: "away".into() }))
            }
            false => reply(),
        }
    }
}

impl Store for Leaving {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        self.or_away(|| self.store.decide(batch))
    }
    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        self.or_away(|| self.store.refund(refunds))
    }
    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        self.or_away(|| self.store.charge(charges))
    }
    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a CellLimit) -> Reply<'a, Stamped<()>> {
        self.or_away(|| self.store.reset(cell, limit))
    }
    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        self.or_away(|| self.store.renew(lease))
    }
    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        self.or_away(|| self.store.release(lease))
    }
}

#[tokio::test]
async fn a_refund_whose_answer_was_lost_is_given_back_once_when_it_is_called_again() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let rules = "{ domain: api, rules: [{ name: r, limits: [100/h] }] }";
    let limiter = tidegate::on_redis(rules, &format!("redis://{}", proxy.addr())).unwrap();
    let mut spend = Ask::new("api").cost(31).spend(&limiter).await.unwrap();
    assert_eq!(spend.remaining(), Some(69));
    // Redis has the script from here on: the answer that is lost is that of a refund.
    spend.refund(1).await.unwrap();
    proxy.set(Fault::DropReplies);
    spend.refund(10).await.unwrap_err();
    assert_eq!(spend.spent(), 30);
    proxy.set(Fault::None);
    let until_given_back = async {
        while spend.refund(10).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), until_given_back).await.unwrap();
    let left = Ask::new("api").cost(0).check(&limiter).await.unwrap().remaining();
    assert_eq!((spend.spent(), left), (20, Some(80)));
}

#[tokio::test]
async fn what_nobody_counted_is_not_given_back() {
    let rules = "{ domain: api, rules: [{ name: r, limits: [100/h], on_store_failure: open }] }";
    let store = Arc::new(Leaving {
        store: tidegate::MemoryStore::new(tidegate::MemoryConfig::default()),
        is_away: true.into(),
    });
    let limiter = Setup::new(rules).on_store(store.clone()).unwrap();
    let mut spend = Ask::new("api").cost(30).spend(&limiter).await.unwrap();
    assert!(spend.is_allowed() && spend.source == tidegate::Source::FallbackOpen);
    store.is_away.store(false, std::sync::atomic::Ordering::Relaxed);
    let left = async || Ask::new("api").cost(0).check(&limiter).await.unwrap().remaining().unwrap();
    assert!(Ask::new("api").cost(50).check(&limiter).await.unwrap().allowed);
    spend.charge(10).await.unwrap();
    assert_eq!((spend.spent(), left().await), (40, 40));
    spend.refund(25).await.unwrap();
    assert_eq!((spend.spent(), left().await), (15, 50), "the ten that were counted, and no more");
    spend.refund(15).await.unwrap();
    assert_eq!((spend.spent(), left().await), (0, 50));
}

#[tokio::test]
async fn a_charge_goes_beyond_the_limit_as_far_as_the_rule_says_on_both_stores() {
    for world in worlds() {
        // Full at 100 an hour, and 50 more to wait for: one is free again after the 51st has come back.
        let retry_in = [("bucket", 36), ("debt", 36 * 51)];
        for (rule, seconds) in retry_in {
            let ask = Ask::new("api").with("rule", rule);
            let mut spend = ask.clone().cost(10).spend(&world.limiter).await.unwrap();
            spend.charge(1_000).await.unwrap();
            let refused = ask.check(&world.limiter).await.unwrap();
            assert_eq!(refused.retry_after(), Some(Duration::from_secs(seconds)), "{rule}");
        }
        // What is given back is the debt's first.
        let ask = Ask::new("api").with("rule", "window-debt");
        let mut spend = ask.clone().cost(10).spend(&world.limiter).await.unwrap();
        spend.charge(130).await.unwrap();
        spend.refund(35).await.unwrap();
        assert_eq!(world.left("window-debt").await, 0);
        spend.refund(15).await.unwrap();
        assert_eq!((spend.spent(), world.left("window-debt").await), (90, 10));
    }
}

#[tokio::test]
async fn a_charge_counts_from_when_it_was_spent_on_both_stores() {
    for world in worlds() {
        let mut spends = Vec::new();
        for rule in ["bucket", "counter", "log"] {
            spends.push(Ask::new("api").with("rule", rule).spend(&world.limiter).await.unwrap());
        }
        // Half an hour later: a bucket has refilled by half, the others have not.
        world.clock.advance(Duration::from_secs(1_800));
        for spend in &mut spends {
            spend.charge(79).await.unwrap();
        }
        assert_eq!(world.left("bucket").await, 70);
        assert_eq!((world.left("counter").await, world.left("log").await), (20, 20));
        // An hour after they were spent, not after they were charged, the log has them no more; the counter's window is the
        // previous one, and its hits fade from there.
        world.clock.advance(Duration::from_secs(1_800));
        assert_eq!((world.left("counter").await, world.left("log").await), (20, 100));
        spends[1].charge(15).await.unwrap();
        assert_eq!(world.left("counter").await, 5);
    }
}

#[tokio::test]
async fn a_refused_spend_has_nothing_to_correct() {
    for world in worlds() {
        let ask = Ask::new("api").with("rule", "window");
        let mut refused = ask.cost(101).spend(&world.limiter).await.unwrap();
        assert!(!refused.is_allowed());
        refused.refund(1).await.unwrap();
        refused.charge(50).await.unwrap();
        assert_eq!((refused.spent(), world.left("window").await), (0, 100));
    }
}

#[tokio::test]
async fn a_lease_ends_when_it_is_dropped_and_not_when_it_is_leaked() {
    for world in worlds() {
        let ask = Ask::new("api").with("rule", "at-once");
        let held = ask.spend(&world.limiter).await.unwrap();
        assert!(held.is_allowed() && held.lease().unwrap().ttl() == Duration::from_secs(3_600));
        assert!(!ask.check(&world.limiter).await.unwrap().allowed);
        drop(held);
        let again = async {
            loop {
                let spend = ask.spend(&world.limiter).await.unwrap();
                if let Some(lease) = spend.into_lease() {
                    return lease;
                }
            }
        };
        let lease = tokio::time::timeout(Duration::from_secs(60), again).await.expect("it came back");
        lease.renew().await.unwrap();
        let leaked = lease.leak();
        assert!(!ask.check(&world.limiter).await.unwrap().allowed);
        world.limiter.release(&leaked).await.unwrap();
        ask.spend(&world.limiter).await.unwrap().into_lease().unwrap().release().await.unwrap();
        assert!(ask.check(&world.limiter).await.unwrap().allowed);
    }
}
