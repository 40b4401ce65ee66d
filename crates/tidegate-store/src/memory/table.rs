//! A hash table for many small cells: one lookup touches one pair of cache lines.
//!
//! Four cells share a bucket of two lines: tags and expiries in the first, the cells in the second. A cell whose bucket is full
//! goes to the next one, and every bucket it skipped counts it, so that a search knows when to stop and a removal can undo the
//! count. The number of buckets need not be a power of two: the table grows by a quarter at a time and stays between two thirds
//! and 85 % full.
//!
//! The table never sees a key, only 96 bits of its keyed hash, and it never reads a clock.

/// 96 bits of a cell's keyed hash. Without the hash key, nobody can construct a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) first: u32,
    pub(super) rest: u64,
}

/// When a cell may be dropped, and what evicting it earlier would do: free a caller at its limit (`SPENT`), or forget one that
/// is used repeatedly (`AGAIN`), or was when it reached its limit (`REPEATED`).
///
/// Holds the low 29 bits of the second, compared modulo 2^29: up to [`PAST`] behind now is over, anything else is ahead. A
/// count from a fixed second would run out, and early: a machine that boots in 1970 and then gets the real time jumps ahead by
/// 56 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note(u32);

/// The cell's quota is used up.
const SPENT: u32 = 1 << 31;
/// The cell was used again after its creation, since the last sweep round.
const AGAIN: u32 = 1 << 30;
/// The cell's quota is used up, and it was used repeatedly before it fell silent.
const REPEATED: u32 = 1 << 29;
const SECONDS: u32 = REPEATED - 1;
/// Four years: a cell whose end is longer ago, and that no sweep has visited, counts as in use.
const PAST: u64 = 1 << 27;
/// Eight years: the furthest end of a cell. Up to that, plus another [`PAST`] for an end that is kept, is not over.
pub(super) const LONGEST: u64 = 1 << 28;

impl Note {
    const VACANT: Note = Note(0);

    /// A cell whose full quota is back at `second`, at most [`LONGEST`] from now.
    #[inline]
    pub(super) fn until(second: u64, spent: bool) -> Self {
        // Zero without flags means vacant.
        let kept = u32::try_from(second & u64::from(SECONDS)).expect("masked to 29 bits").max(1);
        Note(kept | if spent { SPENT } else { 0 })
    }

    #[inline]
    fn is_spent(self) -> bool {
        self.0 & SPENT != 0
    }

    #[inline]
    fn is_over(self, second: u64) -> bool {
        second.wrapping_sub(u64::from(self.0)) & u64::from(SECONDS) < PAST
    }

    /// The later end of the two if they are less than [`PAST`] apart; else this one's.
    #[inline]
    fn later_second(self, other: Note) -> u32 {
        let later = if self.is_over(u64::from(other.0)) { other } else { self };
        later.0 & SECONDS
    }

    /// The note of a cell that may have fallen silent.
    fn silent(self) -> Note {
        let repeated = if self.is_spent() && self.0 & AGAIN != 0 { REPEATED } else { 0 };
        Note((self.0 & !AGAIN) | repeated)
    }

    /// Lower ranks are evicted first. The rank ignores when the quota is back: a bucket that takes ten years to refill would
    /// outlive every live counter.
    fn rank(self, second: u64) -> Rank {
        match (self.is_over(second), self.is_spent(), self.0 & AGAIN != 0) {
            (true, _, _) => Rank::Idle,
            (_, false, false) => Rank::Fresh,
            (_, false, true) => Rank::Live,
            (_, true, false) if self.0 & REPEATED == 0 => Rank::Spent,
            (_, true, false) => Rank::SpentSilent,
            (_, true, true) => Rank::SpentAgain,
        }
    }
}

/// The order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Its full quota is back.
    Idle,
    /// Used once, with quota left: a flood of new keys consists of these.
    Fresh,
    /// Used again, with quota left.
    Live,
    /// At its limit, used once: a flood of new keys with a limit of one hit consists of these.
    Spent,
    /// At its limit, silent for a while, and used more than once before.
    SpentSilent,
    /// At its limit, and used more than once.
    SpentAgain,
}

