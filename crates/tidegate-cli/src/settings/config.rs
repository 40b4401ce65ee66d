//! The configuration file (YAML), and the shape that every source of settings shares.
//!
//! Each field is optional: a [`Config`] is one source of settings, be it the file, the environment or the flags. The parent
//! module merges them. An unknown field is an error, never ignored: a limiter with a misread configuration would fail
//! silently.

use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_http::identity::IdentityConfig;

use super::control::AdminSection;
use super::decision_log::DecisionLog;
use super::diagnose;
use super::flags::Flags;
use super::listeners::{ListenerTls, RespUser, Tokens};
use super::proxy::Proxy;
use super::regions::Regions;
use super::rls::{HeaderNames, Xds};
use super::shedding::Shedding;
use super::telemetry::{Alerts, Telemetry};
use super::values::{
    ClosedStatus, Count, HeaderSet, ListenAddr, LogFilter, LogFormat, ResetForm, RlsHeaders, RulesSource,
    Secret, Span, Switch,
};
use crate::failure::Failure;

/// The largest configuration file.
const MOST_BYTES: u64 = 1 << 20;

/// The configuration of `tidegate serve`
///
/// Every field is optional.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Where to listen
    pub(crate) listen: Listen,
    /// Where counters live
    pub(crate) store: Store,
    /// The name of this region, where there are several: none by default
    pub(crate) region: Option<String>,
    /// Where rules with `scope: global` are counted: nowhere by default
    pub(crate) regions: Regions,
    /// Where rules come from
    pub(crate) rules: Rules,
    /// Which header sets HTTP answers carry: both by default, none with an empty list
    pub(crate) headers: Option<Vec<HeaderSet>>,
    /// The `X-RateLimit-*` headers
    #[serde(alias = "x-ratelimit")]
    pub(crate) x_ratelimit: XRateLimit,
    /// The `RateLimit` and `RateLimit-Policy` headers
    pub(crate) ietf: Ietf,
    /// Envoy's rate limit service
    pub(crate) rls: Rls,
    /// Limitador's clients
    pub(crate) limitador: Limitador,
    /// The Redis protocol
    pub(crate) resp: Resp,
    /// TLS towards clients
    pub(crate) tls: ListenerTls,
    /// Tokens for HTTP and gRPC clients; none are needed by default
    pub(crate) access: Tokens,
    /// The admin listener's tokens and names, and the control plane's database
    pub(crate) admin: AdminSection,
    /// The directory of the embedded database: `tidegate-data` by default
    pub(crate) data: Option<PathBuf>,
    /// How requests are identified, for /v1/auth and the proxy
    pub(crate) identity: Option<IdentityConfig>,
    /// A reverse proxy: none by default
    pub(crate) proxy: Option<Proxy>,
    /// Load shedding; off by default
    pub(crate) shedding: Option<Shedding>,
    /// The decision log, for search, rankings and replay: none by default
    pub(crate) decision_log: Option<DecisionLog>,
    /// Bounds
    pub(crate) limits: Limits,
    /// Threads that serve requests: one per core by default
    pub(crate) workers: Option<Count>,
    /// How the server stops
    pub(crate) drain: Drain,
    /// What is logged, and how
    pub(crate) log: Log,
    /// Where feature flags come from that rules follow: nowhere by default
    pub(crate) flags: Flags,
    /// Metrics and traces, sent to other programs: nowhere by default
    pub(crate) telemetry: Telemetry,
    /// Alerts, in the log, the admin API and a webhook
    pub(crate) alerts: Alerts,
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
    /// Where counters live: `memory:`, the default; redis://[user:password@]host[:port][/database], rediss:// with TLS,
    /// redis+sentinel://host,host/service, redis+cluster://host,host or redis+sharded://host,host;
    /// postgres://user[:password]@host[:port],host/database[?sslmode=require]; memcached://host[:port],host;
    /// dynamodb://table?region=eu-west-1[&endpoint=http://host:port][&create=true]
    pub(crate) url: Option<Secret>,
    /// The password for the url's user, so that it need not stand in the url
    pub(crate) password: Option<Secret>,
    /// Whether the server refuses to start where the store cannot be used: false by default
    pub(crate) required: Option<Switch>,
    /// How long a request waits for the store, before its rules' failure policies decide: 10ms by default
    pub(crate) timeout: Option<Span>,
    /// The HTTP status of a refusal by a `closed` rule whose store does not answer: 503 by default, because the caller may
    /// have quota; or 429, for clients that slow down on nothing else
    pub(crate) closed_status: Option<ClosedStatus>,
    /// When a store node counts as failed
    pub(crate) breaker: Breaker,
    /// The prefix of every key, so that several fleets can share a store: `tidegate` by default
    pub(crate) key_prefix: Option<String>,
    /// How many nodes share the store. A node that starts while the store is unavailable divides limits by it, until it knows
    /// the other nodes. By default such a node assumes that it is the only one
    pub(crate) expected_nodes: Option<Count>,
    /// How many counters a node caches as the store last returned them: to repeat refusals, and to continue while the store is
    /// unavailable. 131,072 by default, about 140 bytes each; the most spent are kept longest
    pub(crate) remembered_cells: Option<Count>,
    /// The secret that signs leases, the same on all nodes: at least 16 bytes. By default the nodes create one and keep it in the
    /// store, where anyone with access to the store can read it
    pub(crate) lease_secret: Option<Secret>,
    /// The secret that signs messages between nodes (rules, overrides, queries), the same on all nodes: at least 16 bytes. By
    /// default `lease_secret`; without either, anyone who can write to the store can replace the fleet's rules
    pub(crate) fleet_secret: Option<Secret>,
    /// Files for TLS, where the url asks for it
    pub(crate) tls: Tls,
    /// Credentials for the sentinels; those for the servers are in the url
    pub(crate) sentinel: Sentinel,
}

