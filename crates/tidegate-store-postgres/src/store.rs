//! The Store contract on one database.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Limit, Micros, Timestamp};
use tidegate_fleet::{FleetReply, HasValueFleet, ValueFleet, ValueStore, Values};
use tidegate_store::{
    BatchOutcomes, CallObserver, CellCharge, CellKey, LeaseRef, Record, Refund, Reply, Request, Stamped,
    Store, StoreError,
};

use crate::cells::{Cells, Names};
use crate::config::{ConfigError, PostgresConfig, TimeSource};
use crate::connect::Connector;
use crate::failure::Failure;
use crate::name::{Name, Namer};
use crate::pool::Pool;
use crate::transaction::{Content, Deadline, Locked};
use crate::url::PostgresUrl;
use crate::values;

/// The Store contract on PostgreSQL.
///
/// Creating one does not connect: each runtime connects on its first call, and again whenever a connection is lost. It must be
/// used within a tokio runtime.
#[derive(Debug)]
pub struct PostgresStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) pool: Pool,
    names: Namer,
    endpoint: String,
    timeout: Duration,
    late_answers: Duration,
    connect_timeout: Duration,
    time: TimeSource,
    observer: Arc<dyn CallObserver>,
    /// Names the row with which this process probes the server.
    process: [u8; 8],
    fleet: ValueFleet,
}

/// The most rows that one call may touch.
const MOST_ROWS: usize = 8_192;
/// How long after its deadline a probe is still awaited.
const PROBE_HEARD_FOR: Duration = Duration::from_secs(2);
/// A probe writes as much as a usual call: a path may lose what is large, and carry what is small.
const USUAL_CALL: usize = 1_024;
const PROBE_TTL: Micros = Micros::from_secs(60);

impl PostgresStore {
    /// Creates a store at `url` with `config`.
    ///
    /// # Errors
    /// When `config` is invalid, or names files that cannot be used.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    pub fn new(url: &PostgresUrl, config: &PostgresConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let mut process = [0; 8];
        getrandom::fill(&mut process).expect("the system has random bytes");
        let inner = Inner {
            pool: Pool::new(Connector::new(url, config)?, config.connections),
            names: Namer::new(&config.key_prefix),
            endpoint: url.to_string(),
            timeout: config.timeout,
            late_answers: config.late_answers,
            connect_timeout: config.connect_timeout,
            time: config.time.clone(),
            observer: Arc::clone(&config.observer),
            process,
            fleet: ValueFleet::default(),
        };
        Ok(PostgresStore { inner: Arc::new(inner) })
    }
}

impl Inner {
    /// Locks rows, lets `work` say what becomes of them, and commits that.
    async fn run<T>(
        &self,
        names: &Names,
        deadline: Deadline,
        mut work: impl FnMut(&Locked, Timestamp) -> (T, Vec<Option<Content>>),
    ) -> Result<Stamped<T>, StoreError> {
        let ran = loop {
            match self.try_run(names, deadline, &mut work).await {
                // Nothing was applied, and there is time: as if it began now.
                Err(Failure::Interrupted) if !deadline.left().is_zero() => {}
                ended => break ended,
            }
        };
        self.observer.called(&self.endpoint, ran.as_ref().err().map(Failure::reason));
        ran.map_err(|failure| failure.into_store_error(self.endpoint.clone()))
    }

    async fn try_run<T>(
        &self,
        names: &Names,
        deadline: Deadline,
        work: &mut impl FnMut(&Locked, Timestamp) -> (T, Vec<Option<Content>>),
    ) -> Result<Stamped<T>, Failure> {
        let rows = names.as_slice();
        if rows.len() > MOST_ROWS {
            let problem = format!("a call over {} rows is too large, use at most {MOST_ROWS}", rows.len());
            return Err(Failure::NotApplied("other", problem.into()));
        }
        let locked = self.pool.lock(rows, deadline).await?;
        let now = match &self.time {
            TimeSource::Postgres => locked.now,
            TimeSource::Given(clock) => clock.now(),
        };
        let (value, contents) = work(&locked, now);
        locked.commit(contents).await?;
        Ok(Stamped::at(value, now))
    }

    /// The deadline of a call that a request waits for.
    fn prompt(&self) -> Deadline {
        Deadline::from_now(self.timeout, self.late_answers)
    }

    /// The time allowed where no caller waits: to connect, then to answer.
    pub(crate) fn patience(&self) -> Duration {
        self.connect_timeout + self.timeout
    }

