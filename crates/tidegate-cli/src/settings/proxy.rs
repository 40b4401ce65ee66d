//! The `proxy:` section: its shape, its validation, and the resulting settings.
//!
//! Nothing here listens or connects. Files with certificates are read when the server starts.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_access::{Offers, ServerTls};
use tidegate_http::identity::{Identity, IdentityConfig, IdentityError};
use tidegate_proxy::{
    ClientTlsError, Ejection, HealthCheck, MOST_TARGETS, ProxyLimits, ProxySettings, Route, Target, Timeouts,
    UpstreamSettings, client_config,
};

use super::diagnose::suggest;
use super::listeners::{ServerFiles, with_causes};
use super::values::{Count, ListenAddr, Span};
use crate::failure::Failure;

/// A reverse proxy that asks the limiter about every request
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Proxy {
    /// Where clients connect, as host:port
    listen: ListenAddr,
    /// The domain whose rules apply
    domain: String,
    /// TLS towards clients: plaintext HTTP by default
    tls: Option<ServerFiles>,
    /// Groups of interchangeable servers, by name
    upstreams: Vec<Upstream>,
    /// Routes, the first match wins; by default everything goes to the only upstream
    #[serde(default)]
    routes: Vec<RouteTo>,
    /// How requests are identified, if different from the section `identity`
    identity: Option<IdentityConfig>,
    /// Proxy timeouts
    #[serde(default)]
    timeouts: ProxyTimeouts,
    /// Proxy size and concurrency limits
    #[serde(default)]
    limits: ProxyBounds,
}

/// A group of servers
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Upstream {
    /// The name that routes use
    name: String,
    /// Servers as http://host:port, https://host, or h2c://host:port for HTTP/2 in the clear
    targets: Vec<String>,
    /// The authorities to trust, where targets are https, as a PEM file: the machine's by default
    ca: Option<PathBuf>,
    /// When a failing server is taken out of use
    #[serde(default)]
    eject: Eject,
    /// Health checks: none by default
    health: Option<Health>,
}

/// When a failing server is taken out of use
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Eject {
    /// Failures in a row: 3 by default
    failures: Option<Count>,
    /// How long it is out of use: 10s by default
    lasts: Option<Span>,
}

/// A health check: a healthy server answers with 2xx
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Health {
    /// The path to GET
    path: String,
    /// Interval: 5s by default
    every: Option<Span>,
    /// Timeout of one health check: 2s by default
    timeout: Option<Span>,
}

/// A route, by host and path
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RouteTo {
    /// A host such as shop.example, or *.example: any by default
    host: Option<String>,
    /// A path and everything below it: all by default
    path: Option<String>,
    /// The name of an upstream
    upstream: String,
    /// The domain whose rules apply: the proxy's by default
    domain: Option<String>,
}

/// Proxy timeouts
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ProxyTimeouts {
    /// A request's head, and the idle time before it on a kept connection: 30s by default
    client: Option<Span>,
    /// A connection to a server, TLS included: 2s by default
    connect: Option<Span>,
    /// The start of a server's response, after the request was sent: 60s by default
    head: Option<Span>,
    /// A pause in a body, in either direction: 60s by default
    idle: Option<Span>,
    /// Timeout for a client that stops reading: 5m by default
    stall: Option<Span>,
    /// An idle WebSocket: 1h by default
    tunnel: Option<Span>,
    /// How long an unused connection to a server is kept: 30s by default
    keep: Option<Span>,
    /// How long a request's body may be slower than `min_upload_rate`: 10s by default
    upload: Option<Span>,
}

/// Proxy size and concurrency limits
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ProxyBounds {
    /// Bytes in a request's body: 1 GiB by default
    max_body: Option<Count>,
    /// Bytes in a request's head: 32 KiB by default
    max_head: Option<Count>,
    /// Headers of a request: 100 by default
    max_headers: Option<Count>,
    /// The least rate of a request's body in bytes a second, until the response begins: 500 by default
    min_upload_rate: Option<Count>,
    /// Requests in flight: 10,000 by default
    max_in_flight: Option<Count>,
}

impl Proxy {
    /// A relative path is relative to the configuration file.
    pub(super) fn resolve_against(&mut self, directory: &Path) {
        self.tls.iter_mut().for_each(|files| files.resolve_against(directory));
        for path in self.upstreams.iter_mut().filter_map(|upstream| upstream.ca.as_mut()) {
            *path = directory.join(&*path);
        }
        if let Some(identity) = &mut self.identity {
            identity.resolve_against(directory);
        }
    }

