//! Which requests wait for which call: fold, then carry.
//!
//! **Fold.** Requests that wait for the same call and ask the same of the same cells are one item with several waiters.
//! Concurrent requests have no order, so a flood of any size on one key is one item. While an item is in flight, equal
//! requests gather in the next, which leaves when the first is back: often the first answer serves them too.
//! **Carry.** Only a few calls to one store node are in flight; what gathers meanwhile, over all its keys, goes with the
//! next, up to a budget of store time.
//!
//! Queues hold items and hand them out in order; they make no calls. What does not fit is rejected at once: an unbounded
//! queue only makes every request late.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::{Group, Hits, LimitFingerprint, Micros, Over, Touch};
use tidegate_store::{Request, Spend};

use super::StoreTicket;
use crate::cell::{CellAsk, KeptAsk, KeptAsks};
use crate::cell_hash::CellHash;

/// The queues of one core, by the nodes their calls touch.
pub(crate) struct Queues {
    open: Mutex<HashMap<QueueId, Queue, RandomState>>,
    calls: AtomicUsize,
    items: AtomicUsize,
    waiters: AtomicUsize,
    bytes: AtomicUsize,
    /// Waiting items per crowd of cells: many shapes on the same cells get only part of the room.
    crowds: Box<[AtomicUsize]>,
    bounds: QueueBounds,
}

/// The number of crowds that cells hash into. Callers cannot know which crowd they are in.
const CROWDS: usize = 4_096;
/// One crowd may take at most `1 / CROWD_PARTS` of the room for items.
const CROWD_PARTS: usize = 16;

/// The store nodes that a request touches, in order. Requests that touch the same nodes are carried together: then no call
/// fails because of a node that only others need.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueId {
    pub(crate) nodes: SmallVec<[usize; 2]>,
    /// Whether its cells may be out of reach of one script, and so need more than one call.
    pub(crate) spans: bool,
}

/// How much may be in flight, and how much may wait, per core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueBounds {
    /// Calls in flight to one store node. More calls carry less each, which costs the store more per request.
    pub calls: usize,
    /// About how long one call may keep the store busy.
    pub work: Micros,
    /// Distinct waiting requests, over all nodes. Equal ones count once.
    pub items: usize,
    /// Bytes of waiting keys.
    pub bytes: usize,
}

impl Default for QueueBounds {
    fn default() -> Self {
        QueueBounds { calls: 4, work: Micros::from_millis(1), items: 65_536, bytes: 64 << 20 }
    }
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// The number of items that have left: the sequence number of the first one still queued.
    first: u64,
    /// Where equal requests fold.
    by_shape: HashMap<Shape, FoldState, RandomState>,
    calls: usize,
    /// A task was started for a call and has not yet taken its items: new ones still go along.
    starting: bool,
}

/// Where the item of a shape is.
enum FoldState {
    /// Queued, under this sequence number.
    Waiting(u64),
    /// In a call; the next item of this shape gathers here until the call is back.
    UnderWay { next: Option<Box<Item>> },
}

/// What one request asks of the store: some of its cells, borrowed from it.
#[derive(Clone, Copy)]
pub(crate) struct Question<'q> {
    /// All cells of the request.
    pub(crate) cells: &'q [CellAsk<'q>],
    /// Those that the store is asked.
    pub(crate) places: &'q [usize],
    /// Whether a cached refusal of one of its cells is enough to refuse it.
    pub(crate) repeats_refusals: bool,
}

