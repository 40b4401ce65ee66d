//! Bounds the memory that peers can make us hold: incomplete requests, large heads, and answers that nobody reads.
//!
//! A request that arrived whole, with a small head, costs nothing here until it has an answer. An HTTP/2 connection may start
//! a thousand requests: so each connection has a budget, and each worker one for all its connections.
//!
//! Requests are refused where a budget is used up. An answer cannot be refused, because its request has been decided: it
//! counts in any case, and a connection whose answers take too much starts no further request until some were read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;

/// A budget in bytes.
#[derive(Debug)]
pub(super) struct Memory {
    held: AtomicUsize,
    most: usize,
}

impl Memory {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Memory::with(most))
    }

    fn with(most: usize) -> Self {
        Memory { held: AtomicUsize::new(0), most }
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= self.most {
            return true;
        }
        self.give_back(bytes);
        false
    }

    fn owe(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What a connection may hold, however full its worker is: enough for one small request at a time.
const LEAST_BYTES: usize = 16 * 1024;

/// The budget of one connection, within its worker's.
#[derive(Debug)]
pub(super) struct Budget {
    own: Memory,
    /// The part of `own` that is in answers.
    answers: AtomicUsize,
    /// The part of `answers` that is in heads without a body.
    heads: AtomicUsize,
    worker: Arc<Memory>,
    /// The connection, if it waits for its peer to read answers.
    waiter: AtomicWaker,
}

impl Budget {
    pub(super) fn new(most: usize, worker: Arc<Memory>) -> Arc<Self> {
        let [answers, heads] = [(); 2].map(|()| AtomicUsize::new(0));
        Arc::new(Budget { own: Memory::with(most), answers, heads, worker, waiter: AtomicWaker::new() })
    }

    /// The most that this connection should hold now: never more than is free in its worker, so that connections that grow
    /// together leave as much for a new one.
    fn limit(&self) -> usize {
        let free = self.worker.most.saturating_sub(self.worker.held());
        self.own.most.min(free.max(LEAST_BYTES))
    }

    /// Whether a budget is exceeded, by what cannot be refused. No further request should be accepted then.
    pub(super) fn is_exceeded(&self) -> bool {
        let held = self.own.held();
        held > self.own.most || (held >= LEAST_BYTES && self.worker.held() > self.worker.most)
    }

    /// Whether answers should be read before there are more of them. The other half of a budget is for requests.
    pub(super) fn has_unread_answers(&self) -> bool {
        let answers = self.answers.load(Ordering::Relaxed);
        answers > 0 && answers >= self.limit() / 2
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.own.held()
    }

    /// Counts the head of an answer without a body.
    pub(super) fn hold_head(&self, bytes: usize) {
        self.owe_answer(bytes);
        self.heads.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back what the heads so far hold.
    pub(super) fn heads_are_written(&self) {
        if self.heads.load(Ordering::Relaxed) > 0 {
            self.give_back_answer(self.heads.swap(0, Ordering::Relaxed));
        }
    }

    fn owe_answer(&self, bytes: usize) {
        self.answers.fetch_add(bytes, Ordering::Relaxed);
        self.own.owe(bytes);
        self.worker.owe(bytes);
    }

    fn give_back_answer(&self, bytes: usize) {
        self.answers.fetch_sub(bytes, Ordering::Relaxed);
        self.own.give_back(bytes);
        self.worker.give_back(bytes);
        self.waiter.wake();
    }

    /// Wakes `waiter` when an answer of this connection was read.
    pub(super) fn wake_when_read(&self, waiter: &Waker) {
        self.waiter.register(waiter);
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.heads_are_written();
    }
}

/// Bytes held by one request, released when dropped.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Held {
    pub(super) fn of(budget: Arc<Budget>) -> Self {
        Held { budget, bytes: 0 }
    }

    /// Holds `more`, unless that exceeds a budget.
    #[must_use]
    pub fn grow(&mut self, more: usize) -> bool {
        let Budget { own, worker, .. } = &*self.budget;
        if !own.take(more) {
            return false;
        }
        if !worker.take(more) {
            own.give_back(more);
            return false;
        }
        self.bytes += more;
        true
    }

    /// Holds `more`, which is there whatever the budgets say.
    pub fn owe(&mut self, more: usize) {
        self.budget.own.owe(more);
        self.budget.worker.owe(more);
        self.bytes += more;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.own.give_back(self.bytes);
        self.budget.worker.give_back(self.bytes);
    }
}

/// Bytes of an answer that its peer has not read, released when dropped.
#[derive(Debug)]
pub struct HeldAnswer {
    budget: Arc<Budget>,
    bytes: usize,
}

impl HeldAnswer {
    pub(super) fn of(budget: Arc<Budget>, bytes: usize) -> Self {
        budget.owe_answer(bytes);
        HeldAnswer { budget, bytes }
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        self.budget.give_back_answer(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_connection_holds_counts_for_its_worker_too_and_comes_back() {
        let worker = Memory::new(150);
        let [one, other] = [(); 2].map(|()| Budget::new(100, Arc::clone(&worker)));
        let (mut first, mut second) = (Held::of(Arc::clone(&one)), Held::of(Arc::clone(&other)));
        assert!(first.grow(60) && first.grow(40));
        assert!(!first.grow(1), "its connection is full");
        assert!(!second.grow(51), "its worker is full");
        assert!(second.grow(50));
        assert_eq!((one.own.held(), other.own.held(), worker.held()), (100, 50, 150));
        drop(first);
        assert!(second.grow(50));
        drop(second);
        assert_eq!((one.own.held(), other.own.held(), worker.held()), (0, 0, 0));
    }

    #[test]
    fn answers_beyond_half_a_budget_have_to_be_read_first() {
        let worker = Memory::new(8 << 20);
        let budget = Budget::new(1 << 20, Arc::clone(&worker));
        let first = HeldAnswer::of(Arc::clone(&budget), 1 << 19);
        assert!(budget.has_unread_answers() && !budget.is_exceeded());
        let second = HeldAnswer::of(Arc::clone(&budget), 1 << 20);
        assert!(budget.is_exceeded(), "an answer counts even where it does not fit");
        drop((first, second));
        assert!(!budget.has_unread_answers() && !budget.is_exceeded());
        assert_eq!(worker.held(), 0);
    }

    #[test]
    fn connections_that_grow_together_leave_as_much_for_a_new_one() {
        let worker = Memory::new(64 << 20);
        let greedy: Vec<_> = (0..100).map(|_| Budget::new(4 << 20, Arc::clone(&worker))).collect();
        let mut held = Vec::new();
        for budget in greedy.iter().cycle().take(100 * 256) {
            if !budget.has_unread_answers() {
                held.push(HeldAnswer::of(Arc::clone(budget), 16 * 1024));
            }
        }
        let most = greedy.iter().map(|budget| budget.own.held()).max().unwrap();
        let newcomer = Budget::new(4 << 20, Arc::clone(&worker));
        assert!(newcomer.limit() >= most, "{} for it, {most} for others", newcomer.limit());
        assert!(worker.held() <= worker.most);
    }

    #[test]
    fn a_full_worker_leaves_each_connection_room_for_a_request() {
        let worker = Memory::new(1 << 20);
        let _greedy = HeldAnswer::of(Budget::new(4 << 20, Arc::clone(&worker)), 4 << 20);
        let newcomer = Budget::new(4 << 20, Arc::clone(&worker));
        assert!(!newcomer.is_exceeded() && !newcomer.has_unread_answers());
    }
}
