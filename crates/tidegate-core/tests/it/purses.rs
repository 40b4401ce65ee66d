//! Hits taken from one counter by holders far away, over links that delay and lose: what all of them spend together is compared with
//! the limit itself, in every window.

use proptest::prelude::*;
use tidegate_core::{
    Ask, Cell, FixedWindow, Hits, Limit, Micros, Outcome, Prepaid, Purse, Rate, RefusedHits, Returned,
    SlidingLog, Timestamp, TokenBucket,
};

const START_US: u64 = 1_800_000_000_000_000;
const STEP_US: u64 = 10_000;
const TERM: Micros = Micros::from_millis(250);
const TRANSIT: Micros = Micros::from_millis(400);

/// Numbers from a seed.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}

#[derive(Clone, Copy)]
struct Links {
    delay_us: u64,
    lost_percent: u64,
}

enum Message {
    Take { holder: usize, hits: u64, asked: Timestamp },
    Taken { holder: usize, hits: u64, asked: Timestamp, outcome: Outcome },
    Return(Returned, Timestamp),
}

struct World {
    random: Seeded,
    links: Links,
    terms: Prepaid,
    home: Cell,
    purses: Vec<Purse>,
    asking: Vec<bool>,
    under_way: Vec<(u64, Message)>,
    /// The oracle: when each hit was admitted.
    admitted: Vec<u64>,
}

impl World {
    fn new(seed: u64, limit: &Limit, holders: usize, links: Links) -> Self {
        let purse = Purse::new(TERM, Timestamp::from_micros(START_US));
        World {
            random: Seeded(seed | 1),
            links,
            terms: limit.prepaid().expect("it can be lent"),
            home: Cell::default(),
            purses: vec![purse; holders],
            asking: vec![false; holders],
            under_way: Vec::new(),
            admitted: Vec::new(),
        }
    }

    fn send(&mut self, now_us: u64, message: Message) {
        if self.random.below(100) >= self.links.lost_percent {
            let arrives = now_us + self.links.delay_us / 2 + self.random.below(self.links.delay_us / 2);
            self.under_way.push((arrives, message));
        } else if let Message::Take { holder, .. } | Message::Taken { holder, .. } = message {
            // Its holder gives up waiting, and asks again.
            self.asking[holder] = false;
        }
    }

    fn deliver(&mut self, now_us: u64) {
        let now = Timestamp::from_micros(now_us);
        let (due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.under_way).into_iter().partition(|(at, _)| *at <= now_us);
        self.under_way = rest;
        for (_, message) in due {
            match message {
                Message::Take { holder, hits, asked } => {
                    let mut granted = 0;
                    let mut outcome = self.terms.limit.look(&self.home, now, Ask::look());
                    while granted < hits {
                        outcome = self.terms.limit.decide(&mut self.home, now, Ask::hits(1));
                        if !outcome.is_admitted() {
                            break;
                        }
                        granted += 1;
                    }
                    self.send(now_us, Message::Taken { holder, hits: granted, asked, outcome });
                }
                Message::Taken { holder, hits, asked, outcome } => {
                    self.asking[holder] = false;
                    self.purses[holder].receive(asked, hits, &outcome, self.terms.held);
                }
                // A store does not begin with a call that is late.
                Message::Return(_, sent) if now - sent > TRANSIT => {}
                Message::Return(Returned { hits, age }, _) => {
                    self.terms.limit.refund(&mut self.home, now, Hits::new(hits), age);
                }
            }
        }
    }

    fn step(&mut self, now_us: u64, wants: &[u64]) {
        let now = Timestamp::from_micros(now_us);
        self.deliver(now_us);
        for (holder, &wants) in wants.iter().enumerate() {
            for _ in 0..wants {
                if self.purses[holder].spend(now, 1) {
                    self.admitted.push(now_us);
                } else {
                    self.purses[holder].wait_for(1);
                }
            }
            if !self.asking[holder] && self.purses[holder].is_due(now) {
                let holders = wants_len(&self.purses);
                let hits = self.purses[holder].order(now, holders);
                if hits > 0 {
                    self.asking[holder] = true;
                    self.send(now_us, Message::Take { holder, hits, asked: now });
                }
            }
            for returned in self.purses[holder].returns(now, TRANSIT) {
                self.send(now_us, Message::Return(returned, now));
            }
        }
    }

    /// The most hits that were admitted in `span`, wherever it begins.
    fn most_within(&self, span: u64) -> u64 {
        let first = |at: u64| self.admitted.partition_point(|&other| other + span <= at);
        self.admitted.iter().enumerate().map(|(place, &at)| place - first(at) + 1).max().unwrap_or(0) as u64
    }
}

fn wants_len(purses: &[Purse]) -> u64 {
    purses.len() as u64
}

fn log(limit: u64, window: Micros) -> Limit {
    SlidingLog::new(limit, window, Micros::ZERO, RefusedHits::Forget).unwrap().into()
}

fn bucket(rate: u64, burst: u64) -> Limit {
    TokenBucket::new(Rate::new(rate, Micros::from_secs(1)).unwrap(), burst).unwrap().into()
}

