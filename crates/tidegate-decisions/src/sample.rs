//! Which decisions are kept. Nothing here takes a lock: it is asked for every decision.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads that count admissions for themselves; more share.
const LANES: usize = 16;

/// Keeps one in so many, thread by thread.
pub(crate) struct OneIn {
    n: u64,
    lanes: [Padded; LANES],
}

#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl OneIn {
    pub(crate) fn new(n: u32) -> Self {
        OneIn { n: n.into(), lanes: Default::default() }
    }

    /// How many this one stands for, if it is kept.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        if self.n <= 1 {
            return (self.n == 1).then_some(1);
        }
        let seen = self.lanes[lane()].0.fetch_add(1, Ordering::Relaxed);
        // From the middle of each stretch: the first of every thread would be too many, the last too few.
        (seen % self.n == self.n / 2).then(|| u32::try_from(self.n).unwrap_or(u32::MAX))
    }
}

impl OneIn {
    /// How many the admission stands for whose lease has this mark, if it is kept. Every node finds the same, so that whoever
    /// ends the lease knows, and nobody has to remember it.
    #[inline]
    pub(crate) fn of_mark(&self, mark: impl FnOnce() -> u64) -> Option<u32> {
        match self.n {
            0 => None,
            1 => Some(1),
            n => mark().is_multiple_of(n).then(|| u32::try_from(n).unwrap_or(u32::MAX)),
        }
    }
}

fn lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    }
    MINE.with(|lane| *lane)
}

/// Keeps so many in a second and, of what comes beyond, ever fewer: so that each line stands for few others, and who is refused
/// most has most of the lines. What is left over is carried by the next line.
pub(crate) struct PerSecond {
    most: u64,
    /// The second, and how many came in it: 40 and 24 bits.
    state: AtomicU64,
    skipped: AtomicU64,
}

const COUNT_BITS: u32 = 24;
const MOST_COUNTED: u64 = (1 << COUNT_BITS) - 1;
/// Beyond the rate one in so many is kept, beyond twice the rate one in twice as many, and so on: at most another sixteenth of
/// the rate each time that refusals double.
const THINNED: u64 = 16;

impl PerSecond {
    pub(crate) fn new(most: u32) -> Self {
        // Of more than the count can hold, none is held back.
        let most = u64::from(most).min((1 << COUNT_BITS) - 2);
        PerSecond { most, state: AtomicU64::new(0), skipped: AtomicU64::new(0) }
    }

    /// How many this one stands for, if it is kept: itself, and those that were not kept before it.
    pub(crate) fn take(&self, second: u64) -> Option<u32> {
        let second = second & ((1 << (64 - COUNT_BITS)) - 1);
        let so_far = |state: u64| if state >> COUNT_BITS == second { state & MOST_COUNTED } else { 0 };
        let counted = |state: u64| Some(second << COUNT_BITS | (so_far(state) + 1).min(MOST_COUNTED));
        let before = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).map_or(0, so_far);
        if self.is_kept(before) {
            let skipped = self.skipped.swap(0, Ordering::Relaxed);
            return Some(u32::try_from(skipped + 1).unwrap_or(u32::MAX));
        }
        self.skipped.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Whether one is kept that comes after so many in its second.
    fn is_kept(&self, before: u64) -> bool {
        if before < self.most || self.most == 0 {
            return before < self.most;
        }
        let stride = THINNED * (before / self.most).next_power_of_two();
        before % stride == stride - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_ten_stands_for_ten() {
        let sample = OneIn::new(10);
        let kept: Vec<u32> = (0..1_000).filter_map(|_| sample.take()).collect();
        assert_eq!((kept.len(), kept.iter().sum::<u32>()), (100, 1_000));
        assert_eq!((OneIn::new(1).take(), OneIn::new(0).take()), (Some(1), None));
    }

    #[test]
    fn refusals_beyond_the_rate_are_carried_by_the_next_line() {
        let sample = PerSecond::new(3);
        let first: Vec<Option<u32>> = (0..10).map(|_| sample.take(100)).collect();
        assert_eq!(first[..4], [Some(1), Some(1), Some(1), None]);
        assert_eq!(sample.take(101), Some(8), "itself and the seven before");
        assert_eq!(sample.take(101), Some(1));
        assert_eq!(PerSecond::new(0).take(1), None);
    }

    #[test]
    fn beyond_the_rate_each_line_stands_for_few_and_all_of_them_for_all() {
        let sample = PerSecond::new(1_000);
        let kept: Vec<u32> = (0..100_000).filter_map(|_| sample.take(100)).collect();
        assert!((1_000..1_500).contains(&kept.len()), "{} lines", kept.len());
        assert!(kept.iter().all(|n| *n <= 2_048), "one stands for {:?}", kept.iter().max());
        let stands_for: u64 =
            kept.iter().map(|n| u64::from(*n)).sum::<u64>() + u64::from(sample.take(101).unwrap()) - 1;
        assert_eq!(stands_for, 100_000);
    }
}
