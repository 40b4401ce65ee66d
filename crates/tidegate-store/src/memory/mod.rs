//! The store without external dependencies: cells in this process's memory.
//!
//! Sharded by a keyed hash (attackers choose keys; the hash key is random per process), one lock per shard held for
//! nanoseconds, no allocation for counters once a table has grown, a hard bound on cells and on the memory of logs and
//! leases. All state is lost when the process ends.
//!
//! At a bound cells are evicted in this order: idle ones; those used once; those used repeatedly; and last those at their
//! limit, whatever their algorithm, because evicting one frees a caller. Cells at their limit are evicted only if they fill
//! nearly all of a shard (15 of 16 cells), or a store full of them could count no new caller. The bound on cells is split
//! over the shards, which a keyed hash fills evenly; the bound on bytes is global, because one log may be as large as a
//! hundred thousand others.

mod costs;
mod records;
mod shard;
mod table;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hash128, SipHasher13};
use smallvec::SmallVec;
use tidegate_core::{
    Cell, Charge, Hits, Limit, Micros, Outcome, Over, Timestamp, append_part, decide_fold, decide_request,
};

use crate::clock::{Clock, SystemClock};
use crate::contract::{
    BatchOutcomes, CellCharge, CellKey, LeaseRef, Refund, RefundId, Reply, Request, Spend, Stamped, Store,
};
use crate::error::StoreError;
use crate::outcomes::Outcomes;
use crate::record::Record;
pub use costs::memory_bytes;
use records::{Full, Records};
use shard::{Moment, Shard};
use table::{Place, Sweep, Tag, Victims};

/// The bounds of a memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// The most cells, over all limits. A counter takes about 45 bytes.
    pub max_cells: usize,
    /// The most memory for the entries of sliding logs and for leases, in bytes.
    pub max_log_bytes: usize,
}

impl MemoryConfig {
    /// Ten million cells, and 512 MiB for logs and leases.
    #[must_use]
    pub const fn new() -> Self {
        MemoryConfig { max_cells: 10_000_000, max_log_bytes: 512 << 20 }
    }

    /// Sets the most cells.
    #[must_use]
    pub const fn max_cells(self, max_cells: usize) -> Self {
        MemoryConfig { max_cells, ..self }
    }

    /// Sets the most bytes for logs and leases.
    #[must_use]
    pub const fn max_log_bytes(self, max_log_bytes: usize) -> Self {
        MemoryConfig { max_log_bytes, ..self }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig::new()
    }
}

/// What a memory store holds now, and what it has dropped since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Cells held.
    pub cells: usize,
    /// Bytes held, in tables and logs.
    pub bytes: usize,
    /// Cells dropped because their full quota was back.
    pub dropped_idle: u64,
    /// Cells in use, with quota left, evicted at the bound.
    pub evicted_in_use: u64,
    /// Cells at their limit, evicted because too few others were left.
    pub evicted_spent: u64,
    /// Records held.
    pub records: usize,
    /// Records refused, at the bound.
    pub refused_records: u64,
}

/// Cells in this process's memory.
pub struct MemoryStore<C = SystemClock> {
    shards: Box<[Padded]>,
    cells_per_shard: usize,
    heap: Heap,
    records: Mutex<Records>,
    hash_keys: [u64; 2],
    clock: C,
}

/// A shard on cache lines of its own, so that two locks never share one.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// Memory that the logs and leases of all shards own outside the tables.
struct Heap {
    bytes: AtomicUsize,
    most_bytes: usize,
    /// The shard for the next eviction.
    hand: AtomicUsize,
}

/// The cells per shard: few enough that growing one never holds its lock for long.
const CELLS_PER_SHARD: usize = 16_384;

impl MemoryStore {
    /// A store on the system's clock.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        MemoryStore::with_clock(config, SystemClock::new())
    }
}

