//! The configuration file (YAML), and the shape that every source of settings shares.
//!
//! Each field is optional: a [`Config`] is what one source says, be it the file, the environment or the flags. What
//! they add up to is decided in the parent module. An unknown field is an error, never ignored: a limiter that
//! misreads its configuration fails in the dark.

use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_http::identity::IdentityConfig;

use super::diagnose;
use super::proxy::Proxy;
use super::shedding::Shedding;
use super::values::{
    Count, HeaderSet, ListenAddr, LogFilter, LogFormat, RlsHeaders, RulesSource, Secret, Span,
};
use crate::failure::Failure;

/// Larger files are not configuration.
const MOST_BYTES: u64 = 1 << 20;

/// How to run `tidegate serve`
///
/// Every field may be left out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Where to listen
    pub(crate) listen: Listen,
    /// Where counters live
    pub(crate) store: Store,
    /// Where rules come from
    pub(crate) rules: Rules,
    /// Which header sets HTTP answers carry: both by default, none with an empty list
    pub(crate) headers: Option<Vec<HeaderSet>>,
    /// Envoy's rate limit service
    pub(crate) rls: Rls,
    /// The Redis protocol
    pub(crate) resp: Resp,
    /// Who a request is that a gateway asks about (/v1/auth), or that passes through the proxy
    pub(crate) identity: Option<IdentityConfig>,
    /// A reverse proxy: none by default
    pub(crate) proxy: Option<Proxy>,
    /// Whom to turn away while the service behind has more to do than it can: nobody by default
    pub(crate) shedding: Option<Shedding>,
    /// Bounds
    pub(crate) limits: Limits,
    /// Threads that serve requests: one per core by default
    pub(crate) workers: Option<Count>,
    /// How long requests in flight may take to finish when the server is told to stop: 10s by default
    pub(crate) drain: Option<Span>,
    /// What is logged, and how
    pub(crate) log: Log,
}

/// Addresses as host:port; port 0 picks a free one, `off` opens none
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listen {
    /// HTTP/JSON: 127.0.0.1:8080 by default
    pub(crate) http: Option<ListenAddr>,
    /// gRPC: 127.0.0.1:8081 by default
    pub(crate) grpc: Option<ListenAddr>,
    /// The Redis protocol: 127.0.0.1:6380 by default
    pub(crate) resp: Option<ListenAddr>,
    /// Metrics and administration: 127.0.0.1:8082 by default
    pub(crate) admin: Option<ListenAddr>,
}

/// Where counters live
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    /// `memory:`, the default; redis://[user:password@]host[:port][/database], rediss:// with TLS,
    /// redis+sentinel://host,host/service, redis+cluster://host,host or redis+sharded://host,host
    pub(crate) url: Option<Secret>,
    /// How long a request waits for the store, before its rules' failure policies decide: 10ms by default
    pub(crate) timeout: Option<Span>,
    /// When a node of the store counts as gone
    pub(crate) breaker: Breaker,
    /// What every key begins with, so that several fleets can share a store: `tidegate` by default
    pub(crate) key_prefix: Option<String>,
    /// Files for TLS, where the url asks for it
    pub(crate) tls: Tls,
    /// Who logs in at the sentinels; the url says who does at the servers
    pub(crate) sentinel: Sentinel,
}

/// When a node of the store counts as gone
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Breaker {
    /// So many failures in a row: 3 by default
    pub(crate) failures: Option<Count>,
    /// How long no request tries it: 30s by default. It is probed twice a second meanwhile, and used again as soon as
    /// it answers
    pub(crate) open_for: Option<Span>,
}

/// PEM files, relative to the configuration file
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    /// The authorities to trust: the machine's by default
    pub(crate) ca: Option<PathBuf>,
    /// The certificate to show, where the server asks for one
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key
    pub(crate) key: Option<PathBuf>,
}

