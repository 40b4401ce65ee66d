//! Where counters live, and how a store over a network is used.
//!
//! An address may hold a password, so no message here repeats any part of one that has somebody log in.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use tidegate_store_redis::{Credentials, TlsFiles, UrlError};

use super::config;
use super::values::{Count, Span};
use crate::failure::Failure;

/// Where counters live, and how a store over a network is used; nothing stands for the part's own default.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoreSettings {
    pub(crate) url: StoreUrl,
    pub(crate) timeout: Option<Duration>,
    pub(crate) breaker_failures: Option<NonZeroU32>,
    pub(crate) breaker_open_for: Option<Duration>,
    pub(crate) key_prefix: Option<String>,
    pub(crate) tls: TlsFiles,
    pub(crate) sentinel: Credentials,
}

/// Where counters live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// This process's memory.
    Memory,
    /// One Redis, or several in one of the ways they can belong together.
    Redis(tidegate_store_redis::StoreUrl),
}

impl StoreSettings {
    pub(super) fn decide(store: config::Store) -> Result<Self, Failure> {
        let config::Store { url, timeout, breaker, key_prefix, tls, sentinel } = store;
        let failures = breaker.failures.map(|Count(failures)| {
            NonZeroU32::try_from(failures).map_err(|_| {
                Failure::new("store.breaker.failures: that many failures never come in a row")
                    .hint("use a small number; 3 is the default")
            })
        });
        Ok(StoreSettings {
            url: url.map_or(Ok(StoreUrl::Memory), |url| url.reveal().parse())?,
            timeout: timeout.map(|Span(timeout)| timeout),
            breaker_failures: failures.transpose()?,
            breaker_open_for: breaker.open_for.map(|Span(span)| span),
            key_prefix,
            tls: TlsFiles { ca: tls.ca, certificate: tls.certificate, key: tls.key },
            sentinel: Credentials {
                user: sentinel.user,
                password: sentinel.password.map(|password| password.reveal().to_owned()),
            },
        })
    }
}

impl FromStr for StoreUrl {
    type Err = Failure;

    fn from_str(url: &str) -> Result<Self, Failure> {
        match url {
            "memory:" | "memory" | "memory://" => Ok(StoreUrl::Memory),
            _ if url.starts_with("redis") => {
                url.parse().map(StoreUrl::Redis).map_err(|error| misread(url, &error))
            }
            _ => {
                let known =
                    url.split_once(':').map(|(scheme, _)| format!("unknown kind of store `{scheme}`"));
                Err(Failure::new(known.unwrap_or_else(|| "the store has no kind".to_owned())).hint(
                    "use memory:, which keeps counters in this process, or redis://host:port, redis+sentinel://…, \
                     redis+cluster://… or redis+sharded://…, which servers share",
                ))
            }
        }
    }
}

/// What is wrong with a URL. A stray `/` in a password makes what follows it look like a path, so where somebody logs
/// in only the part is named.
fn misread(url: &str, error: &UrlError) -> Failure {
    let UrlError { part, problem, hint } = error;
    if url.contains('@') {
        return Failure::new(format!("cannot read the {part} of the store's url")).hint(*hint).hint(
            "in a user name or a password write `/`, `?`, `#`, `@` and `%` as %2F, %3F, %23, %40 and %25",
        );
    }
    Failure::new(format!("cannot read the store's url: {part}: {problem}")).hint(*hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_an_address_never_shows_the_password() {
        for url in [
            "redis://user:hunter2@host:port",
            "redis://user:hunt/er2@host",
            "redis://user:er2#hunt@host",
            "redis://user:hunt?er2@host",
            "redis://:%hunter2@host",
            "redis+ring://user:hunter2@host",
            "redis+sentinel://user:hunter2@host",
            "redos://user:hunter2@host",
        ] {
            let failure = format!("{:?}", url.parse::<StoreUrl>().unwrap_err());
            assert!(!failure.contains("hunt") && !failure.contains("er2"), "{url}: {failure}");
        }
    }

    #[test]
    fn a_mistake_in_an_address_without_one_is_told_whole() {
        let failure = format!("{:?}", "redis://host:port".parse::<StoreUrl>().unwrap_err());
        assert!(failure.contains("port: `port` is not one"), "{failure}");
    }

    #[test]
    fn settings_shown_for_debugging_hold_no_password() {
        let store = config::Store {
            url: Some("redis://user:hunter2@host".parse().unwrap()),
            sentinel: config::Sentinel { password: Some("hunter2".parse().unwrap()), ..Default::default() },
            ..config::Store::default()
        };
        assert!(!format!("{store:?}").contains("hunter2"));
        assert!(!format!("{:?}", StoreSettings::decide(store).unwrap()).contains("hunter2"));
    }
}