/// When a store node counts as failed
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Breaker {
    /// Failures in a row: 3 by default
    pub(crate) failures: Option<Count>,
    /// How long requests skip the node: 30s by default. Meanwhile it is probed 25 ms after each answer or error, and after half a
    /// second of silence, and used again as soon as it decides in time
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

/// Credentials for the sentinels
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
    /// `file`, the default where files are named, or `database`
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
    /// Names of the three headers of envoyproxy/ratelimit, in addition to those: none by default
    pub(crate) header_names: Option<HeaderNames>,
    /// Whether answers have `dynamic_metadata`, for Envoy's access log: `rule`, `source` and `remaining`. false by default
    pub(crate) dynamic_metadata: Option<Switch>,
    /// A management server that sends the limits, such as Envoy Gateway; rule files may have other domains beside them
    pub(crate) xds: Option<Xds>,
}

/// Limitador's clients
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limitador {
    /// Whether the HTTP listener also serves /check, /report and /check_and_report: false by default
    pub(crate) http_api: Option<Switch>,
}

/// The `X-RateLimit-*` headers
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct XRateLimit {
    /// What `X-RateLimit-Reset` counts: `unix`, seconds since 1970 (the default), or `delta`, seconds from now
    pub(crate) reset: Option<ResetForm>,
}

/// The `RateLimit` and `RateLimit-Policy` headers
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ietf {
    /// Sends partition keys (`pk`), hashes made with this secret, which has at least 16 bytes and is the same on all nodes: none are sent by default
    pub(crate) partition_secret: Option<Secret>,
}

/// The Redis protocol
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Resp {
    /// The password for AUTH: none by default
    pub(crate) password: Option<Secret>,
    /// Further users with their own passwords: none by default
    pub(crate) users: Option<Vec<RespUser>>,
    /// Timeout for logging in, where a password is set: 10s by default
    pub(crate) login_timeout: Option<Span>,
    /// Idle timeout: 1h by default
    pub(crate) idle_timeout: Option<Span>,
}

