//! The store that needs nothing else: cells in this process's memory.
//!
//! Sharded by a keyed hash (keys are chosen by attackers; the key is random per process), one lock per shard held for
//! nanoseconds, no allocation for counters once a table has grown, a hard bound on cells and on the memory of logs and
//! leases. It forgets everything when the process ends.
//!
//! At a bound cells go in this order: idle ones; those asked once; those that keep asking; and those at their limit last,
//! whatever their algorithm, for evicting those frees a caller. Only where nearly all of a shard (15 of 16 cells) is at
//! its limit do such cells make room too, or a store full of them could count no new caller. The bound on cells is split
//! over the shards, which a keyed hash fills evenly; the bound on bytes is one for all, because one log may be as large as
//! a hundred thousand others.

mod costs;
mod records;
mod shard;
mod table;

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hash128, SipHasher13};
use smallvec::SmallVec;
use tidegate_core::{Cell, Limit, Micros, Outcome, Timestamp, append_part, decide_fold, decide_request};

use crate::clock::{Clock, SystemClock};
use crate::contract::{
    BatchOutcomes, CellCharge, CellKey, LeaseRef, Refund, RefundId, Reply, Request, Spend, Stamped, Store,
};
use crate::outcomes::Outcomes;
use crate::record::Record;
pub use costs::memory_bytes;
use records::Records;
use shard::{Moment, Shard};
use table::{Place, Sweep, Tag, Victims};

/// How much a memory store may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// The most cells, of all limits together. A counter takes about 45 bytes.
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

    /// The same with at most this many cells.
    #[must_use]
    pub const fn max_cells(self, max_cells: usize) -> Self {
        MemoryConfig { max_cells, ..self }
    }

    /// The same with at most this many bytes for logs and leases.
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

/// What a memory store holds now, and what it had to drop since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Cells held.
    pub cells: usize,
    /// Bytes held, tables and logs together.
    pub bytes: usize,
    /// Cells dropped because their full quota was back.
    pub dropped_idle: u64,
    /// Cells in use, with quota left, dropped at the bound.
    pub evicted_in_use: u64,
    /// Cells at their limit, dropped at the bound because too few others were left.
    pub evicted_spent: u64,
    /// Records held.
    pub records: usize,
    /// Records dropped at the bound, before their time.
    pub evicted_records: u64,
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

/// Memory that logs and leases of all shards own outside the tables.
struct Heap {
    bytes: AtomicUsize,
    most_bytes: usize,
    /// The shard in which the next eviction looks.
    hand: AtomicUsize,
}

/// A shard holds about this many cells, so that growing one never holds its lock for long.
const CELLS_PER_SHARD: usize = 16_384;

impl MemoryStore {
    /// A store that reads the machine's clock.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        MemoryStore::with_clock(config, SystemClock::new())
    }
}

