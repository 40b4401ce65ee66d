//! How many requests a service can process concurrently, measured from its latency: Gradient2, as in Netflix's
//! concurrency-limits.
//!
//! Requests that take longer than usual are queueing somewhere, so fewer should be in flight; if they do not, a few more may
//! be tried. "Usual" is a slow average, so a service that became slower for good keeps its limit; for the same reason one
//! that stays saturated for many minutes is taken for slow, and gets more, up to `max`. Do not feed failures in: they are
//! fast, and would look like room.

use tidegate_core::{Micros, Timestamp};

/// How the limit is found.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Gradient2Config {
    /// The initial limit.
    pub initial: usize,
    /// The lowest limit.
    pub min: usize,
    /// The highest limit.
    pub max: usize,
    /// How many requests may queue: by how much the limit tries to grow at each step.
    pub queue: usize,
    /// How much slower than usual still counts as not queueing: 1.5 is half as long again.
    pub tolerance: f64,
    /// The fraction of each step that is applied, from 0 to 1.
    pub smoothing: f64,
    /// Over how many steps the usual latency is averaged.
    pub long_steps: u32,
    /// The length of a step; it is longer if it saw too few answers.
    pub step: Micros,
}

impl Default for Gradient2Config {
    fn default() -> Self {
        Gradient2Config {
            initial: 20,
            min: 4,
            max: 1_000,
            queue: 4,
            tolerance: 1.5,
            smoothing: 0.2,
            long_steps: 600,
            step: Micros::from_secs(1),
        }
    }
}

/// A step with fewer answers says nothing about latency.
const FEWEST_ANSWERS: u64 = 10;
/// The first steps are averaged plainly: an exponential average has nothing to build on yet.
const WARM_UP: u32 = 10;

/// The limit, and what is known about latency.
#[derive(Clone, Debug)]
pub struct Gradient2 {
    config: Gradient2Config,
    limit: f64,
    usual: LongAverage,
    step: Step,
}

impl Gradient2 {
    /// Starts with the configured limit. An invalid configuration is replaced by the nearest valid one.
    #[must_use]
    pub fn new(config: Gradient2Config) -> Self {
        let min = config.min.max(1);
        let config = Gradient2Config {
            min,
            max: config.max.max(min),
            smoothing: if config.smoothing.is_finite() { config.smoothing.clamp(0.0, 1.0) } else { 0.2 },
            tolerance: if config.tolerance.is_finite() { config.tolerance.max(1.0) } else { 1.5 },
            ..config
        };
        let limit = config.initial.clamp(config.min, config.max) as f64;
        Gradient2 { config, limit, usual: LongAverage::new(config.long_steps), step: Step::default() }
    }

    /// How many requests may be in flight: at least one.
    #[must_use]
    pub fn limit(&self) -> usize {
        // Between min and max, which are whole numbers.
        self.limit as usize
    }

    /// A request was answered after `took`, with `in_flight` requests in flight.
    pub fn answered(&mut self, took: Micros, in_flight: usize, now: Timestamp) {
        if let Some((took, in_flight)) = self.step.add(took, in_flight, now, self.config.step) {
            self.update(took, in_flight);
        }
    }

    /// One step: requests took `short` microseconds on average, with at most `in_flight` in flight.
    fn update(&mut self, short: f64, in_flight: usize) {
        let long = self.usual.add(short);
        // After a long overload "usual" is the overload's latency. Forget it faster than the average would.
        if long > 2.0 * short {
            self.usual.scale(0.95);
        }
        // The current limit was not used, so nothing was learned about a higher one.
        if (in_flight as f64) < self.limit / 2.0 {
            return;
        }
        // At most halved per step: one slow step may be an outlier.
        let gradient = (self.config.tolerance * long / short).clamp(0.5, 1.0);
        let wanted = self.limit * gradient + self.config.queue as f64;
        let smoothed = self.limit + (wanted - self.limit) * self.config.smoothing;
        self.limit = smoothed.clamp(self.config.min as f64, self.config.max as f64);
    }
}

/// An average over many steps: plain at first, exponential later.
#[derive(Clone, Debug)]
struct LongAverage {
    value: f64,
    steps: u32,
    factor: f64,
}

impl LongAverage {
    fn new(steps: u32) -> Self {
        LongAverage { value: 0.0, steps: 0, factor: 2.0 / (f64::from(steps.max(1)) + 1.0) }
    }

    fn add(&mut self, sample: f64) -> f64 {
        self.steps = self.steps.saturating_add(1);
        let weight = if self.steps <= WARM_UP { 1.0 / f64::from(self.steps) } else { self.factor };
        self.value += (sample - self.value) * weight;
        self.value
    }