    async fn decide(&self, batch: &[Request<'_>]) -> Result<BatchOutcomes, StoreError> {
        let spends = || batch.iter().flat_map(|request| request.spends);
        let own: Vec<Name> = spends().map(|spend| self.names.cell(&spend.cell)).collect();
        if own.is_empty() {
            return Ok(BatchOutcomes::default());
        }
        let names = Names::of(own.iter().copied());
        let places: Vec<usize> = own.iter().map(|name| names.place(*name)).collect();
        let decided = self.run(&names, self.prompt(), |locked, now| {
            let mut cells = Cells::read(locked.states(), now);
            (cells.decide(batch, &places), cells.contents())
        });
        let Stamped { value, at } = decided.await?;
        Ok(BatchOutcomes { decided_at: at, ..value })
    }

    /// Applies `change` to each of these cells, in order.
    async fn change<'a, C>(
        &self,
        cells: &[(CellKey<'_>, &'a Limit, C)],
        change: impl Fn(&'a Limit, &mut tidegate_core::Cell, Timestamp, &C) -> bool,
    ) -> Result<Stamped<bool>, StoreError> {
        if cells.is_empty() {
            return Ok(Stamped::default());
        }
        let own: Vec<Name> = cells.iter().map(|(cell, ..)| self.names.cell(cell)).collect();
        let names = Names::of(own.iter().copied());
        let changed = self.run(&names, self.prompt(), |locked, now| {
            let (mut state, mut last) = (Cells::read(locked.states(), now), false);
            for (name, (_, limit, what)) in own.iter().zip(cells) {
                last = state.change(names.place(*name), limit, |cell, now| change(limit, cell, now, what));
            }
            (last, state.contents())
        });
        changed.await
    }

    /// Each refund with an ID has a row of its own beside the cell's: where it is, the refund was applied.
    async fn refund(&self, refunds: &[Refund<'_>]) -> Result<Stamped<()>, StoreError> {
        if refunds.is_empty() {
            return Ok(Stamped::default());
        }
        let own: Vec<(Name, Option<Name>)> = refunds
            .iter()
            .map(|refund| {
                (self.names.cell(&refund.cell), refund.id.map(|id| self.names.refund(&refund.cell, id)))
            })
            .collect();
        let names = Names::of(own.iter().flat_map(|(cell, mark)| [Some(*cell), *mark]).flatten());
        let refunded = self.run(&names, self.prompt(), |locked, now| {
            let states: Vec<&[u8]> = locked.states().collect();
            let mut cells = Cells::read(states.iter().copied(), now);
            let mut marks = Vec::new();
            for (refund, (cell, mark)) in refunds.iter().zip(&own) {
                let mark = mark.map(|mark| names.place(mark));
                if mark
                    .is_some_and(|mark| values::value(states[mark], now).is_some() || marks.contains(&mark))
                {
                    continue;
                }
                marks.extend(mark);
                cells.change(names.place(*cell), refund.limit, |cell, now| {
                    refund.limit.refund(cell, now, refund.hits, refund.age);
                });
            }
            let mut contents = cells.contents();
            for mark in marks {
                contents[mark] = Some(values::content(b"", now, tidegate_store::RefundId::KNOWN_FOR));
            }
            ((), contents)
        });
        refunded.await
    }

    async fn reset(&self, cell: &CellKey<'_>) -> Result<Stamped<()>, StoreError> {
        let names = Names::of(std::iter::once(self.names.cell(cell)));
        self.run(&names, self.prompt(), |_, now| ((), vec![Some(values::gone(now))])).await
    }

    async fn lease(
        &self,
        lease: LeaseRef<'_>,
        change: impl Fn(&Limit, &mut tidegate_core::Cell, Timestamp, &tidegate_core::LeaseId) -> bool,
    ) -> Result<Stamped<bool>, StoreError> {
        if !lease.limit.takes_lease() {
            return Ok(Stamped::default());
        }
        self.change(&[(lease.cell, lease.limit, lease.id)], change).await
    }

    async fn put_record(&self, record: Record<'_>, ttl: Micros) -> Result<Option<Vec<u8>>, StoreError> {
        let names = Names::of(std::iter::once(self.names.record(record.name)));
        let put = self.run(&names, self.prompt(), |locked, now| {
            let known = locked.states().next().and_then(|state| values::value(state, now));
            let content = known.is_none().then(|| values::content(record.value, now, ttl));
            (known.map(<[u8]>::to_vec), vec![content])
        });
        put.await.map(|put| put.value)
    }

    async fn replace_record(
        &self,
        record: Record<'_>,
        to: Option<&[u8]>,
        ttl: Micros,
    ) -> Result<bool, StoreError> {
        let names = Names::of(std::iter::once(self.names.record(record.name)));
        let replaced = self.run(&names, self.prompt(), |locked, now| {
            let known = locked.states().next().and_then(|state| values::value(state, now));
            if known != Some(record.value) {
                return (false, vec![None]);
            }
            let content = to.map_or_else(|| values::gone(now), |to| values::content(to, now, ttl));
            (true, vec![Some(content)])
        });
        replaced.await.map(|replaced| replaced.value)
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.write_something(Deadline::from_now(self.timeout, PROBE_HEARD_FOR)).await
    }

    /// Only a write shows that it takes writes.
    pub(crate) async fn write_something(&self, deadline: Deadline) -> Result<(), StoreError> {
        let names = Names::of(std::iter::once(self.names.probe(self.process)));
        // The time it was written is part of it, so that it is always written.
        let write = |_: &Locked, now| ((), vec![Some(values::content(&[0; USUAL_CALL], now, PROBE_TTL))]);
        self.run(&names, deadline, write).await.map(drop)
    }

    /// The deadline of a call that no request waits for.
    pub(crate) fn patient(&self) -> Deadline {
        Deadline::from_now(self.patience(), Duration::ZERO)
    }

    /// Changes a value of the fleet, unless `change` leaves it: what it is told is what is there.
    async fn change_value(
        &self,
        name: &[u8],
        ttl: Micros,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Option<Vec<u8>>>,
    ) -> Result<bool, StoreError> {
        let names = Names::of(std::iter::once(self.names.value(name)));
        let changed = self.run(&names, self.patient(), |locked, now| {
            let known = locked.states().next().and_then(|state| values::value(state, now));
            let content = change(known).map(|to| match to {
                Some(to) => values::content(&to, now, ttl),
                None => values::gone(now),
            });
            (content.is_some(), vec![content])
        });
        changed.await.map(|changed| changed.value)
    }

    /// Reads values of the fleet without a lock.
    async fn values(&self, names: &[Vec<u8>]) -> Result<Values, StoreError> {
        let rows: Vec<Name> = names.iter().map(|name| self.names.value(name)).collect();
        let (now, found) = self.pool.read(&rows, self.patience()).await.map_err(|failure| {
            self.observer.called(&self.endpoint, Some(failure.reason()));
            failure.into_store_error(self.endpoint.clone())
        })?;
        self.observer.called(&self.endpoint, None);
        let now = match &self.time {
            TimeSource::Postgres => now,
            TimeSource::Given(clock) => clock.now(),
        };
        let value = |name: &Name| {
            let (_, state) = found.iter().find(|(known, _)| known == name)?;
            values::value(state, now).map(<[u8]>::to_vec)
        };
        Ok((now, rows.iter().map(value).collect()))
    }
}

impl Store for PostgresStore {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        Reply::Later(Box::pin(self.inner.decide(batch)))
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        Reply::Later(Box::pin(self.inner.refund(refunds)))
    }

    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        Reply::Later(Box::pin(async move {
            let cells: Vec<_> =
                charges.iter().map(|charge| (charge.cell, charge.limit, charge.charge)).collect();
            let changed = self.inner.change(&cells, |limit, cell, now, charge| {
                limit.charge(cell, now, *charge);
                true
            });
            changed.await.map(|changed| changed.map(drop))
        }))
    }

