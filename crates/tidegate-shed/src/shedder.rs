//! A shed machine shared by all threads of a node: with a clock, randomness, and permits that release on drop.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{Micros, Timestamp};
use tidegate_rules::Priority;
use tidegate_store::Clock;

use crate::classes::Classes;
use crate::level::LevelConfig;
use crate::machine::{Capacity, Reason, ShedMachine, Thresholds};
use crate::utilization::Utilization;

/// The configuration of a shedder.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ShedderConfig {
    /// How many requests can be processed concurrently.
    pub capacity: Capacity,
    /// How many of the workers each class may use.
    pub thresholds: Thresholds,
    /// How the level follows overload.
    pub level: LevelConfig,
    /// The class of requests that no rule gives a priority.
    pub classes: Classes,
    /// The retry time for shed callers.
    pub retry_after: Micros,
    /// How long a reported utilisation holds.
    pub report_lasts: Micros,
    /// Makes randomness repeatable, for tests.
    pub seed: u64,
}

impl ShedderConfig {
    /// The defaults, for this capacity.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        ShedderConfig {
            capacity,
            thresholds: Thresholds::default(),
            level: LevelConfig::default(),
            classes: Classes::default(),
            retry_after: Micros::from_secs(1),
            report_lasts: Micros::from_secs(10),
            seed: RandomState::new().hash_one(0),
        }
    }
}

/// Sheds load on one node. All threads share it; each call holds a lock for less than a microsecond.
pub struct Shedder {
    classes: Classes,
    retry_after: Micros,
    report_lasts: Micros,
    clock: Arc<dyn Clock>,
    state: Mutex<ShedderState>,
}

struct ShedderState {
    machine: ShedMachine,
    random: SplitMix64,
}

/// A request that was shed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Shed {
    /// Its priority.
    pub priority: Priority,
    /// Why.
    pub reason: Reason,
    /// How long to wait before a retry.
    pub retry_after: Micros,
}

impl fmt::Display for Shed {
    /// The message for its caller.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = name(self.priority);
        match self.reason {
            Reason::Threshold { utilization, most } => write!(
                f,
                "shed: {utilization} of the workers are busy, and requests of priority {class} may use {most}"
            ),
            Reason::Level { chance } => write!(
                f,
                "shed: the workers have been busy for a while, and {:.0} % of the requests of priority {class} are turned away",
                (chance * 100.0).max(1.0)
            ),
        }
    }
}

impl std::error::Error for Shed {}

/// The current state of a shedder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ShedStats {
    /// Admitted requests that have not left.
    pub in_use: usize,
    /// How many requests can be processed concurrently; `None` if utilisation is only reported.
    pub workers: Option<usize>,
    /// How busy the workers are.
    pub utilization: Utilization,
    /// How much is shed because they have been busy: from 0 to 1.
    pub level: f64,
}

impl Shedder {
    /// A shedder that uses `clock`.
    #[must_use]
    pub fn new(config: ShedderConfig, clock: Arc<dyn Clock>) -> Arc<Self> {
        let machine = ShedMachine::new(config.capacity, config.thresholds, config.level);
        Arc::new(Shedder {
            classes: config.classes,
            retry_after: config.retry_after,
            report_lasts: config.report_lasts,
            clock,
            state: Mutex::new(ShedderState { machine, random: SplitMix64(config.seed) }),
        })
    }

    /// The class of a request that no rule gives a priority.
    #[must_use]
    pub fn class_of(&self, entries: &[(&str, &[u8])]) -> Priority {
        self.classes.class_of(entries)
    }

    /// Admits a request, or sheds it.
    ///
    /// # Errors
    /// When it is shed.
    pub fn enter(self: &Arc<Self>, priority: Priority) -> Result<Permit, Shed> {
        let now = self.clock.now();
        let ShedderState { machine, random } = &mut *self.state.lock();
        match machine.enter(priority, now, || random.part()) {
            Ok(()) => Ok(Permit { shedder: Arc::clone(self), here: Here::Inside }),
            Err(reason) => Err(Shed { priority, reason, retry_after: self.retry_after }),
        }
    }

    /// Reports the utilisation of the workers, from a source that knows it better than this shedder can count. It expires:
    /// report it every few seconds.
    pub fn report(&self, utilization: Utilization) {
        let (now, lasts) = (self.clock.now(), self.report_lasts);
        self.state.lock().machine.report(utilization, now, lasts);
    }

