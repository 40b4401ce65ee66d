//! Virtual time on one thread: tasks run in an order that the seed decides, and when all of them wait, time jumps to the
//! next timer.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{Runtime, Task};
use tidegate_store::{Clock, ManualClock};

use crate::world::START;

/// Tasks, timers and a clock. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Executor(Arc<Inner>);

struct Inner {
    clock: Arc<ManualClock>,
    state: Mutex<State>,
}

struct State {
    tasks: HashMap<u64, Task>,
    ready: Vec<u64>,
    timers: BTreeMap<(Timestamp, u64), Waker>,
    next: u64,
    random: Random,
}

/// A task that can be dropped before its end.
pub(crate) struct Handle<T> {
    executor: Executor,
    task: u64,
    result: Arc<Mutex<Option<T>>>,
}

impl Executor {
    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            tasks: HashMap::new(),
            ready: vec![],
            timers: BTreeMap::new(),
            next: 0,
            random: Random::new(seed),
        };
        Executor(Arc::new(Inner { clock: Arc::new(ManualClock::at(START)), state: Mutex::new(state) }))
    }

    pub(crate) fn clock(&self) -> Arc<ManualClock> {
        self.0.clock.clone()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.0.state.lock().unwrap().random.below(bound)
    }

    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Handle<T> {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let task = self.add(Box::pin(async move {
            let value = work.await;
            *place.lock().unwrap() = Some(value);
        }));
        Handle { executor: self.clone(), task, result }
    }

    fn add(&self, task: Task) -> u64 {
        let mut state = self.0.state.lock().unwrap();
        let id = state.next;
        state.next += 1;
        state.tasks.insert(id, task);
        state.ready.push(id);
        id
    }

    /// Runs until `work` is done.
    pub(crate) fn finish<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let handle = self.start(work);
        handle.wait()
    }

    /// Runs for `span`.
    pub(crate) fn run_for(&self, span: Micros) {
        let end = self.now() + span;
        while self.step(end) {}
        self.0.clock.set(end);
    }

    /// Nothing runs for `span`, as on a core that others keep busy.
    pub(crate) fn stand_still(&self, span: Micros) {
        self.0.clock.set(self.now() + span);
    }

    /// Runs what can run at this moment, without time going on.
    pub(crate) fn settle(&self) {
        while self.step(self.now()) {}
    }

    /// Does one thing; false if there is nothing to do until `end`.
    fn step(&self, end: Timestamp) -> bool {
        let mut state = self.0.state.lock().unwrap();
        if state.ready.is_empty() {
            let Some((&(when, _), _)) = state.timers.first_key_value() else { return false };
            if when > end {
                return false;
            }
            let ((when, _), waker) = state.timers.pop_first().unwrap();
            drop(state);
            self.0.clock.set(self.now().max(when));
            waker.wake();
            return true;
        }
        let len = state.ready.len() as u64;
        let pick = state.random.below(len) as usize;
        let id = state.ready.swap_remove(pick);
        let Some(mut task) = state.tasks.remove(&id) else { return true };
        drop(state);
        let waker =
            Waker::from(Arc::new(TaskWaker { id, executor: self.clone(), woken: AtomicBool::new(false) }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.0.state.lock().unwrap().tasks.insert(id, task);
        }
        true
    }

    fn wake(&self, id: u64) {
        let mut state = self.0.state.lock().unwrap();
        if !state.ready.contains(&id) {
            state.ready.push(id);
        }
    }
}

impl Runtime for Executor {
    fn spawn(&self, task: Task) {
        self.add(task);
    }

    fn sleep(&self, span: Micros) -> Task {
        Box::pin(Sleep { executor: self.clone(), until: self.now() + span })
    }
}

impl<T> Handle<T> {
    /// Runs until the task is done.
    pub(crate) fn wait(self) -> T {
        let deadline = self.executor.now() + Micros::from_secs(60);
        loop {
            if let Some(value) = self.result.lock().unwrap().take() {
                return value;
            }
            assert!(self.executor.step(deadline), "a task hangs: nothing will ever wake it");
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.result.lock().unwrap().is_some()
    }

    /// Drops the task, wherever it is.
    pub(crate) fn abort(self) {
        let task = self.executor.0.state.lock().unwrap().tasks.remove(&self.task);
        drop(task);
    }
}

struct Sleep {
    executor: Executor,
    until: Timestamp,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.executor.now() >= self.until {
            return Poll::Ready(());
        }
        let mut state = self.executor.0.state.lock().unwrap();
        let number = state.next;
        state.next += 1;
        state.timers.insert((self.until, number), context.waker().clone());
        Poll::Pending
    }
}

struct TaskWaker {
    id: u64,
    executor: Executor,
    woken: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.woken.swap(true, Ordering::Relaxed) {
            self.executor.wake(self.id);
        }
    }
}

/// A small generator, so that a seed means the same for ever.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound.max(1)
    }
}
