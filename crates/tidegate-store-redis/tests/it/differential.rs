//! The same history through memory and through Redis: every answer must be the same, for every algorithm.
//!
//! A hundred histories are played at once, each on a cell of its own: what they ask at one moment is one batch, so that
//! thousands take seconds. The time is given to both stores. Where servers are several, each request also touches a
//! second cell, of any algorithm, which may live elsewhere.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use tidegate_core::{
    Ask, Charge, FixedWindow, Fold, Group, Hits, LeaseId, Limit, Micros, Outcome, Over, RefusedHits, Scope,
    SlidingLog, Stance, Timestamp, Touch,
};
use tidegate_store::conformance::Subject;
use tidegate_store::{
    CellCharge, CellKey, LeaseRef, ManualClock, MemoryConfig, MemoryStore, Refund, Request, Spend, Store,
};
use tidegate_testkit::{Redis, ShardedRedis};

use crate::random::Random;
use crate::subject::Timed;
use crate::twins::{SLIDING, any_charge, any_hits, any_limit, any_wait};

const HISTORIES: u64 = 100;
const STEPS: usize = 40;
/// No wait is longer: a memory store lives for 68 years.
const A_YEAR: Micros = Micros::from_secs(365 * 86_400);
/// Windows whose boundaries are given, beside the six algorithms that `any_limit` numbers.
const CALENDAR: u64 = 6;
/// Limits that change from one sliding algorithm to the other and back.
const CHANGING: u64 = 7;

/// The two stores, which show the same time.
struct Pair {
    redis: Timed,
    memory: MemoryStore<Arc<ManualClock>>,
}

impl Pair {
    fn new(url: &str) -> Self {
        let redis = Timed::new(url);
        let memory = MemoryStore::with_clock(MemoryConfig::default(), Arc::clone(&redis.clock));
        Pair { redis, memory }
    }

    fn stores(&self) -> [&dyn Store; 2] {
        [&self.redis.store, &self.memory]
    }
}

/// One cell and what guards it, and a second one perhaps. Its seed alone determines what happens to it.
struct History {
    scope: Scope,
    key: Vec<u8>,
    limit: Limit,
    /// Takes turns with `limit`.
    changed: Option<Limit>,
    beside: Option<Beside>,
    /// Starts when `limit` refuses.
    penalty: Option<Penalty>,
    random: Random,
}

/// A cell that every request of a history touches too.
struct Beside {
    key: Vec<u8>,
    limit: Limit,
    stance: Stance,
}

struct Penalty {
    scope: Scope,
    limit: Limit,
}

/// What the requests of histories touch.
#[derive(Clone, Copy, PartialEq)]
enum Touched {
    OneCell,
    TwoCells,
}

/// What a history does at one moment.
enum Move {
    /// Requests, each with how many equal ones it stands for.
    Decide(Vec<(Ask, NonZeroU32)>),
    Refund {
        hits: Hits,
        age: Micros,
    },
    Charge(Charge),
    Renew(LeaseId),
    Release(LeaseId),
    Reset,
}

impl History {
    fn new(kind: u64, seed: u64, touched: Touched, span: Micros, start: Timestamp) -> Self {
        let mut random = Random::new(kind << 32 | seed);
        let limit = match kind {
            CALENDAR => a_calendar(span, start, &mut random),
            CHANGING => any_limit(SLIDING[0], span, &mut random),
            _ => any_limit(kind, span, &mut random),
        };
        let changed = (kind == CHANGING).then(|| any_limit(SLIDING[1], span, &mut random));
        let scope = Scope::new(&[b"differential", &kind.to_be_bytes()]);
        let beside = (touched == Touched::TwoCells).then(|| Beside {
            key: [b"beside", &seed.to_be_bytes()[..]].concat(),
            limit: any_limit(random.below(6), span, &mut random),
            stance: *random.pick(&[Stance::Enforced, Stance::Enforced, Stance::Shadow, Stance::AnyOf]),
        });
        let penalty = (random.below(4) == 0).then(|| {
            let span = Micros::new(span.get() * 3);
            let log = SlidingLog::new(1, span, Micros::ZERO, RefusedHits::Forget).unwrap();
            let scope = Scope::new(&[b"differential", &kind.to_be_bytes(), b"penalty"]);
            Penalty { scope, limit: Limit::SlidingLog(log) }
        });
        History { scope, key: seed.to_be_bytes().to_vec(), limit, changed, beside, penalty, random }
    }

