//! A model of a store over a network: one truth, and one link to it per limiter, each with faults of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidegate_core::{Fold, Limit, Micros, Outcome, Timestamp, Verdict};
use tidegate_limiter::Runtime;
use tidegate_store::{
    BatchOutcomes, CellCharge, CellKey, Clock, HELD_RETRY_AFTER, LeaseRef, ManualClock, Record, Refund,
    Reply, Request, Spend, Stamped, Store, StoreError,
};

use super::executor::Executor;
use super::replicated::Replicated;

/// What all links lead to.
pub(crate) struct Truth {
    pub(crate) memory: Replicated,
    members: Mutex<HashMap<u64, Timestamp>>,
    clock: Arc<ManualClock>,
    /// Hits that were asked for in decisions that were carried out, admitted or not.
    pub(crate) asked_hits: AtomicU64,
}

/// How a link treats what is sent over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// It arrives, and so does the answer.
    Fine,
    /// So long each way.
    Slow(Micros),
    /// The store says at once that it did nothing.
    Refuses,
    /// Nothing arrives, and nobody says so.
    Hangs,
    /// Everything is carried out, and no answer comes back.
    LosesReplies,
    /// Everything is carried out, and the connection breaks before the answer.
    Cuts,
    /// Any of these, by chance: so many in a hundred are fine.
    Changing { fine: u64 },
}

impl Weather {
    /// What says least about what was done is worst, where several nodes are asked at once.
    fn severity(&self) -> (u8, u64) {
        match self {
            Weather::Fine => (0, 0),
            Weather::Slow(span) => (1, span.get()),
            // What the others did is put back.
            Weather::Refuses => (2, 0),
            Weather::Cuts => (3, 0),
            Weather::LosesReplies => (4, 0),
            Weather::Hangs => (5, 0),
            Weather::Changing { .. } => unreachable!("it has become one of the others"),
        }
    }
}

/// The way of one limiter to the store.
pub(crate) struct Link {
    truth: Arc<Truth>,
    executor: Executor,
    weather: Mutex<Weather>,
    /// One way, at least and at most.
    latency: (u64, u64),
    pub(crate) seen: Mutex<Seen>,
    /// Tags whose first byte is this one are on a second node, with weather of its own.
    pub(crate) second_node: Mutex<Option<(u8, Weather)>>,
    /// Keys whose first byte is this one have no room for anything.
    pub(crate) no_room: Mutex<Option<u8>>,
}

/// What went over a link.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) decides: Vec<(Timestamp, usize)>,
    pub(crate) others: Vec<(Timestamp, &'static str)>,
    under_way: HashMap<Vec<Vec<u8>>, usize>,
    pub(crate) most_at_once_per_lane: usize,
    pub(crate) under_way_in_all: usize,
}

impl Truth {
    pub(crate) fn new(executor: &Executor) -> Arc<Self> {
        let clock = executor.clock();
        Arc::new(Truth {
            memory: Replicated::new(clock.clone()),
            members: Mutex::default(),
            clock,
            asked_hits: AtomicU64::new(0),
        })
    }
}

impl Link {
    pub(crate) fn new(truth: &Arc<Truth>, executor: &Executor, latency: (u64, u64)) -> Arc<Self> {
        Arc::new(Link {
            truth: truth.clone(),
            executor: executor.clone(),
            weather: Mutex::new(Weather::Fine),
            latency,
            seen: Mutex::default(),
            second_node: Mutex::new(None),
            no_room: Mutex::new(None),
        })
    }

    pub(crate) fn set(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
    }

    pub(crate) fn weather(&self) -> Weather {
        *self.weather.lock().unwrap()
    }

    pub(crate) fn calls(&self) -> usize {
        self.seen.lock().unwrap().decides.len()
    }

    pub(crate) fn forget_calls(&self) {
        let mut seen = self.seen.lock().unwrap();
        seen.decides.clear();
        seen.others.clear();
        seen.most_at_once_per_lane = 0;
    }

    fn weather_at(&self, node: usize) -> Weather {
        let weather = match *self.second_node.lock().unwrap() {
            Some((_, weather)) if node == 1 => weather,
            _ => *self.weather.lock().unwrap(),
        };
        let Weather::Changing { fine } = weather else { return weather };
        if self.executor.below(100) < fine {
            return Weather::Fine;
        }
        match self.executor.below(6) {
            0 => Weather::Slow(Micros::from_millis(4)),
            1 => Weather::Slow(Micros::from_millis(8)),
            2 => Weather::Refuses,
            3 => Weather::Hangs,
            4 => Weather::LosesReplies,
            _ => Weather::Cuts,
        }
    }

    async fn travel(&self, weather: Weather) {
        let (least, most) = self.latency;
        let span = match weather {
            Weather::Slow(span) => span,
            _ => Micros::new(least + self.executor.below(most - least + 1)),
        };
        self.executor.sleep(span).await;
    }

