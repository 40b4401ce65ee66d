//! Which decisions are kept. Takes no locks: this runs for every decision.
//!
//! Of each stretch of n decisions, one at a random position is kept and stands for the stretch. Keeping every n-th would
//! always pick the same caller if callers take turns in a cycle of the same length.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of lanes in which threads count separately; more threads share lanes.
const LANES: usize = 16;

/// Keeps one in n, per lane.
pub(crate) struct OneIn {
    n: u64,
    places: Places,
    lanes: [Padded; LANES],
}

#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl OneIn {
    pub(crate) fn new(n: u32) -> Self {
        OneIn { n: n.into(), places: Places::random(), lanes: Default::default() }
    }

    /// The number of decisions that this one stands for, if it is kept.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        if self.n <= 1 {
            return (self.n == 1).then_some(1);
        }
        let lane = lane();
        let seen = self.lanes[lane].0.fetch_add(1, Ordering::Relaxed);
        let (stretch, place) = (seen / self.n, seen % self.n);
        let kept = self.places.of(stretch * LANES as u64 + lane as u64, self.n);
        (place == kept).then(|| u32::try_from(self.n).unwrap_or(u32::MAX))
    }
}

/// Random positions within stretches.
struct Places {
    seed: u64,
}

impl Places {
    fn random() -> Self {
        Places { seed: RandomState::new().hash_one(0) }
    }

    /// The position, below `length`, that is kept of a stretch.
    #[inline]
    fn of(&self, stretch: u64, length: u64) -> u64 {
        // Two rounds of multiplying and folding mix every bit; the high half of the product is below `length`.
        let mut mixed = (stretch ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^= mixed >> 32;
        let place = (u128::from(mixed) * u128::from(length)) >> 64;
        u64::try_from(place).unwrap_or_default()
    }
}

impl OneIn {
    /// Decides by the mark of a lease whether its admission is kept, and returns the number it stands for. Every node
    /// computes the same, so the node that ends the lease knows, and nothing has to be remembered.
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

/// Keeps the first `most` of every second and, beyond those, a thinning sample: each line stands for few others, and the
/// callers refused most have most of the lines. A line stands only for decisions of its own second.
pub(crate) struct PerSecond {
    most: u64,
    places: Places,
    /// Counts those kept without sampling, over all threads.
    kept: Padded,
    /// Counts those beyond, per lane, so that threads do not contend when there are many.
    beyond: [Padded; LANES],
}

const COUNT_BITS: u32 = 24;
const MOST_COUNTED: u64 = (1 << COUNT_BITS) - 1;
/// Beyond the rate one in this many is kept, beyond twice the rate one in twice as many, and so on: each doubling of
/// decisions adds at most another sixteenth of the rate per thread.
const THINNED: u64 = 16;
/// A decision at most this many seconds late counts in the newest second.
const MOST_LATE: u64 = 10;

impl PerSecond {
    pub(crate) fn new(most: u32) -> Self {
        // A bound above what the count can hold would never be reached: everything is kept.
        let most = u64::from(most).min((1 << COUNT_BITS) - 2);
        PerSecond { most, places: Places::random(), kept: Padded::default(), beyond: Default::default() }
    }

    /// The number of decisions that this one stands for, if it is kept.
    #[inline]
    pub(crate) fn take(&self, second: u64) -> Option<u32> {
        if self.has_room(second) {
            return Some(1);
        }
        if self.most == 0 {
            return None;
        }
        let lane = lane();
        let before = self.beyond[lane].count(second, MOST_COUNTED);
        let stride = THINNED * (before / self.most + 1).next_power_of_two();
        let stretch = (second << COUNT_BITS) | (before / stride);
        let stretch = stretch.wrapping_mul(LANES as u64).wrapping_add(lane as u64);
        (before % stride == self.places.of(stretch, stride))
            .then(|| u32::try_from(stride).unwrap_or(u32::MAX))
    }

