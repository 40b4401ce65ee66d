//! The Store contract on items.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cell, KeyRoom, LeaseId, Limit, Micros, Timestamp};
use tidegate_fleet::{FleetReply, HasValueFleet, ValueFleet, ValueStore, Values};
use tidegate_store::{
    BatchOutcomes, CellCharge, CellKey, LeaseRef, Record, Refund, RefundId, Reply, Request, Servers, Stamped,
    Store, StoreError,
};

use crate::deadline::Deadline;
use crate::decide::{Batch, change};
use crate::failure::Failure;
use crate::item::Item;
use crate::name::{Name, Namer, WHOLE, limit_part, refund_part};

/// How long after its deadline a probe is still awaited.
const PROBE_HEARD_FOR: Duration = Duration::from_secs(2);
const PROBE_TTL: Micros = Micros::from_secs(60);

/// Where an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of its server.
    pub server: usize,
    /// Its name there.
    pub name: Name,
}

/// Decides a group of items, by its number: changes what it is given. It is asked again if others were quicker.
pub type Work<'a> = &'a mut (dyn FnMut(usize, &mut [Item], Timestamp) + Send);

/// Servers that keep items, and change them only if nobody else has meanwhile.
pub trait Items: Sized + Send + Sync + 'static {
    /// Where the servers are.
    type Address: ?Sized;
    /// Settings other than that.
    type Config;
    /// Why a configuration cannot be used.
    type ConfigError;

    /// Opens it, without connecting, and says how its items are laid out.
    ///
    /// # Errors
    /// When the configuration is invalid.
    fn open(address: &Self::Address, config: &Self::Config) -> Result<(Self, Layout), Self::ConfigError>;

    /// Has all `groups` decided, and stores what becomes of them: each group whole, or not at all. Their items differ and ascend.
    fn change(
        &self,
        groups: &[Vec<Place>],
        deadline: Deadline,
        work: Work<'_>,
    ) -> impl Future<Output = Result<Changed, Failure>> + Send;

    /// The time that decides.
    fn now(&self) -> Timestamp;

    /// A call to this server ended; `failure` is why it failed, as a name of few.
    fn called(&self, server: &str, failure: Option<&'static str>);

    /// What an item has room for.
    fn key_room() -> KeyRoom;
}

/// What became of groups.
#[derive(Debug, Default)]
pub struct Changed {
    /// When, if all were decided at one moment.
    pub at: Option<Timestamp>,
    /// The groups, by number, that stay as they are, because an item of theirs would be too large, or they have too many: and why.
    pub too_large: Vec<(usize, String)>,
}

/// How a store lays out its items, and how long its calls may take.
#[derive(Debug)]
pub struct Layout {
    /// The names of its servers, which all nodes must write alike.
    pub endpoints: Vec<String>,
    /// Part of every item's name.
    pub key_prefix: String,
    /// The time allowed for a call.
    pub timeout: Duration,
    /// How much longer to wait for the answer to a decision.
    pub late_answers: Duration,
    /// The time allowed where no caller waits: to connect, then to answer.
    pub patience: Duration,
    /// The most items that change together.
    pub most_items: usize,
    /// A probe writes as much as a usual call: a path may lose what is large, and carry what is small.
    pub usual_call: usize,
}

impl Changed {
    /// When, of groups of which each must change.
    fn whole(mut self) -> Result<Option<Timestamp>, Failure> {
        self.too_large.pop().map_or(Ok(self.at), |(_, why)| Err(Failure::TooLarge(why.into())))
    }
}

/// The Store contract on items.
///
/// Creating one does not connect: each runtime connects on its first call, and again whenever a connection is lost. It must be
/// used within a tokio runtime.
pub struct ItemStore<I> {
    inner: Arc<Inner<I>>,
}

struct Inner<I> {
    items: I,
    layout: Layout,
    shards: Servers,
    names: Namer,
    /// Names the items of this process.
    process: [u8; 8],
    fleet: ValueFleet,
}

