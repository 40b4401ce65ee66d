//! Slow references: each keeps the whole history, in 128-bit integers, and decides from the definition alone.

use proptest::prelude::*;
use tidegate_core::{
    Cell, Concurrency, FixedWindow, LeakyBucket, Limit, Micros, RefusedHits, SlidingLog, SlidingWindow,
    Timestamp, TokenBucket,
};

use crate::generate::{START, Step, any_limit_and_history, ask};

/// Whether a request passes, and how many hits are left if one were to look right after.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    passes: bool,
    remaining: u64,
}

trait Oracle {
    /// Decides and remembers.
    fn decide(&mut self, now: u128, hits: u64) -> Answer;
}

fn oracle_for(limit: &Limit) -> Box<dyn Oracle> {
    match limit.clone() {
        Limit::TokenBucket(limit) => Box::new(Tokens { tokens: full(&limit), at: 0, limit }),
        Limit::LeakyBucket(limit) => Box::new(Queue { limit, free_at: 0 }),
        Limit::FixedWindow(limit) => Box::new(Windows { limit, admitted: vec![] }),
        Limit::SlidingWindow(limit) => Box::new(TwoWindows { limit, admitted: vec![] }),
        Limit::SlidingLog(limit) => Box::new(Everything { limit, entries: vec![] }),
        Limit::Concurrency(limit) => Box::new(Holders { limit, ends: vec![] }),
    }
}

/// The textbook's tokens, as a fraction over the period.
struct Tokens {
    limit: TokenBucket,
    tokens: u128,
    at: u128,
}

fn full(limit: &TokenBucket) -> u128 {
    u128::from(limit.burst()) * u128::from(limit.rate().period().get())
}

impl Oracle for Tokens {
    fn decide(&mut self, now: u128, hits: u64) -> Answer {
        let rate = self.limit.rate();
        self.tokens = (self.tokens + (now - self.at) * u128::from(rate.count())).min(full(&self.limit));
        self.at = now;
        let period = u128::from(rate.period().get());
        let passes = self.tokens >= u128::from(hits.max(1)) * period;
        if passes {
            self.tokens -= u128::from(hits) * period;
        }
        Answer { passes, remaining: (self.tokens / period) as u64 }
    }
}

/// When the queue is next free, as a fraction over the count.
struct Queue {
    limit: LeakyBucket,
    free_at: u128,
}

impl Oracle for Queue {
    fn decide(&mut self, now: u128, hits: u64) -> Answer {
        let (count, period) =
            (u128::from(self.limit.rate().count()), u128::from(self.limit.rate().period().get()));
        let now = now * count;
        let latest = now + u128::from(self.limit.max_delay().get()) * count;
        let first = self.free_at.max(now);
        let passes = first + u128::from(hits.max(1) - 1) * period <= latest;
        if passes {
            self.free_at = first + u128::from(hits) * period;
        }
        let next = self.free_at.max(now);
        let remaining = if next > latest { 0 } else { (latest - next) / period + 1 };
        Answer { passes, remaining: remaining as u64 }
    }
}

struct Windows {
    limit: FixedWindow,
    admitted: Vec<(u128, u64)>,
}

impl Windows {
    /// Which window a moment lies in, by counting boundaries one by one.
    fn window_of(&self, moment: u128) -> u128 {
        match (self.limit.window(), self.limit.boundaries()) {
            (Some(window), _) => moment / u128::from(window.get()),
            (None, boundaries) => {
                let boundaries = boundaries.expect("no length, so a calendar");
                let (last, len) = (
                    boundaries[boundaries.len() - 1],
                    boundaries[boundaries.len() - 1] - boundaries[boundaries.len() - 2],
                );
                let known = boundaries[1..]
                    .iter()
                    .filter(|boundary| u128::from(boundary.as_micros()) <= moment)
                    .count();
                let beyond = moment.saturating_sub(u128::from(last.as_micros())) / u128::from(len.get());
                known as u128 + beyond
            }
        }
    }
}

impl Oracle for Windows {
    fn decide(&mut self, now: u128, hits: u64) -> Answer {
        let here = self.window_of(now);
        let spent: u64 =
            self.admitted.iter().filter(|(at, _)| self.window_of(*at) == here).map(|(_, hits)| hits).sum();
        let passes = u128::from(spent) + u128::from(hits.max(1)) <= u128::from(self.limit.limit());
        let taken = if passes { hits } else { 0 };
        self.admitted.push((now, taken));
        Answer { passes, remaining: self.limit.limit() - spent - taken }
    }
}

struct TwoWindows {
    limit: SlidingWindow,
    admitted: Vec<(u128, u64)>,
}

impl Oracle for TwoWindows {
    fn decide(&mut self, now: u128, hits: u64) -> Answer {
        let window = u128::from(self.limit.window().get());
        let spent_in = |index: u128| -> u128 {
            self.admitted
                .iter()
                .filter(|(at, _)| at / window == index)
                .map(|(_, hits)| u128::from(*hits))
                .sum()
        };
        let index = now / window;
        let weight = window - now % window;
        let load = spent_in(index - 1) * weight + spent_in(index) * window;
        let limit = u128::from(self.limit.limit()) * window;
        let passes = load + u128::from(hits.max(1)) * window <= limit;
        let taken = if passes { hits } else { 0 };
        self.admitted.push((now, taken));
        Answer {
            passes,
            remaining: (limit.saturating_sub(load + u128::from(taken) * window) / window) as u64,
        }
    }
}

