//! The Store contract on the topology that the URL names.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tidegate_core::{Group, Limit, Micros, Rate, Scope, Timestamp, TokenBucket, Touch};
use tidegate_fleet::WithHeartbeat;
use tidegate_store::{
    BatchOutcomes, BoxError, CellCharge, CellKey, Clock, LeaseRef, Record, Refund, Reply, Request, Servers,
    Spend, Stamped, Store, StoreError,
};

use crate::client::{Call, Client, Route};
use crate::clocks::ServerClocks;
use crate::cluster::Cluster;
use crate::config::{ConfigError, RedisConfig, TimeSource};
use crate::dial::Dialer;
use crate::fleet::read_revision;
use crate::key::{KeyWriter, slot_of};
use crate::limits::{self, REFUSED_LETTER};
use crate::link::{Deadline, Target};
use crate::observer::Operation;
use crate::script::{self, Driver};
use crate::sentinel::Sentinels;
use crate::url::{StoreUrl, Topology};
use crate::wire::{self, Answer, Change, Doubt, EncodeContext, OutcomeReader, Plan, ScriptAnswer};

/// The Store contract on one Redis, Sentinel, Cluster or sharded Redis.
///
/// Creating one does not connect: each runtime connects on its first call and reconnects whenever a connection is lost. It must
/// be used within a tokio runtime.
#[derive(Debug)]
pub struct RedisStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) client: Arc<Client>,
    pub(crate) keys: KeyWriter,
    pub(crate) timeout: Duration,
    pub(crate) late_answers: Duration,
    connect_timeout: Duration,
    time: TimeSource,
    clocks: ServerClocks,
    /// The data exchanged with the heartbeat.
    pub(crate) fleet: WithHeartbeat,
}

/// The most cells that one batch may touch.
pub(crate) const MOST_SPENDS: usize = 8_192;
/// The most plans made for a time other than the store's.
const MOST_GUESSES: usize = 3;
/// A server that reaches a decision this long after its deadline does not make it. By then no caller waits, and its spend would
/// have to be refunded, if its answer arrived at all. The bound is not the deadline itself: on a busy machine a call waits long
/// before it is sent, and its answer is still useful.
const BEGINS_WITHIN: Duration = Duration::from_millis(500);

impl RedisStore {
    /// Creates a store at `url` with `config`.
    ///
    /// # Errors
    /// When `config` is invalid, or names files that cannot be used.
    pub fn new(url: &StoreUrl, config: &RedisConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let dialer = Arc::new(Dialer::new(url, config)?);
        let route = route(url, config, &dialer);
        let client =
            Client::new(route, dialer, config.max_in_flight, Arc::clone(&config.observer), config.timeout);
        let nodes = client.route().nodes();
        let inner = Inner {
            client: Arc::new(client),
            keys: KeyWriter::new(&config.key_prefix),
            timeout: config.timeout,
            late_answers: config.late_answers,
            connect_timeout: config.connect_timeout,
            time: config.time.clone(),
            clocks: ServerClocks::new(Arc::clone(&config.node_clock), nodes),
            fleet: WithHeartbeat::default(),
        };
        Ok(RedisStore { inner: Arc::new(inner) })
    }
}

fn route(url: &StoreUrl, config: &RedisConfig, dialer: &Arc<Dialer>) -> Route {
    let endpoints = url.endpoints.clone();
    match &url.topology {
        Topology::Single => {
            let name = endpoints[0].to_string();
            Route::One {
                target: Target::Server(endpoints.into_iter().next().expect("a URL names a server")),
                name,
            }
        }
        Topology::Sentinel { service } => {
            let dialer = Arc::new(dialer.for_sentinels(&config.sentinel_credentials));
            let name = format!("{service} of the sentinels at {}", endpoints[0]);
            let sentinels = Sentinels::new(endpoints, service.clone(), dialer);
            Route::One { target: Target::Master(Arc::new(sentinels)), name }
        }
        Topology::Cluster => Route::Cluster(Cluster::new(endpoints)),
        Topology::Sharded => {
            let names: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
            Route::Sharded { shards: Servers::new(names.iter().map(String::as_str)), endpoints }
        }
    }
}

