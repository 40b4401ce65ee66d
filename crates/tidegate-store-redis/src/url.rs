//! The store URL: `redis://`, `rediss://`, `redis+sentinel://`, `redis+cluster://`, `redis+sharded://`. The
//! last three also accept `rediss+…` for TLS.

use std::fmt;
use std::str::FromStr;

/// A server: host name or address, and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Host name or address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The login.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The ACL user; none means Redis's `default`.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How the servers are related.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// One server.
    Single,
    /// Sentinels that know the master of this service.
    Sentinel {
        /// The service name.
        service: String,
    },
    /// Members of a Redis Cluster; they lead to the others.
    Cluster,
    /// Independent servers; keys are spread over them.
    Sharded,
}

impl Topology {
    /// Its URL scheme without TLS.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match self {
            Topology::Single => "redis",
            Topology::Sentinel { .. } => "redis+sentinel",
            Topology::Cluster => "redis+cluster",
            Topology::Sharded => "redis+sharded",
        }
    }
}

/// Whether connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// No encryption.
    Plain,
    /// TLS.
    Tls,
}

/// A parsed store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    /// How the servers are related.
    pub topology: Topology,
    /// The servers in the URL: at least one, no duplicates.
    pub endpoints: Vec<Endpoint>,
    /// The login for these servers.
    pub credentials: Credentials,
    /// The database number.
    pub database: u16,
    /// Whether connections are encrypted.
    pub transport: Transport,
}

/// An error in a store URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("store url: {part}: {problem}")]
pub struct UrlError {
    /// The part to fix: `scheme`, `user`, `host`, `port`, `path`, `query`.
    pub part: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// How to fix it.
    pub hint: &'static str,
}

const DEFAULT_PORT: u16 = 6_379;
const DEFAULT_SENTINEL_PORT: u16 = 26_379;
/// A longer list is a template mistake.
const MOST_ENDPOINTS: usize = 1_000;

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let hint = "write for example redis://127.0.0.1:6379";
        let (scheme, rest) = text.split_once("://").ok_or_else(|| error("scheme", "there is none", hint))?;
        let (topology, transport) = read_scheme(scheme)?;
        if rest.contains(['?', '#']) {
            return Err(error(
                "query",
                "options are not part of the url",
                "put them into the configuration under `store`",
            ));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (read_credentials(user)?, hosts),
            None => (Credentials::default(), authority),
        };
        let (topology, database) = read_path(topology, path)?;
        let endpoints = read_endpoints(hosts, &topology)?;
        Ok(StoreUrl { topology, endpoints, credentials, database, transport })
    }
}

fn error(part: &'static str, problem: impl Into<String>, hint: &'static str) -> UrlError {
    UrlError { part, problem: problem.into(), hint }
}

fn read_scheme(scheme: &str) -> Result<(Topology, Transport), UrlError> {
    let (protocol, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
    let transport = match protocol {
        "redis" => Some(Transport::Plain),
        "rediss" => Some(Transport::Tls),
        _ => None,
    };
    let topology = match kind {
        "" => Some(Topology::Single),
        "sentinel" => Some(Topology::Sentinel { service: String::new() }),
        "cluster" => Some(Topology::Cluster),
        "sharded" => Some(Topology::Sharded),
        _ => None,
    };
    topology.zip(transport).ok_or_else(|| {
        error(
            "scheme",
            format!("`{scheme}` is not known"),
            "use redis, redis+sentinel, redis+cluster or redis+sharded, or rediss and rediss+… for TLS",
        )
    })
}

/// Parses the path: a database, preceded by the service name for sentinels.
fn read_path(topology: Topology, path: &str) -> Result<(Topology, u16), UrlError> {
    match topology {
        Topology::Sentinel { .. } => {
            let (service, database) = path.split_once('/').unwrap_or((path, ""));
            if service.is_empty() {
                return Err(error(
                    "path",
                    "the name of the service is missing",
                    "end with it: redis+sentinel://host:26379/mymaster",
                ));
            }
            Ok((Topology::Sentinel { service: decoded("path", service)? }, read_database(database)?))
        }
        Topology::Cluster => match read_database(path)? {
            0 => Ok((Topology::Cluster, 0)),
            _ => Err(error("path", "a cluster has database 0 alone", "leave the path out")),
        },
        other => Ok((other, read_database(path)?)),
    }
}

fn read_database(text: &str) -> Result<u16, UrlError> {
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.is_empty() {
        return Ok(0);
    }
    let problem =
        || error("path", format!("`{text}` is not the number of a database"), "use a number such as 0");
    text.parse().map_err(|_| problem())
}

fn read_credentials(text: &str) -> Result<Credentials, UrlError> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (text, None),
    };
    let user = (!user.is_empty()).then(|| decoded("user", user)).transpose()?;
    let password = password.map(|password| decoded("user", password)).transpose()?;
    if user.is_some() && password.is_none() {
        return Err(error("user", "there is no password", "write user:password@, or :password@ alone"));
    }
    Ok(Credentials { user, password })
}

