//! A slot of a concurrency limit, held for as long as its guard lives.

use tokio::runtime::Handle;

use crate::ask::{Answer, Request};
use crate::{Client, Error, wire};

/// Holds a slot of a concurrency limit, if its answer has one. When it is dropped within a tokio runtime, the slot is released in
/// the background; a release that fails leaves it to its time to live.
#[must_use = "the slot is released when this is dropped"]
pub struct Lease {
    client: Client,
    answer: Answer,
    token: Option<String>,
}

impl Client {
    /// Asks for one request, and holds the slots of the concurrency limits that it takes while the guard lives. Ask the guard's
    /// [answer](Lease::answer) whether it was allowed.
    ///
    /// # Errors
    /// As [`Client::check`].
    pub async fn lease(&self, request: &Request) -> Result<Lease, Error> {
        let answer = self.ask(request).await?;
        Ok(Lease { client: self.clone(), token: answer.lease.clone(), answer })
    }
}

impl Lease {
    /// Whether the request may pass, and its numbers.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Gives the slot another time to live, for a request that takes long.
    ///
    /// # Errors
    /// When the server does not answer; with status 410, when it is over.
    pub async fn renew(&self) -> Result<(), Error> {
        match &self.token {
            Some(token) => self.client.tell("/v1/renew", wire::lease(token)).await,
            None => Ok(()),
        }
    }

    /// Releases the slot, and waits until that is done.
    ///
    /// # Errors
    /// When the server does not answer: the slot is free when its time to live is over.
    pub async fn release(mut self) -> Result<(), Error> {
        match self.token.take() {
            Some(token) => self.client.tell("/v1/release", wire::lease(&token)).await,
            None => Ok(()),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (Some(token), Ok(runtime)) = (self.token.take(), Handle::try_current()) else { return };
        let client = self.client.clone();
        runtime.spawn(async move { client.tell("/v1/release", wire::lease(&token)).await.ok() });
    }
}