impl<C: Clock> MemoryStore<C> {
    /// A store on `clock`.
    #[must_use]
    pub fn with_clock(config: MemoryConfig, clock: C) -> Self {
        let shards = (config.max_cells / CELLS_PER_SHARD).clamp(1, 4_096);
        let heap =
            Heap { bytes: AtomicUsize::new(0), most_bytes: config.max_log_bytes, hand: AtomicUsize::new(0) };
        MemoryStore {
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new()))).collect(),
            cells_per_shard: config.max_cells.div_ceil(shards),
            heap,
            records: Mutex::default(),
            hash_keys: crate::random_hash_keys(),
            clock,
        }
    }

    /// Sets the hash keys, so that the same requests evict the same cells in every run. An attacker who knows them can
    /// overfill one shard: a server must leave them random.
    #[must_use]
    pub fn with_hash_keys(mut self, hash_keys: [u64; 2]) -> Self {
        self.hash_keys = hash_keys;
        self
    }

    /// Its clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Sets what is spent from a cell to `hits`, whatever it was before. A concurrent decision finds it as it was or as it
    /// becomes, never empty in between.
    pub fn set(&self, cell: CellKey<'_>, limit: &Limit, hits: Hits) {
        self.with_cell(&cell, limit, |cell, now| {
            *cell = Cell::Vacant;
            limit.charge(cell, now, Charge::now(hits));
        });
    }

    /// Drops idle cells in a fraction `1/parts` of every shard's tables. Call it regularly, so that memory is freed when
    /// requests stop. Going through all parts once a minute costs almost nothing. A cell unused for a whole round no longer
    /// ranks above new cells at the bound, unless it is spent.
    pub fn sweep(&self, parts: usize) {
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let (buckets, before) = (shard.buckets().div_ceil(parts.max(1)), shard.heap_bytes);
            shard.sweep(self.moment(), buckets, Sweep::Round);
            self.heap.follow(before, shard.heap_bytes);
        }
    }

    /// The current statistics. Locks every shard in turn.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let fixed = self.shards.len() * size_of::<Padded>();
        let mut stats = MemoryStats { bytes: fixed, ..MemoryStats::default() };
        (stats.records, stats.refused_records) = self.records.lock().stats();
        for shard in &self.shards {
            let shard = shard.0.lock();
            stats.cells += shard.cells();
            stats.bytes += shard.table_bytes() + shard.heap_bytes;
            stats.dropped_idle += shard.evictions.idle;
            stats.evicted_in_use += shard.evictions.in_use;
            stats.evicted_spent += shard.evictions.spent;
        }
        stats
    }

    /// Decides a single spend: one lock, one lookup.
    #[inline]
    fn decide_one(&self, spend: &Spend<'_>) -> (Outcome, Timestamp) {
        let (shard, tag) = self.locate(&spend.cell);
        let mut shard = self.shards[shard].0.lock();
        // Read under the lock, so that a race between threads never makes a cell's time go back.
        let (now, before) = (self.moment(), shard.heap_bytes);
        if spend.touch.limit.is_counter() {
            let outcome = shard.decide_counter(tag, spend.touch, now, self.cells_per_shard);
            // Less if it was a log before.
            self.heap.follow(before, shard.heap_bytes);
            return (outcome, now.time);
        }
        let outcome = shard.decide_other(tag, spend.touch, now, self.cells_per_shard);
        self.heap.follow(before, shard.heap_bytes);
        drop(shard);
        self.fit_heap(now);
        (outcome, now.time)
    }

    /// Decides a request over several cells, or a folded one, with all its shards locked at once.
    fn decide_together(&self, request: &Request<'_>, told: &mut BatchOutcomes) -> Timestamp {
        let located: SmallVec<[(usize, Tag); 8]> =
            request.spends.iter().map(|spend| self.locate(&spend.cell)).collect();
        let mut shards = self.lock(located.iter().map(|(shard, _)| *shard));
        let before = shards.heap_bytes();
        let now = self.moment();
        let (mut places, mut cells) = (SmallVec::<[Option<Place>; 8]>::new(), SmallVec::<[Cell; 8]>::new());
        for (spend, (shard, tag)) in request.spends.iter().zip(&located) {
            let (place, cell) = shards.get(*shard).take(*tag, spend.touch.limit);
            places.push(place);
            cells.push(cell);
        }
        let first = told.outcomes.len();
        let touches = request.spends.iter().map(|spend| spend.touch).enumerate();
        if request.is_fold() {
            decide_fold(touches, &mut cells, now.time, request.count.get(), |fold| {
                told.outcomes.push(fold.last);
                told.folds.push(fold);
            });
        } else {
            decide_request(touches, &mut cells, now.time, |outcome| told.outcomes.push(outcome));
        }
        // Inserting a new cell may move others.
        let stay = places.iter().all(Option::is_some);
        for (number, cell) in cells.into_iter().enumerate() {
            let ((shard, tag), touch) = (located[number], request.spends[number].touch);
            let shard = shards.get(shard);
            let place = if stay { places[number] } else { shard.find(tag, touch.limit) };
            shard.put_after(
                place,
                tag,
                cell,
                touch.limit,
                told.outcomes[first + number],
                now,
                self.cells_per_shard,
            );
        }
        self.heap.follow(before, shards.heap_bytes());
        drop(shards);
        self.fit_heap(now);
        now.time
    }

    /// Whether `cell` already had refund `id`; marks it as having had it.
    fn has_had(&self, cell: &CellKey<'_>, id: RefundId) -> Result<bool, Full> {
        let record = Record { name: &refund_name(cell, id), value: b"" };
        Ok(self.records.lock().put(record, self.clock.now(), RefundId::KNOWN_FOR)?.is_some())
    }

    /// Undoes the mark of a refund that was not applied.
    fn has_not_had(&self, refund: &Refund<'_>) {
        if let Some(id) = refund.id {
            let record = Record { name: &refund_name(&refund.cell, id), value: b"" };
            self.records.lock().replace(record, None, self.clock.now(), RefundId::KNOWN_FOR);
        }
    }

    /// Changes one cell outside a request.
    fn with_cell<T>(
        &self,
        key: &CellKey<'_>,
        limit: &Limit,
        change: impl FnOnce(&mut Cell, Timestamp) -> T,
    ) -> Stamped<T> {
        let (shard, tag) = self.locate(key);
        let mut shard = self.shards[shard].0.lock();
        let before = shard.heap_bytes;
        let now = self.moment();
        let (_, mut cell) = shard.take(tag, limit);
        let answer = change(&mut cell, now.time);
        shard.put(tag, cell, limit, now, self.cells_per_shard);
        self.heap.follow(before, shard.heap_bytes);
        drop(shard);
        self.fit_heap(now);
        Stamped::at(answer, now.time)
    }

    /// Changes cells outside a request atomically: a concurrent decision sees all of it or nothing.
    fn with_cells<'c, T>(
        &self,
        changes: impl Iterator<Item = (CellKey<'c>, &'c Limit, T)> + Clone,
        change: impl Fn(&Limit, &mut Cell, Timestamp, T),
    ) -> Stamped<()> {
        let located: SmallVec<[(usize, Tag); 4]> =
            changes.clone().map(|(cell, ..)| self.locate(&cell)).collect();
        let mut shards = self.lock(located.iter().map(|(shard, _)| *shard));
        let (before, now) = (shards.heap_bytes(), self.moment());
        for ((shard, tag), (_, limit, what)) in located.into_iter().zip(changes) {
            let shard = shards.get(shard);
            let (_, mut cell) = shard.take(tag, limit);
            change(limit, &mut cell, now.time, what);
            shard.put(tag, cell, limit, now, self.cells_per_shard);
        }
        self.heap.follow(before, shards.heap_bytes());
        drop(shards);
        self.fit_heap(now);
        Stamped::at((), now.time)
    }

    /// Evicts logs and leases from any shard until their memory is within its bound. The caller must hold no lock; this holds
    /// one at a time.
    fn fit_heap(&self, now: Moment) {
        if self.heap.is_over() {
            // Two rounds find the cells with quota left, unless they are very sparse.
            self.evict_heap(now, Victims::Unspent, 2 * self.shards.len());
            self.evict_heap(now, Victims::Spent, usize::MAX);
        }
    }

    /// Evicts `victims` until memory fits, after `most_visits`, or after a full round without one.
    #[cold]
    fn evict_heap(&self, now: Moment, victims: Victims, most_visits: usize) {
        let (mut visits, mut in_vain) = (0, 0);
        while self.heap.is_over() && visits < most_visits && in_vain < self.shards.len() {
            let next = self.heap.hand.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let mut shard = self.shards[next].0.lock();
            let before = shard.heap_bytes;
            in_vain = if shard.evict_heap(now, victims) { 0 } else { in_vain + 1 };
            self.heap.follow(before, shard.heap_bytes);
            visits += 1;
        }
    }

    /// Locks these shards, always in the same order, so that requests cannot deadlock.
    fn lock(&self, shards: impl Iterator<Item = usize>) -> Locked<'_> {
        let mut wanted: SmallVec<[usize; 8]> = shards.collect();
        wanted.sort_unstable();
        wanted.dedup();
        Locked(wanted.into_iter().map(|shard| (shard, self.shards[shard].0.lock())).collect())
    }

    #[inline]
    fn locate(&self, cell: &CellKey<'_>) -> (usize, Tag) {
        // The scope's digest goes into the hash key: it is computed when rules compile and costs nothing here.
        let digest = cell.scope.digest();
        let hasher = SipHasher13::new_with_keys(self.hash_keys[0] ^ digest[0], self.hash_keys[1] ^ digest[1]);
        let Hash128 { h1, h2 } = hasher.hash(cell.key);
        let shard = ((h1 >> 32) * self.shards.len() as u64) >> 32;
        let first = u32::try_from(h1 & u64::from(u32::MAX)).expect("masked to 32 bits");
        (usize::try_from(shard).expect("below the number of shards"), Tag { first, rest: h2 })
    }

    #[inline]
    fn moment(&self) -> Moment {
        let time = self.clock.now();
        Moment { time, second: time.as_micros() / 1_000_000 }
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        // Most batches are one request.
        if let [request] = batch
            && let Some(told) = self.decide_now(request)
        {
            return Reply::Now(Ok(told));
        }
        let mut told = BatchOutcomes::default();
        let mut is_one_moment = true;
        for request in batch {
            let at = match request.spends {
                [] => continue,
                [spend] if !request.is_fold() && spend.touch.over() == Over::Refuse => {
                    let (outcome, at) = self.decide_one(spend);
                    told.outcomes.push(outcome);
                    at
                }
                _ => self.decide_together(request, &mut told),
            };
            is_one_moment &= told.decided_at.replace(at).is_none_or(|earlier| earlier == at);
        }
        told.decided_at = told.decided_at.filter(|_| is_one_moment);
        Reply::Now(Ok(told))
    }

    #[inline]
    fn decide_now(&self, request: &Request<'_>) -> Option<BatchOutcomes> {
        // Most requests are on one cell.
        if let Request { spends: [spend], count: NonZeroU32::MIN } = request
            && spend.touch.over() == Over::Refuse
        {
            let (outcome, at) = self.decide_one(spend);
            let (outcomes, folds) = (Outcomes::from(outcome), Vec::new());
            return Some(BatchOutcomes { outcomes, folds, decided_at: Some(at), too_large: Vec::new() });
        }
        let mut told = BatchOutcomes::default();
        if !request.spends.is_empty() {
            told.decided_at = Some(self.decide_together(request, &mut told));
        }
        Some(told)
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        let mut new: SmallVec<[&Refund<'_>; 4]> = SmallVec::new();
        for refund in refunds {
            match refund.id.map_or(Ok(false), |id| self.has_had(&refund.cell, id)) {
                Ok(true) => {}
                Ok(false) => new.push(refund),
                // Those before it are given back when it is tried again: they are not marked for nothing.
                Err(Full) => {
                    new.into_iter().for_each(|refund| self.has_not_had(refund));
                    return Reply::Now(Err(no_room()));
                }
            }
        }
        let changes = new.iter().map(|refund| (refund.cell, refund.limit, (refund.hits, refund.age)));
        Reply::Now(Ok(self.with_cells(changes, |limit, cell, now, (hits, age)| {
            limit.refund(cell, now, hits, age);
        })))
    }

    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        let changes = charges.iter().map(|one| (one.cell, one.limit, one.charge));
        Reply::Now(Ok(self.with_cells(changes, |limit, cell, now, charge| limit.charge(cell, now, charge))))
    }

    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, Stamped<()>> {
        let (shard, tag) = self.locate(&cell);
        let mut shard = self.shards[shard].0.lock();
        let (before, now) = (shard.heap_bytes, self.moment());
        shard.forget(tag, limit);
        self.heap.follow(before, shard.heap_bytes);
        Reply::Now(Ok(Stamped::at((), now.time)))
    }

    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        Reply::Now(Ok(
            self.with_cell(&lease.cell, lease.limit, |cell, now| lease.limit.renew(cell, now, lease.id))
        ))
    }

    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        Reply::Now(Ok(
            self.with_cell(&lease.cell, lease.limit, |cell, now| lease.limit.release(cell, now, lease.id))
        ))
    }

    fn put_record<'a>(&'a self, record: Record<'a>, ttl: Micros) -> Reply<'a, Option<Vec<u8>>> {
        Reply::Now(self.records.lock().put(record, self.clock.now(), ttl).map_err(|Full| no_room()))
    }

    fn replace_record<'a>(
        &'a self,
        record: Record<'a>,
        to: Option<&'a [u8]>,
        ttl: Micros,
    ) -> Reply<'a, bool> {
        Reply::Now(Ok(self.records.lock().replace(record, to, self.clock.now(), ttl)))
    }
}