impl Inner {
    /// Decides a batch whose cells one script can reach.
    async fn decide_together(
        &self,
        batch: &[Request<'_>],
        deadline: Deadline,
    ) -> Result<BatchOutcomes, StoreError> {
        let make = |context: &EncodeContext<'_>| {
            let mut plan = Plan::new(Driver::Decide);
            for request in batch.iter().filter(|request| !request.spends.is_empty()) {
                plan.whole_request(request, Doubt::NONE, context);
            }
            plan
        };
        let Answer { bytes, at } = self.run_made(Operation::Decide, 0, make, deadline).await?;
        let mut told = OutcomeReader::new(&bytes).of(batch.iter()).ok_or_else(|| nonsense("outcomes"))?;
        told.decided_at = Some(at);
        Ok(told)
    }

    /// Makes a plan and runs it; repeats that if the plan was made for a time other than the store's, unless it is too late.
    pub(crate) async fn run_made(
        &self,
        operation: Operation,
        partition: u16,
        make: impl Fn(&EncodeContext<'_>) -> Plan,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        for _ in 0..MOST_GUESSES {
            let mut plan = self.with_context(partition, &make);
            match self.run(operation, partition, &mut plan, deadline).await? {
                Ran::Done(answer) => return Ok(answer),
                Ran::OtherTime if deadline.is_over() => return Err(self.too_late(partition, deadline)),
                Ran::OtherTime => {}
            }
        }
        let source: BoxError =
            format!("the store's clock changed during each of {MOST_GUESSES} attempts").into();
        Err(StoreError::NotApplied { endpoint: "redis".to_owned(), source })
    }

    /// The server of `partition` reached a call after its latest start, and did nothing.
    pub(crate) fn too_late(&self, partition: u16, deadline: Deadline) -> StoreError {
        StoreError::TooLate { endpoint: self.client.name(partition), waited: deadline.span }
    }

