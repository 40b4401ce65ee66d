//! Leases that their holders end or prolong.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_store::{Clock as _, Reply, StoreError};

use tidegate_rules::Match;

use crate::lease::LeaseToken;
use crate::limiter::Limiter;
use crate::observer::{Settled, Settlement, StoreCall};
use crate::owned::OwnedLease;
use crate::remote::{Kept, Remote};

/// Why a lease could not be renewed or released.
#[derive(Debug)]
#[non_exhaustive]
pub enum LeaseError {
    /// It had ended already, by its time to live or by a release.
    Ended,
    /// The store did not answer.
    Store(StoreError),
}

impl fmt::Display for LeaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseError::Ended => f.write_str("the lease has ended"),
            LeaseError::Store(error) => error.fmt(f),
        }
    }
}

impl Error for LeaseError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LeaseError::Ended => None,
            LeaseError::Store(error) => error.source(),
        }
    }
}

impl From<StoreError> for LeaseError {
    fn from(error: StoreError) -> Self {
        LeaseError::Store(error)
    }
}

impl Limiter {
    /// Ends the leases of a request that is done. A store that does not answer is told as soon as it does.
    ///
    /// # Errors
    /// When they had all ended already.
    pub async fn release(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        // Over a network they end one after the other, and whoever asks in between finds room under one limit alone.
        if self.remote.is_some() && token.leases().nth(1).is_some() {
            return self.release_parts(token).await;
        }
        let asked_at = self.clock.now();
        if !self.release_each(token).await? {
            return Err(LeaseError::Ended);
        }
        self.settled(Settlement::Released(token), asked_at, &[]);
        Ok(())
    }

    async fn release_parts(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        let (mut ended, last) = (false, token.leases().count() - 1);
        for (number, part) in token.parts().enumerate() {
            let asked_at = self.clock.now();
            ended |= self.release_each(&part).await?;
            match number == last {
                _ if !ended => {}
                true => self.settled(Settlement::Released(token), asked_at, &[]),
                false => self.settled(Settlement::ReleasedPart(&part), asked_at, &[]),
            }
        }
        if ended { Ok(()) } else { Err(LeaseError::Ended) }
    }

    /// Whether one of them had not ended yet. One that waits for the store to hear of it has ended: who releases it once more
    /// is told so, as it would be if the store had answered.
    async fn release_each(&self, token: &LeaseToken) -> Result<bool, LeaseError> {
        let (mut ended, mut forgotten) = (false, None);
        for lease in token.leases() {
            // One that this node gave itself lives here.
            ended |= self.local.release(lease)
                || match &self.remote {
                    None => self.store.release(lease).answer().await?,
                    Some(remote) => {
                        let lease = OwnedLease::new(&lease);
                        match remote.release(lease.clone()).await {
                            Ok(ended) => ended,
                            Err(error) => {
                                let kept = remote.orphans.keep(lease);
                                forgotten = (kept == Kept::NoRoom).then_some(error).or(forgotten);
                                kept == Kept::New
                            }
                        }
                    }
                };
        }
        match forgotten {
            // It goes on until its time to live is over.
            Some(error) if !ended => Err(error.into()),
            _ => Ok(ended),
        }
    }

    /// Ends them at once where the store answers at once, as memory does: false if somebody must wait for one of them, which
    /// [`Limiter::release`] does.
    pub fn release_now(&self, token: &LeaseToken) -> bool {
        let (mut ended, asked_at) = (false, self.clock.now());
        // One that would take its time is not asked: its answer is dropped before anybody has waited for it.
        let in_store = |lease| match self.store.release(lease) {
            Reply::Now(Ok(ended)) => Some(ended),
            _ => None,
        };
        let done = token.leases().all(|lease| {
            let here = self.local.release(lease).then_some(true);
            let answer = here.or_else(|| if self.remote.is_none() { in_store(lease) } else { None });
            ended |= answer == Some(true);
            answer.is_some()
        });
        if done && ended {
            self.settled(Settlement::Released(token), asked_at, &[]);
        }
        done
    }

    /// The same without anybody waiting for it, on any thread: by a task of the limiter's runtime or, where that runs none,
    /// by the background in its next round.
    pub fn release_soon(&self, token: &LeaseToken) {
        let (asked_at, mut ended) = (self.clock.now(), false);
        for lease in token.leases() {
            ended |= self.local.release(lease)
                || match &self.remote {
                    Some(remote) => remote.orphans.keep(OwnedLease::new(&lease)) == Kept::New,
                    // A store in memory has done it by now; of one that has not, the lease's time to live is left.
                    None => {
                        drop(self.store.release(lease));
                        true
                    }
                };
        }
        if let Some(remote) = self.remote.clone().filter(|remote| remote.orphans.len() > 0) {
            remote.clone().spawn(Box::pin(async move { remote.give_orphans_back().await }));
        }
        // Whether it had ended before only the store knows, which is asked later: to end it once more changes nothing.
        if ended {
            self.settled(Settlement::Released(token), asked_at, &[]);
        }
    }

    /// Gives the leases of a request that goes on another time to live.
    ///
    /// # Errors
    /// When one of them had ended already, or the store did not answer.
    pub async fn renew(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        let (asked_at, mut any) = (self.clock.now(), false);
        let renewed = self.renew_each(token, &mut any).await;
        // What was renewed before one had ended lives on.
        if any {
            self.settled(Settlement::Renewed(token), asked_at, &[]);
        }
        renewed
    }

    async fn renew_each(&self, token: &LeaseToken, any: &mut bool) -> Result<(), LeaseError> {
        for lease in token.leases() {
            let renewed = self.local.renew(lease)
                || match &self.remote {
                    None => self.store.renew(lease).answer().await?,
                    Some(remote) => remote.renew(OwnedLease::new(&lease)).await?,
                };
            if !renewed {
                return Err(LeaseError::Ended);
            }
            *any = true;
        }
        Ok(())
    }

    pub(crate) fn settled(&self, how: Settlement<'_>, asked_at: Timestamp, matches: &[Match<'_>]) {
        self.observer.settled(&Settled { how, asked_at, matches });
    }
}

impl Remote {
    pub(crate) async fn release(self: &Arc<Self>, lease: OwnedLease) -> Result<bool, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([lease.cell.key().tag].into_iter()));
        let work = async move { store.release(lease.as_lease()).answer().await };
        self.run(StoreCall::Release, nodes, work).await
    }

    async fn renew(self: &Arc<Self>, lease: OwnedLease) -> Result<bool, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([lease.cell.key().tag].into_iter()));
        let work = async move { store.renew(lease.as_lease()).answer().await };
        self.run(StoreCall::Renew, nodes, work).await
    }
}
