//! Leases that their holders end or prolong.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_store::{Clock as _, LeaseRef, Reply, Stamped, StoreError};

use tidegate_rules::Match;

use crate::lease::LeaseToken;
use crate::limiter::Limiter;
use crate::local::lent::StoreKnows;
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

/// When something was asked for, by this node's clock, and when the store did it, by its own.
pub(crate) type Times = (Timestamp, Option<Timestamp>);

impl Limiter {
    /// Ends the leases of a request that is done. A store that does not answer is told as soon as it does.
    ///
    /// # Errors
    /// When they had all ended already.
    pub async fn release(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        // They end one after the other, and whoever asks in between finds room under one limit alone.
        if token.leases().nth(1).is_some() {
            return self.release_parts(token).await;
        }
        let asked_at = self.clock.now();
        let Stamped { value: ended, at } = self.release_each(token).await?;
        if !ended {
            return Err(LeaseError::Ended);
        }
        self.settled(Settlement::Released(token), (asked_at, at), &[]);
        Ok(())
    }

    async fn release_parts(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        let (mut ended, last) = (false, token.leases().count() - 1);
        for (number, part) in token.parts().enumerate() {
            let asked_at = self.clock.now();
            let released = self.release_each(&part).await?;
            ended |= released.value;
            self.tell_part(token, &part, number == last, ended, (asked_at, released.at));
        }
        if ended { Ok(()) } else { Err(LeaseError::Ended) }
    }

    /// Tells that one of the leases of a request has ended, if any has so far.
    fn tell_part(&self, whole: &LeaseToken, part: &LeaseToken, is_last: bool, ended: bool, when: Times) {
        match is_last {
            _ if !ended => {}
            true => self.settled(Settlement::Released(whole), when, &[]),
            false => self.settled(Settlement::ReleasedPart(part), when, &[]),
        }
    }

    /// Whether one of them had not ended yet, and when the store ended the last of them. One that waits for the store to hear of it has ended: who releases it once more
    /// is told so, as it would be if the store had answered.
    async fn release_each(&self, token: &LeaseToken) -> Result<Stamped<bool>, LeaseError> {
        let (mut ended, mut forgotten) = (Stamped::default(), None);
        for lease in token.leases() {
            // One that this node gave itself lives here, and in the store once that knows of it.
            if self.local.release(lease) {
                ended.value = true;
                if self.local.lent.end(&lease) != Some(StoreKnows::Yes) {
                    continue;
                }
            }
            let released = match &self.remote {
                None => self.store.release(lease).answer().await?,
                Some(remote) => {
                    let lease = OwnedLease::new(&lease);
                    match remote.release(lease.clone()).await {
                        Ok(released) => released,
                        Err(error) => {
                            let kept = remote.orphans.keep(lease);
                            forgotten = (kept == Kept::NoRoom).then_some(error).or(forgotten);
                            Stamped { value: kept == Kept::New, at: None }
                        }
                    }
                }
            };
            ended = Stamped { value: ended.value || released.value, at: released.at };
        }
        match forgotten {
            // It goes on until its time to live is over.
            Some(error) if !ended.value => Err(error.into()),
            _ => Ok(ended),
        }
    }

    /// Ends them at once where the store answers at once, as memory does: false if somebody must wait for one of them, which
    /// [`Limiter::release`] does.
    pub fn release_now(&self, token: &LeaseToken) -> bool {
        let (last, mut ended) = (token.leases().count().saturating_sub(1), false);
        let mut release = |part: &LeaseToken, number: usize| {
            let asked_at = self.clock.now();
            let Some(released) = part.leases().next().and_then(|lease| self.release_one_now(lease)) else {
                return false;
            };
            ended |= released.value;
            self.tell_part(token, part, number == last, ended, (asked_at, released.at));
            true
        };
        if last == 0 {
            return release(token, 0);
        }
        token.parts().enumerate().all(|(number, part)| release(&part, number))
    }

    /// Whether a lease had not ended yet; none if somebody would have to wait for that.
    fn release_one_now(&self, lease: LeaseRef<'_>) -> Option<Stamped<bool>> {
        if self.local.lent.get(&lease) == Some(StoreKnows::Yes) {
            return None;
        }
        if self.local.release(lease) {
            self.local.lent.end(&lease);
            return Some(Stamped { value: true, at: None });
        }
        // One that would take its time is not asked: its answer is dropped before anybody has waited for it.
        match self.remote.is_none().then(|| self.store.release(lease))? {
            Reply::Now(Ok(released)) => Some(released),
            _ => None,
        }
    }

    /// The same without anybody waiting for it, on any thread: by a task of the limiter's runtime or, where that runs none,
    /// by the background in its next round.
    pub fn release_soon(&self, token: &LeaseToken) {
        let (asked_at, mut ended) = (self.clock.now(), false);
        for lease in token.leases() {
            let is_here_alone =
                self.local.release(lease) && self.local.lent.end(&lease) != Some(StoreKnows::Yes);
            ended |= is_here_alone
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
            self.settled(Settlement::Released(token), (asked_at, None), &[]);
        }
    }

    /// Gives the leases of a request that goes on another time to live.
    ///
    /// # Errors
    /// When one of them had ended already, or the store did not answer.
    pub async fn renew(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        let (asked_at, mut any) = (self.clock.now(), Stamped::default());
        let renewed = self.renew_each(token, &mut any).await;
        // What was renewed before one had ended lives on.
        if any.value {
            self.settled(Settlement::Renewed(token), (asked_at, any.at), &[]);
        }
        renewed
    }

    /// Says in `any` whether one of them was renewed, and when the store renewed the last.
    async fn renew_each(&self, token: &LeaseToken, any: &mut Stamped<bool>) -> Result<(), LeaseError> {
        for lease in token.leases() {
            let is_here = self.local.renew(lease);
            let renewed = match &self.remote {
                _ if is_here && self.local.lent.get(&lease) != Some(StoreKnows::Yes) => {
                    Stamped { value: true, at: None }
                }
                None => self.store.renew(lease).answer().await?,
                Some(remote) => remote.renew(OwnedLease::new(&lease)).await?,
            };
            if !renewed.value {
                return Err(LeaseError::Ended);
            }
            *any = renewed;
        }
        Ok(())
    }

    pub(crate) fn settled(&self, how: Settlement<'_>, (asked_at, done_at): Times, matches: &[Match<'_>]) {
        self.observer.settled(&Settled { how, asked_at, done_at, matches });
    }
}

impl Remote {
    async fn release(self: &Arc<Self>, lease: OwnedLease) -> Result<Stamped<bool>, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([lease.cell.key().tag].into_iter()));
        let work = async move { store.release(lease.as_lease()).answer().await };
        self.run(StoreCall::Release, nodes, work).await
    }

    async fn renew(self: &Arc<Self>, lease: OwnedLease) -> Result<Stamped<bool>, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([lease.cell.key().tag].into_iter()));
        let work = async move { store.renew(lease.as_lease()).answer().await };
        self.run(StoreCall::Renew, nodes, work).await
    }
}