/// What two requests must have in common to be folded: cells, limits, hits, and what a cost above what is left does.
type Shape = SmallVec<[ShapeOfCell; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ShapeOfCell {
    hash: CellHash,
    version: LimitFingerprint,
    hits: Hits,
    over: Over,
    group: Group,
    repeats_refusals: bool,
}

impl<'q> Question<'q> {
    pub(super) fn asks(&self) -> impl Iterator<Item = &'q CellAsk<'q>> + use<'q> {
        let cells = self.cells;
        self.places.iter().map(move |place| &cells[*place])
    }

    /// Its shape; `None` if it cannot be folded: it takes a lease, or charges under a rule with a penalty.
    fn shape(&self) -> Option<Shape> {
        let touches = || self.asks().map(|ask| ask.spend.touch);
        let charges = touches().any(|touch| touch.over() == Over::Charge);
        if charges && touches().any(|touch| touch.group.is_penalty) {
            return None;
        }
        let shape = |asked: &CellAsk<'_>| {
            let Touch { limit, ask, group } = asked.spend.touch;
            let (version, hits, over) = (limit.fingerprint(), ask.hits, asked.spend.touch.over());
            let (hash, repeats_refusals) = (asked.hash, self.repeats_refusals);
            let shape = ShapeOfCell { hash, version, hits, over, group, repeats_refusals };
            ask.lease.is_none().then_some(shape)
        };
        self.asks().map(shape).collect()
    }

    /// The same, beyond the request.
    fn keep(&self) -> KeptAsks {
        self.asks().map(CellAsk::keep).collect()
    }

    /// Estimated store time.
    fn work(&self) -> Micros {
        let spends: SmallVec<[Spend<'_>; 2]> = self.asks().map(|ask| ask.spend).collect();
        Micros::new(Request::once(&spends).store_us())
    }

    /// Which of `crowds` its cells belong to, taken together.
    fn crowd(&self, crowds: usize) -> usize {
        self.asks().map(|ask| ask.hash.below(crowds)).sum::<usize>() % crowds
    }

    /// The size of its keys in bytes.
    fn bytes(&self) -> usize {
        self.asks().map(|ask| ask.spend.cell.key.len() + ask.spend.cell.tag.len()).sum()
    }
}

/// Equal requests, folded, that wait or are in flight.
pub(crate) struct Item {
    pub(crate) asks: KeptAsks,
    pub(crate) waiters: SmallVec<[StoreTicket; 1]>,
    /// How many of them stopped waiting while it was in flight, because their deadline passed.
    pub(crate) late: AtomicUsize,
    /// Whether a cached refusal of one of its cells is enough to refuse it.
    pub(crate) repeats_refusals: bool,
    shape: Option<Shape>,
    work_of_one: Micros,
    bytes: usize,
    crowd: usize,
}

impl Item {
    /// Estimated store time, for all its waiters.
    fn work(&self) -> Micros {
        if self.waiters.len() < 2 {
            return self.work_of_one;
        }
        let spends: SmallVec<[Spend<'_>; 2]> = self.asks.iter().map(KeptAsk::spend).collect();
        let count =
            u32::try_from(self.waiters.len()).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
        Micros::new(Request { spends: &spends, count }.store_us())
    }
}

/// The result of joining a queue.
#[derive(Default)]
pub(crate) struct Joined {
    /// A task must be started to carry them.
    pub(crate) start: bool,
    /// Requests for which there is no room.
    pub(crate) turned_away: SmallVec<[StoreTicket; 1]>,
}

impl Queues {
    pub(crate) fn new(bounds: QueueBounds) -> Self {
        Queues {
            open: Mutex::default(),
            calls: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            crowds: (0..CROWDS).map(|_| AtomicUsize::new(0)).collect(),
            bounds,
        }
    }

    pub(crate) fn bounds(&self) -> QueueBounds {
        self.bounds
    }

    /// Calls in flight.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Requests that wait for a call.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.load(Ordering::Relaxed)
    }

    /// Enqueues `questions` for the next call of `id`, each with its ticket. Questions that arrive together keep their order:
    /// none is folded into an item ahead of its predecessor's.
    pub(crate) fn join<'q>(
        &self,
        id: &QueueId,
        questions: impl Iterator<Item = (Question<'q>, StoreTicket)>,
    ) -> Joined {
        let mut joined = Joined::default();
        let mut open = self.open.lock();
        let queue = match open.get_mut(id) {
            Some(queue) => queue,
            None => open.entry(id.clone()).or_default(),
        };
        let mut not_before = queue.first;
        for (question, ticket) in questions {
            let mut shape = question.shape();
            match shape.as_ref().and_then(|shape| queue.by_shape.get_mut(shape)) {
                Some(FoldState::UnderWay { next: Some(next) }) => next.waiters.push(ticket),
                Some(&mut FoldState::Waiting(number)) if number >= not_before => {
                    not_before = number;
                    queue.at(number).waiters.push(ticket);
                }
                known => {
                    let bytes = question.bytes();
                    let crowd = question.crowd(CROWDS);
                    if !self.has_room(bytes, crowd) {
                        joined.turned_away.push(ticket);
                        continue;
                    }
                    self.items.fetch_add(1, Ordering::Relaxed);
                    self.crowds[crowd].fetch_add(1, Ordering::Relaxed);
                    self.bytes.fetch_add(bytes, Ordering::Relaxed);
                    let (asks, work_of_one) = (question.keep(), question.work());
                    let (waiters, late) = (SmallVec::from_buf([ticket]), AtomicUsize::new(0));
                    let repeats_refusals = question.repeats_refusals;
                    // An equal item waits already, but ahead of others that arrived with this one: it is not folded.
                    if matches!(known, Some(FoldState::Waiting(_))) {
                        shape = None;
                    }
                    let item =
                        Item { asks, waiters, late, repeats_refusals, shape, work_of_one, bytes, crowd };
                    match known {
                        Some(FoldState::UnderWay { next }) => *next = Some(Box::new(item)),
                        _ => not_before = queue.push(item),
                    }
                }
            }
            self.waiters.fetch_add(1, Ordering::Relaxed);
        }
        joined.start = self.may_start(queue);
        Queues::tidy(&mut open, id);
        joined
    }

