//! Addresses: `memcached://host[:port],host[:port]`.

use std::fmt;
use std::str::FromStr;

/// The servers of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemcachedUrl {
    servers: Vec<(String, u16)>,
}

/// Why a URL cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
#[non_exhaustive]
pub struct UrlError {
    /// What is wrong with it. It never quotes a login.
    pub problem: String,
    /// How to fix it.
    pub hint: &'static str,
}

const FORM: &str = "write memcached://host[:port],host[:port]";
const PORT: u16 = 11_211;
/// More servers than anybody lists; each is probed ten times a second by every node.
const MOST_SERVERS: usize = 1_000;

impl FromStr for MemcachedUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let wrong = |problem: &str| UrlError { problem: problem.to_owned(), hint: FORM };
        let rest = url.strip_prefix("memcached://").ok_or_else(|| wrong("it is not memcached://"))?;
        if rest.contains('@') {
            let hint = "Memcached asks for no login here: let only trusted machines reach it";
            return Err(UrlError { problem: "it has a login".to_owned(), hint });
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(wrong("there is more after its hosts"));
        }
        let servers = rest.split(',').map(server).collect::<Result<Vec<_>, _>>()?;
        if servers.len() > MOST_SERVERS {
            return Err(wrong("it has more than 1,000 hosts"));
        }
        if let Some(twice) = servers.iter().enumerate().find(|(place, one)| servers[..*place].contains(one)) {
            return Err(wrong(&format!("{} is there twice", name(twice.1))));
        }
        Ok(MemcachedUrl { servers })
    }
}

fn server(text: &str) -> Result<(String, u16), UrlError> {
    let wrong = |problem: String| UrlError { problem, hint: FORM };
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(wrong("a host has no name".to_owned()));
    }
    let port =
        port.map_or(Ok(PORT), |port| port.parse().map_err(|_| wrong(format!("`{port}` is no port"))))?;
    if port == 0 {
        return Err(wrong("`0` is no port".to_owned()));
    }
    Ok((host.to_owned(), port))
}

impl MemcachedUrl {
    /// The hosts, for deciding whether they are on this machine.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|(host, _)| host.as_str())
    }

    /// The servers, in the order of the list.
    pub(crate) fn servers(&self) -> &[(String, u16)] {
        &self.servers
    }
}

/// A server's name for operators.
pub(crate) fn name((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Display for MemcachedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.servers.iter().map(name).collect();
        write!(f, "memcached://{}", names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_lists_servers() {
        for (url, shown) in [
            ("memcached://a", "memcached://a:11211"),
            ("memcached://a:1,b", "memcached://a:1,b:11211"),
            ("memcached://[::1]:2/", "memcached://[::1]:2"),
        ] {
            assert_eq!(url.parse::<MemcachedUrl>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_mistake_in_a_url_is_named_without_a_login() {
        for (url, problem) in [
            ("memcached://u:hunter2@h", "it has a login"),
            ("memcached://a:port", "`port` is no port"),
            ("memcached://a:0", "`0` is no port"),
            ("memcached://", "a host has no name"),
            ("memcached://a/1", "there is more after its hosts"),
            ("memcached://a,b,a:11211", "a:11211 is there twice"),
        ] {
            assert_eq!(url.parse::<MemcachedUrl>().unwrap_err().problem, problem);
        }
    }
}
