//! One shard of the memory store: the cells that one lock guards.

use tidegate_core::{Algorithm, Cell, CounterBits, Leases, Limit, Log, Outcome, Timestamp, Touch};

use super::table::{Evicted, Note, Place, Table, Tag};

/// Cells of one shard, apart by size: counters are sixteen bytes, logs and leases own memory elsewhere.
pub(super) struct Shard {
    counters: Table<CounterBits>,
    logs: Table<Log>,
    leases: Table<Leases>,
    /// Memory that logs and leases own outside the tables.
    pub(super) heap_bytes: usize,
    pub(super) evictions: Evictions,
}

/// Cells that had to go before their time, or that went in their time, since the shard began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evictions {
    pub(super) idle: u64,
    pub(super) in_use: u64,
    pub(super) spent: u64,
}

/// What a shard may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) cells: usize,
    pub(super) heap_bytes: usize,
}

impl Shard {
    pub(super) fn new() -> Self {
        Shard {
            counters: Table::new(),
            logs: Table::new(),
            leases: Table::new(),
            heap_bytes: 0,
            evictions: Evictions::default(),
        }
    }

    pub(super) fn cells(&self) -> usize {
        self.counters.len() + self.logs.len() + self.leases.len()
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.counters.bytes() + self.logs.bytes() + self.leases.bytes()
    }

    /// Decides one touch on its own, the way most requests are: a counter is read and written where it lies.
    #[inline]
    pub(super) fn decide(&mut self, tag: Tag, touch: Touch<'_>, now: Moment, bounds: Bounds) -> Outcome {
        if touch.limit.is_counter() {
            let place = self.counters.find(tag);
            let bits = place.map(|place| *self.counters.cell(place));
            let (outcome, bits) = touch.limit.decide_counter(bits, now.time, touch.ask.hits);
            self.keep_counter(tag, place, bits, outcome, now, bounds);
            return outcome;
        }
        let mut cell = self.take(tag, touch.limit);
        let outcome = touch.limit.decide(&mut cell, now.time, touch.ask);
        if !outcome.is_admitted() {
            touch.limit.note_refused(&mut cell, now.time, touch.ask);
        }
        self.put(tag, cell, touch.limit, now, bounds);
        outcome
    }

    /// The cell's state, taken out of the shard where it owns memory. [`Shard::put`] must follow.
    pub(super) fn take(&mut self, tag: Tag, limit: &Limit) -> Cell {
        match limit.algorithm() {
            Algorithm::SlidingLog => {
                let log = self.logs.find(tag).map(|place| std::mem::take(self.logs.cell_mut(place)));
                self.heap_bytes -= log.as_ref().map_or(0, Log::heap_bytes);
                log.map_or(Cell::Vacant, Cell::Log)
            }
            Algorithm::Concurrency => {
                let leases = self.leases.find(tag).map(|place| std::mem::take(self.leases.cell_mut(place)));
                self.heap_bytes -= leases.as_ref().map_or(0, Leases::heap_bytes);
                leases.map_or(Cell::Vacant, Cell::Leases)
            }
            _ => self
                .counters
                .find(tag)
                .map_or(Cell::Vacant, |place| Cell::Counter(*self.counters.cell(place))),
        }
    }

    /// Puts back what a cell has become.
    pub(super) fn put(&mut self, tag: Tag, cell: Cell, limit: &Limit, now: Moment, bounds: Bounds) {
        let look = limit.look(&cell, now.time, tidegate_core::Ask::look());
        match cell {
            Cell::Log(log) => {
                self.heap_bytes += log.heap_bytes();
                self.make_room(now, bounds, Room::for_heap(self.logs.find(tag).is_none()));
                keep(&mut self.logs, tag, log, note(look, now));
            }
            Cell::Leases(leases) => {
                self.heap_bytes += leases.heap_bytes();
                self.make_room(now, bounds, Room::for_heap(self.leases.find(tag).is_none()));
                keep(&mut self.leases, tag, leases, note(look, now));
            }
            Cell::Counter(bits) => {
                let place = self.counters.find(tag);
                self.keep_counter(tag, place, Some(bits), look, now, bounds);
            }
            Cell::Vacant => self.forget(tag, limit),
        }
    }

    /// Removes a cell: its full quota is back.
    pub(super) fn forget(&mut self, tag: Tag, limit: &Limit) {
        match limit.algorithm() {
            Algorithm::SlidingLog => {
                if let Some(place) = self.logs.find(tag) {
                    self.heap_bytes -= self.logs.remove(place).heap_bytes();
                }
            }
            Algorithm::Concurrency => {
                if let Some(place) = self.leases.find(tag) {
                    self.heap_bytes -= self.leases.remove(place).heap_bytes();
                }
            }
            _ => {
                if let Some(place) = self.counters.find(tag) {
                    self.counters.remove(place);
                }
            }
        }
    }

