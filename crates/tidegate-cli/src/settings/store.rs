//! The store of counters, and the settings of a remote one.
//!
//! An address may contain a password, so no message here repeats any part of one with a login.

use std::fmt;
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::str::FromStr;
use std::time::Duration;

use tidegate_http::answer::ClosedStatus;
use tidegate_store_redis::{Credentials, TlsFiles, Topology, Transport, UrlError};

use super::values::{Count, Secret, Span, Switch};
use super::{config, values};
use crate::failure::Failure;
use crate::stores::{Address, KINDS, Kind, Mistake};

/// The store of counters, and the settings of a remote one; `None` is the part's own default.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoreSettings {
    pub(crate) url: StoreUrl,
    /// Whether the server must not start without it.
    pub(crate) required: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) closed_status: ClosedStatus,
    pub(crate) breaker_failures: Option<NonZeroU32>,
    pub(crate) breaker_open_for: Option<Duration>,
    pub(crate) key_prefix: Option<String>,
    pub(crate) expected_nodes: Option<NonZeroU64>,
    pub(crate) remembered_cells: Option<NonZeroUsize>,
    pub(crate) lease_secret: Option<SharedSecret>,
    /// Signs what nodes tell each other; by default the secret of leases.
    pub(crate) fleet_secret: Option<SharedSecret>,
    pub(crate) tls: TlsFiles,
    pub(crate) sentinel: Credentials,
}

/// A secret that all nodes have, and Redis does not.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SharedSecret(Box<[u8]>);

impl SharedSecret {
    /// Who has one signature could guess a shorter key.
    const SHORTEST: usize = 16;

    /// What `field` has, if it has something.
    pub(super) fn read(field: &str, secret: Option<Secret>) -> Result<Option<Self>, Failure> {
        secret.map(|secret| SharedSecret::new(field, &secret)).transpose()
    }

    fn new(field: &str, secret: &Secret) -> Result<Self, Failure> {
        let secret = secret.reveal().as_bytes();
        if secret.len() < SharedSecret::SHORTEST {
            let what = format!("{field}: it has {} bytes, and needs at least 16", secret.len());
            return Err(
                Failure::new(what).hint("take 32 random ones, for instance of `openssl rand -hex 32`")
            );
        }
        Ok(SharedSecret(secret.into()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret")
    }
}

/// Where counters live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// This process's memory.
    Memory,
    /// One Redis, or several in one of the supported topologies.
    Redis(tidegate_store_redis::StoreUrl),
    /// Another store that nodes share.
    Shared(Address),
}

impl StoreSettings {
    pub(super) fn decide(store: config::Store) -> Result<Self, Failure> {
        let config::Store {
            url,
            password,
            required,
            timeout,
            closed_status,
            breaker,
            key_prefix,
            expected_nodes,
            remembered_cells,
            lease_secret,
            fleet_secret,
            tls,
            sentinel,
        } = store;
        let failures = breaker.failures.map(|Count(failures)| {
            NonZeroU32::try_from(failures).map_err(|_| {
                Failure::new("store.breaker.failures: that many failures never come in a row")
                    .hint("use a small number; 3 is the default")
            })
        });
        let url = match (&url, &password) {
            (Some(url), password) => StoreUrl::read(url, password.as_ref(), ("", "store.password"))?,
            (None, None) => StoreUrl::Memory,
            (None, Some(password)) => StoreUrl::Memory.with_password(password, "store.password")?,
        };
        let lease_secret = SharedSecret::read("store.lease_secret", lease_secret)?;
        let fleet_secret =
            SharedSecret::read("store.fleet_secret", fleet_secret)?.or_else(|| lease_secret.clone());
        Ok(StoreSettings {
            url,
            required: required.is_some_and(|Switch(required)| required),
            timeout: timeout.map(|Span(timeout)| timeout),
            closed_status: closed_status.map(|values::ClosedStatus(status)| status).unwrap_or_default(),
            breaker_failures: failures.transpose()?,
            breaker_open_for: breaker.open_for.map(|Span(span)| span),
            key_prefix,
            expected_nodes: expected_nodes.and_then(|Count(nodes)| NonZeroU64::try_from(nodes).ok()),
            remembered_cells: remembered_cells.map(|Count(cells)| cells),
            lease_secret,
            fleet_secret,
            tls: tls.files(),
            sentinel: sentinel.credentials(),
        })
    }
}

impl StoreUrl {
    /// The name of its kind, for programs.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            StoreUrl::Memory => "memory",
            StoreUrl::Redis(_) => "redis",
            StoreUrl::Shared(address) => address.kind().name,
        }
    }

    /// Whether other machines can reach it: some host is not this one's loopback.
    pub(crate) fn is_beyond_loopback(&self) -> bool {
        let is_loopback = |host: &str| {
            let is_socket = host.starts_with('/');
            is_socket
                || host == "localhost"
                || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        match self {
            StoreUrl::Memory => false,
            StoreUrl::Redis(url) => url.endpoints.iter().any(|endpoint| !is_loopback(&endpoint.host)),
            StoreUrl::Shared(address) => address.hosts().iter().any(|host| !is_loopback(host)),
        }
    }

    /// Reads an address, whose password may stand beside it. `fields` names the two in mistakes; the first may be empty.
    pub(super) fn read(
        url: &Secret,
        password: Option<&Secret>,
        fields: (&str, &str),
    ) -> Result<Self, Failure> {
        let read = match password {
            Some(_) => with_room_for_a_password(url.reveal()).parse(),
            None => url.reveal().parse(),
        };
        let of_field = |why: Failure| if fields.0.is_empty() { why } else { why.of_field(fields.0) };
        let url: StoreUrl = read.map_err(of_field)?;
        match password {
            Some(password) => url.with_password(password, fields.1),
            None => Ok(url),
        }
    }

    /// With this password, which the url itself must not have.
    fn with_password(mut self, password: &Secret, field: &str) -> Result<Self, Failure> {
        let mistake =
            |problem: &str, hint: &'static str| Err(Failure::new(format!("{field}: {problem}")).hint(hint));
        let password = password.reveal();
        match &mut self {
            StoreUrl::Memory => mistake(
                "the memory store has none",
                "it is for redis://, its kin, and postgres://: is `store.url` set?",
            ),
            StoreUrl::Shared(address) => match address.set_password(password) {
                Ok(()) => Ok(self),
                Err(Mistake { problem, hint }) => mistake(&problem, hint),
            },
            StoreUrl::Redis(url) if url.credentials.password.as_ref().is_some_and(|own| !own.is_empty()) => {
                mistake("the url has a password too", "keep one of them")
            }
            StoreUrl::Redis(url) => {
                url.credentials.password = Some(password.to_owned());
                Ok(self)
            }
        }
    }
}