    /// Whether this one is within the rate of its second, where all are kept; if so it is counted.
    #[inline]
    pub(crate) fn has_room(&self, second: u64) -> bool {
        self.kept.count(second, self.most) < self.most
    }
}

impl Padded {
    /// Counts one in `second`, up to `most`, and returns the count before. The state packs the second in 40 bits and the
    /// count in 24.
    ///
    /// Decisions are counted when they end, but in the second in which they were requested, so around a change of second
    /// both interleave. A late one counts in the newest second; otherwise each interleaving would restart the count.
    #[inline]
    fn count(&self, second: u64, most: u64) -> u64 {
        let second = second & ((1 << (64 - COUNT_BITS)) - 1);
        let so_far = |state: u64| {
            let newest = state >> COUNT_BITS;
            match newest.checked_sub(second) {
                // A clock set back by more than that restarts the count; otherwise nothing would be kept until it caught up.
                Some(late) if late <= MOST_LATE => (newest, state & MOST_COUNTED),
                _ => (second, 0),
            }
        };
        // A full count is not written, which keeps its cache line shared.
        let counted = |state: u64| {
            let (second, before) = so_far(state);
            (before < most).then_some(second << COUNT_BITS | (before + 1))
        };
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted) {
            Ok(before) => so_far(before).1,
            Err(_) => most,
        }
    }
}

/// Which admissions are kept, and which ends of their leases.
pub(crate) enum Admissions {
    /// One in n, always.
    OneIn(OneIn),
    /// All, up to a rate.
    UpTo {
        admissions: PerSecond,
        /// Ends are kept up to four times that rate: a lease admitted in a quiet second may end in a busy one.
        ends: Box<PerSecond>,
    },
}

/// Beyond the rate, leases whose mark is a multiple of this are kept. So are their ends, on any node.
const LEASES_ONE_IN: u32 = 64;

impl Admissions {
    pub(crate) fn new(one_in: Option<u32>, per_second: u32) -> Self {
        match one_in {
            Some(n) => Admissions::OneIn(OneIn::new(n)),
            None => Admissions::UpTo {
                admissions: PerSecond::new(per_second),
                ends: Box::new(PerSecond::new(per_second.saturating_mul(4))),
            },
        }
    }

    /// The number of admissions that this one stands for, if it is kept.
    #[inline]
    pub(crate) fn take(&self, second: u64) -> Option<u32> {
        match self {
            Admissions::OneIn(one_in) => one_in.take(),
            Admissions::UpTo { admissions, .. } => admissions.take(second),
        }
    }

    /// The same for an admission that took a lease with this mark.
    pub(crate) fn take_lease(&self, second: u64, mark: impl FnOnce() -> u64) -> Option<u32> {
        match self {
            Admissions::OneIn(one_in) => one_in.of_mark(mark),
            Admissions::UpTo { admissions, .. } => of_mark_beyond(admissions, second, mark),
        }
    }