    /// Builds something for the server of `partition` from this node's key format and its estimate of the server's time.
    pub(crate) fn with_context<T>(&self, partition: u16, make: impl Fn(&EncodeContext<'_>) -> T) -> T {
        make(&EncodeContext { keys: &self.keys, approx_now: &|| self.approx_now(partition) })
    }

    /// Runs a plan once.
    pub(crate) async fn run(
        &self,
        operation: Operation,
        partition: u16,
        plan: &mut Plan,
        deadline: Deadline,
    ) -> Result<Ran, StoreError> {
        let (node, sent) = (self.client.route().node_of(partition), self.clocks.own_now());
        if operation == Operation::Decide
            && self.given_time().is_none()
            && let Some(now) = self.clocks.known_at(node, sent)
        {
            plan.begins_before(now + Micros::from(deadline.left() + BEGINS_WITHIN));
        }
        plan.seal(self.given_time());
        let script = plan.script();
        // A server that pauses may come to a charge when nobody listens any more: it could not ask for the script then, and
        // what is owed would be forgiven.
        let command = match operation {
            Operation::Charge => plan.command("EVAL", &script.source),
            _ => plan.command("EVALSHA", &script.name),
        };
        let call = Call { operation, command: &command, source: Some(&script.source), items: plan.len() };
        let answer = match self.client.run(partition, call, deadline).await? {
            Value::BulkString(answer) => answer,
            _ => return Err(nonsense("a string")),
        };
        match wire::read(answer).ok_or_else(|| nonsense("when that was"))? {
            ScriptAnswer::Done(answer) => {
                self.clocks.heard(node, sent, answer.at);
                Ok(Ran::Done(answer))
            }
            ScriptAnswer::OtherTime(now) => {
                self.clocks.heard(node, sent, now);
                Ok(Ran::OtherTime)
            }
        }
    }

    /// Changes cells outside requests, all servers at once: one answer per change, in order; the time if one server did all.
    async fn change(
        &self,
        operation: Operation,
        changes: &[(CellKey<'_>, &Limit, Change)],
    ) -> Result<Stamped<Vec<bool>>, StoreError> {
        let deadline = Deadline::from_now(self.timeout).heard_for(self.late_answers);
        check_size(changes.len())?;
        let mut groups: Vec<(u16, Vec<usize>)> = Vec::new();
        for (place, (cell, ..)) in changes.iter().enumerate() {
            let partition = self.client.partition_of(cell.tag);
            match groups.iter_mut().find(|(known, _)| *known == partition) {
                Some((_, places)) => places.push(place),
                None => groups.push((partition, vec![place])),
            }
        }
        let run = |(partition, places): (u16, Vec<usize>)| async move {
            let make = |context: &EncodeContext<'_>| {
                let mut plan = Plan::new(Driver::Change);
                for place in &places {
                    let (cell, limit, change) = &changes[*place];
                    plan.change(cell, limit, *change, context);
                }
                plan
            };
            let answer = self.run_made(operation, partition, make, deadline).await?;
            if answer.bytes.len() != places.len() {
                return Err(nonsense("an answer per change"));
            }
            Ok((places, answer))
        };
        let (mut answers, mut at) = (vec![false; changes.len()], None);
        let is_one = groups.len() == 1;
        for group in all_or_unknown(join_all(groups.into_iter().map(run)).await)? {
            let (places, answer) = group;
            at = is_one.then_some(answer.at);
            for (place, done) in places.into_iter().zip(answer.bytes) {
                answers[place] = done == b'1';
            }
        }
        Ok(Stamped { value: answers, at })
    }

    async fn change_one(
        &self,
        operation: Operation,
        lease: &LeaseRef<'_>,
        change: Change,
    ) -> Result<Stamped<bool>, StoreError> {
        if !lease.limit.takes_lease() {
            return Ok(Stamped::default());
        }
        let changed = self.change(operation, &[(lease.cell, lease.limit, change)]).await?;
        Ok(changed.map(|answers| answers[0]))
    }

    async fn forget(&self, cell: &CellKey<'_>, limit: &Limit) -> Result<Stamped<()>, StoreError> {
        let script = script::forget();
        let letter = limits::encode(limit, Timestamp::default).key_letter;
        let refused = limit.takes_lease().then_some(REFUSED_LETTER);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&script.name).arg(1 + usize::from(refused.is_some()));
        for letter in [letter].into_iter().chain(refused) {
            let mut key = Vec::new();
            self.keys.append(&mut key, letter, cell);
            command.arg(key);
        }
        command.arg(self.given_time().map_or(-1, |now| now.as_micros().cast_signed()));
        let source = Some(&*script.source);
        let call = Call { operation: Operation::Reset, command: &command, source, items: 1 };
        let deadline = Deadline::from_now(self.timeout);
        match self.client.run(self.client.partition_of(cell.tag), call, deadline).await? {
            Value::BulkString(at) => match <&[u8; 8]>::try_from(&at[..]) {
                Ok(at) => Ok(Stamped::at((), wire::time(at))),
                Err(_) => Err(nonsense("a time")),
            },
            _ => Err(nonsense("a time")),
        }
    }

    /// Spends from a dedicated cell on the server of `partition`. The call is as large as a usual one: a path may lose what is
    /// large, and carry what is small.
    async fn probe(&self, partition: u16, tag: &[u8]) -> Result<(), StoreError> {
        let scope = Scope::new(&[b"probe"]);
        let rate = Rate::new(1_000_000, Micros::from_secs(1)).expect("a fine rate");
        let limit = Limit::TokenBucket(TokenBucket::new(rate, 1_000_000).expect("a fine burst"));
        let touch = Touch { limit: &limit, ask: tidegate_core::Ask::hits(1), group: Group::ENFORCED };
        let spends = [Spend { cell: CellKey { scope: &scope, key: tag, tag }, touch }];
        let make = |context: &EncodeContext<'_>| {
            let mut plan = Plan::new(Driver::Decide);
            plan.whole_request(&Request::once(&spends), Doubt::NONE, context);
            plan.pad(USUAL_CALL);
            plan
        };
        let deadline = Deadline::from_now(self.timeout).heard_for(PROBE_HEARD_FOR);
        self.run_made(Operation::Probe, partition, make, deadline).await.map(drop)
    }

    async fn probe_node(&self, node: usize) -> Result<(), StoreError> {
        match self.client.route() {
            Route::One { .. } => self.probe(0, PROBE).await,
            Route::Sharded { .. } => {
                self.probe(u16::try_from(node).expect("below the number of nodes"), PROBE).await
            }
            Route::Cluster(cluster) => {
                let Some(slot) = cluster.slot_for(node) else {
                    // A number that no master has: nothing to probe. Until the map is known, a call for any slot loads it.
                    let is_known = cluster.is_known();
                    return if is_known { Ok(()) } else { self.probe(slot_of(PROBE), PROBE).await };
                };
                let tag = tag_where(|other| cluster.node_of(other) == node, slot);
                self.probe(slot_of(&tag), &tag).await
            }
        }
    }

