//! `postgres://user:password@host:port,host:port/database?sslmode=require`.
//!
//! With several hosts, each connection goes to the first that takes writes: after a failover that is the new primary.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// The address of a database, and the login for it.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    config: tokio_postgres::Config,
    is_encrypted: bool,
}

/// Why a URL cannot be used. It repeats no part of the URL: that may have a password.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{problem}")]
#[non_exhaustive]
pub struct UrlError {
    /// What is wrong.
    pub problem: String,
    /// How to fix it.
    pub hint: &'static str,
}

const FORM: &str = "the form is postgres://user:password@host:port/database, with further hosts behind commas, and \
                    ?sslmode=require for TLS";

impl FromStr for PostgresUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let (url, is_encrypted) = take_ssl_mode(url)?;
        let mut config: tokio_postgres::Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let cause =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            // Anything that the parser quotes may be part of a password.
            let problem = if url.contains('@') { "it cannot be read".to_owned() } else { cause };
            UrlError { problem, hint: FORM }
        })?;
        let lacks = |what: &str| UrlError { problem: format!("it names no {what}"), hint: FORM };
        let is_empty = |host: &Host| matches!(host, Host::Tcp(name) if name.is_empty());
        if config.get_hosts().is_empty() || config.get_hosts().iter().any(is_empty) {
            return Err(lacks("host"));
        }
        if config.get_ports().contains(&0) {
            return Err(UrlError { problem: "`0` is no port".to_owned(), hint: FORM });
        }
        if config.get_user().is_none_or(str::is_empty) {
            return Err(lacks("user"));
        }
        if config.get_dbname().is_none_or(str::is_empty) {
            return Err(lacks("database"));
        }
        config
            .ssl_mode(if is_encrypted { SslMode::Require } else { SslMode::Disable })
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .application_name("tidegate");
        Ok(PostgresUrl { config, is_encrypted })
    }
}

/// The URL without `sslmode`, and whether it asks for TLS. A server's certificate is always checked, so `require` and
/// `verify-full` are one; `prefer` would fall back to none, and is refused.
fn take_ssl_mode(url: &str) -> Result<(String, bool), UrlError> {
    let Some((address, query)) = url.rsplit_once('?') else { return Ok((url.to_owned(), false)) };
    let (mut is_encrypted, mut rest) = (false, Vec::new());
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", "disable")) => is_encrypted = false,
            Some(("sslmode", "require" | "verify-full")) => is_encrypted = true,
            Some(("sslmode", _)) => {
                let hint = "use require, which checks the server's certificate, or disable";
                return Err(UrlError { problem: "sslmode has another value".to_owned(), hint });
            }
            _ => rest.push(pair),
        }
    }
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    Ok((format!("{address}{query}"), is_encrypted))
}

impl PostgresUrl {
    /// The hosts, for deciding whether they are on this machine; a socket's folder begins with `/`.
    pub fn hosts(&self) -> impl Iterator<Item = String> + '_ {
        self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        })
    }

    /// Whether it has a password.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some_and(|password| !password.is_empty())
    }

    /// Sets the password.
    pub fn set_password(&mut self, password: &str) {
        self.config.password(password);
    }

    /// The database's name.
    #[must_use]
    pub fn database(&self) -> &str {
        self.config.get_dbname().expect("a URL names one")
    }

    /// The user's name.
    #[must_use]
    pub fn user(&self) -> &str {
        self.config.get_user().expect("a URL names one")
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// What connects. A dead connection is found within a few seconds even if nothing is sent.
    pub(crate) fn connector(&self, connect_timeout: Duration) -> tokio_postgres::Config {
        let mut config = self.config.clone();
        config.connect_timeout(connect_timeout).tcp_user_timeout(Duration::from_secs(3));
        config
    }
}

/// As an operator may see it: without the login.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.config.get_ports();
        let port = |place: usize| *ports.get(place).or(ports.first()).unwrap_or(&5432);
        let hosts: Vec<String> = self
            .hosts()
            .enumerate()
            .map(|(place, host)| {
                if host.contains(':') {
                    format!("[{host}]:{}", port(place))
                } else {
                    format!("{host}:{}", port(place))
                }
            })
            .collect();
        write!(f, "postgres://{}/{}", hosts.join(","), self.database())
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<PostgresUrl, UrlError> {
        url.parse()
    }

    #[test]
    fn an_operator_sees_hosts_and_database_but_no_login() {
        for (url, shown) in [
            ("postgres://u:secret@h/d", "postgres://h:5432/d"),
            ("postgresql://u:secret@a:1,b:2/d?sslmode=require", "postgres://a:1,b:2/d"),
            ("postgres://u@a,b/d", "postgres://a:5432,b:5432/d"),
        ] {
            assert_eq!(parse(url).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_mistake_never_shows_the_password() {
        for url in [
            "postgres://u:hunter2@h:port/d",
            "postgres://u:hunt/er2@h/d",
            "postgres://u:hunter2@h",
            "postgres://u:hunter2@h/d?sslmode=hunter2",
            "postgres://u:%hunter2@h/d?nonsense=1",
        ] {
            let error = format!("{:?}", parse(url).map(|url| url.to_string()));
            assert!(!error.contains("hunter2") && !error.contains("er2@"), "{url}: {error}");
        }
    }

    #[test]
    fn what_a_url_lacks_is_named() {
        for (url, problem) in [
            ("postgres://h/d", "it names no user"),
            ("postgres://u@h", "it names no database"),
            ("postgres://u@/d", "it names no host"),
            ("postgres://u@h,,k/d", "it names no host"),
            ("postgres://u@h:0/d", "`0` is no port"),
            ("postgres://u@h/d?sslmode=prefer", "sslmode has another value"),
        ] {
            assert_eq!(parse(url).unwrap_err().problem, problem, "{url}");
        }
    }

    #[test]
    fn only_a_url_that_asks_for_tls_gets_it() {
        assert!(!parse("postgres://u@h/d").unwrap().is_encrypted());
        assert!(!parse("postgres://u@h/d?sslmode=disable").unwrap().is_encrypted());
        assert!(parse("postgres://u@h/d?sslmode=verify-full").unwrap().is_encrypted());
    }
}