    fn next_move(&mut self) -> Move {
        if let Some(changed) = &mut self.changed
            && self.random.below(3) == 0
        {
            std::mem::swap(changed, &mut self.limit);
        }
        let hits = Hits::new(any_hits(&self.limit, &mut self.random));
        match self.random.below(20) {
            0 => Move::Refund { hits, age: Micros::new(any_wait(&self.limit, &mut self.random)) },
            1 => Move::Charge(any_charge(&self.limit, hits, &mut self.random)),
            2 if self.random.below(4) == 0 => Move::Reset,
            3 | 4 if matches!(self.limit, Limit::Concurrency(_)) => Move::Renew(self.lease()),
            5..=8 if matches!(self.limit, Limit::Concurrency(_)) => Move::Release(self.lease()),
            _ => Move::Decide((0..=self.random.below(3)).map(|_| self.any_ask(hits)).collect()),
        }
    }

    fn any_ask(&mut self, hits: Hits) -> (Ask, NonZeroU32) {
        let hits = if self.random.below(2) == 0 { hits } else { Hits::ONE };
        let equal = if self.random.below(4) == 0 { *self.random.pick(&[2, 7, 600, 100_000]) } else { 1 };
        let over = *self.random.pick(&[Over::Refuse, Over::Refuse, Over::Cap, Over::Debt, Over::Charge]);
        // Equal ones take no lease, nor does one that pays for what is over.
        let may_lease = equal == 1 && over != Over::Charge;
        // Nor do equal ones charge under a rule with a penalty.
        let equal = if over == Over::Charge && self.penalty.is_some() { 1 } else { equal };
        let lease = (self.random.below(5) > 0 && may_lease).then(|| self.lease());
        (Ask { hits, lease, over }, NonZeroU32::new(equal).unwrap())
    }

    fn lease(&mut self) -> LeaseId {
        LeaseId(NonZeroU64::new(1 + self.random.below(40)).unwrap())
    }

    fn cell(&self) -> CellKey<'_> {
        CellKey { scope: &self.scope, key: &self.key, tag: &self.key }
    }

    fn spend(&self, ask: Ask) -> Spend<'_> {
        Spend { cell: self.cell(), touch: Touch { limit: &self.limit, ask, group: Group::ENFORCED } }
    }

    /// All that a request spends.
    fn spends(&self, ask: Ask) -> Vec<Spend<'_>> {
        let beside = self.beside.iter().map(|Beside { key, limit, stance }| Spend {
            cell: CellKey { scope: &self.scope, key, tag: key },
            touch: Touch {
                limit,
                ask: Ask { hits: ask.hits.min(Hits::ONE), ..ask },
                group: Group::new(1, *stance),
            },
        });
        let penalty = self.penalty.iter().map(|Penalty { scope, limit }| Spend {
            cell: CellKey { scope, key: &self.key, tag: &self.key },
            touch: Touch { limit, ask: Ask::look(), group: Group::ENFORCED.penalty() },
        });
        [self.spend(ask)].into_iter().chain(beside).chain(penalty).collect()
    }

    fn cells(&self) -> impl Iterator<Item = (CellKey<'_>, &Limit)> {
        let beside = self
            .beside
            .iter()
            .map(|Beside { key, limit, .. }| (CellKey { scope: &self.scope, key, tag: key }, limit));
        let penalty = self
            .penalty
            .iter()
            .map(|Penalty { scope, limit }| (CellKey { scope, key: &self.key, tag: &self.key }, limit));
        [(self.cell(), &self.limit)].into_iter().chain(beside).chain(penalty)
    }
}

