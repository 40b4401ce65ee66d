//! A place for one answer: one task fills it, another waits for it, and either may go away first.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The side that answers. Dropped without an answer, it lets the other side know.
pub(crate) struct Slot<T>(Arc<Mutex<State<T>>>);

/// The side that waits: for an answer, or for nothing if there will be none. An answer that it is dropped with is dropped.
pub(crate) struct Waiter<T>(Arc<Mutex<State<T>>>);

enum State<T> {
    Waiting(Option<Waker>),
    Filled(T),
    /// The answer was taken, or will never come, or nobody waits for it any more.
    Over,
}

pub(crate) fn slot<T>() -> (Slot<T>, Waiter<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (Slot(state.clone()), Waiter(state))
}

impl<T> Slot<T> {
    /// Whether nobody waits any more, or the answer was given.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(*self.0.lock(), State::Waiting(_))
    }

    /// Gives the answer. If nobody waits for it, it is dropped.
    pub(crate) fn fill(&self, answer: T) {
        self.finish(State::Filled(answer));
    }

    /// Says that there will be no answer.
    pub(crate) fn give_up(&self) {
        self.finish(State::Over);
    }

    fn finish(&self, end: State<T>) {
        let mut state = self.0.lock();
        let State::Waiting(waker) = &mut *state else {
            drop(state);
            // Outside the lock: what an answer does when it is dropped is its own business.
            return drop(end);
        };
        let waker = waker.take();
        *state = end;
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl<T> Future for Waiter<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Filled(answer) => Poll::Ready(Some(answer)),
            State::Over => Poll::Ready(None),
            State::Waiting(known) => {
                let same = known.filter(|waker| waker.will_wake(context.waker()));
                *state = State::Waiting(Some(same.unwrap_or_else(|| context.waker().clone())));
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Waiter<T> {
    fn drop(&mut self) {
        let unheard = std::mem::replace(&mut *self.0.lock(), State::Over);
        drop(unheard);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn poll<T>(waiter: &mut Pin<&mut Waiter<T>>) -> Poll<Option<T>> {
        waiter.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_comes_once_and_to_the_one_who_waits() {
        let (slot, waiter) = slot();
        let mut waiter = pin!(waiter);
        assert!(poll(&mut waiter).is_pending());
        slot.fill(7);
        slot.fill(8);
        assert_eq!(poll(&mut waiter), Poll::Ready(Some(7)));
    }

    #[test]
    fn who_waits_hears_that_nobody_will_answer() {
        let (slot, waiter) = slot::<u32>();
        let mut waiter = pin!(waiter);
        assert!(poll(&mut waiter).is_pending());
        drop(slot);
        assert_eq!(poll(&mut waiter), Poll::Ready(None));
    }

    #[test]
    fn an_answer_that_nobody_takes_is_dropped_whenever_they_leave() {
        let answer = Arc::new(());
        let (before, waiter) = slot();
        drop(waiter);
        assert!(before.is_over());
        before.fill(answer.clone());
        let (after, waiter) = slot();
        after.fill(answer.clone());
        drop(waiter);
        assert_eq!(Arc::strong_count(&answer), 1);
    }
}
