//! The fraction of capacity in use.

use std::fmt;
use std::num::NonZeroUsize;

/// The fraction of workers that are busy: 0 when idle, 1 when all are, more when requests queue for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Utilization(f64);

impl Utilization {
    /// No worker is busy.
    pub const IDLE: Utilization = Utilization(0.0);

    /// `in_use` of `capacity`.
    #[must_use]
    pub fn of(in_use: usize, capacity: NonZeroUsize) -> Self {
        Utilization(in_use as f64 / capacity.get() as f64)
    }

    /// As a number: 1 is the whole capacity.
    #[must_use]
    pub fn ratio(self) -> f64 {
        self.0
    }

    /// The higher of two views of the same workers: the one that sees more of them busy is right.
    #[must_use]
    pub fn max(self, other: Utilization) -> Utilization {
        Utilization(self.0.max(other.0))
    }

    /// Whether it is above `most`.
    #[must_use]
    pub fn is_above(self, most: Percent) -> bool {
        self.0 > most.ratio()
    }
}

impl fmt::Display for Utilization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} %", self.0 * 100.0)
    }
}

/// A whole number from 0 to 100.
///
/// ```
/// use tidegate_shed::Percent;
///
/// let most = Percent::new(70).expect("not above 100");
/// assert_eq!(most.of(20), 14);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    /// `percent`; `None` if it is above 100.
    #[must_use]
    pub const fn new(percent: u8) -> Option<Self> {
        if percent <= 100 { Some(Percent(percent)) } else { None }
    }

    /// As a number from 0 to 100.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// As a number from 0 to 1.
    #[must_use]
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// This percentage of `whole`, rounded down, so that it is never exceeded.
    #[must_use]
    pub fn of(self, whole: usize) -> usize {
        usize::try_from(whole as u128 * u128::from(self.0) / 100).unwrap_or(whole)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_rounded_down_and_never_overflows() {
        let percent = |number| Percent::new(number).unwrap();
        assert_eq!((percent(29).of(100), percent(70).of(3), percent(0).of(9)), (29, 2, 0));
        assert_eq!(percent(100).of(usize::MAX), usize::MAX);
        assert_eq!(Percent::new(101), None);
    }

    #[test]
    fn what_queues_is_more_than_everything() {
        let workers = NonZeroUsize::new(20).unwrap();
        assert!(Utilization::of(25, workers).is_above(Percent::new(100).unwrap()));
        assert!(!Utilization::of(14, workers).is_above(Percent::new(70).unwrap()));
        assert_eq!(Utilization::of(15, workers).to_string(), "75 %");
    }
}