struct Everything {
    limit: SlidingLog,
    /// When, and whether it counts.
    entries: Vec<u128>,
}

impl Oracle for Everything {
    fn decide(&mut self, now: u128, hits: u64) -> Answer {
        let window = u128::from(self.limit.window().get());
        let live = |entries: &[u128]| entries.iter().filter(|at| **at + window > now).count() as u64;
        let last = self.entries.iter().filter(|at| **at + window > now).max();
        let spaced = last.is_none_or(|last| now - last >= u128::from(self.limit.min_interval().get()));
        let passes = spaced && live(&self.entries).saturating_add(hits.max(1)) <= self.limit.limit();
        if passes || self.limit.refused_hits() == RefusedHits::Count {
            // More than the limit of one moment cannot be told from the limit.
            self.entries.extend(std::iter::repeat_n(now, hits.min(self.limit.limit()) as usize));
        }
        Answer { passes, remaining: self.limit.limit().saturating_sub(live(&self.entries)) }
    }
}

struct Holders {
    limit: Concurrency,
    ends: Vec<u128>,
}

impl Oracle for Holders {
    fn decide(&mut self, now: u128, hits: u64) -> Answer {
        let live = |ends: &[u128]| ends.iter().filter(|end| **end > now).count() as u64;
        let passes = live(&self.ends) < self.limit.limit();
        if hits > 0 && (passes || self.limit.refused_hits() == RefusedHits::Count) {
            self.ends.push(now + u128::from(self.limit.ttl().get()));
        }
        Answer { passes, remaining: self.limit.limit().saturating_sub(live(&self.ends)) }
    }
}

fn micros(moment: Timestamp) -> u128 {
    u128::from(moment.as_micros())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_decision_is_the_oracles((limit, history) in any_limit_and_history()) {
        let mut oracle = oracle_for(&limit);
        let mut cell = Cell::Vacant;
        let mut now = START;
        for (turn, Step { wait, hits }) in history.into_iter().enumerate() {
            now = now + wait;
            let ask = ask(hits, turn);
            let outcome = limit.decide(&mut cell, now, ask);
            if !outcome.is_admitted() {
                limit.note_refused(&mut cell, now, ask, 1);
            }
            let after = limit.look(&cell, now, ask_nothing(turn)).remaining;
            let expected = oracle.decide(micros(now), hits);
            let given = Answer { passes: outcome.is_admitted(), remaining: after };
            prop_assert_eq!(given, expected, "turn {} at {:?}, {} hits on {:?}", turn, now, hits, limit);
            if outcome.is_admitted() {
                prop_assert_eq!(outcome.remaining, after);
            }
        }
    }

    #[test]
    fn a_leaky_bucket_asks_for_the_wait_until_its_slot(limit in crate::generate::any_leaky_bucket(), hits in 1..20u64) {
        let mut cell = Cell::Vacant;
        let wrapped = Limit::LeakyBucket(limit);
        let (count, period) = (limit.rate().count(), limit.rate().period().get());
        for turn in 0..hits {
            let outcome = wrapped.decide(&mut cell, START, ask(1, 0));
            if !outcome.is_admitted() {
                break;
            }
            prop_assert_eq!(outcome.delay(), Micros::new((turn * period).div_ceil(count)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whoever cannot wait is admitted exactly where the queue asks for no wait, takes the same slots then, and none
    /// otherwise: those who can wait never notice the others' refusals.
    #[test]
    fn a_caller_that_cannot_wait_goes_at_once_or_takes_no_slot(
        limit in crate::generate::any_leaky_bucket(),
        steps in proptest::collection::vec((0..3_000_000u64, 0..30u64, any::<bool>()), 1..60),
    ) {
        let patient = Limit::LeakyBucket(limit);
        let impatient = Limit::LeakyBucket(limit.without_waiting());
        // The second queue is only ever asked by those who can wait, and by others when there is no wait.
        let (mut shared, mut alone) = (Cell::Vacant, Cell::Vacant);
        let mut now = START;
        for (turn, (wait, hits, waits)) in steps.into_iter().enumerate() {
            now = now + Micros::new(wait);
            let expected = patient.look(&alone, now, ask(hits, turn));
            let goes_now = expected.is_admitted() && expected.delay() == Micros::ZERO;
            let outcome = if waits { &patient } else { &impatient }.decide(&mut shared, now, ask(hits, turn));
            if waits || goes_now {
                patient.decide(&mut alone, now, ask(hits, turn));
            }
            prop_assert_eq!(&shared, &alone);
            if waits {
                prop_assert_eq!(outcome.verdict, expected.verdict);
            } else {
                prop_assert_eq!(outcome.is_admitted(), goes_now);
                prop_assert_eq!(outcome.delay(), Micros::ZERO);
                if let Some(retry_after) = outcome.retry_after() {
                    prop_assert!(impatient.look(&shared, now + retry_after, ask(hits, turn)).is_admitted());
                    prop_assert!(!impatient.look(&shared, (now + retry_after).back(Micros::ONE), ask(hits, turn)).is_admitted());
                }
            }
        }
    }
}

fn ask_nothing(turn: usize) -> tidegate_core::Ask {
    ask(0, turn)
}
