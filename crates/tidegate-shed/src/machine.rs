//! Thresholds, level and capacity as one state machine: state and time in, a verdict out.

use std::num::NonZeroUsize;

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::Priority;

use crate::gradient::{Gradient2, Gradient2Config};
use crate::level::{LevelConfig, ShedLevel};
use crate::utilization::{Percent, Utilization};

/// How many of the workers each class may use: P0 all of them, plus the queue in front of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Thresholds {
    /// For P1: 90 % by default.
    pub p1: Percent,
    /// For P2: 80 % by default.
    pub p2: Percent,
    /// For P3: 70 % by default.
    pub p3: Percent,
}

impl Default for Thresholds {
    fn default() -> Self {
        const fn percent(number: u8) -> Percent {
            Percent::new(number).expect("not above 100")
        }
        const { Thresholds { p1: percent(90), p2: percent(80), p3: percent(70) } }
    }
}

impl Thresholds {
    /// The utilisation above which a class is shed; `None` for P0, which never is.
    #[must_use]
    pub fn of(&self, priority: Priority) -> Option<Percent> {
        match priority {
            Priority::P0 => None,
            Priority::P1 => Some(self.p1),
            Priority::P2 => Some(self.p2),
            Priority::P3 => Some(self.p3),
        }
    }
}

/// How many requests can be processed concurrently.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Capacity {
    /// A fixed number.
    Workers(NonZeroUsize),
    /// As measured.
    Adaptive(Gradient2Config),
    /// Unknown here: utilisation is [reported](ShedMachine::report).
    Reported,
}

/// Why a request is shed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// As many workers are busy as its class may use.
    Threshold {
        /// How busy they are.
        utilization: Utilization,
        /// What its class may use.
        most: Percent,
    },
    /// The workers have been too busy for a while.
    Level {
        /// The probability that its class is shed.
        chance: f64,
    },
}

/// Decides which requests are shed.
#[derive(Clone, Debug)]
pub struct ShedMachine {
    capacity: Workers,
    thresholds: Thresholds,
    level: ShedLevel,
    in_use: usize,
    reported: Option<ReportedUtilization>,
}

#[derive(Clone, Debug)]
enum Workers {
    Fixed(NonZeroUsize),
    Adaptive(Gradient2),
    Unknown,
}

/// A reported utilisation, and how long it holds.
#[derive(Clone, Copy, Debug)]
struct ReportedUtilization {
    utilization: Utilization,
    until: Timestamp,
}

impl ShedMachine {
    /// A machine with no request in flight.
    #[must_use]
    pub fn new(capacity: Capacity, thresholds: Thresholds, level: LevelConfig) -> Self {
        let capacity = match capacity {
            Capacity::Workers(workers) => Workers::Fixed(workers),
            Capacity::Adaptive(config) => Workers::Adaptive(Gradient2::new(config)),
            Capacity::Reported => Workers::Unknown,
        };
        ShedMachine { capacity, thresholds, level: ShedLevel::new(level), in_use: 0, reported: None }
    }

    /// Admits a request, or returns why not. `roll` returns a number in `0.0..1.0` and is called only if chance decides.
    ///
    /// # Errors
    /// When the request is shed. Then nothing has changed except the time.
    pub fn enter(
        &mut self,
        priority: Priority,
        now: Timestamp,
        roll: impl FnOnce() -> f64,
    ) -> Result<(), Reason> {
        self.advance(now);
        if let Some(most) = self.thresholds.of(priority)
            && self.is_beyond(most)
        {
            return Err(Reason::Threshold { utilization: self.utilization(), most });
        }
        let chance = self.level.chance(priority);
        if chance > 0.0 && roll() < chance {
            return Err(Reason::Level { chance });
        }
        self.in_use += 1;
        Ok(())
    }

    /// Admits a request again that was admitted before and had stepped aside.
    pub fn reenter(&mut self, now: Timestamp) {
        self.advance(now);
        self.in_use += 1;
    }

    /// An admitted request has left.
    pub fn leave(&mut self, now: Timestamp) {
        self.advance(now);
        self.in_use = self.in_use.saturating_sub(1);
    }

    /// An admitted request was answered `took` after it was forwarded.
    pub fn answered(&mut self, took: Micros, now: Timestamp) {
        self.advance(now);
        if let Workers::Adaptive(gradient) = &mut self.capacity {
            gradient.answered(took, self.in_use, now);
        }
    }

    /// Sets the utilisation from an external source; it holds for `lasts` unless reported again.
    pub fn report(&mut self, utilization: Utilization, now: Timestamp, lasts: Micros) {
        self.advance(now);
        self.reported = Some(ReportedUtilization { utilization, until: now + lasts });
    }

    /// Brings the level up to date.
    pub fn advance(&mut self, now: Timestamp) {
        if let Some(ReportedUtilization { until, .. }) = self.reported.filter(|report| report.until <= now) {
            self.level.advance(until, self.utilization());
            self.reported = None;
        }
        self.level.advance(now, self.utilization());
    }

    /// How busy the workers are: as counted here or as reported, whichever is higher.
    #[must_use]
    pub fn utilization(&self) -> Utilization {
        let counted =
            self.workers().map_or(Utilization::IDLE, |workers| Utilization::of(self.in_use, workers));
        self.reported.map_or(counted, |report| counted.max(report.utilization))
    }