    /// Carries `work` there and its result back, as the weather permits.
    async fn carry<T>(
        &self,
        node: usize,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.carry_in(self.weather_at(node), work).await
    }

    async fn carry_in<T>(
        &self,
        weather: Weather,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if weather == Weather::Refuses {
            return Err(StoreError::NotApplied { endpoint: "model".into(), source: "refused".into() });
        }
        self.travel(weather).await;
        if weather == Weather::Hangs {
            std::future::pending::<()>().await;
        }
        let answer = work.await;
        if weather == Weather::LosesReplies {
            std::future::pending::<()>().await;
        }
        self.travel(weather).await;
        if weather == Weather::Cuts {
            return Err(StoreError::FateUnknown { endpoint: "model".into(), source: "cut".into() });
        }
        answer
    }

    fn other<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        node: usize,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'a,
    ) -> Reply<'a, T> {
        self.seen.lock().unwrap().others.push((self.executor.now(), name));
        Reply::Later(Box::pin(self.carry(node, work)))
    }
}

impl Link {
    /// Where one node of several is lost, the others have spent their part, and nobody puts it back.
    async fn decide_in_part(&self, batch: &[Request<'_>], weather: &BTreeMap<usize, Weather>) {
        let hears = |tag: &[u8]| !matches!(weather[&self.node_of(tag)], Weather::Hangs | Weather::Refuses);
        for request in batch {
            let heard: Vec<Spend<'_>> =
                request.spends.iter().filter(|spend| hears(spend.cell.tag)).copied().collect();
            if !heard.is_empty() {
                let part = [Request { spends: &heard, count: request.count }];
                self.truth.memory.decide(&part).answer().await.expect("the truth answers");
            }
        }
    }

    /// Decides the requests for which the keys have room.
    async fn decide_what_has_room(&self, batch: &[Request<'_>]) -> Result<BatchOutcomes, StoreError> {
        let full = *self.no_room.lock().unwrap();
        let fits = |request: &Request<'_>| {
            !request.spends.iter().any(|spend| full.is_some() && spend.cell.key.get(1).copied() == full)
        };
        let rest: Vec<Request<'_>> = batch.iter().copied().filter(fits).collect();
        if rest.is_empty() && !batch.is_empty() {
            return Err(StoreError::TooLarge { endpoint: "model".into(), source: "no room".into() });
        }
        let decided = self.truth.memory.decide(&rest).answer().await?;
        let undecided = Outcome {
            verdict: Verdict::Refused { retry_after: Some(HELD_RETRY_AFTER) },
            remaining: 0,
            reset_after: HELD_RETRY_AFTER,
        };
        let (mut outcomes, mut folds) = (decided.outcomes.iter(), decided.folds.iter());
        let mut told = BatchOutcomes { decided_at: decided.decided_at, ..BatchOutcomes::default() };
        for (number, request) in batch.iter().enumerate() {
            let (has_room, spends) = (fits(request), request.spends.len());
            if !has_room {
                told.too_large.push((number, "no room".to_owned()));
            }
            for _ in 0..spends {
                let outcome = if has_room { outcomes.next().copied() } else { None };
                told.outcomes.push(outcome.unwrap_or(undecided));
            }
            for _ in 0..if request.is_fold() { spends } else { 0 } {
                let fold = if has_room { folds.next().copied() } else { None };
                told.folds.push(fold.unwrap_or(Fold::refused(undecided)));
            }
        }
        Ok(told)
    }

    /// Sends each node what is its own, and fails if one of them does.
    fn by_node<'a, T: Copy + Send + Sync>(
        &'a self,
        name: &'static str,
        items: &'a [T],
        cell: impl Fn(&T) -> CellKey<'a>,
        work: impl Fn(&[T]) -> Reply<'_, Stamped<()>> + Send + Sync + 'a,
    ) -> Reply<'a, Stamped<()>> {
        let node_of = |item: &T| self.node_of(cell(item).tag);
        let parts: Vec<(usize, Vec<T>)> = (0..self.nodes())
            .map(|node| (node, items.iter().filter(|item| node_of(item) == node).copied().collect()))
            .filter(|(_, part): &(usize, Vec<T>)| !part.is_empty())
            .collect();
        self.seen.lock().unwrap().others.push((self.executor.now(), name));
        Reply::Later(Box::pin(async move {
            let mut answers = Vec::new();
            for (node, part) in parts {
                answers.push(self.carry(node, async { work(&part).answer().await }).await);
            }
            // Where one part was applied and another was not, the whole is neither.
            let applied = answers.iter().any(Result::is_ok);
            let at = match &answers[..] {
                [Ok(done)] => done.at,
                _ => None,
            };
            match answers.into_iter().find(Result::is_err) {
                Some(Err(_)) if applied => {
                    Err(StoreError::FateUnknown { endpoint: "model".into(), source: "a part failed".into() })
                }
                Some(failed) => failed,
                None => Ok(Stamped { value: (), at }),
            }
        }))
    }
}

