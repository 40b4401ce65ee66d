//! The Lua twins beside core, where the conformance suite does not go: limits whose numbers change while they are in use (and
//! with them from one sliding algorithm to the other), windows from a millisecond to nine years, logs and leases too large to be read at once.

use std::num::NonZeroU64;

use tidegate_core::{
    Ask, Cell, Charge, Concurrency, FixedWindow, Group, Hits, LeakyBucket, LeaseId, Limit, Micros, Outcome,
    Rate, RefusedHits, Scope, SlidingLog, SlidingWindow, Timestamp, TokenBucket, Touch, decide_request,
};
use tidegate_store::conformance::Subject;
use tidegate_store::{CellCharge, CellKey, LeaseRef, Refund, Request, Spend, Store};
use tidegate_testkit::Redis;

use crate::random::Random;
use crate::subject::Timed;

/// One cell, as core keeps it, and the limits that take turns in guarding it.
struct Twin {
    scope: Scope,
    limits: Vec<Limit>,
    cell: Cell,
}

const KEY: &[u8] = b"key";
const STEPS: u64 = 60;
/// The kinds of `any_limit` whose limits may guard the same cell in turn.
pub(crate) const SLIDING: [u64; 2] = [3, 4];

impl Twin {
    fn generate(name: u64, random: &mut Random) -> Self {
        // On either side of where a moment takes a byte more.
        let spans =
            [1_000, 1_000_000, 60_000_000, 1 << 32, (1 << 32) + 7, 1 << 40, (1 << 40) + 9, (1 << 48) + 11];
        let span = Micros::new(*random.pick(&spans));
        let kinds: &[u64] = random.pick::<&[u64]>(&[&[0], &[1], &[2], &[3], &[4], &[5], &SLIDING]);
        let limits = (0..3).map(|turn| any_limit(kinds[turn % kinds.len()], span, random)).collect();
        Twin { scope: Scope::new(&[b"twins", &name.to_be_bytes()]), limits, cell: Cell::Vacant }
    }

    fn key(&self) -> CellKey<'_> {
        CellKey { scope: &self.scope, key: KEY, tag: KEY }
    }
}

/// A limit of one kind and one span: what differs may change without making another cell.
pub(crate) fn any_limit(kind: u64, span: Micros, random: &mut Random) -> Limit {
    let refused = if random.below(4) == 0 { RefusedHits::Count } else { RefusedHits::Forget };
    match kind {
        0 => {
            let count = *random.pick(&[1, 7, 1_000, 999_983]);
            let rate = Rate::new(count, span).unwrap();
            let burst = *random.pick(&[1, 13, 1_000, 50_000_000]);
            Limit::TokenBucket(
                TokenBucket::new(rate, burst).unwrap_or_else(|_| TokenBucket::new(rate, 2).unwrap()),
            )
        }
        1 => {
            let count = *random.pick(&[1, 7, 1_000]);
            let rate = Rate::new(count, span).unwrap();
            let queue = LeakyBucket::new(rate, Micros::new(span.get() / count * random.below(9))).unwrap();
            Limit::LeakyBucket(if random.below(4) == 0 { queue.without_waiting() } else { queue })
        }
        2 => Limit::FixedWindow(FixedWindow::new(*random.pick(&[0, 1, 5, 1_000]), span).unwrap()),
        3 => Limit::SlidingWindow(
            SlidingWindow::new(*random.pick(&[0, 1, 5, 1_000, 4_294_967_295]), span).unwrap(),
        ),
        4 => {
            let limit = *random.pick(&[1, 5, 100, 1_000, 1_001, 3_000]);
            let min_interval = Micros::new(random.below(2) * span.get() / 50);
            Limit::SlidingLog(SlidingLog::new(limit, span, min_interval, refused).unwrap())
        }
        _ => {
            let limit = *random.pick(&[0, 1, 3, 30, 500, 501, 2_000]);
            // Each lease carries its own end, so even the time to live may change.
            let ttl = Micros::new(span.get() / *random.pick(&[1, 1, 2]));
            Limit::Concurrency(Concurrency::new(limit, ttl, refused).unwrap())
        }
    }
}

pub(crate) fn any_wait(limit: &Limit, random: &mut Random) -> u64 {
    let span = limit.period().or(limit.quota_window()).unwrap_or(Micros::from_secs(60)).get();
    match random.below(8) {
        0..=2 => 0,
        3 | 4 => random.below(span / 100 + 1),
        5 | 6 => random.below(span),
        _ => random.below(span.saturating_mul(3)),
    }
}

pub(crate) fn any_hits(limit: &Limit, random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => random.below(limit.quota().saturating_mul(2).max(1)),
        2 => limit.quota(),
        3 => u64::MAX,
        _ => 1 + random.below(3),
    }
}