impl<I: Items> ItemStore<I> {
    /// Creates a store at `address` with `config`.
    ///
    /// # Errors
    /// When `config` is invalid.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    pub fn new(address: &I::Address, config: &I::Config) -> Result<Self, I::ConfigError> {
        let (items, layout) = I::open(address, config)?;
        let mut process = [0; 8];
        getrandom::fill(&mut process).expect("the system has random bytes");
        let inner = Inner {
            items,
            shards: Servers::new(layout.endpoints.iter().map(String::as_str)),
            names: Namer::new(&layout.key_prefix),
            process,
            fleet: ValueFleet::default(),
            layout,
        };
        Ok(ItemStore { inner: Arc::new(inner) })
    }
}

/// The servers themselves.
impl<I> Deref for ItemStore<I> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.inner.items
    }
}

impl<I> std::fmt::Debug for ItemStore<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ItemStore").field("endpoints", &self.inner.layout.endpoints).finish_non_exhaustive()
    }
}

impl<I: Items> Inner<I> {
    /// Changes groups of items.
    async fn run(
        &self,
        groups: &[Vec<Place>],
        deadline: Deadline,
        work: Work<'_>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let ran = self.items.change(groups, deadline, work).await;
        self.count(groups, ran.and_then(Changed::whole))
    }

    /// Counts a call.
    fn count<T>(&self, groups: &[Vec<Place>], ran: Result<T, Failure>) -> Result<T, StoreError> {
        let server = groups.iter().flatten().next().map_or(0, |place| place.server);
        let server = self.layout.endpoints[server].as_str();
        self.items.called(server, ran.as_ref().err().map(Failure::reason));
        ran.map_err(|failure| failure.into_store_error(server.to_owned()))
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
        Deadline::from_now(self.layout.timeout, self.layout.late_answers)
    }

    fn place(&self, cell: &CellKey<'_>) -> Place {
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
        Deadline::from_now(self.layout.patience, Duration::ZERO)
    }

    async fn decide(&self, batch: &[Request<'_>]) -> Result<BatchOutcomes, StoreError> {
        let mut batch = Batch::new(batch, self.layout.most_items, |cell| self.place(cell));
        let (deadline, mut moments) = (self.prompt(), Vec::new());
        for turn in 0..batch.turns() {
            let groups = batch.items(turn);
            let mut work = |group: usize, items: &mut [Item], now| batch.decide(turn, group, items, now);
            let ran = self.items.change(&groups, deadline, &mut work).await;
            let ran = ran.map_err(|failure| if turn == 0 { failure } else { failure.in_part() });
            let ran = ran.and_then(|changed| batch.left_out(turn, changed));
            moments.push(self.count(&groups, ran)?);
        }
        moments.dedup();
        let at = moments.first().copied().flatten().filter(|_| moments.len() == 1);
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
        let place = Place { server, name: self.names.own(b"probe", self.process, server as u64) };
        let deadline = Deadline::from_now(self.layout.timeout, PROBE_HEARD_FOR);
        // When it ends is part of it, so that it is always written.
        let write =
            |item: &mut Item, now| item.set(WHOLE, Some((now + PROBE_TTL, vec![0; self.layout.usual_call])));
        let ran =
            self.items.change(&[vec![place]], deadline, &mut |_, items, now| write(&mut items[0], now)).await;
        let ran = ran.and_then(Changed::whole);
        // A server that says that it is too busy is there.
        let is_busy = matches!(ran, Err(Failure::Busy(_)));
        self.count(&[vec![place]], ran).map(drop).or_else(|error| if is_busy { Ok(()) } else { Err(error) })
    }
}

impl<I: Items> Store for ItemStore<I> {
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

    fn key_room(&self) -> Option<KeyRoom> {
        Some(I::key_room())
    }

    fn nodes(&self) -> usize {
        self.inner.layout.endpoints.len()
    }

    fn node_of(&self, tag: &[u8]) -> usize {
        self.inner.shards.of(tag)
    }

    fn endpoint(&self, node: usize) -> String {
        self.inner.layout.endpoints.get(node).cloned().unwrap_or_default()
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

impl<I: Items> ValueStore for ItemStore<I> {
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
            Ok((inner.items.now(), values))
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

impl<I: Items> HasValueFleet for ItemStore<I> {
    fn value_fleet(&self) -> &ValueFleet {
        &self.inner.fleet
    }
}