fn a_calendar(span: Micros, start: Timestamp, random: &mut Random) -> Limit {
    let mut at = start.back(Micros::new(span.get() * 3));
    let mut next = || {
        at = at + Micros::new(span.get() / 2 + 1 + random.below(span.get()));
        at
    };
    let boundaries = (0..200).map(|_| next()).collect();
    Limit::FixedWindow(FixedWindow::calendar(random.below(9), boundaries).unwrap())
}

/// Plays the histories `seeds` of one kind, all at once.
async fn play(pair: &Pair, kind: u64, seeds: std::ops::Range<u64>, touched: Touched) {
    let mut random = Random::new(kind << 48 | seeds.start);
    let spans = [1_000, 1_000_000, 60_000_000, 86_400_000_000];
    let span = Micros::new(*random.pick(&spans));
    let mut now = Timestamp::from_micros(1_800_000_000_000_000 + random.below(1 << 40));
    let mut histories: Vec<History> =
        seeds.map(|seed| History::new(kind, seed, touched, span, now)).collect();
    // When somebody was told that things change: the moments that matter most.
    let mut told = Vec::new();
    for step in 0..STEPS {
        let wait = match random.below(2) {
            0 if !told.is_empty() => *random.pick(&told),
            _ => Micros::new(any_wait(&histories[0].limit, &mut random)),
        };
        // Undoing does not bring back leases that had ended, which a clock that steps back would; the conformance suite
        // plays that with limits small enough to be put back as they were.
        if random.below(25) == 0 && touched == Touched::OneCell {
            forget_idle_cells(pair, &histories).await;
            now = now.back(wait);
        } else {
            now = now + wait;
        }
        pair.redis.set_time(now);
        let moves: Vec<Move> = histories.iter_mut().map(History::next_move).collect();
        let [redis, memory] = pair.stores();
        let (given, expected) = (act(redis, &histories, &moves).await, act(memory, &histories, &moves).await);
        told = expected.iter().flat_map(Answer::moments).filter(|wait| *wait < A_YEAR).collect();
        for ((history, given), expected) in histories.iter().zip(given).zip(expected) {
            let (limit, seed) = (&history.limit, &history.key);
            assert_eq!(given, expected, "kind {kind}, seed {seed:?}, step {step}, at {now:?}: {limit:?}");
        }
    }
}

/// What a store answered to a move.
#[derive(Debug, PartialEq)]
enum Answer {
    Outcomes(Vec<Outcome>, Vec<Fold>),
    Held(bool),
    Done,
}

impl Answer {
    /// After how long there is more, and all.
    fn moments(&self) -> Vec<Micros> {
        let Answer::Outcomes(outcomes, _) = self else { return Vec::new() };
        outcomes.iter().flat_map(|told| told.retry_after().into_iter().chain([told.reset_after])).collect()
    }
}

