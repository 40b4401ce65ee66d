//! One shard of the memory store: the cells that one lock guards.

use tidegate_core::{Ask, Cell, CellForm, CounterBits, Leases, Limit, Log, Outcome, Timestamp, Touch};

use super::table::{Evicted, LONGEST, Note, Place, Sweep, Table, Tag, Victims};

/// The cells of one shard, separated by size: counters are sixteen bytes, logs and leases own memory elsewhere.
pub(super) struct Shard {
    counters: Table<CounterBits>,
    logs: Table<Log>,
    leases: Table<Leases>,
    /// Memory that logs and leases own outside the tables.
    pub(super) heap_bytes: usize,
    pub(super) evictions: Evictions,
}

/// One of its tables.
#[derive(Clone, Copy, Debug)]
enum TableKind {
    Counters,
    Logs,
    Leases,
}

/// Cells evicted early, or dropped when idle, since the shard was created.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evictions {
    pub(super) idle: u64,
    pub(super) in_use: u64,
    pub(super) spent: u64,
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

    /// Decides a single touch of a counter, as in most requests: it is read and written in place.
    #[inline]
    pub(super) fn decide_counter(
        &mut self,
        tag: Tag,
        touch: Touch<'_>,
        now: Moment,
        most_cells: usize,
    ) -> Outcome {
        let place = self.counters.find(tag);
        if place.is_none() && touch.limit.shares_cells() && self.logs.find(tag).is_some() {
            return self.decide_other(tag, touch, now, most_cells);
        }
        let bits = place.map(|place| *self.counters.cell(place));
        let (outcome, bits) = touch.limit.decide_counter(bits, now.time, touch.ask.hits);
        self.keep_counter(tag, place, bits, outcome, now, most_cells);
        outcome
    }

    /// Decides a single touch of a log or of leases, or of a counter that was a log.
    pub(super) fn decide_other(
        &mut self,
        tag: Tag,
        touch: Touch<'_>,
        now: Moment,
        most_cells: usize,
    ) -> Outcome {
        let (place, mut cell) = self.take(tag, touch.limit);
        let outcome = touch.decide_alone(&mut cell, now.time);
        self.put_after(place, tag, cell, touch.limit, outcome, now, most_cells);
        outcome
    }

    /// The location of the cell.
    pub(super) fn find(&self, tag: Tag, limit: &Limit) -> Option<Place> {
        match limit.form() {
            CellForm::Log { .. } => self.logs.find(tag),
            CellForm::Leases { .. } => self.leases.find(tag),
            CellForm::Counter => self.counters.find(tag),
        }
    }

    /// The cell's location and its state, moved out of the shard if it owns memory or is in the table of the other sliding
    /// algorithm. [`Shard::put`] must follow.
    pub(super) fn take(&mut self, tag: Tag, limit: &Limit) -> (Option<Place>, Cell) {
        match self.take_own(tag, limit) {
            (None, _) => (None, self.take_from_the_other(tag, limit)),
            found => found,
        }
    }

    /// What the other sliding algorithm left, which a cell of this limit goes on from.
    fn take_from_the_other(&mut self, tag: Tag, limit: &Limit) -> Cell {
        if !limit.shares_cells() {
            return Cell::Vacant;
        }
        if !limit.is_counter() {
            let place = self.counters.find(tag);
            return place.map_or(Cell::Vacant, |place| Cell::Counter(self.counters.remove(place)));
        }
        self.logs.find(tag).map_or(Cell::Vacant, |place| {
            let log = self.logs.remove(place);
            self.heap_bytes -= log.heap_bytes();
            Cell::Log(log)
        })
    }

    fn take_own(&mut self, tag: Tag, limit: &Limit) -> (Option<Place>, Cell) {
        match limit.form() {
            CellForm::Log { .. } => {
                let place = self.logs.find(tag);
                let log = place.map(|place| std::mem::take(self.logs.cell_mut(place)));
                self.heap_bytes -= log.as_ref().map_or(0, Log::heap_bytes);
                (place, log.map_or(Cell::Vacant, Cell::Log))
            }
            CellForm::Leases { .. } => {
                let place = self.leases.find(tag);
                let leases = place.map(|place| std::mem::take(self.leases.cell_mut(place)));
                self.heap_bytes -= leases.as_ref().map_or(0, Leases::heap_bytes);
                (place, leases.map_or(Cell::Vacant, Cell::Leases))
            }
            CellForm::Counter => {
                let place = self.counters.find(tag);
                (place, place.map_or(Cell::Vacant, |place| Cell::Counter(*self.counters.cell(place))))
            }
        }
    }

    /// Stores the new state of a cell.
    pub(super) fn put(&mut self, tag: Tag, cell: Cell, limit: &Limit, now: Moment, most_cells: usize) {
        let place = self.find(tag, limit);
        let kept = look(limit, &cell, now);
        self.put_at(place, tag, cell, limit, kept, now, most_cells);
    }

    /// Stores a cell's new state after a decision, at its location; `told` is the outcome returned to the caller.
    #[expect(clippy::too_many_arguments, reason = "what is put back, where, and within which bound")]
    pub(super) fn put_after(
        &mut self,
        place: Option<Place>,
        tag: Tag,
        cell: Cell,
        limit: &Limit,
        told: Outcome,
        now: Moment,
        most_cells: usize,
    ) {
        // If refused requests count, the outcome may be older than the recorded refusal.
        let kept = if limit.counts_refused() { look(limit, &cell, now) } else { told };
        self.put_at(place, tag, cell, limit, kept, now, most_cells);
    }

    /// Stores a cell's new state at its location; `kept` is the limit's outcome for it.
    #[expect(clippy::too_many_arguments, reason = "what is put back, where, and within which bound")]
    fn put_at(
        &mut self,
        place: Option<Place>,
        tag: Tag,
        cell: Cell,
        limit: &Limit,
        kept: Outcome,
        now: Moment,
        most_cells: usize,
    ) {
        if place.is_none() && cell != Cell::Vacant {
            self.make_room(now, most_cells);
        }
        match cell {
            Cell::Log(log) => {
                self.heap_bytes += log.heap_bytes();
                keep(&mut self.logs, place, tag, log, note(kept, now));
            }
            Cell::Leases(leases) => {
                self.heap_bytes += leases.heap_bytes();
                keep(&mut self.leases, place, tag, leases, note(kept, now));
            }
            Cell::Counter(bits) => keep(&mut self.counters, place, tag, bits, note(kept, now)),
            Cell::Vacant => self.forget(tag, limit),
        }
    }

    /// Removes a cell: its full quota is back.
    pub(super) fn forget(&mut self, tag: Tag, limit: &Limit) {
        self.take_from_the_other(tag, limit);
        match limit.form() {
            CellForm::Log { .. } => {
                if let Some(place) = self.logs.find(tag) {
                    self.heap_bytes -= self.logs.remove(place).heap_bytes();
                }
            }
            CellForm::Leases { .. } => {
                if let Some(place) = self.leases.find(tag) {
                    self.heap_bytes -= self.leases.remove(place).heap_bytes();
                }
            }
            CellForm::Counter => {
                if let Some(place) = self.counters.find(tag) {
                    self.counters.remove(place);
                }
            }
        }
    }

    /// Drops idle cells in the next few buckets of every table.
    pub(super) fn sweep(&mut self, now: Moment, buckets: usize, kind: Sweep) {
        let mut dropped = 0;
        self.counters.sweep(now.second, buckets, kind, |_| dropped += 1);
        let heap = &mut self.heap_bytes;
        self.logs.sweep(now.second, buckets, kind, |log| {
            dropped += 1;
            *heap -= log.heap_bytes();
        });
        self.leases.sweep(now.second, buckets, kind, |leases| {
            dropped += 1;
            *heap -= leases.heap_bytes();
        });
        self.evictions.idle += dropped;
    }

    /// The largest bucket count of its tables: a sweep over this many visits every cell.
    pub(super) fn buckets(&self) -> usize {
        self.counters.buckets().max(self.logs.buckets()).max(self.leases.buckets())
    }

    /// Evicts one cell of `victims` that owns memory; false if none may be evicted.
    pub(super) fn evict_heap(&mut self, now: Moment, victims: Victims) -> bool {
        let unspent = self.logs.unspent() + self.leases.unspent();
        if victims == Victims::Unspent && unspent * RESERVE < self.logs.len() + self.leases.len() {
            return false;
        }
        self.evict_from(&[TableKind::Logs, TableKind::Leases], now, victims)
    }

    #[inline]
    fn keep_counter(
        &mut self,
        tag: Tag,
        place: Option<Place>,
        bits: Option<CounterBits>,
        outcome: Outcome,
        now: Moment,
        most_cells: usize,
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
                self.make_room(now, most_cells);
                self.counters.insert(tag, bits, note(outcome, now));
            }
            (None, None) => {}
        }
    }

    /// Evicts until one more cell fits.
    fn make_room(&mut self, now: Moment, most_cells: usize) {
        // Every insert sweeps a few old cells: a flood of new keys cleans up after itself.
        self.sweep(now, 1, Sweep::Idle);
        while self.cells() >= most_cells.max(1) {
            let unspent = self.counters.unspent() + self.logs.unspent() + self.leases.unspent();
            let victims = if unspent * RESERVE >= self.cells() { Victims::Unspent } else { Victims::Spent };
            let tables = [TableKind::Counters, TableKind::Logs, TableKind::Leases];
            if !self.evict_from(&tables, now, victims) {
                return;
            }
        }
    }

    /// Evicts one of `victims` from whichever of `tables` has most of them, so that the
    /// search is short.
    fn evict_from(&mut self, tables: &[TableKind], now: Moment, victims: Victims) -> bool {
        let most = tables.iter().max_by_key(|table| match table {
            TableKind::Counters => self.counters.count(victims),
            TableKind::Logs => self.logs.count(victims),
            TableKind::Leases => self.leases.count(victims),
        });
        let evicted = match most {
            Some(TableKind::Logs) => self.logs.evict(now.second, victims).map(|(why, log)| {
                self.heap_bytes -= log.heap_bytes();
                why
            }),
            Some(TableKind::Leases) => self.leases.evict(now.second, victims).map(|(why, leases)| {
                self.heap_bytes -= leases.heap_bytes();
                why
            }),
            Some(TableKind::Counters) | None => self.counters.evict(now.second, victims).map(|(why, _)| why),
        };
        if let Some(why) = evicted {
            self.evictions.count(why);
        }
        evicted.is_some()
    }
}

/// Cells at their limit may fill all but 1/16 of a shard: a store full of them could count no new caller.
const RESERVE: usize = 16;

/// A time in core's units, and in those of notes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) time: Timestamp,
    /// Its whole seconds.
    pub(super) second: u64,
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

fn look(limit: &Limit, cell: &Cell, now: Moment) -> Outcome {
    limit.look(cell, now.time, Ask::look())
}

#[inline]
fn note(outcome: Outcome, now: Moment) -> Note {
    // A request for more than the whole quota has not reached a limit.
    let spent = outcome.remaining == 0 || outcome.retry_after().is_some();
    // One second more, because `second` is rounded down.
    Note::until(now.second + (outcome.reset_after.as_secs_ceil() + 1).min(LONGEST), spent)
}

fn keep<P: Default + Clone>(table: &mut Table<P>, place: Option<Place>, tag: Tag, cell: P, note: Note) {
    match place {
        Some(place) => {
            *table.cell_mut(place) = cell;
            table.renew_note(place, note);
        }
        None => table.insert(tag, cell, note),
    }
}