/// How the server stops
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Drain {
    /// How long the server reports that it is not ready while it still serves, so that load balancers send it no new clients: 3s by default. Ctrl-C skips it
    pub(crate) delay: Option<Span>,
    /// Timeout for requests in flight after that: 10s by default
    pub(crate) timeout: Option<Span>,
    /// Timeout for WebSockets and other tunnels through the proxy: 2s by default
    pub(crate) tunnels: Option<Span>,
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
    /// The most connections on each listener: 10,000 by default, or as many as the system lets it have open
    pub(crate) max_connections: Option<Count>,
    /// The most connections of one address (one /64 of IPv6) on each listener: by default four times the free ones
    pub(crate) max_connections_per_peer: Option<Count>,
    /// The most bytes that the half requests of one connection may hold: 4 MiB by default
    pub(crate) max_connection_memory: Option<Count>,
    /// The most bytes that the half requests of one worker's connections may hold: 64 MiB by default
    pub(crate) max_worker_memory: Option<Count>,
    /// Timeout for a request's head, and for the first request of a connection: 60s by default
    pub(crate) head_timeout: Option<Span>,
    /// Timeout for a request's body: 10s by default
    pub(crate) body_timeout: Option<Span>,
    /// Idle timeout of a connection: 5m by default. HTTP/1 uses `head_timeout`
    pub(crate) idle_timeout: Option<Span>,
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
        let metadata = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if !metadata.is_file() {
            return Err(unreadable("it is not a regular file".to_owned()));
        }
        if metadata.len() > MOST_BYTES {
            return Err(unreadable("it is too large for a configuration".to_owned()));
        }
        let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        let mut config = Config::parse(&path.display().to_string(), &text)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        config.rules.resolve_against(directory);
        config.store.tls.resolve_against(directory);
        config.regions.resolve_against(directory);
        config.tls.resolve_against(directory);
        config.rls.xds.iter_mut().for_each(|xds| xds.resolve_against(directory));
        config.access.resolve_against(directory);
        config.admin.resolve_against(directory);
        config.data.iter_mut().for_each(|data| *data = directory.join(&*data));
        config.identity.iter_mut().for_each(|identity| identity.resolve_against(directory));
        config.proxy.iter_mut().for_each(|proxy| proxy.resolve_against(directory));
        config.decision_log.iter_mut().for_each(|log| log.resolve_against(directory));
        config.flags.resolve_against(directory);
        config.telemetry.resolve_against(directory);
        config.alerts.resolve_against(directory);
        Ok(config)
    }

    fn parse(name: &str, text: &str) -> Result<Config, Failure> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Config::default());
        }
        let is_rules = |line: &str| line.trim_start_matches(['{', ' ']).starts_with("domain:");
        if text.lines().any(|line| !line.starts_with("  ") && is_rules(line)) {
            return Err(Failure::new(format!("{name} is a rule file, not the server's configuration"))
                .hint(format!("give it to --rules, or check it alone: tidegate validate {name}")));
        }
        serde_saphyr::from_str(text).map_err(|error| diagnose::failure(name, text, &error))
    }
}

/// Gives each section `or`: its settings, with gaps filled from a weaker source.
macro_rules! merged_by_field {
    ($($section:ident { $($field:ident),* $(,)? })*) => {
        $(impl $section {
            pub(super) fn or(self, weaker: $section) -> $section {
                $section { $($field: self.$field.or(weaker.$field)),* }
            }
        })*
    };
}