    /// The current state.
    #[must_use]
    pub fn stats(&self) -> ShedStats {
        let now = self.clock.now();
        let machine = &mut self.state.lock().machine;
        machine.advance(now);
        ShedStats {
            in_use: machine.in_use(),
            workers: machine.workers().map(Into::into),
            utilization: machine.utilization(),
            level: machine.level(),
        }
    }
}

impl fmt::Debug for Shedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shedder").field("machine", &self.state.lock().machine).finish_non_exhaustive()
    }
}

/// An admitted request; it leaves when this is dropped.
#[derive(Debug)]
pub struct Permit {
    shedder: Arc<Shedder>,
    here: Here,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Inside,
    Aside,
}

impl Permit {
    /// Leaves temporarily: a request that waits for its turn occupies no worker.
    pub fn step_aside(&mut self) {
        if std::mem::replace(&mut self.here, Here::Aside) == Here::Inside {
            self.with(|machine, now| machine.leave(now));
        }
    }

    /// Re-enters, whatever the load: it was admitted once, and has already spent its hits.
    pub fn come_back(&mut self) {
        if std::mem::replace(&mut self.here, Here::Inside) == Here::Aside {
            self.with(|machine, now| machine.reenter(now));
        }
    }

    /// The service answered this request `took` after it was forwarded. Do not call this for a failed one.
    pub fn answered(&self, took: Micros) {
        self.with(|machine, now| machine.answered(took, now));
    }

    fn with(&self, change: impl FnOnce(&mut ShedMachine, Timestamp)) {
        let now = self.shedder.clock.now();
        change(&mut self.shedder.state.lock().machine, now);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.step_aside();
    }
}

fn name(priority: Priority) -> &'static str {
    match priority {
        Priority::P0 => "P0",
        Priority::P1 => "P1",
        Priority::P2 => "P2",
        Priority::P3 => "P3",
    }
}

/// A small generator. Predicting it gains nothing: a shed caller may simply retry.
struct SplitMix64(u64);

impl SplitMix64 {
    /// A number in `0.0..1.0`.
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use tidegate_store::ManualClock;

    use super::*;

    fn shedder(workers: usize) -> (Arc<Shedder>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000)));
        let capacity = Capacity::Workers(NonZeroUsize::new(workers).unwrap());
        let config = ShedderConfig { seed: 7, ..ShedderConfig::new(capacity) };
        (Shedder::new(config, clock.clone()), clock)
    }

    #[test]
    fn a_place_is_given_back_once_however_its_holder_ends() {
        let (shedder, _) = shedder(10);
        let mut waits = shedder.enter(Priority::P2).unwrap();
        let stays = shedder.enter(Priority::P2).unwrap();
        waits.step_aside();
        waits.step_aside();
        assert_eq!(shedder.stats().in_use, 1);
        waits.come_back();
        waits.come_back();
        assert_eq!(shedder.stats().in_use, 2);
        waits.step_aside();
        drop(waits);
        assert_eq!(shedder.stats().in_use, 1);
        drop(stays);
        assert_eq!(shedder.stats().in_use, 0);
    }

    #[test]
    fn a_part_of_a_class_is_shed_as_likely_as_the_level_says() {
        let (shedder, clock) = shedder(100);
        let busy: Vec<Permit> = (0..100).map(|_| shedder.enter(Priority::P0).unwrap()).collect();
        for _ in 0..6 {
            clock.advance(Micros::from_secs(10));
            let _ = shedder.stats();
        }
        drop(busy);
        // Half of everything: all of P3, and half of P2.
        let shed = |class| (0..10_000).filter(|_| shedder.enter(class).is_err()).count();
        assert_eq!((shed(Priority::P3), shed(Priority::P1), shed(Priority::P0)), (10_000, 0, 0));
        assert!((4_800..5_200).contains(&shed(Priority::P2)));
    }

    #[test]
    fn who_is_shed_is_told_so_with_its_priority() {
        let (shedder, _) = shedder(10);
        let _busy: Vec<Permit> = (0..8).map(|_| shedder.enter(Priority::P0).unwrap()).collect();
        let shed = shedder.enter(Priority::P3).unwrap_err();
        assert_eq!(
            shed.to_string(),
            "shed: 80 % of the workers are busy, and requests of priority P3 may use 70 %"
        );
        assert_eq!(shed.retry_after, Micros::from_secs(1));
    }
}