fn run(world: &mut World, steps: u64, busy: u64) {
    for step in 0..steps {
        let wants: Vec<u64> = (0..world.purses.len())
            .map(|_| if world.random.below(3) == 0 { 0 } else { world.random.below(busy) })
            .collect();
        world.step(START_US + step * STEP_US, &wants);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn holders_of_prepaid_hits_keep_a_sliding_limit_in_every_window(
        seed in any::<u64>(), limit in 1_u64..300, holders in 1_usize..6, busy in 1_u64..6,
        delay_us in 1_u64..800_000, lost_percent in 0_u64..40,
    ) {
        let window = Micros::from_secs(4);
        let mut world = World::new(seed, &log(limit, window), holders, Links { delay_us, lost_percent });
        run(&mut world, 1_500, busy);
        let most = world.most_within(window.get());
        prop_assert!(most <= limit, "{most} of {limit} in one window");
    }

    #[test]
    fn holders_of_prepaid_hits_keep_a_fixed_window(
        seed in any::<u64>(), limit in 1_u64..300, holders in 1_usize..6, busy in 1_u64..6,
        delay_us in 1_u64..800_000, lost_percent in 0_u64..40,
    ) {
        let window = Micros::from_secs(3);
        let fixed = Limit::from(FixedWindow::new(limit, window).unwrap());
        let mut world = World::new(seed, &fixed, holders, Links { delay_us, lost_percent });
        run(&mut world, 1_500, busy);
        for number in START_US / window.get()..=(START_US + 1_500 * STEP_US) / window.get() {
            let of_window = world.admitted.iter().filter(|at| **at / window.get() == number).count() as u64;
            prop_assert!(of_window <= limit, "{of_window} of {limit} in one window");
        }
    }

    #[test]
    fn holders_of_prepaid_hits_keep_burst_and_rate_of_a_bucket(
        seed in any::<u64>(), rate in 1_u64..100, seconds in 2_u64..10, holders in 1_usize..6, busy in 1_u64..6,
        delay_us in 1_u64..800_000, lost_percent in 0_u64..40,
    ) {
        let burst = rate * seconds;
        let limit = bucket(rate, burst);
        prop_assume!(limit.prepaid().is_some());
        let mut world = World::new(seed, &limit, holders, Links { delay_us, lost_percent });
        run(&mut world, 1_500, busy);
        for span in [1, 200_000, 1_000_000, 4_000_000, 15_000_000] {
            let most = world.most_within(span);
            let bound = burst + (rate * span) / 1_000_000 + 1;
            prop_assert!(most <= bound, "{most} in {span} us, of {burst} and {rate}/s");
        }
    }
}

#[test]
fn nine_tenths_of_a_limit_are_used_while_demand_moves_between_purses() {
    let (limit, window) = (9_000, Micros::from_secs(10));
    let fixed = Limit::from(FixedWindow::new(limit, window).unwrap());
    let mut world = World::new(7, &fixed, 3, Links { delay_us: 80_000, lost_percent: 1 });
    let (mut static_thirds, mut thirds) = (0, [0_u64; 3]);
    let steps = window.get() / STEP_US;
    for step in 0..10 * steps {
        if step % steps == 0 {
            thirds = [0; 3];
        }
        let busy = (step / (2 * steps)) as usize % 3;
        let wants: Vec<u64> = (0..3).map(|holder| if holder == busy { 12 } else { 1 }).collect();
        for (used, &wants) in thirds.iter_mut().zip(&wants) {
            let fits = wants.min((limit / 3).saturating_sub(*used));
            *used += fits;
            static_thirds += fits;
        }
        world.step(START_US + step * STEP_US, &wants);
    }
    let (used, possible) = (world.admitted.len() as u64, 10 * limit);
    println!("prepaid {used}, static thirds {static_thirds}, of {possible}");
    assert!(used * 10 >= possible * 9, "{used} of {possible}");
    assert!(used > static_thirds, "{used} prepaid, {static_thirds} by thirds");
}

#[test]
fn what_cannot_be_paid_ahead_has_no_terms() {
    let interval = SlidingLog::new(10, Micros::from_secs(60), Micros::from_millis(1), RefusedHits::Forget);
    let counted = SlidingLog::new(10, Micros::from_secs(60), Micros::ZERO, RefusedHits::Count);
    for limit in [Limit::from(interval.unwrap()), counted.unwrap().into(), bucket(10, 1), bucket(100, 10)] {
        assert_eq!(limit.prepaid(), None, "{limit:?}");
    }
    let terms = bucket(10, 100).prepaid().unwrap();
    assert_eq!((terms.limit.quota(), terms.held), (93, Some(Micros::from_millis(625))));
}

#[test]
fn hits_that_are_held_too_long_cannot_be_spent_and_go_back_no_younger_than_they_are() {
    let terms = bucket(10, 100).prepaid().unwrap();
    let held = terms.held.unwrap();
    let asked = Timestamp::from_micros(START_US);
    let mut purse = Purse::new(TERM, asked);
    let mut home = Cell::default();
    let outcome = (0..50).map(|_| terms.limit.decide(&mut home, asked, Ask::hits(1))).last().unwrap();
    purse.receive(asked, 50, &outcome, Some(held));
    let last = asked + held.saturating_sub(Micros::ONE);
    assert!(purse.spend(last, 1), "in time");
    assert!(!purse.spend(asked + held, 1), "late use is impossible");
    purse.put_back(asked + held, 1);
    assert_eq!(purse.left(asked + held), 0, "what comes back too late is lost");
    let returned: Vec<Returned> = purse.returns(asked + held, Micros::from_millis(1));
    assert_eq!(returned, [Returned { hits: 49, age: held + Micros::from_millis(1) }]);
}
