//! Settings that are more than a word or a number, each parsed the same way from a flag, a variable and the file.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use tidegate_http::answer;
use tidegate_rules::parse_duration;

use super::diagnose::suggest;

/// Where a listener is, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub(crate) enum ListenAddr {
    Off,
    At { host: String, port: u16 },
}

impl ListenAddr {
    /// The address to bind; `None` for `off`.
    pub(crate) fn resolve(&self) -> Result<Option<SocketAddr>, String> {
        let ListenAddr::At { host, port } = self else { return Ok(None) };
        let mut found = (host.as_str(), *port)
            .to_socket_addrs()
            .map_err(|error| format!("cannot find the host `{host}`: {error}"))?;
        Ok(Some(found.next().ok_or_else(|| format!("the host `{host}` has no address"))?))
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            format!(
                "`{text}` is no address to listen on: {why}\nwrite it as 127.0.0.1:8080, 0.0.0.0:8080 for all networks, or off"
            )
        };
        if text == "off" {
            return Ok(ListenAddr::Off);
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(ListenAddr::At { host: address.ip().to_string(), port: address.port() });
        }
        if text.parse::<u16>().is_ok() {
            return Err(format!(
                "`{text}` is no address to listen on: its host is missing\nwrite 127.0.0.1:{text}, or 0.0.0.0:{text} for all networks"
            ));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| bad("it has no port"))?;
        let port = port.parse().map_err(|_| bad("its port is not a number up to 65535"))?;
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        if host.contains(':') {
            return Err(bad("an IPv6 address needs brackets"));
        }
        Ok(ListenAddr::At { host: host.to_owned(), port })
    }
}

/// Where rules come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum RulesSource {
    /// Files and directories
    File,
    /// A database: published through the admin API, the dashboard or `tidegate rules`
    Database,
}

impl FromStr for RulesSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        one_of(text, &[("file", RulesSource::File), ("database", RulesSource::Database)])
    }
}

/// A set of response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "kebab-case")]
pub(crate) enum HeaderSet {
    /// X-RateLimit-Limit, -Remaining and -Reset
    #[schemars(rename = "x-ratelimit")]
    XRateLimit,
    /// RateLimit-Policy and RateLimit, by the newest published draft of the IETF that is implemented
    Ietf,
    /// The same by draft 11, whatever comes later
    #[schemars(rename = "ietf-11")]
    Ietf11,
    /// The same with the parameters proposed for the next draft; they may change at any time
    IetfNext,
}

/// What X-RateLimit-Reset counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum ResetForm {
    /// Seconds since 1970: the time of the reset
    Unix,
    /// Seconds from now, as Envoy's own filter sends it
    Delta,
}

impl FromStr for ResetForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        one_of(text, &[("unix", ResetForm::Unix), ("delta", ResetForm::Delta)])
    }
}

impl FromStr for HeaderSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [
            ("x-ratelimit", HeaderSet::XRateLimit),
            ("ietf", HeaderSet::Ietf),
            ("ietf-11", HeaderSet::Ietf11),
            ("ietf-next", HeaderSet::IetfNext),
        ];
        one_of(text, &known)
    }
}

/// The headers Envoy is asked to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "kebab-case")]
pub(crate) enum RlsHeaders {
    None,
    #[schemars(rename = "x-ratelimit")]
    XRateLimit,
    Ietf,
    #[schemars(rename = "ietf-11")]
    Ietf11,
    IetfNext,
}

impl FromStr for RlsHeaders {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [
            ("none", RlsHeaders::None),
            ("x-ratelimit", RlsHeaders::XRateLimit),
            ("ietf", RlsHeaders::Ietf),
            ("ietf-11", RlsHeaders::Ietf11),
            ("ietf-next", RlsHeaders::IetfNext),
        ];
        one_of(text, &known)
    }
}

/// The status of a refusal for lack of a store: 503 or 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "u16", extend("enum" = [503, 429]))]
pub(crate) struct ClosedStatus(pub(crate) answer::ClosedStatus);

