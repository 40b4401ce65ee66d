//! One request slot of a connection: takes requests from the schedule, and records their outcomes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::alarm::Alarm;
use super::payload::{Dice, Payloads};
use super::plan::Plan;
use super::schedule::Schedule;
use super::tally::{Outcome, Tally, Trouble};
use crate::clock;

/// Shared by all lanes of one thread.
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) plan: Arc<Plan>,
    pub(super) payloads: Payloads,
    pub(super) schedule: Arc<Schedule>,
    pub(super) alarm: Arc<Alarm>,
    /// The number of requests answered in the whole run, for the progress bar.
    pub(super) answered: Arc<AtomicU64>,
    /// Only this thread's lanes lock it, so it is never contended.
    pub(super) tally: Mutex<Tally>,
}

/// The pause between attempts to reconnect.
const RECONNECT_AFTER: Duration = Duration::from_millis(50);

impl Crew {
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_over(&self) -> bool {
        self.schedule.is_over(clock::now())
    }

    /// A connection; `None` after recording that there is none.
    pub(super) async fn connect(&self) -> Option<TcpStream> {
        let connecting = async {
            let stream = TcpStream::connect(self.plan.address).await?;
            stream.set_nodelay(true)?;
            io::Result::Ok(stream)
        };
        match timeout(self.plan.timeout, connecting).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => self.connect_failed(|| error.to_string()).await,
            Err(_) => self.connect_failed(|| "no answer to the connection attempt".to_owned()).await,
        }
        None
    }

    /// Records that there is no connection, and waits a little.
    pub(super) async fn connect_failed(&self, complaint: impl FnOnce() -> String) {
        {
            let mut tally = self.tally();
            tally.trouble(Trouble::Connect);
            tally.complain(complaint);
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

#[derive(Debug)]
pub(super) struct Lane {
    crew: Arc<Crew>,
    dice: Dice,
}

/// A request to send now, and when it was due.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) request: Bytes,
    pub(super) due: Instant,
}

impl Lane {
    pub(super) fn new(crew: Arc<Crew>, number: u64) -> Lane {
        Lane { crew, dice: Dice::for_lane(number) }
    }

    pub(super) fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Waits until the next request is due; `None` when the run is over.
    pub(super) async fn next(&mut self) -> Option<Assignment> {
        let due = self.crew.schedule.take(clock::now())?;
        self.crew.alarm.until(due).await;
        Some(Assignment { request: self.crew.payloads.draw(&mut self.dice), due })
    }

    /// The next request, if it is already due.
    pub(super) fn next_if_due(&mut self) -> Option<Assignment> {
        let due = self.crew.schedule.take_if_due(clock::now())?;
        Some(Assignment { request: self.crew.payloads.draw(&mut self.dice), due })
    }

    pub(super) fn book(&self, due: Instant, outcome: Outcome) {
        self.crew.answered.fetch_add(1, Ordering::Relaxed);
        if self.crew.schedule.counts(due) {
            self.crew.tally().record(outcome, due, clock::now());
        }
    }
}
