//! A histogram: exact for small numbers, within 1.6 % for large ones, in bounded memory.

/// Numbers below this have their own buckets.
const EXACT: u64 = 128;
/// Above, each power of two is split into this many buckets.
const PARTS: u64 = 64;

/// How often each number occurred.
///
/// A bucket stands for its largest number, so results err upwards, by at most one part in 64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    /// Counts `value` `times` times.
    pub fn add(&mut self, value: u64, times: u64) {
        let place = bucket(value);
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += times;
        self.total += times;
    }

    /// The total count.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The numbers that occurred and how often, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counted = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(place, count)| (largest(place), *count))
    }

    /// The smallest number that at least `share` (in thousandths) of all are at or below; `None` if empty.
    #[must_use]
    pub fn at_most(&self, share: u64) -> Option<u64> {
        // Rounded up: a fraction of a caller less than 99.9 % is not 99.9 %.
        let needed = (u128::from(self.total) * u128::from(share)).div_ceil(1000);
        let mut seen = 0;
        self.iter().find_map(|(value, count)| {
            seen += u128::from(count);
            (seen >= needed).then_some(value)
        })
    }

    /// The count above `limit`.
    #[must_use]
    pub fn above(&self, limit: u64) -> u64 {
        self.iter().filter(|(value, _)| *value > limit).map(|(_, count)| count).sum()
    }

    /// The sum by which numbers above `limit` exceed it.
    #[must_use]
    pub fn excess(&self, limit: u64) -> u64 {
        let excess = |(value, count): (u64, u64)| value.saturating_sub(limit).saturating_mul(count);
        self.iter().map(excess).fold(0, u64::saturating_add)
    }
}

fn bucket(value: u64) -> usize {
    if value < EXACT {
        return usize::try_from(value).expect("below 128");
    }
    let power = u64::from(63 - value.leading_zeros());
    // The bits below the highest one; the first six of them select the part.
    let part = (value >> (power - 6)) - PARTS;
    usize::try_from(EXACT + (power - 7) * PARTS + part).expect("fewer than four thousand buckets")
}

/// The largest number in the bucket at this index.
fn largest(place: usize) -> u64 {
    let place = u64::try_from(place).expect("fewer than four thousand buckets");
    if place < EXACT {
        return place;
    }
    let (power, part) = ((place - EXACT) / PARTS + 7, (place - EXACT) % PARTS);
    let width = 1u64 << (power - 6);
    (PARTS + part) * width + (width - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bucket_stands_for_a_number_at_most_a_64th_above(value in any::<u64>()) {
            let stands_for = largest(bucket(value));
            prop_assert!(stands_for >= value);
            prop_assert!(stands_for - value <= value / 64);
        }
    }

    #[test]
    fn percentile_excess_and_count_above_agree_with_a_list() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|value| histogram.add(value % 100, 1));
        assert_eq!(histogram.at_most(500), Some(49));
        assert_eq!(histogram.at_most(1000), Some(99));
        assert_eq!(histogram.above(89), 100);
        assert_eq!(histogram.excess(97), 10 + 20);
        assert_eq!(Histogram::default().at_most(999), None);
    }
}