fn read_endpoints(hosts: &str, topology: &Topology) -> Result<Vec<Endpoint>, UrlError> {
    let port = match topology {
        Topology::Sentinel { .. } => DEFAULT_SENTINEL_PORT,
        _ => DEFAULT_PORT,
    };
    let mut endpoints = Vec::new();
    for host in hosts.split(',') {
        let endpoint = read_endpoint(host, port)?;
        if endpoints.contains(&endpoint) {
            return Err(error("host", format!("{endpoint} is there twice"), "name each server once"));
        }
        endpoints.push(endpoint);
        if endpoints.len() > MOST_ENDPOINTS {
            return Err(error("host", format!("there are more than {MOST_ENDPOINTS}"), "name fewer servers"));
        }
    }
    if *topology == Topology::Single && endpoints.len() > 1 {
        return Err(error(
            "host",
            "there is more than one",
            "say how they belong together: redis+sentinel, redis+cluster or redis+sharded",
        ));
    }
    Ok(endpoints)
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn read_endpoint(text: &str, default_port: u16) -> Result<Endpoint, UrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest
                .split_once(']')
                .ok_or_else(|| error("host", format!("`{text}` lacks a bracket"), "write [::1]:6379"))?;
            let port =
                match after {
                    "" => None,
                    _ => Some(after.strip_prefix(':').ok_or_else(|| {
                        error("port", format!("`{after}` lacks a colon"), "write [::1]:6379")
                    })?),
                };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(error(
                    "host",
                    format!("`{text}` is an IPv6 address without brackets"),
                    "write [::1]:6379",
                ));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(error("host", "one is empty", "write a name or an address, such as 127.0.0.1:6379"));
    }
    if host.contains(|c: char| c.is_whitespace() || "@/\\%<>\"{}|^`".contains(c)) {
        return Err(error(
            "host",
            format!("`{host}` is not a name or an address"),
            "check for stray characters",
        ));
    }
    let port = match port {
        None => default_port,
        Some(port) => match port.parse() {
            Ok(port @ 1..) => port,
            _ => return Err(error("port", format!("`{port}` is not one"), "use a number from 1 to 65535")),
        },
    };
    Ok(Endpoint { host: host.to_owned(), port })
}

/// Decodes `%xx`.
fn decoded(part: &'static str, text: &str) -> Result<String, UrlError> {
    let problem = || error(part, "a `%` is not followed by two digits", "write a plain percent sign as %25");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16)).ok_or_else(problem);
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).expect("two digits are a byte"));
    }
    String::from_utf8(bytes).map_err(|_| error(part, "it is not UTF-8", "use a name that is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> StoreUrl {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn endpoints(url: &StoreUrl) -> Vec<String> {
        url.endpoints.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_server_with_user_password_and_database() {
        let url = read("redis://ops:p%40ss:word@cache.example:7000/3");
        assert_eq!(
            (url.topology.clone(), url.transport, url.database),
            (Topology::Single, Transport::Plain, 3)
        );
        assert_eq!(endpoints(&url), ["cache.example:7000"]);
        assert_eq!(url.credentials.user.as_deref(), Some("ops"));
        assert_eq!(url.credentials.password.as_deref(), Some("p@ss:word"));
    }

    #[test]
    fn a_password_alone_is_that_of_the_default_user() {
        let url = read("rediss://:secret@127.0.0.1");
        assert_eq!((url.transport, endpoints(&url)), (Transport::Tls, vec!["127.0.0.1:6379".to_owned()]));
        assert_eq!((url.credentials.user, url.credentials.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn several_servers_in_their_order() {
        let url = read("redis+sharded://b:1,a:2,[::1]:3,[::2]");
        assert_eq!(url.topology, Topology::Sharded);
        assert_eq!(endpoints(&url), ["b:1", "a:2", "[::1]:3", "[::2]:6379"]);
    }

    #[test]
    fn sentinels_name_their_service() {
        let url = read("rediss+sentinel://u:p@s1,s2:7/my%20master/2");
        assert_eq!(url.topology, Topology::Sentinel { service: "my master".to_owned() });
        assert_eq!((endpoints(&url), url.database), (vec!["s1:26379".to_owned(), "s2:7".to_owned()], 2));
    }

    #[test]
    fn an_error_names_the_part_and_shows_a_way_out() {
        for (text, part) in [
            ("localhost:6379", "scheme"),
            ("http://localhost", "scheme"),
            ("redis+ring://a,b", "scheme"),
            ("redis://", "host"),
            ("redis://a,b", "host"),
            ("redis+cluster://a:1,a:1", "host"),
            ("redis+cluster://a,,b", "host"),
            ("redis://::1:6379", "host"),
            ("redis://[::1:6379", "host"),
            ("redis://two words", "host"),
            ("redis://a:0", "port"),
            ("redis://a:65536", "port"),
            ("redis://a:port", "port"),
            ("redis://[::1]6379", "port"),
            ("redis://a/first", "path"),
            ("redis+cluster://a/1", "path"),
            ("redis+sentinel://a", "path"),
            ("redis://user@a", "user"),
            ("redis://u:%zz@a", "user"),
            ("redis://u:%ff@a", "user"),
            ("redis://a?db=1", "query"),
        ] {
            let error = text.parse::<StoreUrl>().expect_err(text);
            assert_eq!(error.part, part, "{text}: {error}");
            assert!(!error.hint.is_empty() && !error.problem.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_password_is_not_shown_by_debugging() {
        assert!(!format!("{:?}", read("redis://u:hunter2@a")).contains("hunter2"));
    }
}