/// Who logs in at the sentinels
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sentinel {
    /// The ACL user
    pub(crate) user: Option<String>,
    /// Its password
    pub(crate) password: Option<Secret>,
}

/// Where rules come from
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rules {
    /// Files, the default
    pub(crate) source: Option<RulesSource>,
    /// Rule files, or directories of them, relative to the configuration file
    pub(crate) paths: Option<Vec<PathBuf>>,
    /// A configuration directory of envoyproxy/ratelimit, relative to the configuration file
    pub(crate) envoy_config: Option<PathBuf>,
}

/// Envoy's rate limit service
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rls {
    /// Which headers Envoy is asked to add to its answer: none by default
    pub(crate) response_headers: Option<RlsHeaders>,
}

/// The Redis protocol
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Resp {
    /// What clients must give with AUTH: nothing by default
    pub(crate) password: Option<Secret>,
}

/// Bounds on what the server holds
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// The most counters in memory: 10,000,000 by default, about 45 bytes each
    pub(crate) max_cells: Option<Count>,
    /// The most bytes for sliding logs and leases in memory: 512 MiB by default
    pub(crate) max_log_bytes: Option<Count>,
    /// The most bytes in a request's body: 256 KiB by default
    pub(crate) max_body: Option<Count>,
    /// The most connections on each listener: 10,000 by default
    pub(crate) max_connections: Option<Count>,
}

/// What is logged, and how
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Log {
    /// error, warn, info (the default), debug or trace; also per module, as in `info,tidegate_server=debug`
    pub(crate) level: Option<LogFilter>,
    /// `text` for a person (the default), `json` for a collector
    pub(crate) format: Option<LogFormat>,
}

impl Config {
    /// Reads the file at `path`.
    pub(crate) fn read(path: &Path) -> Result<Config, Failure> {
        let unreadable = |why: String| {
            Failure::new(format!("cannot read {}: {why}", path.display()))
                .hint("--config names the server's configuration; rule files are given with --rules")
        };
        let size = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
        if size > MOST_BYTES {
            return Err(unreadable("it is too large for a configuration".to_owned()));
        }
        let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        let mut config = Config::parse(&path.display().to_string(), &text)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        config.rules.resolve_against(directory);
        config.store.tls.resolve_against(directory);
        config.identity.iter_mut().for_each(|identity| identity.resolve_against(directory));
        config.proxy.iter_mut().for_each(|proxy| proxy.resolve_against(directory));
        Ok(config)
    }

    fn parse(name: &str, text: &str) -> Result<Config, Failure> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Config::default());
        }
        serde_saphyr::from_str(text).map_err(|error| diagnose::failure(name, text, &error))
    }

    /// What this source says, and where it is silent, what `weaker` says.
    pub(crate) fn or(self, weaker: Config) -> Config {
        Config {
            listen: Listen {
                http: self.listen.http.or(weaker.listen.http),
                grpc: self.listen.grpc.or(weaker.listen.grpc),
                resp: self.listen.resp.or(weaker.listen.resp),
                admin: self.listen.admin.or(weaker.listen.admin),
            },
            store: self.store.or(weaker.store),
            rules: Rules {
                source: self.rules.source.or(weaker.rules.source),
                paths: self.rules.paths.or(weaker.rules.paths),
                envoy_config: self.rules.envoy_config.or(weaker.rules.envoy_config),
            },
            headers: self.headers.or(weaker.headers),
            rls: Rls { response_headers: self.rls.response_headers.or(weaker.rls.response_headers) },
            resp: Resp { password: self.resp.password.or(weaker.resp.password) },
            identity: self.identity.or(weaker.identity),
            proxy: self.proxy.or(weaker.proxy),
            shedding: self.shedding.or(weaker.shedding),
            limits: Limits {
                max_cells: self.limits.max_cells.or(weaker.limits.max_cells),
                max_log_bytes: self.limits.max_log_bytes.or(weaker.limits.max_log_bytes),
                max_body: self.limits.max_body.or(weaker.limits.max_body),
                max_connections: self.limits.max_connections.or(weaker.limits.max_connections),
            },
            workers: self.workers.or(weaker.workers),
            drain: self.drain.or(weaker.drain),
            log: Log {
                level: self.log.level.or(weaker.log.level),
                format: self.log.format.or(weaker.log.format),
            },
        }
    }
}