impl FromStr for ClosedStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "503" => Ok(ClosedStatus(answer::ClosedStatus::ServiceUnavailable)),
            "429" => Ok(ClosedStatus(answer::ClosedStatus::TooManyRequests)),
            _ => Err(format!("`{text}` is no status of a refusal without the store\nuse 503 or 429")),
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        one_of(text, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
    }
}

/// Which log lines are written: a level, or `module=level`, or several of these with commas between.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub(crate) struct LogFilter(String);

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

impl LogFilter {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LogFilter {
    type Err = String;

    /// Stricter than the filter itself, for which the typo `inof` would be a module that logs nothing.
    fn from_str(text: &str) -> Result<Self, String> {
        for part in text.split(',') {
            let level = part.rsplit_once('=').map_or(part, |(_, level)| level).trim();
            if !LEVELS.contains(&level) {
                return Err(format!("`{level}` is no log level\n{}", suggest(level, &LEVELS)));
            }
        }
        Ok(LogFilter(text.to_owned()))
    }
}

/// A whole number above zero, perhaps with underscores between its digits: `10_000_000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "NonZeroUsize")]
pub(crate) struct Count(pub(crate) NonZeroUsize);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.replace('_', "").parse();
        number.map(Count).map_err(|_| {
            format!("`{text}` is not a whole number above 0\nwrite it in digits, such as 10000 or 10_000")
        })
    }
}

/// A span of time, written as 200ms, 10s, 2m.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span = parse_duration(text).map_err(|error| format!("{}\n{}", error.problem, error.hint))?;
        Ok(Span(span.into()))
    }
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "bool")]
pub(crate) struct Switch(pub(crate) bool);

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        one_of(text, &[("true", Switch(true)), ("false", Switch(false))])
    }
}

/// Text that is not to be shown: a password, or an address that may hold one.
#[derive(Clone, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub(crate) struct Secret(String);

impl Secret {
    /// The text itself; use it only where it is needed.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Secret(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

fn one_of<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        format!("unknown value `{text}`\n{}", suggest(text, &names))
    })
}

/// Parses a value from the file like one from a flag: by its text.
fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    struct Text<T>(std::marker::PhantomData<T>);

    impl<T: FromStr<Err = String>> de::Visitor<'_> for Text<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    deserializer.deserialize_str(Text(std::marker::PhantomData))
}

macro_rules! deserialize_from_text {
    ($($name:ty),*) => {
        $(impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                from_text(deserializer)
            }
        })*
    };
}

deserialize_from_text!(
    ListenAddr,
    RulesSource,
    HeaderSet,
    ResetForm,
    RlsHeaders,
    ClosedStatus,
    LogFormat,
    LogFilter,
    Count,
    Span,
    Switch,
    Secret
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_an_address_a_name_or_off() {
        let at = |host: &str, port| Ok(ListenAddr::At { host: host.to_owned(), port });
        assert_eq!("127.0.0.1:8080".parse(), at("127.0.0.1", 8080));
        assert_eq!("[::1]:0".parse(), at("::1", 0));
        assert_eq!("localhost:80".parse(), at("localhost", 80));
        assert_eq!("off".parse(), Ok(ListenAddr::Off));
        for bad in ["", "8080", ":8080", "localhost", "localhost:http", "::1:80", "127.0.0.1:99999"] {
            assert!(bad.parse::<ListenAddr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_resolves_to_itself() {
        let address: ListenAddr = "[::1]:81".parse().unwrap();
        assert_eq!(address.resolve(), Ok(Some("[::1]:81".parse().unwrap())));
        assert_eq!(ListenAddr::Off.resolve(), Ok(None));
    }

    #[test]
    fn a_count_is_above_zero() {
        assert_eq!("10_000".parse(), Ok(Count(NonZeroUsize::new(10_000).unwrap())));
        for bad in ["0", "-1", "1.5", "many", "", "99999999999999999999"] {
            assert!(bad.parse::<Count>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_mistyped_level_is_not_taken_for_a_module() {
        assert!("info".parse::<LogFilter>().is_ok());
        assert!("warn,tidegate_server=debug,h2=off".parse::<LogFilter>().is_ok());
        let error = "inof".parse::<LogFilter>().unwrap_err();
        assert_eq!(error, "`inof` is no log level\ndid you mean `info`?");
    }
}
