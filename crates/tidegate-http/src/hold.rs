//! A lease for as long as somebody needs it: renewed in time, and given back however its holder ends.
//!
//! Dropping is all that a holder must do, and dropping is what a finished body, a failed handler, a client that hung up and a
//! panic have in common. In memory the place is free by then; else the task that renews the lease releases it. Where the process
//! dies instead, the lease ends by its time to live.

use std::sync::Arc;

use tidegate_core::Micros;
use tidegate_limiter::{LeaseError, LeaseToken, Limiter, Permit, Runtime};
use tokio::sync::oneshot;

/// What a request keeps until its response has been sent: a lease, and its place among the workers of the service behind.
#[derive(Debug, Default)]
pub struct Held {
    pub(crate) lease: Option<Hold>,
    pub(crate) permit: Option<Permit>,
}

impl Held {
    /// Whether somebody wants to know how long the service took.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.permit.is_some()
    }

    /// The service answered so long after the request went to it.
    pub fn answered(&self, took: Micros) {
        self.permit.iter().for_each(|place| place.answered(took));
    }

    /// A request that waits for its turn keeps no worker busy.
    pub(crate) fn step_aside(&mut self) {
        self.permit.iter_mut().for_each(Permit::step_aside);
    }

    pub(crate) fn come_back(&mut self) {
        self.permit.iter_mut().for_each(Permit::come_back);
    }
}

/// Holds a lease until it is dropped.
#[derive(Debug)]
pub struct Hold {
    limiter: Arc<Limiter>,
    lease: LeaseToken,
    /// Dropped with this, which ends the task; sent to, where nothing is left for it to do.
    task: Option<oneshot::Sender<Released>>,
}

#[derive(Debug)]
struct Released;

impl Hold {
    /// Holds `lease`, which `limiter` gave, by a task on `runtime`.
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
            // A task that has ended already needs not be told.
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
    // Two renewals may fail before the lease ends.
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
        // A store that does not answer may answer next time. A lease that has ended cannot be renewed, and need not be
        // released.
        if let Err(LeaseError::Ended) = limiter.renew(&lease).await {
            return;
        }
    }
    // One that had ended is as good as released, and the limiter itself tries again where the store is away.
    let _ = limiter.release(&lease).await;
}
