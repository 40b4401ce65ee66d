//! The keys in use, and the messages for them. Pure: it is given the time and what the server said, and owns no socket.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tidegate_core::{Returned, Timestamp};

use crate::purse::{Found, KeyState};
use crate::wire::{self, Attributes, Back, MOST_BYTES, MOST_TAKES, TakeReply, Wanted};

const SHARDS: usize = 16;
/// Returns that wait for a message; more are forgotten, which leaves them spent.
const MOST_RETURNS: usize = 10 * MOST_TAKES;

/// One key: the attributes of its requests, and its purse.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) attributes: Attributes,
    state: Mutex<KeyState>,
    is_due: AtomicBool,
}

type Shard = HashMap<Box<[u8]>, Arc<Slot>, RandomState>;

/// All keys in use, up to a bound.
pub(crate) struct Keys {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    count: AtomicUsize,
    most: usize,
    /// Keys that want more hits.
    due: Mutex<VecDeque<Arc<Slot>>>,
    returns: Mutex<VecDeque<(Arc<Slot>, Returned, Timestamp)>>,
}

/// A message: what it asks for, and what it returns.
#[derive(Debug, Default)]
pub(crate) struct Message {
    asked: Timestamp,
    takes: Vec<(Arc<Slot>, u64)>,
    /// With the time since which their age counts on.
    returns: Vec<(Arc<Slot>, Returned, Timestamp)>,
}

impl Slot {
    pub(crate) fn new(attributes: &[(&str, &str)], now: Timestamp) -> Self {
        let attributes = wire::attributes(attributes);
        Slot { attributes, state: Mutex::new(KeyState::new(now)), is_due: AtomicBool::new(false) }
    }

    /// Changes its state.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut KeyState) -> T) -> T {
        change(&mut self.state.lock())
    }
}

impl Keys {
    pub(crate) fn new(most: usize) -> Self {
        Keys {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::default(),
            count: AtomicUsize::new(0),
            most,
            due: Mutex::default(),
            returns: Mutex::default(),
        }
    }