    fn scale(&mut self, by: f64) {
        self.value *= by;
    }
}

/// The answers since the last step.
#[derive(Clone, Debug, Default)]
struct Step {
    began: Option<Timestamp>,
    answers: u64,
    sum_us: u64,
    most_in_flight: usize,
}

impl Step {
    /// Adds an answer. If the step is over, returns its average in microseconds and its most requests in flight.
    fn add(
        &mut self,
        took: Micros,
        in_flight: usize,
        now: Timestamp,
        length: Micros,
    ) -> Option<(f64, usize)> {
        let began = *self.began.get_or_insert(now);
        self.answers += 1;
        // Never zero: the average is a divisor.
        self.sum_us = self.sum_us.saturating_add(took.get().max(1));
        self.most_in_flight = self.most_in_flight.max(in_flight);
        if now.since(began) < length || self.answers < FEWEST_ANSWERS {
            return None;
        }
        let seen = (self.sum_us as f64 / self.answers as f64, self.most_in_flight);
        *self = Step { began: Some(now), ..Step::default() };
        Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    /// A service of `workers` that each take 50 ms, with as many requests as the limit allows, and at most `callers`.
    struct World {
        gradient: Gradient2,
        now: Timestamp,
        workers: usize,
        callers: usize,
    }

    impl World {
        fn new(workers: usize) -> Self {
            World {
                gradient: Gradient2::new(Gradient2Config::default()),
                now: START,
                workers,
                callers: usize::MAX,
            }
        }

        fn run(&mut self, seconds: u64) -> usize {
            for _ in 0..seconds * 20 {
                self.now = self.now + Micros::from_millis(50);
                let in_flight = self.gradient.limit().min(self.callers);
                // Requests beyond the workers queue.
                let took = 50_000 * in_flight.max(self.workers) as u64 / self.workers as u64;
                self.gradient.answered(Micros::new(took), in_flight, self.now);
            }
            self.gradient.limit()
        }
    }

    #[test]
    fn it_finds_a_service_that_can_do_more_and_does_not_queue_without_end() {
        let limit = World::new(100).run(300);
        // 50 ms may become 75 before it counts, and "usual" has crept up meanwhile. A limit that never noticed a queue would
        // be at 260.
        assert!((100..=220).contains(&limit), "{limit}");
    }

    #[test]
    fn a_service_that_loses_workers_is_asked_less_and_one_that_regains_them_more() {
        let mut world = World::new(100);
        let healthy = world.run(200);
        world.workers = 10;
        let ill = world.run(30);
        assert!(ill < healthy / 2, "{healthy} then {ill}");
        world.workers = 100;
        let again = world.run(300);
        assert!(again > ill && again >= 100, "{ill} then {again}");
    }

    #[test]
    fn nothing_is_learned_from_a_service_that_nobody_asks() {
        let mut world = World::new(1000);
        world.callers = 5;
        assert_eq!(world.run(100), 20);
    }

    #[test]
    fn one_slow_step_takes_a_tenth_at_most() {
        let mut world = World::new(100);
        let before = world.run(200);
        world.gradient.update(1e12, before);
        // Halved, a fifth of that step applied, and four more tried each time.
        assert!(world.gradient.limit() >= before * 9 / 10, "{before} then {}", world.gradient.limit());
    }

    #[test]
    fn a_step_waits_for_enough_answers() {
        let mut gradient = Gradient2::new(Gradient2Config::default());
        for second in 0..9 {
            gradient.answered(Micros::from_millis(1), 20, START + Micros::from_secs(second));
        }
        assert_eq!(gradient.limit(), 20);
        gradient.answered(Micros::from_millis(1), 20, START + Micros::from_secs(9));
        gradient.answered(Micros::from_millis(1), 20, START + Micros::from_secs(10));
        assert_eq!(gradient.limit(), 20);
        assert!(gradient.limit > 20.0);
    }

    proptest! {
        #[test]
        fn whatever_it_sees_the_limit_stays_between_its_ends(
            answers in proptest::collection::vec((any::<u64>(), 0..2_000usize, 0..3_000_000u64), 1..500),
            min in 0..50usize, max in 0..500usize, initial in 0..1_000usize,
            smoothing in proptest::num::f64::ANY, tolerance in proptest::num::f64::ANY,
        ) {
            let config = Gradient2Config { initial, min, max, smoothing, tolerance, ..Gradient2Config::default() };
            let mut gradient = Gradient2::new(config);
            let mut now = START;
            for (took, in_flight, pause) in answers {
                now = now + Micros::new(pause);
                gradient.answered(Micros::new(took), in_flight, now);
                prop_assert!(gradient.limit() >= min.max(1) && gradient.limit() <= max.max(min).max(1));
            }
        }
    }
}