    /// The items of the next call, in arrival order; `None` ends the task because nothing waits. Also returns whether another
    /// call is needed for what this one cannot carry.
    pub(crate) fn next(&self, id: &QueueId, is_first: IsFirst) -> Option<(Vec<Item>, bool)> {
        let mut open = self.open.lock();
        let queue = open.get_mut(id)?;
        if is_first == IsFirst::Yes {
            queue.starting = false;
        }
        let items = queue.take(self.bounds.work);
        if items.is_empty() {
            queue.calls -= 1;
            self.calls.fetch_sub(1, Ordering::Relaxed);
            Queues::tidy(&mut open, id);
            return None;
        }
        self.count_out(&items);
        let another = self.may_start(queue);
        Some((items, another))
    }

    /// The call that carried `items` is back: requests equal to them may leave now.
    pub(crate) fn is_back(&self, id: &QueueId, items: &[Item]) {
        if let Some(queue) = self.open.lock().get_mut(id) {
            items.iter().filter_map(|item| item.shape.as_ref()).for_each(|shape| queue.is_back(shape));
        }
    }

    /// A call gives up its slot while still in flight. Returns whether to start another in its place.
    pub(crate) fn pass_on(&self, id: &QueueId) -> bool {
        let mut open = self.open.lock();
        let Some(queue) = open.get_mut(id) else { return false };
        queue.calls -= 1;
        self.calls.fetch_sub(1, Ordering::Relaxed);
        let another = self.may_start(queue);
        Queues::tidy(&mut open, id);
        another
    }

    /// Ends a call in flight, and returns every item that waits behind it.
    pub(crate) fn end(&self, id: &QueueId, is_first: IsFirst) -> Vec<Item> {
        let mut open = self.open.lock();
        let Some(queue) = open.get_mut(id) else { return Vec::new() };
        if is_first == IsFirst::Yes {
            queue.starting = false;
        }
        queue.calls -= 1;
        self.calls.fetch_sub(1, Ordering::Relaxed);
        let items = queue.take_all();
        self.count_out(&items);
        // A call that was about to start finds nothing.
        Queues::tidy(&mut open, id);
        items
    }

    /// Removes an idle queue, unless it belongs to a single node: those are few and get reused.
    fn tidy(open: &mut HashMap<QueueId, Queue, RandomState>, id: &QueueId) {
        if (id.spans || id.nodes.len() > 1) && open.get(id).is_some_and(Queue::is_idle) {
            open.remove(id);
        }
    }

    fn has_room(&self, bytes: usize, crowd: usize) -> bool {
        let most_of_a_crowd = (self.bounds.items / CROWD_PARTS).max(1);
        self.crowds[crowd].load(Ordering::Relaxed) < most_of_a_crowd
            && self.items.load(Ordering::Relaxed) < self.bounds.items
            && self.bytes.load(Ordering::Relaxed) + bytes <= self.bounds.bytes
    }