    /// Validates the section, as far as possible without certificates.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.address()?;
        self.routes()?;
        self.upstreams.iter().try_for_each(|upstream| upstream.targets().map(drop))?;
        self.identity.iter().try_for_each(|identity| check_identity("proxy.", identity).map(drop))
    }

    pub(crate) fn address(&self) -> Result<SocketAddr, Failure> {
        let resolved = self.listen.resolve().map_err(|why| wrong("listen", why))?;
        resolved.ok_or_else(|| {
            wrong("listen", "a proxy without a listener serves nobody").hint("leave the section `proxy` out")
        })
    }

    /// Every domain that it uses.
    pub(crate) fn domains(&self) -> impl Iterator<Item = &str> {
        [self.domain.as_str()]
            .into_iter()
            .chain(self.routes.iter().filter_map(|route| route.domain.as_deref()))
    }

    /// The resulting settings; `identity` is the server's own. Reads certificates.
    pub(crate) fn settings(
        &self,
        identity: Arc<Identity>,
        goodbye: Option<std::time::Duration>,
    ) -> Result<ProxySettings, Failure> {
        let identity = match &self.identity {
            Some(own) => Arc::new(check_identity("proxy.", own)?),
            None => identity,
        };
        Ok(ProxySettings {
            upstreams: self.upstreams.iter().map(Upstream::settings).collect::<Result<_, _>>()?,
            routes: self.routes()?,
            identity,
            domain: self.domain.clone(),
            timeouts: self.timeouts.settings(goodbye),
            limits: self.limits.settings(&self.timeouts),
        })
    }

    /// The TLS configuration for clients. Reads certificates.
    pub(crate) fn tls(&self) -> Result<Option<Arc<ServerTls>>, Failure> {
        self.tls.as_ref().map(|files| files.load("proxy.tls", Offers::Http)).transpose()
    }

    fn routes(&self) -> Result<Vec<Route>, Failure> {
        let names: Vec<&str> = self.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
        if let Some(twice) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
            return Err(wrong("upstreams", format!("two are called `{}`", names[twice])).hint("rename one"));
        }
        match (&names[..], &self.routes[..]) {
            ([], _) => Err(wrong("upstreams", "there is none").hint("name a server that requests go to")),
            ([_], []) => Ok(vec![Route { host: None, path: "/".to_owned(), upstream: 0, domain: None }]),
            (_, []) => Err(wrong("routes", "there is none, and several upstreams")
                .hint("say which requests go where, such as { path: /api, upstream: api }")),
            (_, routes) => routes.iter().map(|route| route.settings(&names)).collect(),
        }
    }
}

impl RouteTo {
    fn settings(&self, names: &[&str]) -> Result<Route, Failure> {
        let upstream = names.iter().position(|name| *name == self.upstream).ok_or_else(|| {
            wrong("routes", format!("there is no upstream `{}`", self.upstream))
                .hint(suggest(&self.upstream, names))
        })?;
        let path = self.path.clone().unwrap_or_else(|| "/".to_owned());
        if !path.starts_with('/') || path.contains(['*', '?', '#']) {
            return Err(wrong("routes", format!("`{path}` is no path"))
                .hint("it begins with a slash, and stands for everything below it"));
        }
        if self.host.as_deref().is_some_and(|host| host.contains(['/', ' ']) || host.is_empty()) {
            return Err(wrong("routes", "a host is a name, without scheme, port and path"));
        }
        Ok(Route { host: self.host.clone(), path, upstream, domain: self.domain.clone() })
    }
}

impl Upstream {
    fn targets(&self) -> Result<Vec<Target>, Failure> {
        let name = &self.name;
        if self.targets.is_empty() || self.targets.len() > MOST_TARGETS {
            return Err(wrong("upstreams", format!("`{name}` has {} targets", self.targets.len()))
                .hint(format!("1 to {MOST_TARGETS}")));
        }
        let parse = |text: &String| {
            text.parse::<Target>().map_err(|error| {
                wrong("upstreams", format!("`{text}` of `{name}` is no target: {error}")).hint(
                    "write it as http://10.0.0.1:3000, https://api.internal or h2c://grpc.internal:50051",
                )
            })
        };
        self.targets.iter().map(parse).collect()
    }

    fn settings(&self) -> Result<UpstreamSettings, Failure> {
        let targets = self.targets()?;
        let secure = self.targets.iter().any(|target| target.starts_with("https:"));
        let tls = secure.then(|| client_config(self.ca.as_deref())).transpose();
        let default = Ejection::default();
        let failures = self.eject.failures.map(|Count(most)| u32::try_from(most.get()).unwrap_or(u32::MAX));
        Ok(UpstreamSettings {
            name: self.name.clone(),
            targets,
            tls: tls.map_err(|error| unusable("upstreams", &error))?,
            ejection: Ejection {
                failures: failures.unwrap_or(default.failures),
                lasts: span(self.eject.lasts, default.lasts),
            },
            check: self.health.as_ref().map(Health::settings),
        })
    }
}