    async fn heartbeat(&self, member: u64, ttl: Micros) -> Result<usize, StoreError> {
        let script = script::heartbeat();
        let mut key = Vec::new();
        self.keys.append_members(&mut key, MEMBERS);
        let now = self.given_time().map_or(-1, |now| now.as_micros().cast_signed());
        let mut command = Cmd::new();
        let (notes, published) = (self.notes_key(), self.published_key());
        command.arg("EVALSHA").arg(&script.name).arg(6).arg(key).arg(notes).arg(published);
        let counted = self.fleet.take_counts();
        let now_there = self.approx_now(self.client.partition_of(MEMBERS));
        self.append_counted(now_there, &counted, &mut command, |command| {
            command.arg(&member.to_le_bytes()[..]).arg(ttl.get()).arg(now);
            command.arg(self.fleet.note());
        });
        let call = Call {
            operation: Operation::Heartbeat,
            command: &command,
            source: Some(&script.source),
            items: 1,
        };
        let deadline = Deadline::from_now(self.timeout);
        let answer = self.client.run(self.client.partition_of(MEMBERS), call, deadline).await;
        if answer.as_ref().is_err_and(StoreError::is_certainly_not_applied) {
            self.fleet.count_again(counted);
        }
        let Value::Array(parts) = answer? else { return Err(nonsense("what a heartbeat brings")) };
        let [Value::Int(alive), questions, published @ ..] = &parts[..] else {
            return Err(nonsense("what a heartbeat brings"));
        };
        let alive = *alive;
        self.fleet.hear(read_revision(published));
        self.hear_questions(questions);
        usize::try_from(alive).map_err(|_| nonsense("a count"))
    }

    /// These commands depend on no read: no script needed.
    async fn leave(&self, member: u64) -> Result<(), StoreError> {
        let mut key = Vec::new();
        self.keys.append_members(&mut key, MEMBERS);
        let mut command = Cmd::new();
        command.arg("ZREM").arg(key).arg(&member.to_le_bytes()[..]);
        let call = Call { operation: Operation::Heartbeat, command: &command, source: None, items: 1 };
        let deadline = Deadline::from_now(self.timeout);
        self.client.run(self.client.partition_of(MEMBERS), call, deadline).await?;
        // A limiter that signed off does not count as lost.
        let mut command = Cmd::new();
        command.arg("HDEL").arg(self.notes_key()).arg(&member.to_le_bytes()[..]);
        let call = Call { operation: Operation::Heartbeat, command: &command, source: None, items: 1 };
        self.client.run(self.client.partition_of(MEMBERS), call, deadline).await.map(drop)
    }

    /// The timeout where no caller waits: time to connect, then to answer.
    pub(crate) fn patience(&self) -> Duration {
        self.connect_timeout + self.timeout
    }

    pub(crate) fn given_time(&self) -> Option<Timestamp> {
        match &self.time {
            TimeSource::Redis => None,
            TimeSource::Given(clock) => Some(clock.now()),
        }
    }

    fn approx_now(&self, partition: u16) -> Timestamp {
        self.given_time().unwrap_or_else(|| self.clocks.approx_now(self.client.route().node_of(partition)))
    }
}

/// The result of a plan.
pub(crate) enum Ran {
    Done(Answer),
    /// It was made for another time; nothing was done.
    OtherTime,
}

/// The tag of cells used only to probe servers.
const PROBE: &[u8] = b"probe";
/// The tags tried for a node before a single slot of it is looked for.
const MOST_TAGS: usize = 256;
/// A probe is larger than its content by this, and so as large as a call with a few requests.
const USUAL_CALL: usize = 1_024;
/// How long after its deadline a probe is still awaited.
const PROBE_HEARD_FOR: Duration = Duration::from_secs(2);
/// The tag of the list of live limiters.
pub(crate) const MEMBERS: &[u8] = b"members";

/// A tag whose slot `fits`, found quickly if many slots do; else one that maps to `slot`.
fn tag_where(fits: impl Fn(u16) -> bool, slot: u16) -> Vec<u8> {
    let tags = || (0_u32..).map(|number| format!("probe{number}").into_bytes());
    let near = tags().take(MOST_TAGS).find(|tag| fits(slot_of(tag)));
    near.or_else(|| tags().find(|tag| slot_of(tag) == slot)).expect("names enough for every slot")
}

pub(crate) fn nonsense(expected: &str) -> StoreError {
    let source: BoxError = format!("unexpected reply: expected {expected}").into();
    StoreError::FateUnknown { endpoint: "redis".to_owned(), source }
}

pub(crate) fn check_size(cells: usize) -> Result<(), StoreError> {
    if cells <= MOST_SPENDS {
        return Ok(());
    }
    let source: BoxError =
        format!("a batch over {cells} cells is too large, use at most {MOST_SPENDS}").into();
    Err(StoreError::NotApplied { endpoint: "redis".to_owned(), source })
}