    fn may_start(&self, queue: &mut Queue) -> bool {
        let may = !queue.starting && !queue.items.is_empty() && queue.calls < self.bounds.calls;
        if may {
            queue.starting = true;
            queue.calls += 1;
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    fn count_out(&self, items: &[Item]) {
        let waiters = items.iter().map(|item| item.waiters.len()).sum();
        for item in items {
            self.crowds[item.crowd].fetch_sub(1, Ordering::Relaxed);
        }
        self.items.fetch_sub(items.len(), Ordering::Relaxed);
        self.waiters.fetch_sub(waiters, Ordering::Relaxed);
        self.bytes.fetch_sub(items.iter().map(|item| item.bytes).sum(), Ordering::Relaxed);
    }
}

/// Whether a task takes the items of its first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsFirst {
    Yes,
    No,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.calls == 0 && self.items.is_empty()
    }

    fn at(&mut self, number: u64) -> &mut Item {
        let place = usize::try_from(number - self.first).expect("an item that waits");
        &mut self.items[place]
    }

    /// Adds an item, and returns its sequence number.
    fn push(&mut self, item: Item) -> u64 {
        let number = self.first + self.items.len() as u64;
        if let Some(shape) = &item.shape {
            self.by_shape.insert(shape.clone(), FoldState::Waiting(number));
        }
        self.items.push_back(item);
        number
    }

    /// Takes the first items, as many as fit `budget`, and at least one. They are in flight from now on.
    fn take(&mut self, budget: Micros) -> Vec<Item> {
        let mut taken = Vec::new();
        let mut work = Micros::ZERO;
        while let Some(next) = self.items.front() {
            work = work + next.work();
            if work > budget && !taken.is_empty() {
                break;
            }
            let item = self.items.pop_front().expect("it was just looked at");
            if let Some(known) = item.shape.as_ref().and_then(|shape| self.by_shape.get_mut(shape)) {
                *known = FoldState::UnderWay { next: None };
            }
            self.first += 1;
            taken.push(item);
        }
        taken
    }

    fn is_back(&mut self, shape: &Shape) {
        if let Some(FoldState::UnderWay { next: Some(next) }) = self.by_shape.remove(shape) {
            self.push(*next);
        }
    }

