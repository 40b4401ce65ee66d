//! Decides batches over places that no single script reaches: shards, and the slots of a cluster.
//!
//! A request in one place is decided there (`in_place`). If a request spans places, its parts are reserved, then kept or
//! put back, as `rounds` decides. This runs to the end even if nobody waits for it: a caller that gives up half-way leaves
//! nothing spent.
//!
//! Two batches may block each other: each is refused because of holds that the other may put back. Both then put back
//! their holds, pause, and retry.

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join, join_all};
use redis::Cmd;
use smallvec::SmallVec;
use tidegate_core::{Ask, Fold, Group, Limit, Micros, Over, Touch};
use tidegate_store::{BatchOutcomes, BoxError, Outcomes, Request, Spend, StoreError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::charges::ChargesApart;
use crate::client::Call;
use crate::in_place;
use crate::limits::{self, COUNTING_CONCURRENCY, Encoded, REFUSED_LETTER};
use crate::link::Deadline;
use crate::observer::Operation;
use crate::retry_budget::RetryBudget;
use crate::rounds::{
    PartId, PartShape, PartTold, Question, Rounds, Settled, SpendShape, Step, ToAsk, ToKeep, ToUndo,
};
use crate::script::{Algorithms, Driver};
use crate::store::{Inner, Ran, nonsense};
use crate::wire::{Doubt, EncodeContext, Mode, Noting, OutcomeReader, Plan, PlannedSpend, ReservationKey};

/// How long to retry putting back; Redis drops a reservation a little later.
const PUT_BACK_WITHIN: Duration = Duration::from_secs(4);
/// The timeout of one such attempt: no caller waits for it.
const PUT_BACK_PATIENCE: Duration = Duration::from_millis(500);
/// The most rounds planned for a time other than the store's.
const MOST_GUESSES: usize = 3;

pub(crate) async fn decide(
    inner: &Arc<Inner>,
    batch: &[Request<'_>],
    deadline: Deadline,
) -> Result<BatchOutcomes, StoreError> {
    let places = places_of(inner, batch);
    if !any_spans(batch, &places) {
        return in_place::decide(inner, batch, &places, deadline.heard_for(inner.late_answers)).await;
    }
    let Some(apart) = ChargesApart::of(batch) else { return reserve(inner, batch, deadline).await };
    let requests = apart.requests(batch);
    let places = places_of(inner, &requests);
    let told = if any_spans(&requests, &places) {
        reserve(inner, &requests, deadline).await?
    } else {
        in_place::decide(inner, &requests, &places, deadline.heard_for(inner.late_answers)).await?
    };
    Ok(apart.joined(batch, told))
}

/// Decides a batch some of whose requests span places.
async fn reserve(
    inner: &Arc<Inner>,
    batch: &[Request<'_>],
    deadline: Deadline,
) -> Result<BatchOutcomes, StoreError> {
    let (tell, told) = oneshot::channel();
    let reservation = Reservation::new(Arc::clone(inner), batch, deadline);
    tokio::spawn(reservation.run(tell));
    told.await.unwrap_or_else(|_| {
        let source: BoxError = "the runtime is shutting down".into();
        Err(StoreError::FateUnknown { endpoint: "redis".to_owned(), source })
    })
}

fn places_of(inner: &Inner, batch: &[Request<'_>]) -> Vec<Option<u16>> {
    batch.iter().map(|request| one_place(inner, request)).collect()
}

fn any_spans(batch: &[Request<'_>], places: &[Option<u16>]) -> bool {
    batch.iter().zip(places).any(|(request, place)| place.is_none() && !request.spends.is_empty())
}

/// The place of all cells of a request; none if it has no cells or spans places.
fn one_place(inner: &Inner, request: &Request<'_>) -> Option<u16> {
    let mut places = request.spends.iter().map(|spend| inner.client.partition_of(spend.cell.tag));
    let first = places.next()?;
    places.all(|place| place == first).then_some(first)
}

/// Groups items by place, in order of first appearance.
pub(crate) fn grouped<T>(items: impl Iterator<Item = (u16, T)>) -> Vec<(u16, Vec<T>)> {
    let mut groups: Vec<(u16, Vec<T>)> = Vec::new();
    let mut known: HashMap<u16, usize> = HashMap::new();
    for (place, item) in items {
        let group = *known.entry(place).or_insert_with(|| {
            groups.push((place, Vec::new()));
            groups.len() - 1
        });
        groups[group].1.push(item);
    }
    groups
}

/// A batch that runs over several places. It owns all its data.
struct Reservation {
    inner: Arc<Inner>,
    deadline: Deadline,
    rounds: Rounds,
    parts: Vec<Vec<Part>>,
    /// All algorithms used in each place: every call there uses the same script.
    algorithms: HashMap<u16, Algorithms>,
    /// Spends to put back that are not confirmed yet.
    undo: Vec<ToUndo>,
    /// Spends that passed, which others may still wait for.
    keep: Vec<ToKeep>,
    guesses: usize,
    budget: RetryBudget,
    /// The common part of its reservation names.
    name: u64,
}

/// The place of a cell, and the step in which it is asked.
type Whereabouts = (u16, Step);

/// Something to send.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// A question under this name.
    Ask(ToAsk, u128),
    Undo(ToUndo),
}

/// A part's answer, and since when it is in doubt, if it is.
type PartAnswer = (PartId, PartTold, Option<Doubt>);

/// The result of a call.
enum Called {
    /// The answers of the parts.
    Told(Vec<PartAnswer>),
    /// It was planned for a time other than the store's; none of these items ran.
    OtherTime(Vec<Item>),
}

/// The cells of one request in one place.
#[derive(Clone)]
struct Part {
    place: u16,
    mode: Mode,
    doubt: Doubt,
    spends: SmallVec<[OwnedSpend; 4]>,
}

#[derive(Clone)]
struct OwnedSpend {
    letter: u8,
    key: Vec<u8>,
    /// For a concurrency limit that counts refused requests, the key of those counts; else empty.
    refused_key: Vec<u8>,
    tag: Vec<u8>,
    limit: Limit,
    ask: Ask,
    group: Group,
}

impl Reservation {
    fn new(inner: Arc<Inner>, batch: &[Request<'_>], deadline: Deadline) -> Self {
        let mut cells = HashMap::new();
        let mut algorithms: HashMap<u16, Algorithms> = HashMap::new();
        let mut shapes = Vec::with_capacity(batch.len());
        let mut parts = Vec::with_capacity(batch.len());
        let late = late_cells(batch);
        for request in batch {
            let spends = request.spends.iter().enumerate().map(|(number, spend)| {
                let place = inner.client.partition_of(spend.cell.tag);
                let is_late = late.contains(&cell_name(spend));
                ((place, if is_late { Step::Last } else { Step::First }), (number, spend))
            });
            let mut of_request: Vec<(Whereabouts, Vec<(usize, &Spend<'_>)>)> = Vec::new();
            for (whereabouts, spend) in spends {
                match of_request.iter_mut().find(|(known, _)| *known == whereabouts) {
                    Some((_, spends)) => spends.push(spend),
                    None => of_request.push((whereabouts, vec![spend])),
                }
            }
            let mode = if of_request.len() == 1 { Mode::WholeForNow } else { Mode::Part };
            let mut shapes_of_request = Vec::new();
            let mut parts_of_request = Vec::new();
            for ((place, step), spends) in of_request {
                let owned: SmallVec<[OwnedSpend; 4]> =
                    spends.iter().map(|(_, spend)| OwnedSpend::new(&inner, spend)).collect();
                for (spend, (_, asked)) in owned.iter().zip(&spends) {
                    let algorithms = algorithms.entry(place).or_default();
                    algorithms.add(spend.letter);
                    if asked.touch.over() != Over::Refuse {
                        algorithms.add_over();
                    }
                }
                let shape = |((place, spend), owned): (&(usize, &Spend<'_>), &OwnedSpend)| {
                    let next = u32::try_from(cells.len()).expect("the size of a batch is bounded");
                    let cell = *cells.entry(owned.key.clone()).or_insert(next);
                    SpendShape {
                        place: *place,
                        cell,
                        hits: spend.touch.ask.hits.get(),
                        keeps_distance: spend.touch.limit.min_interval() > Micros::ZERO,
                        group: spend.touch.group,
                    }
                };
                let shape = PartShape { step, spends: spends.iter().zip(&owned).map(shape).collect() };
                shapes_of_request.push(shape);
                parts_of_request.push(Part { place, mode, doubt: Doubt::NONE, spends: owned });
            }
            shapes.push((request.spends.len(), shapes_of_request, request.count.get()));
            // The refused ones of equal requests have an entry of their own.
            parts.extend(request.is_fold().then(|| parts_of_request.clone()));
            parts.push(parts_of_request);
        }
        let rounds = Rounds::new(shapes.into_iter());
        Reservation {
            inner,
            deadline,
            rounds,
            parts,
            algorithms,
            undo: Vec::new(),
            keep: Vec::new(),
            guesses: 0,
            budget: RetryBudget::new(deadline),
            name: random(),
        }
    }

    /// Runs to the end: sends the outcome, keeps what passed and puts back the rest.
    async fn run(mut self, tell: oneshot::Sender<Result<BatchOutcomes, StoreError>>) {
        let answer = loop {
            if let Err(error) = self.round().await {
                self.undo_everything();
                break Err(error);
            }
            if self.rounds.is_settled() {
                break Ok(self.rounds.outcomes());
            }
        };
        if tell.is_closed() {
            // No caller receives the admission, so it is undone.
            self.undo_everything();
        }
        let undo: Vec<Item> = self.undo.iter().map(|undo| Item::Undo(*undo)).collect();
        let keep = self.let_go(&self.keep, Deadline::from_now(PUT_BACK_PATIENCE));
        let mut end = pin!(join(self.put_back(undo), keep));
        // Started before the answer is sent, it goes out before anything that the caller sends next.
        let begun = poll_fn(|context| Poll::Ready(end.as_mut().poll(context))).await;
        let is_late = answer.as_ref().is_err_and(StoreError::is_late);
        if begun.is_pending() && is_late {
            // Under overload, a caller that retries before this is done adds to the load.
            end.await;
            let _ = tell.send(answer);
            return;
        }
        let _ = tell.send(answer);
        if begun.is_pending() {
            end.await;
        }
    }

    fn undo_everything(&mut self) {
        self.undo.extend(self.rounds.everything());
        self.keep.clear();
    }

    /// One round: puts back what the last one left, asks, and settles.
    async fn round(&mut self) -> Result<(), StoreError> {
        let first = self.rounds.first_step();
        self.ask(first).await?;
        let last = self.rounds.last_step();
        self.ask(last).await?;
        // Last first: what an earlier round left comes later.
        let Settled { undo, keep, in_doubt } = self.rounds.settle();
        self.undo.splice(..0, undo);
        self.keep.extend(keep);
        if in_doubt > 0 {
            // Release own holds while waiting, so that nobody waits for a waiting batch.
            self.ask(Vec::new()).await?;
            let retry = self.budget.pause(in_doubt).await;
            self.parts.iter_mut().flatten().for_each(|part| part.doubt = retry.of(part.doubt));
        }
        Ok(())
    }

    /// Asks parts, one call per place, after undoing what must be undone there.
    async fn ask(&mut self, asks: Vec<ToAsk>) -> Result<(), StoreError> {
        let asks: Vec<(ToAsk, u128)> = asks.into_iter().map(|ask| (ask, self.new_id())).collect();
        for (ask, id) in &asks {
            self.rounds.asking(*ask, *id);
        }
        let this = &*self;
        let undo = this.undo.iter().map(|undo| Item::Undo(*undo));
        let items = undo.chain(asks.into_iter().map(|(ask, id)| Item::Ask(ask, id)));
        let groups = grouped(items.map(|item| (this.part(item.part()).place, item)));
        let calls = groups.into_iter().map(|(place, items)| this.call(place, items, this.deadline));
        let (answers, ()) = join(join_all(calls), this.let_go(&this.keep, this.deadline)).await;
        let answers = all_or_worst(answers)?;
        (self.undo, self.keep) = (Vec::new(), Vec::new());
        let other_time = answers.iter().find_map(|answer| match answer {
            Called::OtherTime(items) => items.first().map(|item| self.part(item.part()).place),
            Called::Told(_) => None,
        });
        self.guesses += usize::from(other_time.is_some());
        let mut in_doubt = Vec::new();
        for answer in answers {
            match answer {
                Called::OtherTime(items) => self.begin_again(items),
                Called::Told(told) => {
                    for (part, told, doubt) in told {
                        match doubt {
                            Some(doubt) => in_doubt.push((part, told, doubt)),
                            None => self.rounds.answered(part, told),
                        }
                    }
                }
            }
        }
        if let Some(place) = other_time.filter(|_| self.deadline.is_over()) {
            return Err(self.inner.too_late(place, self.deadline));
        }
        if self.guesses > MOST_GUESSES {
            return Err(nonsense("a time near this node's"));
        }
        self.wait_for_others(in_doubt);
        Ok(())
    }

    /// Lets parts in doubt wait for the holders, or refuses them if there are too many.
    fn wait_for_others(&mut self, in_doubt: Vec<(PartId, PartTold, Doubt)>) {
        let is_patient = self.budget.allows(in_doubt.len());
        for (part, told, doubt) in in_doubt {
            let must_be_heard = self.part(part).spends.iter().any(|spend| spend.touch().hears_refusals());
            if !is_patient && !must_be_heard {
                self.rounds.answered(part, told);
                continue;
            }
            // Where refusals are heard, a part that cannot wait is sent once more, so that the server records the refusal.
            self.parts[part.request][part.part].doubt = if is_patient { doubt } else { Doubt::NO_MORE };
            self.rounds.in_doubt(part);
        }
    }

    /// `items` did not run: undos stay pending, questions are asked again.
    fn begin_again(&mut self, items: Vec<Item>) {
        for item in items {
            match item {
                Item::Ask(ask, _) => self.rounds.not_asked(ask.part),
                Item::Undo(undo) => self.undo.push(undo),
            }
        }
    }

    /// Sends items to their place, in order.
    async fn call(&self, place: u16, items: Vec<Item>, deadline: Deadline) -> Result<Called, StoreError> {
        let mut plan = self.inner.with_context(place, |context| {
            let plan = Plan::new(Driver::DecideAndUndo).with(self.algorithms[&place]);
            let mut plan = plan.that_may_be_held(context.keys);
            items.iter().for_each(|item| self.append(&mut plan, item, context));
            plan
        });
        let asked = items.iter().filter_map(|item| match item {
            Item::Ask(ask, _) => Some(ask.part),
            Item::Undo(_) => None,
        });
        let operation = if asked.clone().next().is_some() { Operation::Decide } else { Operation::Cancel };
        let answer = match self.inner.run(operation, place, &mut plan, deadline).await? {
            Ran::Done(answer) => answer,
            Ran::OtherTime => return Ok(Called::OtherTime(items)),
        };
        let mut told = OutcomeReader::new(&answer.bytes);
        let parts: Option<Vec<_>> = asked.map(|part| self.read_part(part, &mut told)).collect();
        parts.filter(|_| told.is_empty()).map(Called::Told).ok_or_else(|| nonsense("outcomes"))
    }

    /// Reads the next part's answer, and whether it is in doubt; none if the reply ends early.
    fn read_part(&self, part: PartId, told: &mut OutcomeReader<'_>) -> Option<PartAnswer> {
        let doubt = told.next_doubt().map(|(doubt, _)| doubt);
        let (mut decided, mut unspent) = (SmallVec::<[Fold; 2]>::new(), Outcomes::new());
        for spend in &self.part(part).spends {
            if self.rounds.count_of(part) > 1 {
                decided.push(told.next_fold(&spend.touch())?);
                continue;
            }
            let last = told.next_outcome()?;
            decided.push(Fold::of_one(last));
            unspent.push(told.next_outcome()?);
        }
        // A limit with room whose shadow rule refuses is told what is left, and was not spent from.
        let spends = &self.part(part).spends;
        let spent = |fold: &Fold| fold.spent() > 0;
        let rules: SmallVec<[(Group, bool); 4]> =
            spends.iter().zip(&decided).map(|(spend, fold)| (spend.group, spent(fold))).collect();
        for (spend, fold) in spends.iter().zip(&mut decided) {
            if !spend.group.is_penalty && !spend.group.is_spent_with(rules.iter().copied()) {
                *fold = Fold::refused(fold.last);
            }
        }
        Some((part, PartTold { decided, unspent }, doubt))
    }

    /// Removes holds that passed. If this fails, others wait a little longer.
    async fn let_go(&self, keep: &[ToKeep], deadline: Deadline) {
        let mut lists: HashMap<(u16, Vec<u8>), Cmd> = HashMap::new();
        for ToKeep { part, spend, id } in keep {
            let Part { place, spends, .. } = self.part(*part);
            let list = self.inner.keys.holders_of(&spends[*spend].key);
            let command = lists.entry((*place, list)).or_insert_with_key(|(_, list)| {
                let mut command = Cmd::new();
                command.arg("ZREM").arg(&list[..]);
                command
            });
            command.arg(&id.to_le_bytes()[..]);
        }
        join_all(lists.iter().map(|((place, _), command)| {
            let call = Call { operation: Operation::Cancel, command, source: None, items: 1 };
            self.inner.client.run(*place, call, deadline)
        }))
        .await;
    }

    /// Puts back spends; retries until it succeeds or is no longer useful.
    async fn put_back(&self, undo: Vec<Item>) {
        let groups = grouped(undo.into_iter().map(|undo| (self.part(undo.part()).place, undo)));
        let until = Instant::now() + PUT_BACK_WITHIN;
        join_all(groups.into_iter().map(|(place, undo)| async move {
            let mut backoff = Backoff::default();
            while Instant::now() < until {
                // This is idempotent, so an attempt of unknown fate is repeated.
                let called = self.call(place, undo.clone(), Deadline::from_now(PUT_BACK_PATIENCE)).await;
                if matches!(called, Ok(Called::Told(_))) {
                    return;
                }
                tokio::time::sleep(backoff.next()).await;
            }
        }))
        .await;
    }

    fn append(&self, plan: &mut Plan, item: &Item, context: &EncodeContext<'_>) {
        let part = self.part(item.part());
        let count = self.rounds.count_of(item.part());
        let (mode, id, noting) = match item {
            Item::Ask(ToAsk { question: Question::Spend, .. }, id) => (part.mode, *id, Noting::Yes),
            Item::Ask(ToAsk { question: Question::Look, .. }, id) => (Mode::Refused, *id, Noting::Yes),
            Item::Undo(ToUndo { id, refused: true, .. }) => (Mode::Undo, *id, Noting::Yes),
            Item::Undo(ToUndo { id, refused: false, .. }) => (Mode::Undo, *id, Noting::No),
        };
        let reservation = ReservationKey { tag: &part.spends[0].tag, id };
        plan.request(part.spends.len(), count, mode, part.doubt, Some(reservation), context);
        for OwnedSpend { key, refused_key, limit, ask, group, .. } in &part.spends {
            let append = |out: &mut Vec<u8>, letter: u8| {
                out.extend_from_slice(if letter == REFUSED_LETTER { refused_key } else { key });
            };
            plan.spend(PlannedSpend { append, limit, ask: *ask, group: *group }, noting, context);
        }
    }

    fn part(&self, PartId { request, part }: PartId) -> &Part {
        &self.parts[request][part]
    }

    /// A unique reservation name. Its last bytes are the batch's.
    fn new_id(&self) -> u128 {
        u128::from(self.name) << 64 | u128::from(random())
    }
}

impl Item {
    fn part(&self) -> PartId {
        match self {
            Item::Ask(ToAsk { part, .. }, _) | Item::Undo(ToUndo { part, .. }) => *part,
        }
    }
}

impl OwnedSpend {
    fn touch(&self) -> Touch<'_> {
        Touch { limit: &self.limit, ask: self.ask, group: self.group }
    }

    fn new(inner: &Inner, spend: &Spend<'_>) -> Self {
        let limit = spend.touch.limit;
        let mut key = Vec::new();
        let Encoded { letter, key_letter, .. } = limits::encode(limit, Default::default);
        inner.keys.append(&mut key, key_letter, &spend.cell);
        let mut refused_key = Vec::new();
        if letter == COUNTING_CONCURRENCY {
            inner.keys.append(&mut refused_key, REFUSED_LETTER, &spend.cell);
        }
        OwnedSpend {
            letter,
            key,
            refused_key,
            tag: spend.cell.tag.to_vec(),
            limit: limit.clone(),
            ask: spend.touch.ask,
            group: spend.touch.group,
        }
    }
}

/// A cell by its scope and key.
type CellName<'a> = ([u64; 2], &'a [u8]);

fn cell_name<'a>(spend: &Spend<'a>) -> CellName<'a> {
    (spend.cell.scope.digest(), spend.cell.key)
}

/// The cells that are asked in the last step: leaky buckets, and all other limits of their rules, because a rule is decided in
/// one go. A cell has one step in all requests of a batch.
fn late_cells<'a>(batch: &[Request<'a>]) -> HashSet<CellName<'a>> {
    let mut late = HashSet::new();
    // What was spent there cannot be put back.
    let is_leaky = |spend: &Spend<'_>| !spend.touch.limit.takes_refunds() && !spend.touch.limit.takes_lease();
    loop {
        let before = late.len();
        for request in batch {
            let is_late = |spend: &&Spend<'a>| is_leaky(spend) || late.contains(&cell_name(spend));
            let rules: Vec<u16> =
                request.spends.iter().filter(is_late).map(|spend| spend.touch.group.number).collect();
            let of_rules = request.spends.iter().filter(|spend| rules.contains(&spend.touch.group.number));
            late.extend(of_rules.map(cell_name));
        }
        if late.len() == before {
            return late;
        }
    }
}

/// All answers, or the error with the least certain fate: what was done elsewhere is put back.
fn all_or_worst<T>(answers: Vec<Result<T, StoreError>>) -> Result<Vec<T>, StoreError> {
    let is_in_doubt = |answer: &Result<T, StoreError>| {
        answer.as_ref().is_err_and(|error| !error.is_certainly_not_applied())
    };
    let mut answers = answers;
    if let Some(worst) = answers.iter().position(is_in_doubt) {
        answers.swap(0, worst);
    }
    answers.into_iter().collect()
}

/// A unique number.
fn random() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}
