//! Holds a lease as long as it is needed: renewed in time, and released however its holder ends.
//!
//! A holder only has to be dropped, and that is what a finished body, a failed handler and a panic have in common. Where a
//! disconnected client ends the work (a handler in this process, which is dropped with it), it also ends the hold; where
//! the work goes on elsewhere, the holder waits for it, for [`Held::outlives_client`] at most, unless the rule says
//! otherwise ([`Held::client_left`]).
//!
//! On the memory store the slot is free at once; otherwise the task that renews the lease releases it. If the process dies,
//! the lease expires by its time to live.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_limiter::{LeaseError, LeaseToken, Limiter, Permit, Runtime};
use tokio::sync::oneshot;

/// What a request holds until its response has been sent: a lease, and its slot among the workers of the service behind.
#[derive(Debug, Default)]
pub struct Held {
    pub(crate) lease: Mutex<Option<Hold>>,
    pub(crate) permit: Option<Permit>,
}

impl Held {
    /// Whether the service's answer time is observed.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.permit.is_some()
    }

    /// Records how long the service took to answer.
    pub fn answered(&self, took: Micros) {
        self.permit.iter().for_each(|place| place.answered(took));
    }

    /// How long a service that works on may keep the slot once its client has left; `None` if there is no slot.
    ///
    /// As long as a lease lives without being renewed: a service that takes longer is not waited for either.
    #[must_use]
    pub fn outlives_client(&self) -> Option<Duration> {
        let hold = self.lease();
        let lease = hold.as_ref().filter(|hold| !hold.lease.ends_with_client());
        let lease = lease.map(|hold| hold.lease.longest_ttl().into());
        lease.or_else(|| self.permit.as_ref().map(|_| WORKER_PATIENCE))
    }

    /// Releases the lease, if that is what its rule asks for when the client hangs up. A worker behind stays busy.
    pub fn client_left(&self) {
        let released = self.lease().take_if(|hold| hold.lease.ends_with_client());
        drop(released);
    }

    fn lease(&self) -> MutexGuard<'_, Option<Hold>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that waits for its turn keeps no worker busy.
    pub(crate) fn step_aside(&mut self) {
        self.permit.iter_mut().for_each(Permit::step_aside);
    }

    pub(crate) fn come_back(&mut self) {
        self.permit.iter_mut().for_each(Permit::come_back);
    }
}

/// How long a worker of the service behind counts as busy with a request whose client has left.
const WORKER_PATIENCE: Duration = Duration::from_secs(60);

/// Holds a lease until it is dropped.
#[derive(Debug)]
pub struct Hold {
    limiter: Arc<Limiter>,
    lease: LeaseToken,
    /// Dropping it ends the task; a message says that nothing is left to release.
    task: Option<oneshot::Sender<Released>>,
}

#[derive(Debug)]
struct Released;

impl Hold {
    /// Holds `lease` of `limiter`, with a task on `runtime`.
    #[must_use]
    pub fn new(limiter: Arc<Limiter>, runtime: Arc<dyn Runtime>, lease: LeaseToken) -> Self {
        let (sender, dropped) = oneshot::channel();
        let task = renew_until_dropped(limiter.clone(), runtime.clone(), lease.clone(), dropped);
        runtime.spawn(Box::pin(task));
        Hold { limiter, lease, task: Some(sender) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.limiter.release_now(&self.lease)
            && let Some(task) = self.task.take()
        {
            // The task may already have ended.
            let _ = task.send(Released);
        }
    }
}

async fn renew_until_dropped(
    limiter: Arc<Limiter>,
    runtime: Arc<dyn Runtime>,
    lease: LeaseToken,
    mut dropped: oneshot::Receiver<Released>,
) {
    // Two renewals may fail before the lease expires.
    let pause = Micros::new((lease.ttl().get() / 3).max(1));
    loop {
        tokio::select! {
            biased;
            released = &mut dropped => match released {
                Ok(Released) => return,
                Err(_) => break,
            },
            () = runtime.sleep(pause) => {}
        }
        // A store that does not answer may answer next time. An ended lease cannot be renewed, and need not be released.
        if let Err(LeaseError::Ended) = limiter.renew(&lease).await {
            return;
        }
    }
    // An ended lease is as good as released, and the limiter itself retries if the store is unavailable.
    let _ = limiter.release(&lease).await;
}
