//! A memory store with a replica that lags: a failover loses the last writes, as one of Redis does.
//!
//! Every write is kept with its moment. A failover builds the store again from those that had reached the replica.

use std::sync::{Arc, Mutex};

use tidegate_core::{Ask, Charge, Group, Hits, LeaseId, Limit, Micros, Scope, Timestamp, Touch};
use tidegate_store::{
    BatchOutcomes, CellCharge, CellKey, Clock, LeaseRef, ManualClock, MemoryConfig, MemoryStore, Record,
    Refund, RefundId, Reply, Request, Spend, Stamped, Store, StoreError,
};

/// The master, and what it wrote.
pub(crate) struct Replicated {
    clock: Arc<ManualClock>,
    master: Mutex<Memory>,
    /// What to do again on a replica, and when it was done.
    journal: Mutex<Vec<(Timestamp, Write)>>,
}

type Write = Box<dyn Fn(&Memory) + Send>;

type Memory = MemoryStore<Arc<ReplayClock>>;

/// The executor's clock, or the moment that is being repeated.
struct ReplayClock {
    clock: Arc<ManualClock>,
    repeated: Mutex<Option<Timestamp>>,
}

impl Clock for ReplayClock {
    fn now(&self) -> Timestamp {
        self.repeated.lock().unwrap().unwrap_or_else(|| self.clock.now())
    }
}

impl Replicated {
    pub(crate) fn new(clock: Arc<ManualClock>) -> Self {
        let (master, _) = memory(&clock);
        Replicated { clock, master: Mutex::new(master), journal: Mutex::default() }
    }

    /// The replica takes over: all writes of the last `lag` are lost.
    pub(crate) fn fail_over(&self, lag: Micros) {
        let (replica, replayed) = memory(&self.clock);
        let mut journal = self.journal.lock().unwrap();
        let reached = self.clock.now().back(lag);
        journal.retain(|(at, _)| *at < reached);
        for (at, write) in journal.iter() {
            *replayed.repeated.lock().unwrap() = Some(*at);
            write(&replica);
        }
        *replayed.repeated.lock().unwrap() = None;
        *self.master.lock().unwrap() = replica;
    }

    fn write<T>(
        &self,
        again: impl Fn(&Memory) + Send + 'static,
        now: impl FnOnce(&Memory) -> Result<T, StoreError>,
    ) -> Reply<'static, T> {
        self.journal.lock().unwrap().push((self.clock.now(), Box::new(again)));
        Reply::Now(now(&self.master.lock().unwrap()))
    }
}

fn memory(clock: &Arc<ManualClock>) -> (Memory, Arc<ReplayClock>) {
    let config = MemoryConfig::new().max_cells(100_000).max_log_bytes(1 << 24);
    let clock = Arc::new(ReplayClock { clock: clock.clone(), repeated: Mutex::default() });
    (MemoryStore::with_clock(config, clock.clone()), clock)
}

fn at_once<T>(reply: Reply<'_, T>) -> Result<T, StoreError> {
    match reply {
        Reply::Now(answer) => answer,
        Reply::Later(_) => panic!("memory answers at once"),
    }
}