    fn reset<'a>(&'a self, cell: CellKey<'a>, _: &'a Limit) -> Reply<'a, Stamped<()>> {
        Reply::Later(Box::pin(async move { self.inner.reset(&cell).await }))
    }

    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        Reply::Later(Box::pin(self.inner.lease(lease, |limit, cell, now, id| limit.renew(cell, now, *id))))
    }

    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        Reply::Later(Box::pin(self.inner.lease(lease, |limit, cell, now, id| limit.release(cell, now, *id))))
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

    fn endpoint(&self, _: usize) -> String {
        self.inner.endpoint.clone()
    }

    fn probe(&self, _: usize) -> Reply<'_, ()> {
        Reply::Later(Box::pin(self.inner.probe()))
    }

    fn heartbeat(&self, member: u64, ttl: Micros) -> Reply<'_, usize> {
        Reply::Later(Box::pin(self.inner.fleet.heartbeat(self, member, ttl)))
    }

    fn leave(&self, member: u64) -> Reply<'_, ()> {
        Reply::Later(Box::pin(self.inner.fleet.leave(self, member)))
    }
}

impl ValueStore for PostgresStore {
    fn values<'a>(&'a self, names: &'a [Vec<u8>]) -> FleetReply<'a, Values> {
        Box::pin(self.inner.values(names))
    }

    fn put<'a>(&'a self, name: &'a [u8], value: Option<&'a [u8]>, ttl: Micros) -> FleetReply<'a, ()> {
        Box::pin(async move {
            let put = |_: Option<&[u8]>| Some(value.map(<[u8]>::to_vec));
            self.inner.change_value(name, ttl, put).await.map(drop)
        })
    }

    fn swap<'a>(
        &'a self,
        name: &'a [u8],
        known: Option<&'a [u8]>,
        value: &'a [u8],
        ttl: Micros,
    ) -> FleetReply<'a, bool> {
        let swap = move |there: Option<&[u8]>| (there == known).then(|| Some(value.to_vec()));
        Box::pin(self.inner.change_value(name, ttl, swap))
    }
}

impl HasValueFleet for PostgresStore {
    fn value_fleet(&self) -> &ValueFleet {
        &self.inner.fleet
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