merged_by_field! {
    Config {
        listen, store, region, regions, rules, headers, x_ratelimit, ietf, rls, limitador, resp, tls, access, admin, data, identity, proxy, shedding,
        decision_log, limits, workers, drain, log, flags, telemetry, alerts,
    }
    Listen { http, grpc, resp, admin }
    Store {
        url, password, required, timeout, closed_status, breaker, key_prefix, expected_nodes, remembered_cells, lease_secret,
        fleet_secret, tls, sentinel,
    }
    Breaker { failures, open_for }
    Regions { home, ask_within }
    Tls { ca, certificate, key }
    Sentinel { user, password }
    Rules { source, paths, envoy_config }
    XRateLimit { reset }
    Ietf { partition_secret }
    Rls { response_headers, header_names, dynamic_metadata, xds }
    Limitador { http_api }
    Resp { password, users, login_timeout, idle_timeout }
    ListenerTls { http, grpc, resp, admin }
    Tokens { tokens, tokens_file }
    AdminSection { tokens, tokens_file, hosts, database, environment, node }
    Limits {
        max_cells, max_log_bytes, max_body, max_connections, max_connections_per_peer, max_connection_memory, max_worker_memory,
        head_timeout, body_timeout, idle_timeout,
    }
    Drain { delay, timeout, tunnels }
    Log { level, format }
    Flags { file, ofrep }
    Telemetry { statsd, otlp, emf, emf_every, emf_namespace }
    Alerts { enabled, webhook, dashboard, store_p99, store_memory, certificate_days, shadow_refusals }
}

impl Tls {
    pub(super) fn resolve_against(&mut self, directory: &Path) {
        for path in [&mut self.ca, &mut self.certificate, &mut self.key].into_iter().flatten() {
            *path = directory.join(&*path);
        }
    }
}

impl Rules {
    /// A relative path is relative to the configuration file, wherever the server was started.
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
              password: secret
              required: true
              timeout: 5ms
              closed_status: 429
              breaker: { failures: 5, open_for: 10s }
              key_prefix: mine
              tls: { ca: ca.pem, certificate: cert.pem, key: key.pem }
              sentinel: { user: watcher, password: secret }
            resp: { password: secret, users: [{ name: a, passwords: [b] }], login_timeout: 1s, idle_timeout: 1m }
            tls:
              http: { certificate: c.pem, key: k.pem }
              grpc: { certificate: c.pem, key: k.pem, client_ca: ca.pem }
              resp: { certificate: c.pem, key: k.pem }
              admin: { certificate: c.pem, key: k.pem }
            access: { tokens: [0123456789abcdef], tokens_file: tokens }
            admin: { tokens: [0123456789abcdef], tokens_file: tokens, hosts: [limits.example], database: none, environment: a, node: b }
            data: there
            identity: { trusted_proxies: [10.0.0.0/8] }
            proxy: { listen: '127.0.0.1:0', domain: api, upstreams: [{ name: a, targets: ['http://b'] }] }
            shedding: { workers: 20, thresholds: { P1: 90, P2: 80, P3: 70 } }
            decision_log: { admissions_one_in: 10, clear: [path], file: { path: decisions.log, keep: 2 } }
            rules: { source: file, paths: [rules, /etc/extra.yaml], envoy_config: envoy }
            headers: [x-ratelimit, ietf]
            x-ratelimit: { reset: delta }
            ietf: { partition_secret: 0123456789abcdef }
            rls: { response_headers: ietf, header_names: { limit: a, remaining: b, reset: c }, dynamic_metadata: true, xds: { address: 'a:1' } }
            limitador: { http_api: true }
            limits:
              { max_cells: 1000, max_log_bytes: 4096, max_body: 65536, max_connections: 10,
                max_connections_per_peer: 5, max_connection_memory: 4096, max_worker_memory: 8192,
                head_timeout: 1s, body_timeout: 1s, idle_timeout: 1s }
            flags: { file: flags.yaml, ofrep: { url: 'http://127.0.0.1:8016' } }
            workers: 2
            drain: { delay: 1s, timeout: 3s, tunnels: 1s }
            log: { level: 'info,h2=warn', format: json }";
        let config = Config::parse("a.yaml", text).unwrap();
        // Nothing is left for a weaker source to set.
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