impl<C: Clock> MemoryStore<C> {
    /// A store that reads `clock`.
    #[must_use]
    pub fn with_clock(config: MemoryConfig, clock: C) -> Self {
        let shards = (config.max_cells / CELLS_PER_SHARD).clamp(1, 4_096);
        let heap =
            Heap { bytes: AtomicUsize::new(0), most_bytes: config.max_log_bytes, hand: AtomicUsize::new(0) };
        let random = RandomState::new();
        MemoryStore {
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new()))).collect(),
            cells_per_shard: config.max_cells.div_ceil(shards),
            heap,
            records: Mutex::default(),
            hash_keys: [random.hash_one(0), random.hash_one(1)],
            clock,
        }
    }

    /// The same with these keys for its hash, so that the same requests evict the same cells in every run. Who knows the keys
    /// and chooses what is asked can crowd one shard: a server leaves them to chance.
    #[must_use]
    pub fn with_hash_keys(mut self, hash_keys: [u64; 2]) -> Self {
        self.hash_keys = hash_keys;
        self
    }

    /// The clock it reads.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Drops idle cells in one part of `parts` of every shard's tables: to be called now and then, so that memory comes
    /// back when nobody asks any more. A caller that goes through all parts once a minute costs next to nothing. Who has
    /// not asked for a whole round is no longer preferred to new callers at the bound.
    pub fn sweep(&self, parts: usize) {
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let (buckets, before) = (shard.buckets().div_ceil(parts.max(1)), shard.heap_bytes);
            shard.sweep(self.moment(), buckets, Sweep::Round);
            self.heap.follow(before, shard.heap_bytes);
        }
    }

    /// What it holds now. Locks every shard in turn.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let fixed = self.shards.len() * size_of::<Padded>();
        let mut stats = MemoryStats { bytes: fixed, ..MemoryStats::default() };
        (stats.records, stats.evicted_records) = self.records.lock().stats();
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

    /// Decides one spend on its own: one lock, one look-up.
    #[inline]
    fn decide_one(&self, spend: &Spend<'_>) -> (Outcome, Timestamp) {
        let (shard, tag) = self.locate(&spend.cell);
        let mut shard = self.shards[shard].0.lock();
        // Read under the lock, so that a cell never sees time go back because two threads raced.
        let now = self.moment();
        if spend.touch.limit.is_counter() {
            return (shard.decide_counter(tag, spend.touch, now, self.cells_per_shard), now.time);
        }
        let before = shard.heap_bytes;
        let outcome = shard.decide_other(tag, spend.touch, now, self.cells_per_shard);
        self.heap.follow(before, shard.heap_bytes);
        drop(shard);
        self.fit_heap(now);
        (outcome, now.time)
    }

    /// Decides a request over several cells, or one that stands for several, with all shards locked at once.
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
        // A cell that is new may move others.
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

    /// Whether `cell` has had the refund `id`. From here on it has.
    fn has_had(&self, cell: &CellKey<'_>, id: RefundId) -> bool {
        let mut name = Vec::new();
        for part in [&b"refund"[..], &id.to_bytes(), cell.scope.as_bytes(), cell.key] {
            append_part(&mut name, part);
        }
        let record = Record { name: &name, value: b"" };
        self.records.lock().put(record, self.clock.now(), RefundId::KNOWN_FOR).is_some()
    }

    /// Changes one cell outside any request.
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

    /// Changes cells outside any request, all at one moment: who decides meanwhile sees all of it or nothing.
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

    /// Evicts logs and leases, in whichever shards they lie, until their memory is within its bound. Needs no lock to be
    /// held, and holds one at a time.
    fn fit_heap(&self, now: Moment) {
        if self.heap.is_over() {
            // Two rounds find those with quota left, unless they are few and far between.
            self.evict_heap(now, Victims::Unspent, 2 * self.shards.len());
            self.evict_heap(now, Victims::Spent, usize::MAX);
        }
    }

    /// Evicts `victims` until memory fits, `most_visits` were made, or a whole round found none.
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

    /// Locks the named shards, always in the same order, so that two requests never wait for each other.
    fn lock(&self, shards: impl Iterator<Item = usize>) -> Locked<'_> {
        let mut wanted: SmallVec<[usize; 8]> = shards.collect();
        wanted.sort_unstable();
        wanted.dedup();
        Locked(wanted.into_iter().map(|shard| (shard, self.shards[shard].0.lock())).collect())
    }

    fn locate(&self, cell: &CellKey<'_>) -> (usize, Tag) {
        // The scope goes into the key of the hash: it is fixed when rules compile and costs nothing here.
        let digest = cell.scope.digest();
        let hasher = SipHasher13::new_with_keys(self.hash_keys[0] ^ digest[0], self.hash_keys[1] ^ digest[1]);
        let Hash128 { h1, h2 } = hasher.hash(cell.key);
        let shard = ((h1 >> 32) * self.shards.len() as u64) >> 32;
        let first = u32::try_from(h1 & u64::from(u32::MAX)).expect("masked to 32 bits");
        (usize::try_from(shard).expect("below the number of shards"), Tag { first, rest: h2 })
    }

    fn moment(&self) -> Moment {
        let time = self.clock.now();
        Moment { time, second: time.as_micros() / 1_000_000 }
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        // Most batches are one request on one cell.
        if let [Request { spends: [spend], count: NonZeroU32::MIN }] = batch {
            let (outcome, at) = self.decide_one(spend);
            let (outcomes, folds) = (Outcomes::from(outcome), Vec::new());
            return Reply::Now(Ok(BatchOutcomes { outcomes, folds, decided_at: Some(at) }));
        }
        let mut told = BatchOutcomes::default();
        let mut is_one_moment = true;
        for request in batch {
            let at = match request.spends {
                [] => continue,
                [spend] if !request.is_fold() => {
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

    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        let is_new = |refund: &&Refund<'_>| refund.id.is_none_or(|id| !self.has_had(&refund.cell, id));
        let new: SmallVec<[&Refund<'_>; 4]> = refunds.iter().filter(is_new).collect();
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
        Reply::Now(Ok(self.records.lock().put(record, self.clock.now(), ttl)))
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

/// Shards that are locked, each once, in ascending order.
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
    /// Follows what a locked shard's memory has become. Most decisions change none.
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