    /// Takes everything that waits, including next items of shapes in flight.
    fn take_all(&mut self) -> Vec<Item> {
        self.first += self.items.len() as u64;
        let mut all: Vec<Item> = self.items.drain(..).collect();
        self.by_shape.retain(|_, known| match known {
            FoldState::Waiting(_) => false,
            FoldState::UnderWay { next } => {
                all.extend(next.take().map(|next| *next));
                true
            }
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Ask, FixedWindow, Limit, Scope, Timestamp};
    use tidegate_store::CellKey;

    use super::*;
    use crate::cell::CellPolicy;
    use crate::cell_hash::CellHasher;
    use crate::remote::lag::Lag;
    use crate::remote::ticket::Ticket;

    fn id() -> QueueId {
        QueueId { nodes: SmallVec::from_slice(&[0]), spans: false }
    }

    /// Enqueues one request per key, all at once; their waiters are dropped.
    fn join(queues: &Queues, asked: &[(&str, u64)]) -> Joined {
        let limit = Limit::FixedWindow(FixedWindow::new(9, Micros::from_secs(1)).unwrap());
        let (scope, hasher) = (Scope::new(&[b"a"]), CellHasher::new([1, 2]));
        let cells: Vec<CellAsk<'_>> = asked
            .iter()
            .map(|(key, hits)| {
                let cell = CellKey { scope: &scope, key: key.as_bytes(), tag: key.as_bytes() };
                let touch = Touch { limit: &limit, ask: Ask::hits(*hits), group: Group::ENFORCED };
                CellAsk::new(&hasher, Spend { cell, touch }, CellPolicy::CALLER_LIMIT)
            })
            .collect();
        let question = |cell| {
            let cells = std::slice::from_ref(cell);
            (
                Question { cells, places: &[0], repeats_refusals: true },
                Ticket::new(Lag::default().arrival(Timestamp::default(), Micros::ZERO)).0,
            )
        };
        queues.join(&id(), cells.iter().map(question))
    }

    /// The number of waiters of each item of a call.
    fn counts(call: Option<(Vec<Item>, bool)>) -> Vec<usize> {
        call.map(|(items, _)| items.iter().map(|item| item.waiters.len()).collect()).unwrap_or_default()
    }

    #[test]
    fn equal_requests_are_one_item_and_the_first_of_them_starts_the_call() {
        let queues = Queues::new(QueueBounds::default());
        assert!(join(&queues, &[("a", 1)]).start);
        for _ in 0..10_000 {
            assert!(!join(&queues, &[("a", 1)]).start);
        }
        join(&queues, &[("b", 1), ("a", 2)]);
        assert_eq!(queues.waiting(), 10_003);
        assert_eq!(counts(queues.next(&id(), IsFirst::Yes)), [10_001, 1, 1]);
        assert_eq!((queues.waiting(), queues.calls()), (0, 1));
    }

    #[test]
    fn what_is_equal_to_an_item_under_way_leaves_when_that_is_back() {
        let queues = Queues::new(QueueBounds::default());
        join(&queues, &[("a", 1)]);
        let (first, _) = queues.next(&id(), IsFirst::Yes).unwrap();
        assert!(!join(&queues, &[("a", 1), ("a", 1)]).start, "nothing that may leave");
        assert!(join(&queues, &[("b", 1)]).start);
        assert_eq!(counts(queues.next(&id(), IsFirst::Yes)), [1]);
        queues.is_back(&id(), &first);
        assert_eq!(counts(queues.next(&id(), IsFirst::No)), [2]);
    }

    #[test]
    fn those_that_come_together_keep_their_order() {
        let queues = Queues::new(QueueBounds::default());
        join(&queues, &[("a", 1), ("a", 5), ("a", 1), ("a", 1)]);
        let (items, _) = queues.next(&id(), IsFirst::Yes).unwrap();
        let told: Vec<_> =
            items.iter().map(|item| (item.asks[0].ask.hits.get(), item.waiters.len())).collect();
        assert_eq!(told, [(1, 1), (5, 1), (1, 1), (1, 1)]);
    }

    #[test]
    fn a_call_carries_so_much_work_and_another_goes_beside_it_while_there_may_be_more() {
        let bounds = QueueBounds { calls: 2, work: Micros::new(40), ..QueueBounds::default() };
        let queues = Queues::new(bounds);
        let keys: Vec<String> = (0..35).map(|key| key.to_string()).collect();
        let asked: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
        assert!(join(&queues, &asked).start);
        let (first, another) = queues.next(&id(), IsFirst::Yes).unwrap();
        assert_eq!((first.len(), another), (10, true));
        let (second, another) = queues.next(&id(), IsFirst::Yes).unwrap();
        assert_eq!((second.len(), another), (10, false), "two calls are enough");
        assert_eq!(counts(queues.next(&id(), IsFirst::No)).len(), 10);
        assert_eq!(counts(queues.next(&id(), IsFirst::No)).len(), 5);
        assert!(queues.next(&id(), IsFirst::No).is_none() && queues.next(&id(), IsFirst::No).is_none());
        assert_eq!((queues.calls(), queues.waiting()), (0, 0));
    }

    #[test]
    fn who_asks_the_same_cell_in_a_thousand_shapes_leaves_room_for_others() {
        let queues = Queues::new(QueueBounds { items: 64, ..QueueBounds::default() });
        let flood: Vec<(&str, u64)> = (1..=1_000).map(|hits| ("one", hits)).collect();
        assert_eq!(join(&queues, &flood).turned_away.len(), 1_000 - 64 / CROWD_PARTS);
        assert_eq!(join(&queues, &[("a", 1), ("b", 1), ("c", 1)]).turned_away.len(), 0);
        let (first, _) = queues.next(&id(), IsFirst::Yes).unwrap();
        assert_eq!(first.len(), 64 / CROWD_PARTS + 3);
        assert_eq!(join(&queues, &[("one", 1_001)]).turned_away.len(), 0, "there is room again");
    }

    #[test]
    fn what_does_not_fit_is_given_back_and_what_waits_behind_a_lost_call_is_let_go() {
        let queues = Queues::new(QueueBounds { items: 2, ..QueueBounds::default() });
        let joined = join(&queues, &[("a", 1), ("b", 1), ("c", 1), ("a", 1)]);
        assert_eq!((joined.turned_away.len(), queues.waiting()), (2, 2), "the second `a` may not overtake");
        assert_eq!(join(&queues, &[("b", 1)]).turned_away.len(), 0, "an equal one takes no room");
        assert_eq!(queues.end(&id(), IsFirst::Yes).len(), 2);
        assert_eq!((queues.calls(), queues.waiting()), (0, 0));
        assert!(join(&queues, &[("a", 1)]).start, "a task that never ran keeps no other from starting");
    }
}