impl config::Tls {
    /// As a connection uses them.
    pub(super) fn files(self) -> TlsFiles {
        let mut files = TlsFiles::default();
        (files.ca, files.certificate, files.key) = (self.ca, self.certificate, self.key);
        files
    }
}

impl config::Sentinel {
    pub(super) fn credentials(self) -> Credentials {
        let password = self.password.map(|password| password.reveal().to_owned());
        Credentials { user: self.user, password }
    }
}

/// Whether an address contains a password, which every user who can list processes would see.
pub(crate) fn shows_a_password(url: &str) -> bool {
    let user = url.split_once("://").and_then(|(_, rest)| rest.split_once('@')).map(|(user, _)| user);
    user.and_then(|user| user.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
}

/// A user without a password is an error in a url, unless the password is given elsewhere: then an empty one is filled in.
fn with_room_for_a_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.split_once('@') {
        Some((user, hosts)) if !user.contains(':') => format!("{scheme}://{user}:@{hosts}"),
        _ => url.to_owned(),
    }
}

/// As an operator may see it: without the login.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = match self {
            StoreUrl::Memory => return f.write_str("memory:"),
            StoreUrl::Shared(address) => return write!(f, "{}", &**address),
            StoreUrl::Redis(url) => url,
        };
        let scheme = match url.transport {
            Transport::Plain => "redis",
            Transport::Tls => "rediss",
        };
        let kind = url.topology.scheme().trim_start_matches("redis");
        let path = match &url.topology {
            Topology::Single => format!("/{}", url.database),
            Topology::Sentinel { service } => format!("/{service}"),
            _ => String::new(),
        };
        let hosts: Vec<String> = url.endpoints.iter().map(ToString::to_string).collect();
        write!(f, "{scheme}{kind}://{}{path}", hosts.join(","))
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
            _ => match Kind::of(url) {
                Some(kind) => kind.read(url).map(StoreUrl::Shared),
                None => Err(unknown_kind(url)),
            },
        }
    }
}

fn unknown_kind(url: &str) -> Failure {
    let known = url.split_once(':').map(|(scheme, _)| format!("unknown kind of store `{scheme}`"));
    let mut forms: Vec<&str> =
        vec!["redis://host:port", "redis+sentinel://…", "redis+cluster://…", "redis+sharded://…"];
    forms.extend(KINDS.iter().map(|kind| kind.form));
    let last = forms.pop().unwrap_or_default();
    Failure::new(known.unwrap_or_else(|| "the store has no kind".to_owned())).hint(format!(
        "use memory:, which keeps counters in this process, or {} or {last}, which servers share",
        forms.join(", ")
    ))
}