    /// Drops idle cells in the next few buckets of every table.
    pub(super) fn sweep(&mut self, now: Moment, buckets: usize) {
        let mut dropped = 0;
        self.counters.sweep(now.second, buckets, |_| dropped += 1);
        let heap = &mut self.heap_bytes;
        self.logs.sweep(now.second, buckets, |log| {
            dropped += 1;
            *heap -= log.heap_bytes();
        });
        self.leases.sweep(now.second, buckets, |leases| {
            dropped += 1;
            *heap -= leases.heap_bytes();
        });
        self.evictions.idle += dropped;
    }

    /// The most buckets that any table has: a sweep over so many sees every cell.
    pub(super) fn buckets(&self) -> usize {
        self.counters.buckets().max(self.logs.buckets()).max(self.leases.buckets())
    }

    #[inline]
    fn keep_counter(
        &mut self,
        tag: Tag,
        place: Option<Place>,
        bits: Option<CounterBits>,
        outcome: Outcome,
        now: Moment,
        bounds: Bounds,
    ) {
        match (place, bits) {
            (Some(place), Some(bits)) => {
                *self.counters.cell_mut(place) = bits;
                self.counters.renew_note(place, note(outcome, now));
            }
            (Some(place), None) => {
                self.counters.remove(place);
            }
            (None, Some(bits)) => {
                self.make_room(now, bounds, Room::ForOneCell);
                self.counters.insert(tag, bits, note(outcome, now));
            }
            (None, None) => {}
        }
    }

    /// Evicts until what is to come fits.
    fn make_room(&mut self, now: Moment, bounds: Bounds, room: Room) {
        let most_cells = match room {
            Room::ForOneCell => bounds.cells.saturating_sub(1),
            Room::ForNone => bounds.cells,
        };
        if room == Room::ForOneCell {
            // Every new cell pays for a look at two old ones: a flood of new keys cleans up after itself.
            self.counters.sweep(now.second, 1, |_| self.evictions.idle += 1);
        }
        while self.cells() > most_cells {
            let evicted = match self.largest_table() {
                Algorithm::SlidingLog => self.evict_log(now),
                Algorithm::Concurrency => self.evict_leases(now),
                _ => self.counters.evict(now.second).map(|(why, _)| why),
            };
            let Some(why) = evicted else { return };
            self.evictions.count(why);
        }
        while self.heap_bytes > bounds.heap_bytes {
            let evicted = self.evict_log(now).or_else(|| self.evict_leases(now));
            let Some(why) = evicted else { return };
            self.evictions.count(why);
        }
    }

    fn largest_table(&self) -> Algorithm {
        let tables = [
            (self.counters.len(), Algorithm::TokenBucket),
            (self.logs.len(), Algorithm::SlidingLog),
            (self.leases.len(), Algorithm::Concurrency),
        ];
        tables
            .into_iter()
            .max_by_key(|(len, _)| *len)
            .map_or(Algorithm::TokenBucket, |(_, algorithm)| algorithm)
    }

    fn evict_log(&mut self, now: Moment) -> Option<Evicted> {
        let (why, log) = self.logs.evict(now.second)?;
        self.heap_bytes -= log.heap_bytes();
        Some(why)
    }

    fn evict_leases(&mut self, now: Moment) -> Option<Evicted> {
        let (why, leases) = self.leases.evict(now.second)?;
        self.heap_bytes -= leases.heap_bytes();
        Some(why)
    }
}

/// A point in time as core counts it, and as notes do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) time: Timestamp,
    /// Whole seconds since the store began.
    pub(super) second: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    ForOneCell,
    ForNone,
}

impl Room {
    fn for_heap(new_cell: bool) -> Self {
        if new_cell { Room::ForOneCell } else { Room::ForNone }
    }
}

impl Evictions {
    fn count(&mut self, why: Evicted) {
        match why {
            Evicted::Idle => self.idle += 1,
            Evicted::InUse => self.in_use += 1,
            Evicted::Spent => self.spent += 1,
        }
    }
}

fn note(outcome: Outcome, now: Moment) -> Note {
    // One second more, because `second` is rounded down.
    let spent = outcome.remaining == 0 || !outcome.is_admitted();
    Note::until(now.second + outcome.reset_after.as_secs_ceil() + 1, spent)
}

fn keep<P: Default + Clone>(table: &mut Table<P>, tag: Tag, cell: P, note: Note) {
    match table.find(tag) {
        Some(place) => {
            *table.cell_mut(place) = cell;
            table.renew_note(place, note);
        }
        None => table.insert(tag, cell, note),
    }
}