/// All answers, or one error. If only some calls were applied, the fate of the whole is unknown.
pub(crate) fn all_or_unknown<T>(answers: Vec<Result<T, StoreError>>) -> Result<Vec<T>, StoreError> {
    let all_failed = answers.iter().all(Result::is_err);
    let mut done = Vec::with_capacity(answers.len());
    let mut failure: Option<StoreError> = None;
    for answer in answers {
        match answer {
            Ok(answer) => done.push(answer),
            Err(error) => {
                if failure.as_ref().is_none_or(StoreError::is_certainly_not_applied) {
                    failure = Some(error);
                }
            }
        }
    }
    match failure {
        None => Ok(done),
        Some(StoreError::NotApplied { endpoint, source }) if !all_failed => {
            Err(StoreError::FateUnknown { endpoint, source })
        }
        Some(StoreError::TooLate { endpoint, waited }) if !all_failed => {
            Err(StoreError::TimedOut { endpoint, waited })
        }
        Some(failure) => Err(failure),
    }
}

impl Store for RedisStore {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        let spends: usize = batch.iter().map(|request| request.spends.len()).sum();
        if spends == 0 {
            return Reply::Now(Ok(BatchOutcomes::default()));
        }
        if let Err(error) = check_size(spends) {
            return Reply::Now(Err(error));
        }
        Reply::Later(Box::pin(async move {
            let deadline = Deadline::from_now(self.inner.timeout);
            match self.inner.client.route() {
                Route::One { .. } => {
                    let deadline = deadline.heard_for(self.inner.late_answers);
                    self.inner.decide_together(batch, deadline).await
                }
                Route::Sharded { .. } | Route::Cluster(_) => {
                    crate::cross_slot::decide(&self.inner, batch, deadline).await
                }
            }
        }))
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        let is_refundable = |refund: &&Refund<'_>| refund.limit.takes_refunds();
        let change = |refund: &Refund<'a>| {
            (refund.cell, refund.limit, Change::Refund { hits: refund.hits, age: refund.age, id: refund.id })
        };
        let changes: Vec<_> = refunds.iter().filter(is_refundable).map(change).collect();
        if changes.is_empty() {
            return Reply::Now(Ok(Stamped::default()));
        }
        Reply::Later(Box::pin(async move {
            let changed = self.inner.change(Operation::Refund, &changes).await?;
            Ok(changed.map(drop))
        }))
    }

    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        let is_chargeable = |charge: &&CellCharge<'_>| !charge.limit.takes_lease();
        let change = |one: &CellCharge<'a>| (one.cell, one.limit, Change::Charge(one.charge));
        let changes: Vec<_> = charges.iter().filter(is_chargeable).map(change).collect();
        if changes.is_empty() {
            return Reply::Now(Ok(Stamped::default()));
        }
        Reply::Later(Box::pin(async move {
            let changed = self.inner.change(Operation::Charge, &changes).await?;
            Ok(changed.map(drop))
        }))
    }

    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, Stamped<()>> {
        Reply::Later(Box::pin(async move { self.inner.forget(&cell, limit).await }))
    }

    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        let change = Change::Renew { name: lease.id.0.get() };
        Reply::Later(Box::pin(async move { self.inner.change_one(Operation::Renew, &lease, change).await }))
    }

    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        let change = Change::Release { name: lease.id.0.get() };
        Reply::Later(Box::pin(async move { self.inner.change_one(Operation::Release, &lease, change).await }))
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
        self.inner.client.route().nodes()
    }

    fn node_of(&self, tag: &[u8]) -> usize {
        let client = &self.inner.client;
        client.route().node_of(client.partition_of(tag))
    }

    fn endpoint(&self, node: usize) -> String {
        match self.inner.client.route() {
            Route::One { name, .. } => name.clone(),
            Route::Sharded { endpoints, .. } => endpoints[node].to_string(),
            Route::Cluster(cluster) => match cluster.master_at(node) {
                Some(master) => master.to_string(),
                None if node == 0 && !cluster.is_known() => cluster.seeds()[0].to_string(),
                None => String::new(),
            },
        }
    }

    fn probe(&self, node: usize) -> Reply<'_, ()> {
        Reply::Later(Box::pin(self.inner.probe_node(node)))
    }

    fn heartbeat(&self, member: u64, ttl: Micros) -> Reply<'_, usize> {
        Reply::Later(Box::pin(self.inner.heartbeat(member, ttl)))
    }

    fn leave(&self, member: u64) -> Reply<'_, ()> {
        Reply::Later(Box::pin(self.inner.leave(member)))
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("client", &self.client).finish_non_exhaustive()
    }
}