impl Store {
    fn or(self, weaker: Store) -> Store {
        Store {
            url: self.url.or(weaker.url),
            timeout: self.timeout.or(weaker.timeout),
            breaker: Breaker {
                failures: self.breaker.failures.or(weaker.breaker.failures),
                open_for: self.breaker.open_for.or(weaker.breaker.open_for),
            },
            key_prefix: self.key_prefix.or(weaker.key_prefix),
            tls: Tls {
                ca: self.tls.ca.or(weaker.tls.ca),
                certificate: self.tls.certificate.or(weaker.tls.certificate),
                key: self.tls.key.or(weaker.tls.key),
            },
            sentinel: Sentinel {
                user: self.sentinel.user.or(weaker.sentinel.user),
                password: self.sentinel.password.or(weaker.sentinel.password),
            },
        }
    }
}

impl Tls {
    fn resolve_against(&mut self, directory: &Path) {
        for path in [&mut self.ca, &mut self.certificate, &mut self.key].into_iter().flatten() {
            *path = directory.join(&*path);
        }
    }
}

impl Rules {
    /// A path in a file means one beside that file, wherever the server was started.
    fn resolve_against(&mut self, directory: &Path) {
        for path in self.paths.iter_mut().flatten().chain(&mut self.envoy_config) {
            *path = directory.join(&*path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_comments_says_nothing() {
        assert_eq!(Config::parse("a.yaml", "# listen:\n\n").unwrap(), Config::default());
    }

    #[test]
    fn every_field_can_be_given() {
        let text = "
            listen: { http: '0.0.0.0:80', grpc: off, resp: 'localhost:1', admin: 'localhost:0' }
            store:
              url: 'redis+sentinel://a,b/service'
              timeout: 5ms
              breaker: { failures: 5, open_for: 10s }
              key_prefix: mine
              tls: { ca: ca.pem, certificate: cert.pem, key: key.pem }
              sentinel: { user: watcher, password: secret }
            resp: { password: secret }
            identity: { trusted_proxies: [10.0.0.0/8] }
            proxy: { listen: '127.0.0.1:0', domain: api, upstreams: [{ name: a, targets: ['http://b'] }] }
            shedding: { workers: 20, thresholds: { P1: 90, P2: 80, P3: 70 } }
            rules: { source: file, paths: [rules, /etc/extra.yaml], envoy_config: envoy }
            headers: [x-ratelimit, ietf]
            rls: { response_headers: ietf }
            limits: { max_cells: 1000, max_log_bytes: 4096, max_body: 65536, max_connections: 10 }
            workers: 2
            drain: 3s
            log: { level: 'info,h2=warn', format: json }";
        let config = Config::parse("a.yaml", text).unwrap();
        // Nothing is left for a weaker source to say.
        let mut loud = config.clone();
        loud.workers = Some("99".parse().unwrap());
        assert_eq!(config.clone().or(loud), config);
        assert_eq!(Config::default().or(config.clone()), config);
    }

    #[test]
    fn paths_are_beside_the_file() {
        let mut rules = Rules {
            paths: Some(vec!["rules".into(), "/etc/extra.yaml".into()]),
            envoy_config: Some("envoy".into()),
            ..Rules::default()
        };
        rules.resolve_against(Path::new("/srv/tidegate"));
        assert_eq!(rules.paths.unwrap(), [Path::new("/srv/tidegate/rules"), Path::new("/etc/extra.yaml")]);
        assert_eq!(rules.envoy_config.unwrap(), Path::new("/srv/tidegate/envoy"));
    }
}