    /// The key with these attributes; none if there is no room for another.
    pub(crate) fn slot(&self, attributes: &[(&str, &str)], now: Timestamp) -> Option<Arc<Slot>> {
        let mut name = Vec::with_capacity(128);
        for text in attributes.iter().flat_map(|(name, value)| [name, value]) {
            name.extend_from_slice(&(text.len() as u64).to_le_bytes());
            name.extend_from_slice(text.as_bytes());
        }
        let hash = self.hasher.hash_one(&name[..]);
        let mut shard = self.shards[hash as usize % SHARDS].lock();
        if let Some(known) = shard.get(&name[..]) {
            return Some(Arc::clone(known));
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let slot = Arc::new(Slot::new(attributes, now));
        shard.insert(name.into(), Arc::clone(&slot));
        Some(slot)
    }

    /// Pays for a request, or says why not; and whether a message should go soon.
    pub(crate) fn pay(&self, slot: &Arc<Slot>, now: Timestamp, hits: u64) -> (Found, bool) {
        let (found, wants_more) = slot.with(|state| state.pay(now, hits));
        let is_due = wants_more && !slot.is_due.swap(true, Ordering::Relaxed);
        if is_due {
            self.due.lock().push_back(Arc::clone(slot));
        }
        (found, is_due)
    }

    /// The next message, if there is anything to send.
    pub(crate) fn message(&self, now: Timestamp) -> Option<Message> {
        let mut message = Message { asked: now, ..Message::default() };
        let mut bytes = 0;
        while message.takes.len() < MOST_TAKES && bytes < MOST_BYTES {
            let Some(slot) = self.due.lock().pop_front() else { break };
            slot.is_due.store(false, Ordering::Relaxed);
            let hits = slot.with(|state| state.wants(now));
            if hits > 0 {
                bytes += wire::size_of(&slot.attributes);
                message.takes.push((slot, hits));
            }
        }
        while message.returns.len() < MOST_TAKES && bytes < MOST_BYTES {
            let Some(returned) = self.returns.lock().pop_front() else { break };
            bytes += wire::size_of(&returned.0.attributes);
            message.returns.push(returned);
        }
        (!message.is_empty()).then_some(message)
    }

    /// The server has answered a message.
    pub(crate) fn answered(&self, message: &Message, reply: &TakeReply, now: Timestamp) {
        for (number, (slot, wanted)) in message.takes.iter().enumerate() {
            slot.with(|state| match reply.answers.get(number) {
                Some(told) => state.taken((message.asked, now), *wanted, told),
                None => state.not_taken(),
            });
        }
    }

    /// Nobody answered it, or in no way that can be read. What it took is lost.
    pub(crate) fn not_answered(&self, message: &Message) {
        message.takes.iter().for_each(|(slot, _)| slot.with(KeyState::not_taken));
    }

    /// Gathers hits to return, and forgets keys that nobody uses.
    pub(crate) fn sweep(&self, now: Timestamp) {
        self.gather(now, KeyState::returns);
        for shard in &self.shards {
            shard.lock().retain(|_, slot| {
                // A handle keeps its key.
                let is_kept = Arc::strong_count(slot) > 1 || !slot.with(|state| state.is_unused(now));
                if !is_kept {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                is_kept
            });
        }
    }

    /// Gathers all hits, and wants no more: this client ends.
    pub(crate) fn empty(&self, now: Timestamp) {
        self.due.lock().clear();
        self.gather(now, KeyState::empty);
    }

    fn gather(&self, now: Timestamp, out: impl Fn(&mut KeyState, Timestamp) -> Vec<Returned>) {
        for shard in &self.shards {
            let slots: Vec<Arc<Slot>> = shard.lock().values().cloned().collect();
            for slot in slots {
                let returned = slot.with(|state| out(state, now));
                let mut waiting = self.returns.lock();
                let room = MOST_RETURNS.saturating_sub(waiting.len());
                waiting.extend(returned.into_iter().take(room).map(|one| (Arc::clone(&slot), one, now)));
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Message {
    /// As it is sent.
    pub(crate) fn body(&self, domain: &str) -> Vec<u8> {
        let wanted =
            self.takes.iter().map(|(slot, hits)| Wanted { attributes: &slot.attributes, hits: *hits });
        let back = self.returns.iter().map(|(slot, Returned { hits, age }, at)| Back {
            attributes: &slot.attributes,
            hits: *hits,
            age_ms: (*age + self.asked.since(*at)).as_millis_ceil(),
        });
        wire::take(domain, wanted.collect(), back.collect())
    }

    fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.returns.is_empty()
    }

    /// The server refused it as a whole, and so took nothing, because of `field` if it names one: what to send in its place at
    /// `now`. An entry that is refused alone is not sent again; requests of its key are asked for.
    pub(crate) fn without_refused(mut self, field: Option<&str>, now: Timestamp) -> Vec<Message> {
        self.asked = now;
        if self.takes.len() + self.returns.len() == 1 {
            self.takes.iter().for_each(|(slot, _)| slot.with(|state| state.not_read(now)));
            return Vec::new();
        }
        let named = |list| number_in(field?, list);
        if let Some(number) = named("takes").filter(|number| *number < self.takes.len()) {
            self.takes.remove(number).0.with(|state| state.not_read(now));
            return vec![self];
        }
        if let Some(number) = named("returns").filter(|number| *number < self.returns.len()) {
            self.returns.remove(number);
            return vec![self];
        }
        let (takes, returns) = (self.takes.len().div_ceil(2), self.returns.len() / 2);
        let (takes, returns) = (self.takes.split_off(takes), self.returns.split_off(returns));
        vec![self, Message { asked: now, takes, returns }]
    }
}

/// The 3 of `takes[3].attributes.user`.
fn number_in(field: &str, list: &str) -> Option<usize> {
    field.strip_prefix(list)?.strip_prefix('[')?.split_once(']')?.0.parse().ok()
}