/// Hits that turned out late, half of them just now and half without leave to go beyond the quota.
pub(crate) fn any_charge(limit: &Limit, hits: Hits, random: &mut Random) -> Charge {
    let age = Micros::new(if random.below(2) == 0 { 0 } else { any_wait(limit, random) });
    let overdraft = Hits::new(if random.below(2) == 0 { 0 } else { any_hits(limit, random) });
    Charge { hits, age, overdraft }
}

fn lease(random: &mut Random) -> LeaseId {
    LeaseId(NonZeroU64::new(1 + random.below(900)).unwrap())
}

/// Plays one history against the store and core; panics where they differ.
async fn play(subject: &Timed, seed: u64) {
    let mut random = Random::new(seed);
    let mut twin = Twin::generate(seed, &mut random);
    let mut now = Timestamp::from_micros(1_800_000_000_000_000 + random.below(1 << 40));
    for step in 0..STEPS {
        let limit = random.pick(&twin.limits).clone();
        let wait = Micros::new(any_wait(&limit, &mut random));
        now = if random.below(25) == 0 { now.back(wait) } else { now + wait };
        subject.set_time(now);
        let (given, expected) = act(subject, &mut twin, &limit, now, &mut random).await;
        assert_eq!(given, expected, "seed {seed}, step {step}, at {now:?}: {limit:?} of {:?}", twin.limits);
    }
}

/// Does one thing to both, and says what each answered.
async fn act(
    subject: &Timed,
    twin: &mut Twin,
    limit: &Limit,
    now: Timestamp,
    random: &mut Random,
) -> (String, String) {
    let store = &subject.store;
    let hits = Hits::new(any_hits(limit, random));
    match random.below(20) {
        0 => {
            let age = Micros::new(any_wait(limit, random));
            let refund = Refund { cell: twin.key(), limit, hits, age, id: None };
            store.refund(&[refund]).answer().await.unwrap();
            limit.refund(&mut twin.cell, now, hits, age);
            Default::default()
        }
        1 => {
            let charge = any_charge(limit, hits, random);
            store.charge(&[CellCharge { cell: twin.key(), limit, charge }]).answer().await.unwrap();
            limit.charge(&mut twin.cell, now, charge);
            Default::default()
        }
        2 if random.below(4) == 0 => {
            store.reset(twin.key(), limit).answer().await.unwrap();
            twin.cell = Cell::Vacant;
            Default::default()
        }
        3..=5 => {
            let id = lease(random);
            let given = store.renew(LeaseRef { cell: twin.key(), limit, id }).answer().await.unwrap();
            (given.value.to_string(), limit.renew(&mut twin.cell, now, id).to_string())
        }
        6..=8 => {
            let id = lease(random);
            let given = store.release(LeaseRef { cell: twin.key(), limit, id }).answer().await.unwrap();
            (given.value.to_string(), limit.release(&mut twin.cell, now, id).to_string())
        }
        _ => {
            // Now and then, more than a log or a set of leases keeps in one value.
            let many = if random.below(25) == 0 { 700 } else { *random.pick(&[1, 1, 1, 3]) };
            let ask = |_| {
                let hits = if many > 3 { Hits::ONE } else { hits };
                let lease = (random.below(5) > 0).then(|| lease(random));
                Touch { limit, ask: Ask { lease, ..Ask::hits(hits.get()) }, group: Group::ENFORCED }
            };
            let touches: Vec<Touch<'_>> = (0..many).map(ask).collect();
            decide(subject, twin, &touches, now).await
        }
    }
}

async fn decide(subject: &Timed, twin: &mut Twin, touches: &[Touch<'_>], now: Timestamp) -> (String, String) {
    let spends: Vec<[Spend<'_>; 1]> =
        touches.iter().map(|touch| [Spend { cell: twin.key(), touch: *touch }]).collect();
    let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
    let given = subject.store.decide(&batch).answer().await.unwrap();
    let mut expected: Vec<Outcome> = Vec::new();
    for touch in touches {
        let cells = std::slice::from_mut(&mut twin.cell);
        decide_request([(0, *touch)].into_iter(), cells, now, |outcome| expected.push(outcome));
    }
    let first = given.iter().zip(&expected).position(|(given, expected)| given != expected);
    let shown = |outcomes: &[Outcome]| match first {
        Some(place) => format!("{place}: {:?}", outcomes[place]),
        None => outcomes.len().to_string(),
    };
    (shown(&given), shown(&expected))
}

#[tokio::test]
async fn a_limit_whose_numbers_change_in_use_gives_the_same_answers_in_lua_and_rust() {
    let redis = Redis::start();
    let subject = Timed::new(&redis.url());
    for seed in 0..150 {
        play(&subject, seed).await;
    }
}
