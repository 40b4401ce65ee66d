//! How much of the traffic is shed: an integral over how busy the workers were.
//!
//! Stripe's idea. While utilisation is above `busy_above` the level rises, the faster the higher; while it is below
//! `calm_below` the level falls; in between it stays. From 0 to 1 takes `full_after` at the most extreme utilisation, so a
//! short spike sheds almost nothing and a long overload sheds as much as it must, without oscillating.

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::Priority;

use crate::utilization::{Percent, Utilization};

/// The longest step that counts while the level rises: a clock set forward does not mean the workers were busy all that time.
const LONGEST_RISE: Micros = Micros::from_secs(10);

/// When the level rises and falls, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelConfig {
    calm_below: Percent,
    busy_above: Percent,
    full_after: Micros,
}

/// Why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LevelConfigError {
    /// `calm_below` is 0: no utilisation is below it.
    NeverCalm,
    /// `busy_above` is 100: there is nothing above it.
    NeverBusy,
    /// The two overlap.
    Overlap,
    /// `full_after` is zero: everything would be shed at once.
    AtOnce,
}

impl std::fmt::Display for LevelConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LevelConfigError::NeverCalm => "calm_below must be above 0 %, or the level never falls",
            LevelConfigError::NeverBusy => "busy_above must be below 100 %, or the level never rises",
            LevelConfigError::Overlap => {
                "calm_below must not be above busy_above: the level would rise and fall at once"
            }
            LevelConfigError::AtOnce => "full_after must be above zero",
        })
    }
}

impl std::error::Error for LevelConfigError {}

impl LevelConfig {
    /// Rises above `busy_above`, falls below `calm_below`, and takes `full_after` from 0 to 1.
    ///
    /// # Errors
    /// When the level could never rise, never fall, or would do both.
    pub fn new(
        calm_below: Percent,
        busy_above: Percent,
        full_after: Micros,
    ) -> Result<Self, LevelConfigError> {
        match () {
            () if calm_below.get() == 0 => Err(LevelConfigError::NeverCalm),
            () if busy_above.get() == 100 => Err(LevelConfigError::NeverBusy),
            () if calm_below > busy_above => Err(LevelConfigError::Overlap),
            () if full_after == Micros::ZERO => Err(LevelConfigError::AtOnce),
            () => Ok(LevelConfig { calm_below, busy_above, full_after }),
        }
    }

    /// How fast the level changes at this utilisation: from -1, falling fastest, to 1.
    fn slope(&self, utilization: Utilization) -> f64 {
        let (now, calm, busy) = (utilization.ratio(), self.calm_below.ratio(), self.busy_above.ratio());
        if now < calm {
            now / calm - 1.0
        } else if now > busy {
            ((now - busy) / (1.0 - busy)).min(1.0)
        } else {
            0.0
        }
    }
}

impl Default for LevelConfig {
    fn default() -> Self {
        const CALM: Percent = Percent::new(70).expect("not above 100");
        const BUSY: Percent = Percent::new(80).expect("not above 100");
        LevelConfig { calm_below: CALM, busy_above: BUSY, full_after: Micros::from_secs(120) }
    }
}

/// How much of the traffic is shed, from 0 to 1, as of some time.
#[derive(Clone, Debug)]
pub struct ShedLevel {
    config: LevelConfig,
    level: f64,
    as_of: Option<Timestamp>,
}

impl ShedLevel {
    /// Sheds nothing yet.
    #[must_use]
    pub fn new(config: LevelConfig) -> Self {
        ShedLevel { config, level: 0.0, as_of: None }
    }

    /// Integrates `utilization` since the last call. A clock that steps back adds nothing.
    pub fn advance(&mut self, now: Timestamp, utilization: Utilization) {
        let Some(before) = self.as_of.replace(now) else { return };
        let (passed, slope) = (now.since(before), self.config.slope(utilization));
        let passed = if slope > 0.0 { passed.min(LONGEST_RISE) } else { passed };
        let steps = passed.get() as f64 / self.config.full_after.get() as f64;
        self.level = (self.level + slope * steps).clamp(0.0, 1.0);
    }

    /// How much is shed: 0 nothing, 1 everything except P0.
    #[must_use]
    pub fn level(&self) -> f64 {
        self.level
    }

