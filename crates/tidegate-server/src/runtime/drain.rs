//! The one-way signal that asks every connection to finish.

use tokio::sync::watch;

/// Says when a connection should finish.
#[derive(Clone, Debug)]
pub struct Drain(watch::Receiver<bool>);

impl Drain {
    /// Completes once the data plane drains; at once if it already does.
    pub async fn requested(mut self) {
        // An error means that the data plane is gone, and with it every reason to go on.
        let _ = self.0.wait_for(|draining| *draining).await;
    }
}

pub(super) struct Trigger(watch::Sender<bool>);

impl Trigger {
    pub(super) fn fire(&self) {
        self.0.send_replace(true);
    }
}

pub(super) fn channel() -> (Trigger, Drain) {
    let (sender, receiver) = watch::channel(false);
    (Trigger(sender), Drain(receiver))
}
