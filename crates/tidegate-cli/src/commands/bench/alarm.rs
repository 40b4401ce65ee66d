//! Wakes a thread's lanes when their next request is due, within a few microseconds.
//!
//! Tokio's timers count in whole milliseconds, ten times what a decision takes: an open loop paced by them would
//! report its own lateness as the server's. One timer descriptor per thread serves all its lanes.

#[cfg(target_os = "linux")]
pub(super) use precise::Alarm;

#[cfg(not(target_os = "linux"))]
pub(super) use coarse::Alarm;

#[cfg(target_os = "linux")]
mod precise {
    use std::collections::VecDeque;
    use std::fs::File;
    use std::future::poll_fn;
    use std::io;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::task::{Poll, Waker};
    use std::time::{Duration, Instant};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::net::unix::pipe;

    use crate::clock;

    /// One thread's timer.
    #[derive(Debug)]
    pub(in super::super) struct Alarm {
        /// A timer's descriptor becomes readable when it fires. Tokio can wrap a read-only descriptor as a pipe; its general
        /// wrapper would need `unsafe`.
        timer: pipe::Receiver,
        /// The waiting lanes, next due first: a thread takes requests in the order they are due. At most one entry per lane,
        /// or two for a moment.
        waiting: Mutex<VecDeque<(Instant, Waker)>>,
    }

    impl Alarm {
        /// Must be called on the runtime whose lanes it wakes, which also runs [`Alarm::run`].
        pub(in super::super) fn new() -> io::Result<Arc<Alarm>> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = File::from(timerfd_create(TimerfdClockId::Monotonic, flags)?);
            let timer = pipe::Receiver::from_file_unchecked(timer)?;
            Ok(Arc::new(Alarm { timer, waiting: Mutex::new(VecDeque::new()) }))
        }

        /// Returns when it is `due`.
        pub(in super::super) async fn until(&self, due: Instant) {
            poll_fn(|context| {
                let now = clock::now();
                if now >= due {
                    return Poll::Ready(());
                }
                let mut waiting = self.waiting();
                let is_next = waiting.is_empty();
                waiting.push_back((due, context.waker().clone()));
                if is_next {
                    self.set(due - now);
                }
                Poll::Pending
            })
            .await;
        }

        /// Wakes lanes that are due, until dropped.
        pub(in super::super) async fn run(&self) -> io::Result<()> {
            loop {
                self.timer.readable().await?;
                // The count is not needed, but reading it makes the descriptor unreadable again.
                let _ = self.timer.try_read(&mut [0; 8]);
                let now = clock::now();
                let mut waiting = self.waiting();
                while waiting.front().is_some_and(|(due, _)| *due <= now) {
                    let (_, waker) = waiting.pop_front().expect("there is a front");
                    waker.wake();
                }
                if let Some((due, _)) = waiting.front() {
                    self.set(*due - now);
                }
            }
        }

        fn set(&self, after: Duration) {
            let seconds = i64::try_from(after.as_secs()).expect("a run is an hour at most");
            // All zeros would switch the timer off.
            let nanos = i64::from(after.subsec_nanos()).max(1);
            let spec = Itimerspec {
                it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: Timespec { tv_sec: seconds, tv_nsec: nanos },
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)
                .expect("a timer takes any span below an hour");
        }

        fn waiting(&self) -> MutexGuard<'_, VecDeque<(Instant, Waker)>> {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod coarse {
    use std::future::pending;
    use std::io;
    use std::sync::Arc;
    use std::time::Instant;

    /// Tokio's own timer, on other systems: latencies below a millisecond are then not reliable.
    #[derive(Debug)]
    pub(in super::super) struct Alarm;

    impl Alarm {
        pub(in super::super) fn new() -> io::Result<Arc<Alarm>> {
            Ok(Arc::new(Alarm))
        }

        pub(in super::super) async fn until(&self, due: Instant) {
            tokio::time::sleep_until(due.into()).await;
        }

        pub(in super::super) async fn run(&self) -> io::Result<()> {
            pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;

    #[tokio::test]
    async fn lanes_wake_in_order_and_never_early() {
        let alarm = Alarm::new().unwrap();
        let runner = tokio::spawn({
            let alarm = alarm.clone();
            async move { alarm.run().await }
        });
        let start = clock::now();
        let dues: Vec<_> = (0..5).map(|step| start + Duration::from_millis(step * 3)).collect();
        let lanes: Vec<_> = dues
            .iter()
            .map(|due| {
                let (alarm, due) = (alarm.clone(), *due);
                tokio::spawn(async move {
                    alarm.until(due).await;
                    clock::now()
                })
            })
            .collect();
        for (lane, due) in lanes.into_iter().zip(dues) {
            assert!(lane.await.unwrap() >= due);
        }
        runner.abort();
    }
}
