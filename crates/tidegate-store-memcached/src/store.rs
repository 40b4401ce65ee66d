//! The Store contract on a list of servers.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cell, CellForm, LeaseId, Limit, Micros, Timestamp};
use tidegate_fleet::{FleetReply, HasValueFleet, ValueFleet, ValueStore, Values};
use tidegate_store::{
    BatchOutcomes, CellCharge, CellKey, LeaseRef, Record, Refund, RefundId, Reply, Request, Servers, Stamped,
    Store, StoreError,
};

use crate::change::{Changer, Place};
use crate::clock::ServerClock;
use crate::config::{ConfigError, MemcachedConfig, Observer};
use crate::decide::{Batch, change};
use crate::failure::Failure;
use crate::item::Item;
use crate::link::{Deadline, Links};
use crate::name::{Name, Namer, WHOLE, limit_part, refund_part};
use crate::upkeep::Canaries;
use crate::url::{MemcachedUrl, name};

/// The most leases that a concurrency limit may give at once: they are one item, of at most a megabyte. (The longest log fits.)
pub const MOST_LEASES: u64 = 25_000;
/// How long after its deadline a probe is still awaited.
const PROBE_HEARD_FOR: Duration = Duration::from_secs(2);
/// A probe writes as much as a usual call: a path may lose what is large, and carry what is small.
const USUAL_CALL: usize = 1_024;
const PROBE_TTL: Micros = Micros::from_secs(60);

/// The Store contract on Memcached.
///
/// Creating one does not connect: each runtime connects on its first call, and again whenever a connection is lost. It must be
/// used within a tokio runtime.
#[derive(Debug)]
pub struct MemcachedStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) changer: Changer,
    shards: Servers,
    pub(crate) names: Namer,
    endpoints: Vec<String>,
    timeout: Duration,
    late_answers: Duration,
    connect_timeout: Duration,
    observer: Arc<dyn Observer>,
    /// Names the items of this process.
    pub(crate) process: [u8; 8],
    pub(crate) canaries: Canaries,
    fleet: ValueFleet,
}

impl MemcachedStore {
    /// Creates a store at `url` with `config`.
    ///
    /// # Errors
    /// When `config` is invalid.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    pub fn new(url: &MemcachedUrl, config: &MemcachedConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let mut process = [0; 8];
        getrandom::fill(&mut process).expect("the system has random bytes");
        let endpoints: Vec<String> = url.servers().iter().map(name).collect();
        let names = Namer::new(&config.key_prefix);
        let changer = Changer {
            links: Links::new(url.servers(), config.connect_timeout, config.max_in_flight),
            time: config.time.clone(),
            clock: ServerClock::new(),
            clock_name: names.common(b"clock"),
        };
        let inner = Inner {
            changer,
            shards: Servers::new(endpoints.iter().map(String::as_str)),
            names,
            timeout: config.timeout,
            late_answers: config.late_answers,
            connect_timeout: config.connect_timeout,
            observer: Arc::clone(&config.observer),
            process,
            canaries: Canaries::new(endpoints.len()),
            endpoints,
            fleet: ValueFleet::default(),
        };
        Ok(MemcachedStore { inner: Arc::new(inner) })
    }

    /// Why this store cannot keep a limit's state; none if it can.
    #[must_use]
    pub fn cannot_keep(limit: &Limit) -> Option<String> {
        match limit.form() {
            CellForm::Leases { most } if most > MOST_LEASES => {
                Some(format!("{most} leases at once: an item of Memcached has room for {MOST_LEASES}"))
            }
            _ => None,
        }
    }
}

impl Inner {
    /// Changes groups of items, and counts the call.
    pub(crate) async fn run(
        &self,
        groups: &[Vec<Place>],
        deadline: Deadline,
        work: &mut (dyn FnMut(usize, &mut [Item], Timestamp) + Send),
    ) -> Result<Option<Timestamp>, StoreError> {
        let ran = self.changer.change(groups, deadline, work).await;
        self.observer.called(ran.as_ref().err().map(Failure::reason));
        let endpoint = || groups.iter().flatten().next().map_or(0, |place| place.server);
        ran.map_err(|failure| failure.into_store_error(self.endpoints[endpoint()].clone()))
    }

    /// Changes one item.
    async fn run_one<T: Default + Send>(
        &self,
        place: Place,
        deadline: Deadline,
        mut work: impl FnMut(&mut Item, Timestamp) -> T + Send,
    ) -> Result<Stamped<T>, StoreError> {
        let mut told = T::default();
        let at =
            self.run(&[vec![place]], deadline, &mut |_, items, now| told = work(&mut items[0], now)).await?;
        Ok(Stamped { value: told, at })
    }

    /// The deadline of a call that a request waits for.
    fn prompt(&self) -> Deadline {
        Deadline::from_now(self.timeout, self.late_answers)
    }