fn refund_name(cell: &CellKey<'_>, id: RefundId) -> Vec<u8> {
    let mut name = Vec::new();
    for part in [&b"refund"[..], &id.to_bytes(), cell.scope.as_bytes(), cell.key] {
        append_part(&mut name, part);
    }
    name
}

fn no_room() -> StoreError {
    StoreError::NoRoom { endpoint: "memory".to_owned() }
}

/// Locked shards, each once, in ascending order.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl Locked<'_> {
    fn get(&mut self, shard: usize) -> &mut Shard {
        let place = self.0.binary_search_by_key(&shard, |(locked, _)| *locked);
        &mut self.0[place.expect("every located shard was locked")].1
    }

    fn heap_bytes(&self) -> usize {
        self.0.iter().map(|(_, shard)| shard.heap_bytes).sum()
    }
}

impl Heap {
    /// Tracks the change of a locked shard's memory. Most decisions change none.
    #[inline]
    fn follow(&self, before: usize, after: usize) {
        match after.cmp(&before) {
            std::cmp::Ordering::Greater => self.bytes.fetch_add(after - before, Ordering::Relaxed),
            std::cmp::Ordering::Less => self.bytes.fetch_sub(before - after, Ordering::Relaxed),
            std::cmp::Ordering::Equal => return,
        };
    }

    fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.most_bytes
    }
}

impl<C> std::fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("shards", &self.shards.len()).finish_non_exhaustive()
    }
}