impl Store for Replicated {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        let own = |request: &Request<'_>| {
            (request.spends.iter().map(OwnSpend::of).collect::<Vec<_>>(), request.count)
        };
        let requests: Vec<_> = batch.iter().map(own).collect();
        let again = move |replica: &Memory| {
            let spends: Vec<Vec<Spend<'_>>> =
                requests.iter().map(|(spends, _)| spends.iter().map(OwnSpend::spend).collect()).collect();
            let counts = requests.iter().map(|(_, count)| *count);
            let batch: Vec<Request<'_>> =
                spends.iter().zip(counts).map(|(spends, count)| Request { spends, count }).collect();
            drop(at_once(replica.decide(&batch)));
        };
        self.write(again, |master| at_once(master.decide(batch)))
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        let own = |refund: &Refund<'_>| {
            (OwnCell::of(refund.cell, refund.limit), refund.hits, refund.age, refund.id)
        };
        let kept: Vec<_> = refunds.iter().map(own).collect();
        let again = move |replica: &Memory| {
            let refund = |(cell, hits, age, id): &(OwnCell, Hits, Micros, Option<RefundId>)| {
                let (key, limit) = (cell.key(), &cell.limit);
                drop(at_once(replica.refund(&[Refund {
                    cell: key,
                    limit,
                    hits: *hits,
                    age: *age,
                    id: *id,
                }])));
            };
            kept.iter().for_each(refund);
        };
        self.write(again, |master| at_once(master.refund(refunds)))
    }

    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        let own = |one: &CellCharge<'_>| (OwnCell::of(one.cell, one.limit), one.charge);
        let kept: Vec<(OwnCell, Charge)> = charges.iter().map(own).collect();
        let again = move |replica: &Memory| {
            let charges: Vec<CellCharge<'_>> = kept
                .iter()
                .map(|(cell, charge)| CellCharge { cell: cell.key(), limit: &cell.limit, charge: *charge })
                .collect();
            drop(at_once(replica.charge(&charges)));
        };
        self.write(again, |master| at_once(master.charge(charges)))
    }

    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, Stamped<()>> {
        let kept = OwnCell::of(cell, limit);
        let again = move |replica: &Memory| drop(at_once(replica.reset(kept.key(), &kept.limit)));
        self.write(again, |master| at_once(master.reset(cell, limit)))
    }

    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        let (kept, id) = (OwnCell::of(lease.cell, lease.limit), lease.id);
        let again = move |replica: &Memory| drop(at_once(replica.renew(kept.lease(id))));
        self.write(again, |master| at_once(master.renew(lease)))
    }

    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        let (kept, id) = (OwnCell::of(lease.cell, lease.limit), lease.id);
        let again = move |replica: &Memory| drop(at_once(replica.release(kept.lease(id))));
        self.write(again, |master| at_once(master.release(lease)))
    }

    fn put_record<'a>(&'a self, record: Record<'a>, ttl: Micros) -> Reply<'a, Option<Vec<u8>>> {
        let (name, value) = (record.name.to_vec(), record.value.to_vec());
        let again = move |replica: &Memory| {
            drop(at_once(replica.put_record(Record { name: &name, value: &value }, ttl)));
        };
        self.write(again, |master| at_once(master.put_record(record, ttl)))
    }

    fn replace_record<'a>(
        &'a self,
        record: Record<'a>,
        to: Option<&'a [u8]>,
        ttl: Micros,
    ) -> Reply<'a, bool> {
        let (name, value, new) = (record.name.to_vec(), record.value.to_vec(), to.map(<[u8]>::to_vec));
        let again = move |replica: &Memory| {
            let record = Record { name: &name, value: &value };
            drop(at_once(replica.replace_record(record, new.as_deref(), ttl)));
        };
        self.write(again, |master| at_once(master.replace_record(record, to, ttl)))
    }
}

/// A cell and its limit, kept beyond the call that named them.
struct OwnCell {
    scope: Scope,
    key: Vec<u8>,
    tag: Vec<u8>,
    limit: Limit,
}

impl OwnCell {
    fn of(cell: CellKey<'_>, limit: &Limit) -> Self {
        let CellKey { scope, key, tag } = cell;
        OwnCell { scope: scope.clone(), key: key.to_vec(), tag: tag.to_vec(), limit: limit.clone() }
    }

    fn key(&self) -> CellKey<'_> {
        CellKey { scope: &self.scope, key: &self.key, tag: &self.tag }
    }

    fn lease(&self, id: LeaseId) -> LeaseRef<'_> {
        LeaseRef { cell: self.key(), limit: &self.limit, id }
    }
}

struct OwnSpend {
    cell: OwnCell,
    ask: Ask,
    group: Group,
}

impl OwnSpend {
    fn of(spend: &Spend<'_>) -> Self {
        let Touch { limit, ask, group } = spend.touch;
        OwnSpend { cell: OwnCell::of(spend.cell, limit), ask, group }
    }

    fn spend(&self) -> Spend<'_> {
        let touch = Touch { limit: &self.cell.limit, ask: self.ask, group: self.group };
        Spend { cell: self.cell.key(), touch }
    }
}
