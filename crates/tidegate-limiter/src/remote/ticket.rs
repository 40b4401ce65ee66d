//! A question and the slot for its answer: one task carries it, another waits for it, and either may be dropped first.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The carrying side of a question. Dropping it without an answer wakes the waiter with none.
pub(crate) struct Ticket<Q, T>(Arc<Slot<Q, T>>);

/// The waiting side: yields the answer, or `None` if there will be none. Dropping it drops an answer already given.
pub(crate) struct TicketWaiter<Q, T>(Arc<Slot<Q, T>>);

/// Both sides share one allocation, so that a question moves as a pointer.
struct Slot<Q, T> {
    question: Q,
    state: Mutex<TicketState<T>>,
}

enum TicketState<T> {
    Waiting(Option<Waker>),
    Filled(T),
    /// The answer was taken, will never come, or has no waiter left.
    Over,
}

impl<Q, T> Ticket<Q, T> {
    pub(crate) fn new(question: Q) -> (Self, TicketWaiter<Q, T>) {
        let shared = Arc::new(Slot { question, state: Mutex::new(TicketState::Waiting(None)) });
        (Ticket(shared.clone()), TicketWaiter(shared))
    }

    pub(crate) fn question(&self) -> &Q {
        &self.0.question
    }

    /// Whether the waiter is gone or the answer was given.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(*self.0.state.lock(), TicketState::Waiting(_))
    }

    /// Gives the answer. Without a waiter, it is dropped.
    pub(crate) fn fill(&self, answer: T) {
        self.finish(TicketState::Filled(answer));
    }

    /// Declares that there will be no answer.
    pub(crate) fn give_up(&self) {
        self.finish(TicketState::Over);
    }

    fn finish(&self, end: TicketState<T>) {
        let mut state = self.0.state.lock();
        let TicketState::Waiting(waker) = &mut *state else {
            drop(state);
            // Outside the lock: dropping an answer may run arbitrary code.
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

impl<Q, T> Drop for Ticket<Q, T> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl<Q, T> Future for TicketWaiter<Q, T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.state.lock();
        match std::mem::replace(&mut *state, TicketState::Over) {
            TicketState::Filled(answer) => Poll::Ready(Some(answer)),
            TicketState::Over => Poll::Ready(None),
            TicketState::Waiting(known) => {
                let same = known.filter(|waker| waker.will_wake(context.waker()));
                *state = TicketState::Waiting(Some(same.unwrap_or_else(|| context.waker().clone())));
                Poll::Pending
            }
        }
    }
}

impl<Q, T> Drop for TicketWaiter<Q, T> {
    fn drop(&mut self) {
        let unheard = std::mem::replace(&mut *self.0.state.lock(), TicketState::Over);
        drop(unheard);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn asked<T>() -> (Ticket<(), T>, TicketWaiter<(), T>) {
        Ticket::new(())
    }

    fn poll<T>(waiter: &mut Pin<&mut TicketWaiter<(), T>>) -> Poll<Option<T>> {
        waiter.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_comes_once_and_to_the_one_who_waits() {
        let (asked, waiter) = asked();
        let mut waiter = pin!(waiter);
        assert!(poll(&mut waiter).is_pending());
        asked.fill(7);
        asked.fill(8);
        assert_eq!(poll(&mut waiter), Poll::Ready(Some(7)));
    }

    #[test]
    fn who_waits_hears_that_nobody_will_answer() {
        let (asked, waiter) = asked::<u32>();
        let mut waiter = pin!(waiter);
        assert!(poll(&mut waiter).is_pending());
        drop(asked);
        assert_eq!(poll(&mut waiter), Poll::Ready(None));
    }

    #[test]
    fn an_answer_that_nobody_takes_is_dropped_whenever_they_leave() {
        let answer = Arc::new(());
        let (before, waiter) = asked();
        drop(waiter);
        assert!(before.is_over());
        before.fill(answer.clone());
        let (after, waiter) = asked();
        after.fill(answer.clone());
        drop(waiter);
        assert_eq!(Arc::strong_count(&answer), 1);
    }
}