    /// The time allowed where no caller waits: to connect, then to answer.
    pub(crate) fn patience(&self) -> Duration {
        self.connect_timeout + self.timeout
    }

    pub(crate) fn place(&self, cell: &CellKey<'_>) -> Place {
        Place { server: self.shards.of(cell.tag), name: self.names.tuple(cell) }
    }

    fn record(&self, name: &[u8]) -> Place {
        Place { server: self.shards.of(name), name: self.names.record(name) }
    }

    /// A value of the fleet. All are on one server: a node hears of all or of none.
    fn value(&self, name: &[u8]) -> Place {
        Place { server: self.shards.of(b"fleet"), name: self.names.value(name) }
    }

    /// The deadline of a call that no request waits for.
    fn patient(&self) -> Deadline {
        Deadline::from_now(self.patience(), Duration::ZERO)
    }

    async fn decide(&self, batch: &[Request<'_>]) -> Result<BatchOutcomes, StoreError> {
        let mut batch = Batch::new(batch, |cell| self.place(cell));
        let groups = std::mem::take(&mut batch.items);
        let at = self
            .run(&groups, self.prompt(), &mut |group, items, now| batch.decide(group, items, now))
            .await?;
        Ok(batch.outcomes(at))
    }

    /// Changes cells in order, those of one item together. The changes do not depend on each other.
    async fn change_each<'a>(
        &self,
        cells: &[(CellKey<'_>, &'a Limit)],
        mut each: impl FnMut(usize, &'a Limit, &mut Item, Timestamp) + Send,
    ) -> Result<Stamped<()>, StoreError> {
        let mut groups: Vec<Vec<Place>> = cells.iter().map(|(cell, _)| vec![self.place(cell)]).collect();
        let places: Vec<Place> = groups.iter().map(|group| group[0]).collect();
        groups.sort_unstable();
        groups.dedup();
        let own = groups.clone();
        let at = self
            .run(&groups, self.prompt(), &mut |group, items, now| {
                for (number, place) in places.iter().enumerate() {
                    if *place == own[group][0] {
                        each(number, cells[number].1, &mut items[0], now);
                    }
                }
            })
            .await?;
        Ok(Stamped { value: (), at })
    }

    async fn refund(&self, refunds: &[Refund<'_>]) -> Result<Stamped<()>, StoreError> {
        let cells: Vec<_> = refunds.iter().map(|refund| (refund.cell, refund.limit)).collect();
        let each = |number: usize, limit: &Limit, item: &mut Item, now: Timestamp| {
            let refund = &refunds[number];
            if let Some(mark) = refund.id.map(|id| refund_part(&refund.cell, id)) {
                if item.live_part(mark, now).is_some() {
                    return;
                }
                item.set(mark, Some((now + RefundId::KNOWN_FOR, Vec::new())));
            }
            change(item, limit_part(&refund.cell), limit, now, |cell| {
                limit.refund(cell, now, refund.hits, refund.age);
            });
        };
        self.change_each(&cells, each).await
    }

    async fn charge(&self, charges: &[CellCharge<'_>]) -> Result<Stamped<()>, StoreError> {
        let cells: Vec<_> = charges.iter().map(|charge| (charge.cell, charge.limit)).collect();
        let each = |number: usize, limit: &Limit, item: &mut Item, now: Timestamp| {
            let CellCharge { cell: key, charge, .. } = charges[number];
            change(item, limit_part(&key), limit, now, |cell| limit.charge(cell, now, charge));
        };
        self.change_each(&cells, each).await
    }

    async fn lease(
        &self,
        lease: LeaseRef<'_>,
        how: impl Fn(&Limit, &mut Cell, Timestamp, LeaseId) -> bool + Send + Sync,
    ) -> Result<Stamped<bool>, StoreError> {
        if !lease.limit.takes_lease() {
            return Ok(Stamped::default());
        }
        let part = limit_part(&lease.cell);
        let work = |item: &mut Item, now| {
            change(item, part, lease.limit, now, |cell| how(lease.limit, cell, now, lease.id))
        };
        self.run_one(self.place(&lease.cell), self.prompt(), work).await
    }

    async fn put_record(&self, record: Record<'_>, ttl: Micros) -> Result<Option<Vec<u8>>, StoreError> {
        let put = self.run_one(self.record(record.name), self.prompt(), |item, now| {
            let known = item.live_part(WHOLE, now).map(<[u8]>::to_vec);
            if known.is_none() {
                item.set(WHOLE, Some((now + ttl, record.value.to_vec())));
            }
            known
        });
        put.await.map(|put| put.value)
    }

    async fn replace_record(
        &self,
        record: Record<'_>,
        to: Option<&[u8]>,
        ttl: Micros,
    ) -> Result<bool, StoreError> {
        let replaced = self.run_one(self.record(record.name), self.prompt(), |item, now| {
            let is_known = item.live_part(WHOLE, now) == Some(record.value);
            if is_known {
                item.set(WHOLE, to.map(|to| (now + ttl, to.to_vec())));
            }
            is_known
        });
        replaced.await.map(|replaced| replaced.value)
    }

    async fn probe(&self, server: usize) -> Result<(), StoreError> {
        let place = Place { server, name: self.own(b"probe", server) };
        let deadline = Deadline::from_now(self.timeout, PROBE_HEARD_FOR);
        // When it ends is part of it, so that it is always written.
        let write = |item: &mut Item, now| item.set(WHOLE, Some((now + PROBE_TTL, vec![0; USUAL_CALL])));
        self.run_one(place, deadline, write).await.map(drop)
    }

    fn own(&self, kind: &[u8], number: usize) -> Name {
        self.names.own(kind, self.process, number as u64)
    }
}

impl Store for MemcachedStore {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        Reply::Later(Box::pin(self.inner.decide(batch)))
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        Reply::Later(Box::pin(self.inner.refund(refunds)))
    }

    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        Reply::Later(Box::pin(self.inner.charge(charges)))
    }

    fn reset<'a>(&'a self, cell: CellKey<'a>, _: &'a Limit) -> Reply<'a, Stamped<()>> {
        Reply::Later(Box::pin(async move {
            let reset = |item: &mut Item, _| item.set(limit_part(&cell), None);
            self.inner.run_one(self.inner.place(&cell), self.inner.prompt(), reset).await
        }))
    }

    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        Reply::Later(Box::pin(self.inner.lease(lease, |limit, cell, now, id| limit.renew(cell, now, id))))
    }

    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        Reply::Later(Box::pin(self.inner.lease(lease, |limit, cell, now, id| limit.release(cell, now, id))))
    }

    fn put_record<'a>(&'a self, record: Record<'a>, ttl: Micros) -> Reply<'a, Option<Vec<u8>>> {
        Reply::Later(Box::pin(self.inner.put_record(record, ttl)))
    }

    fn replace_record<'a>(
        &'a self,
        record: Record<'a>,
        to: Option<&'a [u8]>,
        ttl: Micros,
    ) -> Reply<'a, bool> {
        Reply::Later(Box::pin(self.inner.replace_record(record, to, ttl)))
    }

    fn nodes(&self) -> usize {
        self.inner.endpoints.len()
    }

    fn node_of(&self, tag: &[u8]) -> usize {
        self.inner.shards.of(tag)
    }

    fn endpoint(&self, node: usize) -> String {
        self.inner.endpoints.get(node).cloned().unwrap_or_default()
    }

    fn probe(&self, node: usize) -> Reply<'_, ()> {
        Reply::Later(Box::pin(self.inner.probe(node)))
    }

    fn heartbeat(&self, member: u64, ttl: Micros) -> Reply<'_, usize> {
        Reply::Later(Box::pin(self.inner.fleet.heartbeat(self, member, ttl)))
    }

    fn leave(&self, member: u64) -> Reply<'_, ()> {
        Reply::Later(Box::pin(self.inner.fleet.leave(self, member)))
    }
}

