//! A ring of timestamps: four bytes each if they are close enough together, else eight.

use crate::units::{Micros, Timestamp};

/// Timestamps in ascending order, stored as offsets from `base`.
///
/// It doubles up to exactly the requested capacity, so that a full log wastes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    base: Timestamp,
    /// One word per entry, or two if offsets may exceed 32 bits (`wide`).
    words: Box<[u32]>,
    head: u32,
    len: u32,
    wide: bool,
}

const SMALLEST: usize = 4;

impl Ring {
    /// An empty ring for entries within `span` of each other.
    pub(crate) fn for_span(span: Micros) -> Self {
        Ring { wide: span.get() > u64::from(u32::MAX), ..Ring::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.len() * size_of::<u32>()
    }

    /// The `index`th entry, oldest first.
    pub(crate) fn get(&self, index: usize) -> Timestamp {
        self.base + Micros::new(self.offset(index))
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        self.len().checked_sub(1).map(|last| self.get(last))
    }

    /// The number of entries at or before `moment`.
    pub(crate) fn count_until(&self, moment: Timestamp) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle) <= moment { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Appends `moment`, which must not be before the newest entry; the ring never holds more than `most`.
    pub(crate) fn push(&mut self, moment: Timestamp, most: usize) {
        if self.len == 0 {
            self.base = moment;
            self.head = 0;
        }
        if !self.wide && moment.since(self.base).get() > u64::from(u32::MAX) {
            self.rebase();
            // Happens only if the span was shorter when the ring was created.
            if moment.since(self.base).get() > u64::from(u32::MAX) {
                self.widen();
            }
        }
        if self.len() == self.capacity() {
            self.grow(most);
        }
        let slot = self.slot(self.len());
        self.len += 1;
        self.write(slot, moment.since(self.base).get());
    }

    /// Drops the `count` oldest entries.
    pub(crate) fn drop_oldest(&mut self, count: usize) {
        let count = count.min(self.len());
        if count > 0 {
            self.head = as_u32(self.slot(count));
            self.len -= as_u32(count);
        }
    }

    /// Drops `count` entries starting at `from`; the ring must hold that many.
    pub(crate) fn drop_from(&mut self, from: usize, count: usize) {
        for index in from..self.len() - count {
            let offset = self.offset(index + count);
            self.write(self.slot(index), offset);
        }
        self.len -= as_u32(count);
    }

    /// Moves all entries `span` back in time.
    pub(crate) fn shift_back(&mut self, span: Micros) {
        let reach = self.base.since(Timestamp::default());
        if span <= reach {
            self.base = self.base.back(span);
            return;
        }
        // Only for times near the epoch, which no real clock shows: earlier times are clamped to it.
        let moved: Vec<Timestamp> = (0..self.len()).map(|index| self.get(index).back(span)).collect();
        self.len = 0;
        for moment in moved {
            self.push(moment, usize::MAX);
        }
    }

    fn capacity(&self) -> usize {
        if self.wide { self.words.len() / 2 } else { self.words.len() }
    }

    fn slot(&self, index: usize) -> usize {
        let slot = self.head as usize + index;
        if slot >= self.capacity() { slot - self.capacity() } else { slot }
    }

    fn offset(&self, index: usize) -> u64 {
        let slot = self.slot(index);
        if self.wide {
            u64::from(self.words[2 * slot]) | u64::from(self.words[2 * slot + 1]) << 32
        } else {
            u64::from(self.words[slot])
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the words of a wide offset; a narrow one fits by `for_span`"
    )]
    fn write(&mut self, slot: usize, offset: u64) {
        if self.wide {
            self.words[2 * slot] = offset as u32;
            self.words[2 * slot + 1] = (offset >> 32) as u32;
        } else {
            self.words[slot] = offset as u32;
        }
    }

    /// Makes offsets relative to the oldest entry instead of one long gone.
    fn rebase(&mut self) {
        let gone = self.offset(0);
        for index in 0..self.len() {
            let slot = self.slot(index);
            let offset = self.offset(index) - gone;
            self.write(slot, offset);
        }
        self.base = self.base + Micros::new(gone);
    }

    fn grow(&mut self, most: usize) {
        let capacity = (self.capacity() * 2).max(SMALLEST).min(most.max(self.len() + 1));
        self.rewrite(capacity, self.wide);
    }

    fn widen(&mut self) {
        self.rewrite(self.capacity(), true);
    }

    fn rewrite(&mut self, capacity: usize, wide: bool) {
        let offsets: Vec<u64> = (0..self.len()).map(|index| self.offset(index)).collect();
        self.wide = wide;
        let words_each = if wide { 2 } else { 1 };
        self.words = vec![0; capacity * words_each].into_boxed_slice();
        self.head = 0;
        for (slot, offset) in offsets.into_iter().enumerate() {
            self.write(slot, offset);
        }
    }
}

fn as_u32(count: usize) -> u32 {
    u32::try_from(count).expect("a log holds at most 100,000 entries")
}