/// What is wrong with a URL. A stray `/` in a password makes what follows it look like a path, so with a login only the
/// part's name is shown.
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
            "postgres://user:hunter2@host:port/d",
            "memcached://user:hunter2@host",
            "dynamodb://user:hunter2@host",
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
    fn a_store_is_named_without_who_logs_in_there() {
        for (url, shown) in [
            ("memory:", "memory:"),
            ("redis://user:hunter2@h:1/2", "redis://h:1/2"),
            ("rediss+sentinel://:hunter2@a,b:2/main", "rediss+sentinel://a:26379,b:2/main"),
            ("redis+cluster://u:hunter2@a,b", "redis+cluster://a:6379,b:6379"),
            #[cfg(feature = "postgres-store")]
            ("postgres://u:hunter2@a,b:1/d", "postgres://a:5432,b:1/d"),
            #[cfg(feature = "memcached")]
            ("memcached://a,b:1", "memcached://a:11211,b:1"),
        ] {
            assert_eq!(url.parse::<StoreUrl>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_password_may_stand_beside_the_url_but_not_in_both() {
        let decide = |url: &str| {
            StoreSettings::decide(config::Store {
                url: Some(url.parse().unwrap()),
                password: Some("hunter2".parse().unwrap()),
                ..config::Store::default()
            })
        };
        let StoreUrl::Redis(url) = decide("redis://user@host").unwrap().url else { panic!("not redis") };
        assert_eq!(url.credentials.user.as_deref(), Some("user"));
        assert_eq!(url.credentials.password.as_deref(), Some("hunter2"));
        for bad in ["redis://:other@host", "memory:"] {
            let failure = format!("{:?}", decide(bad).unwrap_err());
            assert!(failure.contains("store.password") && !failure.contains("hunter2"), "{failure}");
        }
    }

    #[test]
    fn a_secret_for_leases_that_could_be_guessed_is_a_mistake_that_does_not_show_it() {
        let decide = |secret: &str| {
            let lease_secret = Some(secret.parse().unwrap());
            StoreSettings::decide(config::Store { lease_secret, ..config::Store::default() })
        };
        let failure = format!("{:?}", decide("hunter2").unwrap_err());
        assert!(
            failure.contains("store.lease_secret: it has 7 bytes") && !failure.contains("hunter2"),
            "{failure}"
        );
        assert_eq!(decide("0123456789abcdef").unwrap().lease_secret.unwrap().bytes(), b"0123456789abcdef");
    }

    #[test]
    fn fleet_secret_is_the_lease_secret_unless_given() {
        let secret = |text: &str| Some(text.parse().unwrap());
        let decide = |lease_secret, fleet_secret| {
            let store = config::Store { lease_secret, fleet_secret, ..config::Store::default() };
            StoreSettings::decide(store).map(|settings| settings.fleet_secret)
        };
        let bytes = |decided: Result<Option<SharedSecret>, Failure>| {
            decided.unwrap().map(|secret| secret.bytes().to_vec())
        };
        assert_eq!(bytes(decide(None, None)), None);
        assert_eq!(bytes(decide(secret("of-the-leases-16"), None)), Some(b"of-the-leases-16".to_vec()));
        let both = decide(secret("of-the-leases-16"), secret("of-the-fleet--16"));
        assert_eq!(bytes(both), Some(b"of-the-fleet--16".to_vec()));
        let failure = format!("{:?}", decide(None, secret("hunter2")).unwrap_err());
        assert!(
            failure.contains("store.fleet_secret: it has 7 bytes") && !failure.contains("hunter2"),
            "{failure}"
        );
    }

    #[test]
    fn stores_on_other_machines_are_told_from_loopback() {
        for (url, beyond) in [
            ("memory:", false),
            ("redis://127.0.0.1:6379", false),
            ("redis://localhost", false),
            ("redis://[::1]:6379", false),
            ("redis://redis:6379", true),
            ("redis://10.0.0.5", true),
            ("redis+cluster://127.0.0.1,10.0.0.5", true),
            #[cfg(feature = "postgres-store")]
            ("postgres://u@127.0.0.1/d", false),
            #[cfg(feature = "postgres-store")]
            ("postgres://u@127.0.0.1,db/d", true),
            #[cfg(feature = "memcached")]
            ("memcached://127.0.0.1,cache", true),
            #[cfg(feature = "dynamodb")]
            ("dynamodb://limits?region=eu-west-1", true),
            #[cfg(feature = "dynamodb")]
            ("dynamodb://limits?region=eu-west-1&endpoint=http://127.0.0.1:8000", false),
        ] {
            assert_eq!(url.parse::<StoreUrl>().unwrap().is_beyond_loopback(), beyond, "{url}");
        }
    }

    #[test]
    fn settings_shown_for_debugging_hold_no_password() {
        let store = config::Store {
            lease_secret: Some("hunter2-hunter2-hunter2".parse().unwrap()),
            url: Some("redis://user:hunter2@host".parse().unwrap()),
            sentinel: config::Sentinel { password: Some("hunter2".parse().unwrap()), ..Default::default() },
            ..config::Store::default()
        };
        assert!(!format!("{store:?}").contains("hunter2"));
        assert!(!format!("{:?}", StoreSettings::decide(store).unwrap()).contains("hunter2"));
    }
}