impl Health {
    fn settings(&self) -> HealthCheck {
        let seconds = std::time::Duration::from_secs;
        HealthCheck {
            path: self.path.clone(),
            // The timer does not accept an interval of zero.
            every: span(self.every, seconds(5)).max(std::time::Duration::from_millis(10)),
            within: span(self.timeout, seconds(2)),
        }
    }
}

impl ProxyTimeouts {
    fn settings(&self, goodbye: Option<std::time::Duration>) -> Timeouts {
        let default = Timeouts::default();
        Timeouts {
            connect: span(self.connect, default.connect),
            head: span(self.head, default.head),
            idle: span(self.idle, default.idle),
            // It is polled four times as often, and must not be polled all the time.
            stall: span(self.stall, default.stall).max(std::time::Duration::from_millis(100)),
            tunnel: span(self.tunnel, default.tunnel),
            keep: span(self.keep, default.keep),
            upload_grace: span(self.upload, default.upload_grace),
            goodbye: goodbye.unwrap_or(default.goodbye),
        }
    }
}

impl ProxyBounds {
    fn settings(&self, timeouts: &ProxyTimeouts) -> ProxyLimits {
        let mut limits = ProxyLimits::default();
        limits.http.head_timeout = span(timeouts.client, limits.http.head_timeout);
        if let Some(Count(most)) = self.max_body {
            limits.max_body_bytes = most.get() as u64;
        }
        if let Some(Count(most)) = self.max_head {
            limits.http.max_head_bytes = u32::try_from(most.get()).unwrap_or(u32::MAX);
        }
        if let Some(Count(most)) = self.max_headers {
            limits.http.max_headers = most.get();
        }
        if let Some(Count(least)) = self.min_upload_rate {
            limits.min_upload_rate = NonZeroU64::try_from(least).unwrap_or(NonZeroU64::MAX);
        }
        if let Some(Count(most)) = self.max_in_flight {
            limits.max_in_flight = most;
        }
        limits
    }
}

/// The identity of a section, or what is invalid. Reads the files that it names.
pub(crate) fn check_identity(section: &str, config: &IdentityConfig) -> Result<Identity, Failure> {
    Identity::new(config)
        .map_err(|error: IdentityError| Failure::new(format!("{section}{error}")).hint(error.hint))
}

fn span(given: Option<Span>, default: std::time::Duration) -> std::time::Duration {
    given.map_or(default, |Span(given)| given)
}

fn wrong(field: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("proxy.{field}: {why}"))
}

fn unusable(field: &str, error: &ClientTlsError) -> Failure {
    wrong(field, with_causes(error)).hint("certificates, authorities and keys are PEM files")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Proxy {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn one_upstream_needs_no_route() {
        let proxy =
            read("{ listen: '127.0.0.1:0', domain: a, upstreams: [{ name: b, targets: ['http://c'] }] }");
        proxy.check().unwrap();
        assert_eq!(proxy.routes().unwrap().len(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_named_with_a_way_out() {
        let upstream = "{ name: b, targets: ['http://c'] }";
        for (upstreams, routes, says) in [
            ("", "", "there is none"),
            ("{ name: b, targets: [] }", "", "0 targets"),
            ("{ name: b, targets: ['c:80'] }", "", "`c:80` of `b` is no target"),
            (&format!("{upstream}, {upstream}"), "", "two are called `b`"),
            (&format!("{upstream}, {{ name: d, targets: ['http://c'] }}"), "", "several upstreams"),
            (upstream, "{ upstream: bb }", "did you mean `b`?"),
            (upstream, "{ path: api, upstream: b }", "`api` is no path"),
            (upstream, "{ path: '/api/*', upstream: b }", "stands for everything below"),
        ] {
            let text = format!(
                "{{ listen: '127.0.0.1:0', domain: a, upstreams: [{upstreams}], routes: [{routes}] }}"
            );
            let failure = format!("{:?}", read(&text).check().unwrap_err());
            assert!(failure.contains(says), "{text}: {failure}");
        }
    }

    #[test]
    fn files_are_beside_the_configuration() {
        let mut proxy = read(
            "{ listen: '127.0.0.1:0', domain: a, tls: { certificate: c.pem, key: /k.pem }, \
             upstreams: [{ name: b, targets: ['https://c'], ca: ca.pem }] }",
        );
        proxy.resolve_against(Path::new("/srv"));
        let tls = proxy.tls.unwrap();
        assert_eq!((tls.certificate, tls.key), ("/srv/c.pem".into(), "/k.pem".into()));
        assert_eq!(proxy.upstreams[0].ca.as_deref(), Some(Path::new("/srv/ca.pem")));
    }
}