    /// How many requests can be processed concurrently, if known.
    #[must_use]
    pub fn workers(&self) -> Option<NonZeroUsize> {
        match &self.capacity {
            Workers::Fixed(workers) => Some(*workers),
            Workers::Adaptive(gradient) => NonZeroUsize::new(gradient.limit()),
            Workers::Unknown => None,
        }
    }

    /// Admitted requests that have not left.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// How much is shed because workers have been busy: from 0 to 1.
    #[must_use]
    pub fn level(&self) -> f64 {
        self.level.level()
    }

    /// Whether one more request would take utilisation above `most`. A lone request never does: otherwise a single worker
    /// could never be used.
    fn is_beyond(&self, most: Percent) -> bool {
        let room = self.workers().map(|workers| most.of(workers.get()).max(1));
        room.is_some_and(|room| self.in_use >= room)
            || self.reported.is_some_and(|report| report.utilization.is_above(most))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
    const CLASSES: [Priority; 4] = [Priority::P0, Priority::P1, Priority::P2, Priority::P3];

    fn machine(capacity: Capacity) -> ShedMachine {
        ShedMachine::new(capacity, Thresholds::default(), LevelConfig::default())
    }

    fn workers(count: usize) -> Capacity {
        Capacity::Workers(NonZeroUsize::new(count).unwrap())
    }

    /// How many requests of a class are admitted before the first is shed.
    fn fit(machine: &mut ShedMachine, priority: Priority) -> usize {
        (0..1000).take_while(|_| machine.enter(priority, START, || 0.0).is_ok()).count()
    }

    #[test]
    fn each_class_fills_its_part_and_the_next_goes_on_from_there_and_p0_never_ends() {
        let mut machine = machine(workers(20));
        let order = [Priority::P3, Priority::P2, Priority::P1, Priority::P0];
        assert_eq!(order.map(|class| fit(&mut machine, class)), [14, 2, 2, 1000]);
    }

    #[test]
    fn who_leaves_makes_room() {
        let mut machine = machine(workers(10));
        assert_eq!(fit(&mut machine, Priority::P3), 7);
        machine.leave(START);
        assert_eq!(fit(&mut machine, Priority::P3), 1);
    }

    #[test]
    fn a_single_worker_serves_every_class_one_at_a_time() {
        for class in &CLASSES[1..] {
            assert_eq!(fit(&mut machine(workers(1)), *class), 1);
        }
    }

    #[test]
    fn chance_decides_only_where_the_level_says_so() {
        let mut machine = machine(workers(10));
        machine.enter(Priority::P3, START, || panic!("nothing is shed yet")).unwrap();
        // As many P0 as workers, for 20 s: a sixth of everything, and so half of P3.
        for _ in 0..9 {
            machine.enter(Priority::P0, START, || panic!("P0 is never shed")).unwrap();
        }
        let (busy, after) = (START + Micros::from_secs(10), START + Micros::from_secs(20));
        machine.advance(busy);
        machine.advance(after);
        (0..10).for_each(|_| machine.leave(after));
        assert!(matches!(machine.enter(Priority::P3, after, || 0.49), Err(Reason::Level { .. })));
        assert!(machine.enter(Priority::P3, after, || 0.51).is_ok());
        assert!(machine.enter(Priority::P2, after, || panic!("P2 has not its turn yet")).is_ok());
    }

    #[test]
    fn what_is_reported_counts_until_it_is_old() {
        let mut machine = machine(Capacity::Reported);
        let lasts = Micros::from_secs(10);
        machine.report(Utilization::of(85, NonZeroUsize::new(100).unwrap()), START, lasts);
        let shed = |machine: &mut ShedMachine, class, now| machine.enter(class, now, || 1.0).is_err();
        assert!(shed(&mut machine, Priority::P2, START) && !shed(&mut machine, Priority::P1, START));
        assert!(!shed(&mut machine, Priority::P2, START + lasts));
        // Ten seconds at a quarter of the way from busy to full; nothing is known about the time after.
        let level = 10.0 * 0.25 / 120.0;
        assert!((machine.level() - level).abs() < 1e-9, "{}", machine.level());
    }

    #[test]
    fn what_is_reported_and_what_is_counted_are_both_believed() {
        let mut machine = machine(workers(10));
        machine.report(Utilization::IDLE, START, Micros::from_secs(10));
        assert_eq!(fit(&mut machine, Priority::P3), 7);
    }

    proptest! {
        #[test]
        fn nobody_is_let_in_beyond_its_threshold_and_p0_always_is(
            count in 1..50usize,
            steps in proptest::collection::vec((0..5usize, 0..2_000_000u64, 0.0..1.0f64), 1..500),
        ) {
            let mut machine = machine(workers(count));
            let (mut now, mut inside) = (START, 0usize);
            for (what, pause, roll) in steps {
                now = now + Micros::new(pause);
                let Some(class) = CLASSES.get(what) else {
                    machine.leave(now);
                    inside = inside.saturating_sub(1);
                    continue;
                };
                let verdict = machine.enter(*class, now, || roll);
                let room = [usize::MAX, count * 90 / 100, count * 80 / 100, count * 70 / 100][what].max(1);
                match verdict {
                    Ok(()) => {
                        prop_assert!(inside < room);
                        inside += 1;
                    }
                    Err(Reason::Threshold { .. }) => prop_assert!(inside >= room),
                    Err(Reason::Level { .. }) => prop_assert!(*class != Priority::P0 && machine.level() > 0.0),
                }
                prop_assert_eq!(machine.in_use(), inside);
            }
        }
    }
}