impl ValueStore for MemcachedStore {
    fn values<'a>(&'a self, names: &'a [Vec<u8>]) -> FleetReply<'a, Values> {
        Box::pin(async {
            let inner = &self.inner;
            let groups: Vec<Vec<Place>> = names.iter().map(|name| vec![inner.value(name)]).collect();
            let mut values = vec![None; names.len()];
            let read = |group: usize, items: &mut [Item], now| {
                values[group] = items[0].live_part(WHOLE, now).map(<[u8]>::to_vec);
            };
            let mut read = read;
            inner.run(&groups, inner.patient(), &mut read).await?;
            Ok((inner.changer.now(), values))
        })
    }

    fn put<'a>(&'a self, name: &'a [u8], value: Option<&'a [u8]>, ttl: Micros) -> FleetReply<'a, ()> {
        Box::pin(async move {
            let put = |item: &mut Item, now| item.set(WHOLE, value.map(|value| (now + ttl, value.to_vec())));
            self.inner.run_one(self.inner.value(name), self.inner.patient(), put).await.map(drop)
        })
    }

    fn swap<'a>(
        &'a self,
        name: &'a [u8],
        known: Option<&'a [u8]>,
        value: &'a [u8],
        ttl: Micros,
    ) -> FleetReply<'a, bool> {
        Box::pin(async move {
            let swap = |item: &mut Item, now| {
                let is_known = item.live_part(WHOLE, now) == known;
                if is_known {
                    item.set(WHOLE, Some((now + ttl, value.to_vec())));
                }
                is_known
            };
            self.inner
                .run_one(self.inner.value(name), self.inner.patient(), swap)
                .await
                .map(|swapped| swapped.value)
        })
    }
}

impl HasValueFleet for MemcachedStore {
    fn value_fleet(&self) -> &ValueFleet {
        &self.inner.fleet
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}
