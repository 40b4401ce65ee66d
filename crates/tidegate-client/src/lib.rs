//! A client of tidegate that decides on its own.
//!
//! For rules with `lease_to_clients: true` it takes hits ahead, for what its requests are likely to need, and spends them in this
//! process: a decision takes well below a microsecond, and one message per interval serves 200 keys. The server counts hits when
//! they are taken, so all clients together stay within the limit, whatever becomes of one of them. It asks for everything else.
//!
//! [`Client::ask`] and its kin always ask, and return all that the server answers: batches, charges and refunds, leases of
//! concurrency limits, headers. [`Pacer`] and [`Throttle`] are for callers of a service that is limited.
//!
//! ```no_run
//! # async fn example() -> Result<(), tidegate_client::Error> {
//! use tidegate_client::{Client, OnFailure};
//!
//! let client = Client::to("http://127.0.0.1:8080").domain("api").on_failure(OnFailure::Open).connect().await?;
//! if !client.check(&[("user", "42")]).await?.allowed {
//!     println!("later");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `docs/reference/leasing.md` has the protocol and what a limit costs that is lent.

mod ask;
mod client;
mod clock;
mod connection;
mod keys;
mod lease;
mod pacing;
mod purse;
mod random;
#[cfg(test)]
mod tests;
mod wire;

use std::time::Duration;

pub use ask::{Answer, Request};
pub use client::{Client, Key, Stats};
pub use lease::Lease;
pub use pacing::{Pacer, Throttle};

use client::Settings;
use connection::Connection;

/// The decision on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Who decided.
    pub source: Source,
    /// When a refused request passes at the earliest, if that is known.
    pub retry_after: Option<Duration>,
}

/// Who decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// This process: it held hits, or repeats a refusal.
    Held,
    /// The server, which was asked.
    Server,
    /// The client's own policy: the server did not answer.
    Policy,
}

/// What decides while the server does not answer, and no hits are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Allow.
    Open,
    /// Refuse.
    Closed,
    /// Allow as many hits, for each time that hits may be held, as the last take got.
    #[default]
    Local,
}

/// Why a client cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the client is wrong.
    #[error("{0}")]
    Setting(String),
    /// The server cannot be reached.
    #[error("cannot reach tidegate at {server}: {why}")]
    Unreachable {
        /// Its host and port.
        server: String,
        /// Why not.
        why: String,
    },
    /// The server does not take requests of this client.
    #[error("tidegate answers {status}: {detail}; hint: {hint}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What is wrong.
        detail: String,
        /// What to do.
        hint: String,
    },
}

/// The settings of a client.
#[derive(Clone)]
pub struct Builder {
    url: String,
    domain: String,
    token: Option<String>,
    authorities: Option<Vec<u8>>,
    on_failure: OnFailure,
    timeout: Duration,
    most_keys: usize,
    retries: u32,
}

impl Client {
    /// The settings of a client of the server at `url`, such as `http://127.0.0.1:8080`.
    pub fn to(url: impl Into<String>) -> Builder {
        Builder {
            url: url.into(),
            domain: "default".to_owned(),
            token: None,
            authorities: None,
            on_failure: OnFailure::default(),
            timeout: Duration::from_millis(250),
            most_keys: 100_000,
            retries: 0,
        }
    }
}

impl Builder {
    /// The domain whose rules apply.
    #[must_use]
    pub fn domain(self, domain: impl Into<String>) -> Self {
        Builder { domain: domain.into(), ..self }
    }

    /// One of the tokens under `access`, if the server wants one.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        Builder { token: Some(token.into()), ..self }
    }

    /// The authorities whose certificates are trusted, in PEM, in place of the system's.
    #[must_use]
    pub fn authorities(self, pem: impl Into<Vec<u8>>) -> Self {
        Builder { authorities: Some(pem.into()), ..self }
    }

    /// What decides while the server does not answer.
    #[must_use]
    pub fn on_failure(self, then: OnFailure) -> Self {
        Builder { on_failure: then, ..self }
    }

    /// How long an answer is awaited, retries included; 250 ms by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Builder { timeout, ..self }
    }

    /// How often to ask again within the time-out; 0 by default. Requests then carry an id, so that none is charged twice. A
    /// message that takes hits ahead is never repeated.
    #[must_use]
    pub fn retries(self, most: u32) -> Self {
        Builder { retries: most, ..self }
    }

    /// The most keys that are kept, 100,000 by default: about 500 bytes each. Requests of more are asked for.
    #[must_use]
    pub fn most_keys(self, most: usize) -> Self {
        Builder { most_keys: most, ..self }
    }

    /// Connects, and asks the server whether it takes this client's requests.
    ///
    /// # Errors
    /// When a setting is wrong, the server cannot be reached or has another certificate, or refuses the token or the domain.
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.start()?;
        client.greet().await?;
        Ok(client)
    }

    /// A client that connects with its first request: a server that is down at that time is left to [`OnFailure`]. Call it within
    /// a tokio runtime.
    ///
    /// # Errors
    /// When a setting is wrong.
    pub fn start(self) -> Result<Client, Error> {
        let Builder { url, domain, token, authorities, on_failure, timeout, most_keys, retries } = self;
        let connection = Connection::new(&url, token.as_deref(), authorities.as_deref(), timeout)?;
        Ok(Client::start(Settings { domain, on_failure, most_keys, retries }, connection))
    }
}