const WIDTH: usize = 4;

#[repr(C, align(64))]
#[derive(Clone, Default)]
struct Bucket<P> {
    notes: [u32; WIDTH],
    firsts: [u32; WIDTH],
    rests: [u64; WIDTH],
    cells: [P; WIDTH],
}

/// The location of a cell. Valid until the table changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    bucket: usize,
    slot: usize,
}

pub(super) struct Table<P> {
    buckets: Vec<Bucket<P>>,
    /// For each bucket, how many cells skipped it because it was full; saturates at 255 for good.
    passed: Vec<u8>,
    len: usize,
    /// Cells whose note has `SPENT`.
    spent: usize,
    /// The position of the next sweep.
    sweep_hand: usize,
    /// The position of the next eviction.
    evict_hand: usize,
}

/// Which cells an eviction may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victims {
    /// Those with quota left.
    Unspent,
    /// Those at their limit.
    Spent,
}

impl Victims {
    /// The ranks it may take, lowest first; idle cells may always be evicted.
    fn ranks(self) -> [Rank; 2] {
        match self {
            Victims::Unspent => [Rank::Fresh, Rank::Live],
            Victims::Spent => [Rank::Spent, Rank::SpentAgain],
        }
    }
}

/// What a sweep does besides dropping idle cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sweep {
    /// Nothing: it frees room during inserts.
    Idle,
    /// Clears `AGAIN`, as the periodic round does: a cell unused for a round counts as fresh, or as silent if it is spent.
    Round,
}

/// The kind of cell that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// A cell whose full quota was back.
    Idle,
    /// A cell in use, with quota left.
    InUse,
    /// A cell at its limit: too few others were left.
    Spent,
}

/// How many buckets an eviction searches for a cell used only once before it takes one used again.
const REACH: usize = 64;

impl<P: Default + Clone> Table<P> {
    pub(super) fn new() -> Self {
        Table { buckets: Vec::new(), passed: Vec::new(), len: 0, spent: 0, sweep_hand: 0, evict_hand: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Cells that had quota left at their last use.
    pub(super) fn unspent(&self) -> usize {
        self.len - self.spent
    }

    /// The number of `victims` in it.
    pub(super) fn count(&self, victims: Victims) -> usize {
        match victims {
            Victims::Unspent => self.unspent(),
            Victims::Spent => self.spent,
        }
    }

    /// Memory of the table itself, without what its cells own elsewhere.
    pub(super) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket<P>>() + self.passed.capacity()
    }

    #[inline]
    pub(super) fn find(&self, tag: Tag) -> Option<Place> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut bucket = self.home(tag);
        for _ in 0..self.buckets.len() {
            if let Some(slot) = self.buckets[bucket].slot_of(tag) {
                return Some(Place { bucket, slot });
            }
            if self.passed[bucket] == 0 {
                return None;
            }
            bucket = self.after(bucket);
        }
        None
    }

    pub(super) fn cell(&self, place: Place) -> &P {
        &self.buckets[place.bucket].cells[place.slot]
    }

    pub(super) fn cell_mut(&mut self, place: Place) -> &mut P {
        &mut self.buckets[place.bucket].cells[place.slot]
    }

    fn note(&self, place: Place) -> Note {
        Note(self.buckets[place.bucket].notes[place.slot])
    }

    /// Updates a cell's note. Its end never moves to an earlier time: after the clock steps back, a cell may live longer than the
    /// new time suggests.
    #[inline]
    pub(super) fn renew_note(&mut self, place: Place, note: Note) {
        let kept = &mut self.buckets[place.bucket].notes[place.slot];
        let was = Note(*kept);
        *kept = note.later_second(was) | (note.0 & SPENT) | AGAIN;
        if was.is_spent() != note.is_spent() {
            self.spent = if note.is_spent() { self.spent + 1 } else { self.spent - 1 };
        }
    }