    /// The probability that a request of this class is shed. The first third of the level sheds P3, the second also P2, the
    /// last P1: a class is shed only once every less critical one is shed completely.
    #[must_use]
    pub fn chance(&self, priority: Priority) -> f64 {
        let spared = match priority {
            Priority::P0 => return 0.0,
            Priority::P1 => 2.0,
            Priority::P2 => 1.0,
            Priority::P3 => 0.0,
        };
        (3.0 * self.level - spared).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
    const CLASSES: [Priority; 4] = [Priority::P0, Priority::P1, Priority::P2, Priority::P3];

    fn at(percent: usize) -> Utilization {
        Utilization::of(percent, NonZeroUsize::new(100).unwrap())
    }

    /// The level after these phases: seconds at a utilisation in percent.
    fn after(phases: &[(u64, usize)]) -> f64 {
        let mut level = ShedLevel::new(LevelConfig::default());
        let mut now = START;
        level.advance(now, Utilization::IDLE);
        for (seconds, percent) in phases {
            for _ in 0..*seconds {
                now = now + Micros::from_secs(1);
                level.advance(now, at(*percent));
            }
        }
        level.level()
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn all_workers_busy_for_two_minutes_shed_everything_and_idling_as_long_sheds_nothing() {
        assert!(close(after(&[(60, 100)]), 0.5));
        assert!(close(after(&[(120, 100)]), 1.0));
        assert!(close(after(&[(500, 300), (120, 0)]), 0.0));
        assert!(close(after(&[(120, 100), (60, 0)]), 0.5));
    }

    #[test]
    fn halfway_between_busy_and_full_it_rises_half_as_fast_and_halfway_to_calm_it_falls_half_as_fast() {
        assert!(close(after(&[(60, 90)]), 0.25));
        assert!(close(after(&[(120, 100), (60, 35)]), 0.75));
    }

    #[test]
    fn between_calm_and_busy_it_stays() {
        for percent in [70, 75, 80] {
            assert!(close(after(&[(60, 100), (1000, percent)]), 0.5), "{percent}");
        }
    }

    #[test]
    fn a_clock_that_is_set_forward_does_not_shed_everybody_and_one_set_back_nobody() {
        let mut level = ShedLevel::new(LevelConfig::default());
        level.advance(START, at(100));
        level.advance(START + Micros::from_secs(86_400), at(100));
        assert!(close(level.level(), 10.0 / 120.0));
        level.advance(START, at(100));
        assert!(close(level.level(), 10.0 / 120.0));
    }

    #[test]
    fn what_makes_no_level_is_refused() {
        let percent = |number| Percent::new(number).unwrap();
        let made = |calm, busy, after| LevelConfig::new(percent(calm), percent(busy), after).unwrap_err();
        let second = Micros::from_secs(1);
        assert_eq!(made(0, 80, second), LevelConfigError::NeverCalm);
        assert_eq!(made(70, 100, second), LevelConfigError::NeverBusy);
        assert_eq!(made(81, 80, second), LevelConfigError::Overlap);
        assert_eq!(made(70, 80, Micros::ZERO), LevelConfigError::AtOnce);
    }

    proptest! {
        #[test]
        fn whatever_happens_the_level_is_a_part_and_p0_is_never_shed_and_p3_first(
            steps in proptest::collection::vec((0..100_000_000u64, 0..500usize), 1..200),
        ) {
            let mut level = ShedLevel::new(LevelConfig::default());
            let mut now = START;
            for (micros, percent) in steps {
                now = now + Micros::new(micros);
                level.advance(now, at(percent));
                prop_assert!((0.0..=1.0).contains(&level.level()));
                let chances = CLASSES.map(|class| level.chance(class));
                prop_assert_eq!(chances[0], 0.0);
                prop_assert!(chances.is_sorted() && chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
                // A class is shed only once the next one is shed completely.
                for pair in chances[1..].windows(2) {
                    prop_assert!(pair[0] == 0.0 || pair[1] == 1.0, "{:?}", chances);
                }
            }
        }

        #[test]
        fn it_matters_not_how_often_one_looks(cuts in proptest::collection::vec(1..9_000_000u64, 1..50), percent in 0..200usize) {
            let config = LevelConfig::default();
            let (mut often, mut once) = (ShedLevel::new(config), ShedLevel::new(config));
            for level in [&mut often, &mut once] {
                level.advance(START, Utilization::IDLE);
                for second in 1..=9 {
                    level.advance(START + Micros::from_secs(10 * second), at(100));
                }
            }
            let mut now = START + Micros::from_secs(90);
            for cut in cuts {
                let end = now + Micros::new(cut);
                once.advance(end, at(percent));
                for part in 1..=7 {
                    often.advance(now + Micros::new(cut * part / 7), at(percent));
                }
                now = end;
            }
            prop_assert!((often.level() - once.level()).abs() < 1e-9);
        }
    }
}
