//! The keys in use, and the messages for them. Pure: it is given the time and what the server said, and owns no socket.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tidegate_core::{Returned, Timestamp};

use crate::purse::{Found, KeyState};
use crate::wire::{self, Attributes, Back, MOST_TAKES, TakeReply, Wanted};

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

/// A message, and what it asks for.
pub(crate) struct Message {
    pub(crate) body: Vec<u8>,
    asked: Timestamp,
    takes: Vec<(Arc<Slot>, u64)>,
}

impl Slot {
    pub(crate) fn new(attributes: &[(&str, &str)], now: Timestamp) -> Self {
        let attributes = attributes.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
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
    pub(crate) fn message(&self, domain: &str, now: Timestamp) -> Option<Message> {
        let mut takes = Vec::new();
        while takes.len() < MOST_TAKES {
            let Some(slot) = self.due.lock().pop_front() else { break };
            slot.is_due.store(false, Ordering::Relaxed);
            let hits = slot.with(|state| state.wants(now));
            if hits > 0 {
                takes.push((slot, hits));
            }
        }
        let mut waiting = self.returns.lock();
        let count = waiting.len().min(MOST_TAKES);
        let returned: Vec<_> = waiting.drain(..count).collect();
        drop(waiting);
        if takes.is_empty() && returned.is_empty() {
            return None;
        }
        let wanted = takes.iter().map(|(slot, hits)| Wanted { attributes: &slot.attributes, hits: *hits });
        let back = returned.iter().map(|(slot, Returned { hits, age }, at)| Back {
            attributes: &slot.attributes,
            hits: *hits,
            age_ms: (*age + now.since(*at)).as_millis_ceil(),
        });
        let body = wire::take(domain, wanted.collect(), back.collect());
        Some(Message { body, asked: now, takes })
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

    /// Gathers all hits: this client ends.
    pub(crate) fn empty(&self, now: Timestamp) {
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