    /// Inserts a cell that is not in the table.
    pub(super) fn insert(&mut self, tag: Tag, cell: P, note: Note) {
        if (self.len + 1) * 100 > self.buckets.len() * WIDTH * FULLEST {
            self.rebuild(self.buckets.len() + (self.buckets.len() / 4).max(1));
        }
        self.place(tag, cell, note);
    }

    /// Removes a cell and returns its content.
    pub(super) fn remove(&mut self, place: Place) -> P {
        let (mut bucket, tag) = {
            let found = &self.buckets[place.bucket];
            let tag = Tag { first: found.firsts[place.slot], rest: found.rests[place.slot] };
            (self.home(tag), tag)
        };
        debug_assert!(self.find(tag).is_some(), "a cell to remove is in the table");
        while bucket != place.bucket {
            if self.passed[bucket] != u8::MAX {
                self.passed[bucket] -= 1;
            }
            bucket = self.after(bucket);
        }
        self.len -= 1;
        self.spent -= usize::from(self.note(place).is_spent());
        self.buckets[place.bucket].notes[place.slot] = Note::VACANT.0;
        std::mem::take(self.cell_mut(place))
    }

    /// Evicts one cell, of the lowest rank within reach; none if no cell is among `victims`.
    pub(super) fn evict(&mut self, second: u64, victims: Victims) -> Option<(Evicted, P)> {
        let [lowest, highest] = victims.ranks();
        let mut best: Option<(Place, Rank)> = None;
        // The search continues where the last eviction stopped, so that evictions rotate over the table.
        for step in 0..self.buckets.len() {
            if step >= REACH && best.is_some() {
                break;
            }
            let bucket = self.evict_hand;
            self.evict_hand = self.after(bucket);
            for slot in 0..WIDTH {
                let place = Place { bucket, slot };
                let note = self.note(place);
                let rank = note.rank(second);
                let allowed = rank == Rank::Idle || (lowest..=highest).contains(&rank);
                if note != Note::VACANT && allowed && best.is_none_or(|(_, other)| rank < other) {
                    best = Some((place, rank));
                }
            }
            if best.is_some_and(|(_, rank)| rank <= lowest) {
                break;
            }
        }
        let (place, rank) = best?;
        let why = match rank {
            Rank::Idle => Evicted::Idle,
            Rank::Fresh | Rank::Live => Evicted::InUse,
            Rank::Spent | Rank::SpentSilent | Rank::SpentAgain => Evicted::Spent,
        };
        Some((why, self.remove(place)))
    }