/// Makes all moves, those of a kind in one call: the answers.
async fn act(store: &dyn Store, histories: &[History], moves: &[Move]) -> Vec<Answer> {
    let (mut spends, mut refunds, mut charges) = (Vec::new(), Vec::new(), Vec::new());
    let mut answers = Vec::new();
    for (history, what) in histories.iter().zip(moves) {
        let (cell, limit) = (history.cell(), &history.limit);
        answers.push(match what {
            Move::Decide(asks) => {
                spends.extend(asks.iter().map(|(ask, count)| (history.spends(*ask), *count)));
                Answer::Outcomes(Vec::new(), Vec::new())
            }
            Move::Refund { hits, age } => {
                refunds.push(Refund { cell, limit, hits: *hits, age: *age, id: None });
                Answer::Done
            }
            Move::Charge(charge) => {
                charges.push(CellCharge { cell, limit, charge: *charge });
                Answer::Done
            }
            Move::Renew(id) => {
                Answer::Held(store.renew(LeaseRef { cell, limit, id: *id }).answer().await.unwrap().value)
            }
            Move::Release(id) => {
                Answer::Held(store.release(LeaseRef { cell, limit, id: *id }).answer().await.unwrap().value)
            }
            Move::Reset => {
                store.reset(cell, limit).answer().await.unwrap();
                Answer::Done
            }
        });
    }
    store.refund(&refunds).answer().await.unwrap();
    store.charge(&charges).answer().await.unwrap();
    let batch: Vec<Request<'_>> =
        spends.iter().map(|(spends, count)| Request { spends, count: *count }).collect();
    let told = store.decide(&batch).answer().await.unwrap();
    let (mut outcomes, mut folds) = (told.outcomes.into_iter(), told.folds.into_iter());
    for ((history, what), answer) in histories.iter().zip(moves).zip(&mut answers) {
        if let Move::Decide(asks) = what {
            let cells = history.cells().count();
            let folded = asks.iter().filter(|(_, count)| count.get() > 1).count();
            *answer = Answer::Outcomes(
                outcomes.by_ref().take(asks.len() * cells).collect(),
                folds.by_ref().take(folded * cells).collect(),
            );
        }
    }
    assert_eq!(outcomes.next(), None, "an outcome that nobody asked for");
    assert_eq!(folds.next(), None, "a fold that nobody asked for");
    answers
}

/// A cell whose full quota is back may be gone or not, which makes a difference once the clock steps back.
async fn forget_idle_cells(pair: &Pair, histories: &[History]) {
    for (cell, limit) in histories.iter().flat_map(History::cells) {
        let touch = Touch { limit, ask: Ask::look(), group: Group::ENFORCED };
        let spends = [Spend { cell, touch }];
        // Both look: a look drops what has ended, which a clock that steps back would bring back.
        pair.redis.store.decide(&[Request::once(&spends)]).answer().await.unwrap();
        let outcomes = pair.memory.decide(&[Request::once(&spends)]).answer().await.unwrap();
        if outcomes[0].remaining == limit.quota() {
            for store in pair.stores() {
                store.reset(cell, limit).answer().await.unwrap();
            }
        }
    }
}

/// Plays a thousand histories on one server.
async fn differs_nowhere(kind: u64) {
    let redis = Redis::start();
    let pair = Pair::new(&redis.url());
    for wave in 0..10 {
        play(&pair, kind, wave * HISTORIES..(wave + 1) * HISTORIES, Touched::OneCell).await;
    }
}

#[tokio::test]
async fn token_buckets_give_the_same_answers_in_memory_and_in_redis() {
    differs_nowhere(0).await;
}

#[tokio::test]
async fn leaky_buckets_give_the_same_answers_in_memory_and_in_redis() {
    differs_nowhere(1).await;
}

#[tokio::test]
async fn fixed_windows_give_the_same_answers_in_memory_and_in_redis() {
    differs_nowhere(2).await;
}

#[tokio::test]
async fn sliding_windows_give_the_same_answers_in_memory_and_in_redis() {
    differs_nowhere(3).await;
}

#[tokio::test]
async fn sliding_logs_give_the_same_answers_in_memory_and_in_redis() {
    differs_nowhere(4).await;
}

#[tokio::test]
async fn concurrency_limits_give_the_same_answers_in_memory_and_in_redis() {
    differs_nowhere(5).await;
}

#[tokio::test]
async fn calendar_windows_give_the_same_answers_in_memory_and_in_redis() {
    differs_nowhere(CALENDAR).await;
}

#[tokio::test]
async fn limits_that_change_between_sliding_algorithms_give_the_same_answers_in_memory_and_in_redis() {
    differs_nowhere(CHANGING).await;
}

#[tokio::test]
async fn requests_over_two_servers_give_the_same_answers_as_in_memory() {
    let sharded = ShardedRedis::start(3);
    for kind in 0..=CHANGING {
        let pair = Pair::new(&sharded.url());
        play(&pair, kind, 0..HISTORIES, Touched::TwoCells).await;
    }
}