    /// The same for the end or renewal of a lease with this mark.
    pub(crate) fn take_end(&self, second: u64, mark: impl FnOnce() -> u64) -> Option<u32> {
        match self {
            Admissions::OneIn(one_in) => one_in.of_mark(mark),
            Admissions::UpTo { ends, .. } => of_mark_beyond(ends, second, mark),
        }
    }
}

fn of_mark_beyond(rate: &PerSecond, second: u64, mark: impl FnOnce() -> u64) -> Option<u32> {
    if rate.has_room(second) {
        return Some(1);
    }
    (rate.most > 0 && mark().is_multiple_of(LEASES_ONE_IN.into())).then_some(LEASES_ONE_IN)
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
    fn of_callers_who_come_in_turn_each_is_kept_as_often_as_the_others() {
        let sample = OneIn::new(10);
        let mut kept = [0_u32; 10];
        for turn in 0..100_000 {
            kept[turn % 10] += u32::from(sample.take().is_some());
        }
        assert_eq!(kept.iter().sum::<u32>(), 10_000);
        assert!(kept.iter().all(|kept| (850..1_150).contains(kept)), "{kept:?}");
    }

    #[test]
    fn a_line_stands_for_nobody_of_another_second() {
        let sample = PerSecond::new(3);
        let first: Vec<Option<u32>> = (0..4).map(|_| sample.take(100)).collect();
        assert_eq!(first[..3], [Some(1); 3]);
        for _ in 0..1_000 {
            sample.take(100);
        }
        assert_eq!([sample.take(101), sample.take(101)], [Some(1); 2]);
        assert_eq!(PerSecond::new(0).take(1), None);
    }

    #[test]
    fn seconds_whose_decisions_arrive_in_turns_are_kept_up_to_the_rate_each() {
        let sample = PerSecond::new(100);
        let alone = (0..500).filter(|_| sample.take(100) == Some(1)).count();
        let in_turns = (0..1_000).filter(|turn| sample.take(100 + turn % 2) == Some(1)).count();
        assert_eq!((alone, in_turns), (100, 100), "the rate of second 100, then that of 101");
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_end_the_log() {
        let sample = PerSecond::new(3);
        for second in [5_000, 1_000, 1_001] {
            assert_eq!((0..3).filter_map(|_| sample.take(second)).sum::<u32>(), 3, "in second {second}");
        }
    }

    #[test]
    fn beyond_the_rate_each_line_stands_for_few_and_all_of_them_for_about_all() {
        let sample = PerSecond::new(1_000);
        let mut all = 0;
        for second in 100..200 {
            let kept: Vec<u32> = (0..100_000).filter_map(|_| sample.take(second)).collect();
            assert!((1_000..1_500).contains(&kept.len()), "{} lines", kept.len());
            assert!(kept.iter().all(|n| *n <= 2_048), "one stands for {:?}", kept.iter().max());
            let stands_for: u32 = kept.iter().sum();
            assert!((85_000..115_000).contains(&stands_for), "{stands_for}");
            all += stands_for / 100;
        }
        assert!((98_000..102_000).contains(&all), "{all} in the mean");
    }

    #[test]
    fn by_default_every_admission_is_kept_up_to_the_rate() {
        let sample = Admissions::new(None, 1_000);
        assert!((0..1_000).all(|_| sample.take(7) == Some(1)));
        assert!((0..64).filter_map(|_| sample.take(7)).all(|n| n >= 16));
        assert_eq!(sample.take(8), Some(1));
        assert_eq!(Admissions::new(Some(0), 1_000).take(8), None);
        assert_eq!(Admissions::new(Some(1), 0).take(8), Some(1), "what is set is honoured");
    }

    #[test]
    fn what_several_threads_keep_stands_for_about_all() {
        let sample = PerSecond::new(1_000);
        let stands_for: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let kept = (0..50).flat_map(|second| (0..5_000).map(move |_| second));
                        kept.filter_map(|second| sample.take(second)).map(u64::from).sum::<u64>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!((950_000..1_050_000).contains(&stands_for), "{stands_for} of 1000000");
    }

    #[test]
    fn a_lease_that_is_kept_beyond_the_rate_has_its_end_kept_everywhere() {
        let (node, other) = (Admissions::new(None, 10), Admissions::new(None, 10));
        for _ in 0..100 {
            other.take_end(1, || 1);
        }
        let kept: Vec<u64> = (0..10_000).filter(|mark| node.take_lease(1, || *mark).is_some()).collect();
        assert!((150..180).contains(&kept.len()), "{}", kept.len());
        let beyond = &kept[10..];
        assert!(beyond.iter().all(|mark| other.take_end(1, || *mark) == Some(64)));
        let all: u32 = (0..10_000).filter_map(|mark| node.take_lease(2, || mark)).sum();
        assert!((9_900..10_100).contains(&all), "{all} of 10000");
    }
}
