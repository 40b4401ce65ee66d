//! Addresses: `dynamodb://table?region=eu-west-1[&endpoint=http://host:port][&create=true]`.

use std::fmt;
use std::str::FromStr;

/// The table of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamoDbUrl {
    pub(crate) table: String,
    pub(crate) region: String,
    pub(crate) server: Server,
    /// Whether another server than AWS was named.
    is_named: bool,
    /// Whether to create the table when it is missing.
    pub(crate) creates: bool,
}

/// Where to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_encrypted: bool,
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

const FORM: &str = "write dynamodb://table?region=eu-west-1[&endpoint=http://host:port][&create=true]";

fn wrong(problem: impl Into<String>) -> UrlError {
    UrlError { problem: problem.into(), hint: FORM }
}

impl FromStr for DynamoDbUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let rest = url.strip_prefix("dynamodb://").ok_or_else(|| wrong("it is not dynamodb://"))?;
        if rest.contains('@') {
            let hint = "the keys come from the environment, the shared file, the container or the instance, as AWS's tools read them";
            return Err(UrlError { problem: "it has a login".to_owned(), hint });
        }
        let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
        let table = table.strip_suffix('/').unwrap_or(table);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if !(3..=255).contains(&table.len()) || !table.bytes().all(is_name) {
            return Err(wrong(format!(
                "`{table}` is no name of a table: 3 to 255 of a-z, A-Z, 0-9, _, - and ."
            )));
        }
        let (mut region, mut server, mut creates) = (None, None, false);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("region", name)) => region = Some(name),
                Some(("endpoint", address)) => server = Some(address.parse()?),
                Some(("create", "true")) => creates = true,
                Some(("create", "false")) => creates = false,
                _ => return Err(wrong(format!("`{option}` is no option"))),
            }
        }
        let region = region.filter(|name| !name.is_empty()).ok_or_else(|| wrong("it has no region"))?;
        if !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(wrong(format!("`{region}` is no region")));
        }
        let is_named = server.is_some();
        Ok(DynamoDbUrl {
            table: table.to_owned(),
            region: region.to_owned(),
            server: server.unwrap_or_else(|| Server::of_region(region)),
            is_named,
            creates,
        })
    }
}

impl Server {
    fn of_region(region: &str) -> Self {
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        Server { host: format!("dynamodb.{region}.{domain}"), port: 443, is_encrypted: true }
    }

    /// As the `Host` header has it.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.is_encrypted, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

impl FromStr for Server {
    type Err = UrlError;

    fn from_str(address: &str) -> Result<Self, UrlError> {
        let (is_encrypted, rest) = match address.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(wrong(format!("the endpoint `{address}` is neither https:// nor http://"))),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => (host, rest.strip_prefix(':')),
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        let usual = if is_encrypted { 443 } else { 80 };
        let port =
            port.map_or(Ok(usual), |port| port.parse().map_err(|_| wrong(format!("`{port}` is no port"))))?;
        if host.is_empty() || host.contains(['/', '?', ' ']) {
            return Err(wrong(format!("the endpoint `{address}` has no host, or more after it")));
        }
        Ok(Server { host: host.to_owned(), port, is_encrypted })
    }
}

impl DynamoDbUrl {
    /// The host, for deciding whether it is on this machine.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.server.host
    }
}

impl fmt::Display for DynamoDbUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dynamodb://{}?region={}", self.table, self.region)?;
        if self.is_named {
            let scheme = if self.server.is_encrypted { "https" } else { "http" };
            write!(f, "&endpoint={scheme}://{}", self.server.authority())?;
        }
        if self.creates { f.write_str("&create=true") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_table_and_where_it_is() {
        for (url, host, shown) in [
            (
                "dynamodb://limits?region=eu-west-1",
                "dynamodb.eu-west-1.amazonaws.com",
                "dynamodb://limits?region=eu-west-1",
            ),
            (
                "dynamodb://limits/?region=cn-north-1&create=true",
                "dynamodb.cn-north-1.amazonaws.com.cn",
                "dynamodb://limits?region=cn-north-1&create=true",
            ),
            (
                "dynamodb://limits?endpoint=http://[::1]:8000/&region=r&create=false",
                "::1",
                "dynamodb://limits?region=r&endpoint=http://[::1]:8000",
            ),
        ] {
            let read = url.parse::<DynamoDbUrl>().unwrap();
            assert_eq!((read.host(), &*read.to_string()), (host, shown));
            assert_eq!(shown.parse::<DynamoDbUrl>().unwrap(), read);
        }
    }

    #[test]
    fn a_mistake_in_a_url_is_named_without_a_login() {
        for (url, problem) in [
            ("dynamodb://u:hunter2@h", "it has a login"),
            ("dynamodb://limits", "it has no region"),
            ("dynamodb://a?region=r", "`a` is no name of a table: 3 to 255 of a-z, A-Z, 0-9, _, - and ."),
            ("dynamodb://limits?region=r&endpoint=h:1", "the endpoint `h:1` is neither https:// nor http://"),
            ("dynamodb://limits?region=r&endpoint=http://h:port", "`port` is no port"),
            ("dynamodb://limits?region=r&tabel=x", "`tabel=x` is no option"),
        ] {
            assert_eq!(url.parse::<DynamoDbUrl>().unwrap_err().problem, problem);
        }
    }
}