    /// Drops idle cells in the next `count` buckets, passing each to `dropped`. At the end of a round, a mostly empty table
    /// shrinks.
    pub(super) fn sweep(&mut self, second: u64, count: usize, kind: Sweep, mut dropped: impl FnMut(P)) {
        for _ in 0..count.min(self.buckets.len()) {
            let bucket = self.sweep_hand;
            self.sweep_hand = self.after(bucket);
            for slot in 0..WIDTH {
                let place = Place { bucket, slot };
                let note = self.note(place);
                if note != Note::VACANT && note.is_over(second) {
                    dropped(self.remove(place));
                } else if kind == Sweep::Round {
                    self.buckets[bucket].notes[slot] = note.silent().0;
                }
            }
            if self.sweep_hand == 0 && self.len * 100 < self.buckets.len() * WIDTH * EMPTIEST {
                let buckets = self.len * 100 / (WIDTH * 70) + 1;
                // A table of one bucket cannot shrink further.
                if buckets < self.buckets.len() {
                    self.rebuild(buckets);
                    return;
                }
            }
        }
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    #[inline]
    fn home(&self, tag: Tag) -> usize {
        // Multiply and shift: works for any number of buckets, without division.
        ((u64::from(tag.first) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    fn place(&mut self, tag: Tag, cell: P, note: Note) {
        let mut bucket = self.home(tag);
        loop {
            let here = &mut self.buckets[bucket];
            if let Some(slot) = here.notes.iter().position(|note| *note == Note::VACANT.0) {
                here.notes[slot] = note.0;
                here.firsts[slot] = tag.first;
                here.rests[slot] = tag.rest;
                here.cells[slot] = cell;
                self.len += 1;
                self.spent += usize::from(note.is_spent());
                return;
            }
            self.passed[bucket] = self.passed[bucket].saturating_add(1);
            bucket = self.after(bucket);
        }
    }

    fn rebuild(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::default(); buckets]);
        self.passed = vec![0; buckets];
        (self.len, self.spent) = (0, 0);
        (self.sweep_hand, self.evict_hand) = (0, 0);
        for bucket in old {
            let Bucket { notes, firsts, rests, cells } = bucket;
            for (slot, cell) in cells.into_iter().enumerate() {
                if notes[slot] != Note::VACANT.0 {
                    self.place(Tag { first: firsts[slot], rest: rests[slot] }, cell, Note(notes[slot]));
                }
            }
        }
    }
}

/// The percentage of used slots at which a table grows.
const FULLEST: usize = 85;
/// The percentage of used slots below which it shrinks.
const EMPTIEST: usize = 20;

impl<P> Bucket<P> {
    #[inline]
    fn slot_of(&self, tag: Tag) -> Option<usize> {
        (0..WIDTH).find(|&slot| {
            self.firsts[slot] == tag.first
                && self.rests[slot] == tag.rest
                && self.notes[slot] != Note::VACANT.0
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn tag(id: u32) -> Tag {
        // Few distinct home buckets, so that buckets overflow.
        Tag { first: (id % 7).wrapping_mul(0x2000_0000), rest: u64::from(id) }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32),
        Remove(u32),
        Sweep,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..60u32).prop_map(Step::Insert),
            3 => (0..60u32).prop_map(Step::Remove),
            1 => Just(Step::Sweep),
        ]
    }

    proptest! {
        #[test]
        fn a_table_holds_what_a_plain_map_would_hold(steps in proptest::collection::vec(any_step(), 0..200)) {
            let mut table = Table::new();
            let mut plain = HashMap::new();
            for step in steps {
                match step {
                    Step::Insert(id) if !plain.contains_key(&id) => {
                        // Odd IDs expire at second 1, even ones at second 9.
                        table.insert(tag(id), id, Note::until(if id % 2 == 1 { 1 } else { 9 }, false));
                        plain.insert(id, id);
                    }
                    Step::Remove(id) if plain.contains_key(&id) => {
                        let place = table.find(tag(id)).expect("inserted before");
                        prop_assert_eq!(table.remove(place), plain.remove(&id).unwrap());
                    }
                    Step::Insert(_) | Step::Remove(_) => {}
                    Step::Sweep => {
                        table.sweep(5, usize::MAX, Sweep::Idle, drop);
                        plain.retain(|id, _| id % 2 == 0);
                    }
                }
                prop_assert_eq!(table.len(), plain.len());
            }
            for id in 0..60 {
                let found = table.find(tag(id)).map(|place| *table.cell(place));
                prop_assert_eq!(found, plain.get(&id).copied());
            }
        }
    }

    proptest! {
        #[test]
        fn a_note_is_over_when_its_second_has_come_and_not_before(
            now in any::<u32>(), span in 1..=LONGEST, part in 0..1_000_u64, longer in 0..PAST,
        ) {
            let now = u64::from(now);
            let note = Note::until(now + span, false);
            let inside = |whole: u64| whole * part / 1_000;
            // Second 0 of a cycle is stored as 1.
            prop_assert!(!note.is_over(now) && !note.is_over(now + inside(span)) && note.is_over(now + span + 1));
            prop_assert!(note.is_over(now + span + 1 + inside(PAST - 2)));
            // A cell with a later end, from before the clock stepped back.
            let mut table = Table::new();
            table.insert(tag(1), 1, Note::until(now + span + longer, false));
            let place = table.find(tag(1)).expect("inserted before");
            table.renew_note(place, note);
            prop_assert!(!table.note(place).is_over(now + span + inside(longer)) || longer == 0);
            prop_assert!(!table.note(place).is_over(now));
            // A cell with an earlier end.
            table.renew_note(place, Note::until(now + LONGEST, false));
            prop_assert!(!table.note(place).is_over(now + inside(LONGEST)));
        }
    }

    #[test]
    fn an_eviction_takes_idle_cells_first_and_spent_cells_only_when_told_to() {
        let mut table = Table::new();
        table.insert(tag(1), 1, Note::until(50, true));
        table.insert(tag(2), 2, Note::until(90, false));
        table.insert(tag(3), 3, Note::until(5, false));
        let mut evict = |victims| table.evict(10, victims);
        assert_eq!(evict(Victims::Spent), Some((Evicted::Idle, 3)));
        assert_eq!(evict(Victims::Unspent), Some((Evicted::InUse, 2)));
        assert_eq!(evict(Victims::Unspent), None);
        assert_eq!(evict(Victims::Spent), Some((Evicted::Spent, 1)));
    }

    #[test]
    fn an_eviction_takes_who_asked_once_before_who_asked_again() {
        let mut table = Table::new();
        table.insert(tag(1), 1, Note::until(50, false));
        table.insert(tag(2), 2, Note::until(LONGEST, false));
        let live = table.find(tag(1)).expect("inserted before");
        table.renew_note(live, Note::until(50, false));
        assert_eq!(table.evict(10, Victims::Unspent), Some((Evicted::InUse, 2)));
    }

    #[test]
    fn a_round_of_sweeps_forgets_who_asked_again() {
        let mut table = Table::new();
        table.insert(tag(1), 1, Note::until(50, false));
        let live = table.find(tag(1)).expect("inserted before");
        table.renew_note(live, Note::until(50, false));
        table.sweep(10, usize::MAX, Sweep::Round, drop);
        assert_eq!(table.note(live).rank(10), Rank::Fresh);
    }

    #[test]
    fn an_eviction_takes_spent_cells_used_once_then_silent_ones_then_those_in_use() {
        let mut table = Table::new();
        let use_again = |table: &mut Table<u32>, id| {
            let place = table.find(tag(id)).expect("inserted before");
            table.renew_note(place, Note::until(50, true));
        };
        table.insert(tag(1), 1, Note::until(50, true));
        table.insert(tag(2), 2, Note::until(50, true));
        use_again(&mut table, 1);
        use_again(&mut table, 2);
        table.sweep(10, usize::MAX, Sweep::Round, drop);
        table.sweep(10, usize::MAX, Sweep::Round, drop);
        use_again(&mut table, 1);
        table.insert(tag(3), 3, Note::until(50, true));
        let evicted = [(); 3].map(|()| table.evict(10, Victims::Spent).map(|(_, cell)| cell));
        assert_eq!(evicted, [Some(3), Some(2), Some(1)]);
    }

    #[test]
    fn a_table_knows_how_many_of_its_cells_are_spent() {
        let mut table = Table::new();
        for id in 0..50 {
            table.insert(tag(id), id, Note::until(50, id % 2 == 0));
        }
        assert_eq!((table.spent, table.unspent()), (25, 25));
        for id in 0..50 {
            let place = table.find(tag(id)).expect("inserted before");
            table.renew_note(place, Note::until(50, id % 5 == 0));
        }
        assert_eq!((table.spent, table.unspent()), (10, 40));
        while table.evict(10, Victims::Unspent).is_some() {}
        assert_eq!((table.spent, table.unspent()), (10, 0));
    }

    #[test]
    fn a_table_that_emptied_gives_its_memory_back() {
        let mut table = Table::new();
        for id in 0..100_000_u32 {
            // Spread like a hash: in ascending order they would queue up in the first few buckets.
            let tag = Tag { first: id.wrapping_mul(2_654_435_769), rest: u64::from(id) };
            table.insert(tag, id, Note::until(1, false));
        }
        let full = table.bytes();
        table.sweep(2, usize::MAX, Sweep::Idle, drop);
        assert_eq!(table.len(), 0);
        assert!(table.bytes() * 100 < full, "{} of {full} bytes left", table.bytes());
    }
}
