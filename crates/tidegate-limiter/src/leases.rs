//! Release and renewal of leases.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_store::{Clock as _, Reply, Stamped, StoreError};

use tidegate_rules::Match;

use crate::cell::KeptLease;
use crate::lease::issued::StoreKnows;
use crate::lease::pending::Kept;
use crate::lease::{LeaseToken, LeaseTokenError, read_lease};
use crate::limiter::Limiter;
use crate::observer::{Settled, Settlement, StoreCall};
use crate::remote::Remote;

/// Why a lease could not be renewed or released.
#[derive(Debug)]
#[non_exhaustive]
pub enum LeaseError {
    /// It had ended already, by its time to live or a release.
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

/// When something was requested, by this node's clock, and when the store did it, by its own.
pub(crate) type Times = (Timestamp, Option<Timestamp>);

impl Limiter {
    /// Parses a lease from the text form of a decision's lease.
    ///
    /// # Errors
    /// When it is not a lease, or not signed by a node of this fleet.
    pub fn read_lease(&self, text: &str) -> Result<LeaseToken, LeaseTokenError> {
        read_lease(text, self.lease_ids.keys(), &self.hasher)
    }

    /// Releases the leases of a request that is done. A store that does not answer is retried in the background.
    ///
    /// # Errors
    /// When they had all ended already.
    pub async fn release(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        // They end one after the other; in between, other requests find room under only one of the limits.
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

    /// Reports that one lease of a request has ended, if any has so far.
    fn tell_part(&self, whole: &LeaseToken, part: &LeaseToken, is_last: bool, ended: bool, when: Times) {
        match is_last {
            _ if !ended => {}
            true => self.settled(Settlement::Released(whole), when, &[]),
            false => self.settled(Settlement::ReleasedPart(part), when, &[]),
        }
    }

    /// Whether any had not ended yet, and when the store ended the last. A lease whose release is queued for the store counts
    /// as ended: releasing it again fails as it would had the store answered.
    async fn release_each(&self, token: &LeaseToken) -> Result<Stamped<bool>, LeaseError> {
        let (mut ended, mut forgotten) = (Stamped::default(), None);
        for lease in token.leases() {
            // A lease issued by this node lives here, and in the store once handed over.
            if self.local.release(&lease) {
                ended.value = true;
                if self.local.lent.end(&lease) != Some(StoreKnows::Yes) {
                    continue;
                }
            }
            let released = match &self.remote {
                None => self.store.release(lease.as_ref()).answer().await?,
                Some(remote) => match remote.release(lease.clone()).await {
                    Ok(released) => released,
                    Err(error) => {
                        let kept = remote.orphans.keep(lease);
                        forgotten = (kept == Kept::NoRoom).then_some(error).or(forgotten);
                        Stamped { value: kept == Kept::New, at: None }
                    }
                },
            };
            ended = Stamped { value: ended.value || released.value, at: released.at };
        }
        match forgotten {
            // It lives until its time to live ends.
            Some(error) if !ended.value => Err(error.into()),
            _ => Ok(ended),
        }
    }

    /// Releases at once if the store answers at once, as memory does: false if a lease needs waiting, which
    /// [`Limiter::release`] does.
    pub fn release_now(&self, token: &LeaseToken) -> bool {
        let (last, mut ended) = (token.leases().count().saturating_sub(1), false);
        let mut release = |part: &LeaseToken, number: usize| {
            let asked_at = self.clock.now();
            let Some(released) = part.leases().next().and_then(|lease| self.release_one_now(&lease)) else {
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

    /// Whether a lease had not ended yet; `None` if that needs waiting.
    fn release_one_now(&self, lease: &KeptLease) -> Option<Stamped<bool>> {
        if self.local.lent.get(lease) == Some(StoreKnows::Yes) {
            return None;
        }
        if self.local.release(lease) {
            self.local.lent.end(lease);
            return Some(Stamped { value: true, at: None });
        }
        // A call that is not immediate is dropped before it is polled, so it is never sent.
        match self.remote.is_none().then(|| self.store.release(lease.as_ref()))? {
            Reply::Now(Ok(released)) => Some(released),
            _ => None,
        }
    }

    /// Releases in the background, from any thread: by a task on the limiter's runtime or, if that runs none, in the next
    /// round of the background task.
    pub fn release_soon(&self, token: &LeaseToken) {
        let (asked_at, mut ended) = (self.clock.now(), false);
        for lease in token.leases() {
            let is_here_alone =
                self.local.release(&lease) && self.local.lent.end(&lease) != Some(StoreKnows::Yes);
            ended |= is_here_alone
                || match &self.remote {
                    Some(remote) => remote.orphans.keep(lease) == Kept::New,
                    // An in-memory store is done by now; with any other, the lease ends by its time to live.
                    None => {
                        drop(self.store.release(lease.as_ref()));
                        true
                    }
                };
        }
        if let Some(remote) = self.remote.clone().filter(|remote| remote.orphans.len() > 0) {
            remote.clone().spawn(Box::pin(async move { remote.give_orphans_back().await }));
        }
        // Only the store knows whether it had ended before, and it is asked later: ending it again changes nothing.
        if ended {
            self.settled(Settlement::Released(token), (asked_at, None), &[]);
        }
    }

    /// Renews the leases of a request for another time to live.
    ///
    /// # Errors
    /// When one of them had ended already, or the store did not answer.
    pub async fn renew(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        let (asked_at, mut any) = (self.clock.now(), Stamped::default());
        let renewed = self.renew_each(token, &mut any).await;
        // Leases renewed before one that had ended live on.
        if any.value {
            self.settled(Settlement::Renewed(token), (asked_at, any.at), &[]);
        }
        renewed
    }

    /// Sets `any` to whether one of them was renewed, and when the store renewed the last.
    async fn renew_each(&self, token: &LeaseToken, any: &mut Stamped<bool>) -> Result<(), LeaseError> {
        for lease in token.leases() {
            let is_here = self.local.renew(&lease);
            let renewed = match &self.remote {
                _ if is_here && self.local.lent.get(&lease) != Some(StoreKnows::Yes) => {
                    Stamped { value: true, at: None }
                }
                None => self.store.renew(lease.as_ref()).answer().await?,
                Some(remote) => remote.renew(lease).await?,
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
    async fn release(self: &Arc<Self>, lease: KeptLease) -> Result<Stamped<bool>, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([lease.cell.tag()].into_iter()));
        let work = async move { store.release(lease.as_ref()).answer().await };
        self.run(StoreCall::Release, nodes, work).await
    }

    async fn renew(self: &Arc<Self>, lease: KeptLease) -> Result<Stamped<bool>, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([lease.cell.tag()].into_iter()));
        let work = async move { store.renew(lease.as_ref()).answer().await };
        self.run(StoreCall::Renew, nodes, work).await
    }
}