impl Store for Link {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        let tags =
            |request: &Request<'_>| request.spends.iter().map(|spend| spend.cell.tag.to_vec()).collect();
        let lane: Vec<Vec<u8>> = batch.first().map(tags).unwrap_or_default();
        let spends = || batch.iter().flat_map(|request| request.spends);
        let nodes: BTreeSet<usize> = spends().map(|spend| self.node_of(spend.cell.tag)).collect();
        // Each node has its own weather, and what needs several of them meets the worst.
        let weather: BTreeMap<usize, Weather> =
            nodes.into_iter().map(|node| (node, self.weather_at(node))).collect();
        let worst = weather.values().copied().max_by_key(Weather::severity).unwrap_or(Weather::Fine);
        Reply::Later(Box::pin(async move {
            let _under_way = UnderWay::new(self, lane, batch.len());
            if worst == Weather::Hangs {
                self.decide_in_part(batch, &weather).await;
            }
            self.carry_in(worst, async move {
                let hits: u64 = spends().map(|spend| spend.touch.ask.hits.get()).sum();
                self.truth.asked_hits.fetch_add(hits, Ordering::Relaxed);
                self.decide_what_has_room(batch).await
            })
            .await
        }))
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        self.by_node("refund", refunds, |refund| refund.cell, |refunds| self.truth.memory.refund(refunds))
    }

    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        self.by_node("charge", charges, |one| one.cell, |charges| self.truth.memory.charge(charges))
    }

    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, Stamped<()>> {
        let node = self.node_of(cell.tag);
        self.other("reset", node, async move { self.truth.memory.reset(cell, limit).answer().await })
    }

    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        let node = self.node_of(lease.cell.tag);
        self.other("renew", node, async move { self.truth.memory.renew(lease).answer().await })
    }

    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        let node = self.node_of(lease.cell.tag);
        self.other("release", node, async move { self.truth.memory.release(lease).answer().await })
    }

    fn put_record<'a>(&'a self, record: Record<'a>, ttl: Micros) -> Reply<'a, Option<Vec<u8>>> {
        let node = self.node_of(record.name);
        self.other("record", node, async move { self.truth.memory.put_record(record, ttl).answer().await })
    }

    fn replace_record<'a>(
        &'a self,
        record: Record<'a>,
        to: Option<&'a [u8]>,
        ttl: Micros,
    ) -> Reply<'a, bool> {
        let node = self.node_of(record.name);
        self.other(
            "record",
            node,
            async move { self.truth.memory.replace_record(record, to, ttl).answer().await },
        )
    }

    fn nodes(&self) -> usize {
        2
    }

    fn node_of(&self, tag: &[u8]) -> usize {
        // A tag is a key tuple: a length, then the value.
        let second = *self.second_node.lock().unwrap();
        usize::from(second.is_some_and(|(first, _)| tag.get(1) == Some(&first)))
    }

    fn endpoint(&self, node: usize) -> String {
        format!("model-{node}")
    }

    fn probe(&self, node: usize) -> Reply<'_, ()> {
        self.other("probe", node, async { Ok(()) })
    }

    fn heartbeat(&self, member: u64, ttl: Micros) -> Reply<'_, usize> {
        self.other("heartbeat", 0, async move {
            let mut members = self.truth.members.lock().unwrap();
            let now = self.truth.clock.now();
            members.insert(member, now + ttl);
            members.retain(|_, until| *until > now);
            Ok(members.len())
        })
    }

    fn leave(&self, member: u64) -> Reply<'_, ()> {
        self.other("leave", 0, async move {
            self.truth.members.lock().unwrap().remove(&member);
            Ok(())
        })
    }
}

/// Counts a call for as long as somebody waits for it.
struct UnderWay<'l> {
    link: &'l Link,
    lane: Vec<Vec<u8>>,
}

impl<'l> UnderWay<'l> {
    fn new(link: &'l Link, lane: Vec<Vec<u8>>, requests: usize) -> Self {
        let mut seen = link.seen.lock().unwrap();
        seen.decides.push((link.executor.now(), requests));
        let at_once = {
            let count = seen.under_way.entry(lane.clone()).or_default();
            *count += 1;
            *count
        };
        seen.most_at_once_per_lane = seen.most_at_once_per_lane.max(at_once);
        seen.under_way_in_all += 1;
        UnderWay { link, lane }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut seen = self.link.seen.lock().unwrap();
        *seen.under_way.get_mut(&self.lane).unwrap() -= 1;
        seen.under_way_in_all -= 1;
    }
}
