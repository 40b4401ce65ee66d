//! Who waits for which call: fold, then carry.
//!
//! **Fold.** Requests that wait for the same call and ask the same of the same cells are one item with several waiters.
//! Concurrent requests have no order among them, so a flood of any size on one key is one item. While an item is under way,
//! those that are equal to it gather in the next, which leaves when the first is back: often its answer is theirs.
//! **Carry.** To one node of the store only a few calls are under way; what gathers meanwhile, over all its keys, goes with
//! the next, up to a budget of the store's time.
//!
//! Queues hold items and hand them out in order; they call nobody. What does not fit is given back at once: a queue without
//! an end only makes everybody late.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::Micros;

use super::StoreTicket;
use crate::owned::{OwnedSpends, Question, Shape};

/// The queues of one core, by what their calls touch.
pub(crate) struct Queues {
    open: Mutex<HashMap<QueueId, Queue, RandomState>>,
    calls: AtomicUsize,
    items: AtomicUsize,
    waiters: AtomicUsize,
    bytes: AtomicUsize,
    bounds: QueueBounds,
}

/// The nodes that a request touches, in order. Requests that touch the same are carried together: then no call fails because
/// of a node that only others need.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueId {
    pub(crate) nodes: SmallVec<[usize; 2]>,
    /// Whether its cells may be out of reach of one script, which takes more than one call.
    pub(crate) spans: bool,
}

/// How much may be under way, and how much may wait, per core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Calls under way to one node of the store. More of them carry less each, which costs the store more per request.
    pub calls: usize,
    /// About how long one call may keep the store busy.
    pub work: Micros,
    /// Different requests that wait, to all nodes together. Equal ones count once.
    pub items: usize,
    /// Bytes of keys that wait.
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
    /// How many items have left: the number of the first that is still here.
    first: u64,
    /// Where equal requests join.
    by_shape: HashMap<Shape, Whereabouts, RandomState>,
    calls: usize,
    /// A task was started for a call and has not yet taken what it carries: what comes now goes along.
    starting: bool,
}

/// Where the item of a shape is.
enum Whereabouts {
    /// In the queue, under this number.
    Waiting(u64),
    /// In a call; the next of this shape gathers here until it is back.
    UnderWay { next: Option<Box<Item>> },
}

/// Equal requests that wait, or are under way, as one.
pub(crate) struct Item {
    pub(crate) spends: OwnedSpends,
    pub(crate) waiters: SmallVec<[StoreTicket; 1]>,
    shape: Option<Shape>,
    work: Micros,
    bytes: usize,
}

/// What becomes of requests that join a queue.
#[derive(Default)]
pub(crate) struct Joined {
    /// A task must be started that carries them.
    pub(crate) start: bool,
    /// Those for which there is no room.
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
            bounds,
        }
    }

    pub(crate) fn bounds(&self) -> QueueBounds {
        self.bounds
    }

    /// Calls under way.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Requests that wait for a call to come.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.load(Ordering::Relaxed)
    }

    /// Lets `questions` wait for the next call of `id`, each with its waiter. The order of those that come together is kept:
    /// none is folded into an item before that of its predecessor.
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
                Some(Whereabouts::UnderWay { next: Some(next) }) => next.waiters.push(ticket),
                Some(&mut Whereabouts::Waiting(number)) if number >= not_before => {
                    not_before = number;
                    queue.at(number).waiters.push(ticket);
                }
                known => {
                    let bytes = question.bytes();
                    if !self.has_room(bytes) {
                        joined.turned_away.push(ticket);
                        continue;
                    }
                    self.items.fetch_add(1, Ordering::Relaxed);
                    self.bytes.fetch_add(bytes, Ordering::Relaxed);
                    let (spends, work) = (question.owned(), question.work());
                    let waiters = SmallVec::from_buf([ticket]);
                    match known {
                        Some(Whereabouts::UnderWay { next }) => {
                            *next = Some(Box::new(Item { spends, waiters, shape, work, bytes }));
                        }
                        known => {
                            // An equal one waits already, before others that came with this one: it stays by itself.
                            if known.is_some() {
                                shape = None;
                            }
                            not_before = queue.push(Item { spends, waiters, shape, work, bytes });
                        }
                    }
                }
            }
            self.waiters.fetch_add(1, Ordering::Relaxed);
        }
        joined.start = self.may_start(queue);
        if queue.is_idle() {
            open.remove(id);
        }
        joined
    }

    /// The items of the next call, in the order in which they came; none ends the call, for nobody waits. Says also whether
    /// another call is wanted for what this one cannot carry.
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
            if queue.is_idle() {
                open.remove(id);
            }
            return None;
        }
        self.count_out(&items);
        let another = self.may_start(queue);
        Some((items, another))
    }

    /// The call that carried `items` is back: what is equal to them may leave now.
    pub(crate) fn is_back(&self, id: &QueueId, items: &[Item]) {
        if let Some(queue) = self.open.lock().get_mut(id) {
            items.iter().filter_map(|item| item.shape.as_ref()).for_each(|shape| queue.is_back(shape));
        }
    }

    /// Ends a call that was under way, and with it everybody who waits behind it.
    pub(crate) fn end(&self, id: &QueueId) -> Vec<Item> {
        let mut open = self.open.lock();
        let Some(queue) = open.get_mut(id) else { return Vec::new() };
        queue.calls -= 1;
        self.calls.fetch_sub(1, Ordering::Relaxed);
        let items = queue.take_all();
        self.count_out(&items);
        // One that was only about to start finds nothing.
        if queue.is_idle() {
            open.remove(id);
        }
        items
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.items.load(Ordering::Relaxed) < self.bounds.items
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

    /// Adds an item, and says its number.
    fn push(&mut self, item: Item) -> u64 {
        let number = self.first + self.items.len() as u64;
        if let Some(shape) = &item.shape {
            self.by_shape.insert(shape.clone(), Whereabouts::Waiting(number));
        }
        self.items.push_back(item);
        number
    }

    /// The first items, as many as fit `budget`, and at least one. They are under way from now on.
    fn take(&mut self, budget: Micros) -> Vec<Item> {
        let mut taken = Vec::new();
        let mut work = Micros::ZERO;
        while let Some(next) = self.items.front() {
            work = work + next.work;
            if work > budget && !taken.is_empty() {
                break;
            }
            let item = self.items.pop_front().expect("it was just looked at");
            if let Some(known) = item.shape.as_ref().and_then(|shape| self.by_shape.get_mut(shape)) {
                *known = Whereabouts::UnderWay { next: None };
            }
            self.first += 1;
            taken.push(item);
        }
        taken
    }

    fn is_back(&mut self, shape: &Shape) {
        if let Some(Whereabouts::UnderWay { next: Some(next) }) = self.by_shape.remove(shape) {
            self.push(*next);
        }
    }

    /// Everything that waits, wherever.
    fn take_all(&mut self) -> Vec<Item> {
        self.first += self.items.len() as u64;
        let mut all: Vec<Item> = self.items.drain(..).collect();
        self.by_shape.retain(|_, known| match known {
            Whereabouts::Waiting(_) => false,
            Whereabouts::UnderWay { next } => {
                all.extend(next.take().map(|next| *next));
                true
            }
        });
        all
    }
}
