//! `tidegate import envoy-env`: the environment of an envoyproxy/ratelimit deployment as our configuration.
//!
//! Every variable of that service is listed here, so that none is lost unseen: it has a field of ours, or a reason why it needs
//! none, or one why it has no equivalent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// The largest file of variables.
const MOST_BYTES: u64 = 1 << 20;

/// What becomes of a variable.
enum Fate {
    /// It has a field of ours.
    Field,
    /// It is read together with another one.
    With,
    /// It needs no equivalent, and why.
    Needless(&'static str),
    /// It has none, and what to do.
    Lost(&'static str),
}
use Fate::{Field, Lost, Needless, With};

/// The variables of envoyproxy/ratelimit.
const VARIABLES: &[(&str, Fate)] = &[
    ("PROTO", Needless("the service always listens on TCP")),
    ("HOST", With),
    ("PORT", Field),
    ("DEBUG_HOST", With),
    ("DEBUG_PORT", Field),
    ("GRPC_UDS", Lost("there is no Unix socket: let Envoy connect to a port on loopback")),
    ("GRPC_HOST", With),
    ("GRPC_PORT", Field),
    (
        "GRPC_MAX_CONNECTION_AGE",
        Needless("connections are dealt to the least loaded core, and end at a drain"),
    ),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", Needless("connections end at a drain")),
    ("GRPC_SERVER_USE_TLS", Field),
    ("GRPC_SERVER_TLS_CERT", With),
    ("GRPC_SERVER_TLS_KEY", With),
    ("GRPC_CLIENT_TLS_CACERT", With),
    (
        "GRPC_CLIENT_TLS_SAN",
        Lost(
            "any client with a certificate of `client_ca` may connect: give clients an authority of their own",
        ),
    ),
    ("LOG_LEVEL", Field),
    ("LOG_FORMAT", Field),
    ("CONFIG_TYPE", Field),
    (
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        Needless("the server starts, and is not ready until it has limits"),
    ),
    ("CONFIG_GRPC_XDS_NODE_ID", With),
    ("CONFIG_GRPC_XDS_NODE_METADATA", Lost("only the node's id is sent")),
    ("CONFIG_GRPC_XDS_SERVER_URL", With),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        Needless("it connects again after 1 s, then at longer intervals up to 30 s"),
    ),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", Lost("no headers are added to the stream")),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", With),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", With),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", With),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", With),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", With),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Needless("the first pause is 1 s")),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Needless("the longest pause is 30 s")),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", Needless("pauses have jitter")),
    ("XDS_CLIENT_BACKOFF_JITTER", Needless("pauses have jitter")),
    ("USE_DOG_STATSD", With),
    ("USE_DOG_STATSD_MOGRIFIERS", Lost("names are not rewritten: rename them where they arrive")),
    ("USE_STATSD", Field),
    ("STATSD_HOST", With),
    ("STATSD_PORT", With),
    ("EXTRA_TAGS", With),
    ("STATS_FLUSH_INTERVAL", With),
    ("DISABLE_STATS", With),
    ("USE_PROMETHEUS", Needless("`/metrics` is always there, on the admin listener")),
    ("PROMETHEUS_ADDR", Needless("scrape `/metrics` of the admin listener")),
    ("PROMETHEUS_PATH", Needless("scrape `/metrics` of the admin listener")),
    ("PROMETHEUS_MAPPER_YAML", Lost("metrics have names and labels of their own: docs/reference/metrics.md")),
    ("RUNTIME_ROOT", Field),
    ("RUNTIME_SUBDIRECTORY", With),
    ("RUNTIME_APPDIRECTORY", With),
    ("RUNTIME_IGNOREDOTFILES", Needless("files whose names begin with a dot are never read")),
    ("RUNTIME_WATCH_ROOT", Needless("changed files are noticed however they change")),
    ("EXPIRATION_JITTER_MAX_SECONDS", Needless("windows of many callers expire spread over time")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Needless("refusals are always remembered, for at most a second")),
    ("NEAR_LIMIT_RATIO", Lost("`near_limit` counts above 0.8 of a limit")),
    ("CACHE_KEY_PREFIX", Field),
    ("BACKEND_TYPE", With),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        Lost(
            "under `--envoy-config` refused hits count; import the limits as rules, and leave out `over: debt`",
        ),
    ),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Field),
    ("LIMIT_LIMIT_HEADER", With),
    ("LIMIT_REMAINING_HEADER", With),
    ("LIMIT_RESET_HEADER", With),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Needless("`/readyz` fails until there are rules")),
    ("REDIS_SOCKET_TYPE", With),
    ("REDIS_TYPE", With),
    ("REDIS_URL", Field),
    ("REDIS_POOL_SIZE", Needless("each core has one connection to each server, and pipelines on it")),
    ("REDIS_AUTH", With),
    ("REDIS_TLS", With),
    ("REDIS_TLS_CLIENT_CERT", With),
    ("REDIS_TLS_CLIENT_KEY", With),
    ("REDIS_TLS_CACERT", With),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Lost("the name in a certificate is always checked")),
    ("REDIS_PIPELINE_WINDOW", Needless("requests that wait at the same moment share a call")),
    ("REDIS_PIPELINE_LIMIT", Needless("calls are bounded by the time they take Redis")),
    ("REDIS_PERSECOND", Lost("all limits are in one store: with `redis+sharded://` over several servers")),
    ("REDIS_PERSECOND_SOCKET_TYPE", With),
    ("REDIS_PERSECOND_TYPE", With),
    ("REDIS_PERSECOND_URL", With),
    ("REDIS_PERSECOND_POOL_SIZE", With),
    ("REDIS_PERSECOND_AUTH", With),
    ("REDIS_PERSECOND_TLS", With),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", With),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", With),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        Needless("`/readyz` says `degraded` while Redis does not answer"),
    ),
    ("MEMCACHE_HOST_PORT", Field),
    ("MEMCACHE_MAX_IDLE_CONNS", Needless("each core has one connection to each server")),
    ("MEMCACHE_SRV", With),
    ("MEMCACHE_SRV_REFRESH", With),
    ("MEMCACHE_TLS", With),
    ("MEMCACHE_TLS_CLIENT_CERT", With),
    ("MEMCACHE_TLS_CLIENT_KEY", With),
    ("MEMCACHE_TLS_CACERT", With),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", With),
    ("SHADOW_MODE", Lost("import the limits as rules, with `defaults: { shadow: true }`")),
    (
        "MERGE_DOMAIN_CONFIG",
        Lost(
            "keep all descriptors of a domain in one file, or import them as rules: a domain of rules may have several files",
        ),
    ),
    ("TRACING_ENABLED", Field),
    ("TRACING_SERVICE_NAME", With),
    ("TRACING_SERVICE_NAMESPACE", With),
    ("TRACING_SERVICE_INSTANCE_ID", With),
    ("TRACING_EXPORTER_PROTOCOL", With),
    ("TRACING_SAMPLING_RATE", With),
];

/// Variables that no other program is likely to have: one of them says whose environment it is.
const TELLING: [&str; 7] = [
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
    "RUNTIME_APPDIRECTORY",
    "REDIS_SOCKET_TYPE",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "CONFIG_GRPC_XDS_SERVER_URL",
    "REDIS_PERSECOND",
];

/// The variables of envoyproxy/ratelimit in an environment that looks like one of it: the server reads none of them.
pub(crate) fn ignored(environment: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let names: Vec<String> = environment.filter_map(|(name, _)| name.into_string().ok()).collect();
    if !names.iter().any(|name| TELLING.contains(&name.as_str())) {
        return Vec::new();
    }
    let mut known: Vec<String> = names.into_iter().filter(|name| fate(name).is_some()).collect();
    known.sort_unstable();
    known
}

fn fate(name: &str) -> Option<&'static Fate> {
    VARIABLES.iter().find(|(known, _)| *known == name).map(|(_, fate)| fate)
}

/// A configuration, and what of the environment is not in it.
pub(crate) struct Imported {
    pub(crate) config: String,
    /// A variable, and why it needs no field.
    pub(crate) needless: Vec<String>,
    /// A default of theirs that is not ours, and what to do to have it.
    pub(crate) defaults: Vec<String>,
    /// A variable that has no equivalent, and what to do.
    pub(crate) lost: Vec<String>,
}

/// Reads a file of variables, as `env` prints them or Docker's `--env-file` takes them.
pub(crate) fn import(path: &Path) -> Result<Imported, Failure> {
    let unreadable = |why: String| Failure::new(format!("cannot read {}: {why}", path.display()));
    let metadata = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err(unreadable("it is not a file of variables".to_owned())
            .hint("write one NAME=VALUE on each line, as `env` prints them"));
    }
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    let mut given = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim().strip_prefix("export ").unwrap_or(line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            return Err(Failure::new(format!("{}:{number}: this is no NAME=VALUE", path.display()))
                .hint("write one on each line, as `env` prints them"));
        };
        given.insert(name.trim().to_owned(), unquoted(value.trim()).to_owned());
    }
    Variables(given).convert(path)
}

fn unquoted(value: &str) -> &str {
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    quoted('"').or_else(|| quoted('\'')).unwrap_or(value)
}

struct Variables(BTreeMap<String, String>);

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| ["true", "1", "t", "TRUE", "True", "T"].contains(&value))
    }

    fn convert(&self, path: &Path) -> Result<Imported, Failure> {
        let mut lost: Vec<String> = Vec::new();
        let (mut needless, mut defaults) = (Vec::new(), Vec::new());
        for name in self.0.keys() {
            match fate(name) {
                Some(Needless(why)) => needless.push(format!("{name}: {why}")),
                Some(Lost(what)) if self.is_set(name) => lost.push(format!("{name}: {what}")),
                _ => {}
            }
        }
        let sections = [
            self.listen(&mut lost),
            self.tls(),
            self.store(&mut lost)?,
            self.limits(&mut lost),
            self.rls(),
            self.telemetry(&mut lost, &mut defaults),
            self.log(),
        ];
        let sections: Vec<String> = sections.into_iter().flatten().collect();
        if self.0.keys().all(|name| fate(name).is_none()) {
            return Err(Failure::new(format!(
                "{} has no variable of envoyproxy/ratelimit",
                path.display()
            ))
            .hint("give it the environment of the service: `docker inspect`, `kubectl set env --list`, or its --env-file"));
        }
        Ok(Imported { config: sections.concat(), needless, defaults, lost })
    }

    /// Whether it asks for something: `false` and 0 do not.
    fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !["false", "0", "FALSE", "False"].contains(&value))
    }

    fn listen(&self, lost: &mut Vec<String>) -> Option<String> {
        let address = |host: &str, port: &str, default: u16| {
            let host = self.get(host).unwrap_or("0.0.0.0");
            let port = self.get(port).map_or_else(|| default.to_string(), str::to_owned);
            quoted(&format!("{host}:{port}"))
        };
        let debug = self.get("DEBUG_HOST").filter(|host| !is_here(host));
        if let Some(host) = debug {
            lost.push(format!(
                "DEBUG_HOST: the admin listener stays on 127.0.0.1: set `admin.tokens`, then `listen.admin` to {host}"
            ));
        }
        Some(format!(
            "listen:\n  http: {}\n  grpc: {}\n  # The admin listener has more than theirs: set `admin.tokens` before other machines reach it.\n  admin: {}\n  resp: off\n",
            address("HOST", "PORT", 8080),
            address("GRPC_HOST", "GRPC_PORT", 8081),
            quoted(&format!("127.0.0.1:{}", self.get("DEBUG_PORT").unwrap_or("6070"))),
        ))
    }

    fn tls(&self) -> Option<String> {
        if !self.is_true("GRPC_SERVER_USE_TLS") {
            return None;
        }
        let file =
            |field: &str, name: &str| self.get(name).map(|path| format!("    {field}: {}\n", quoted(path)));
        let files = [
            file("certificate", "GRPC_SERVER_TLS_CERT"),
            file("key", "GRPC_SERVER_TLS_KEY"),
            file("client_ca", "GRPC_CLIENT_TLS_CACERT"),
        ];
        Some(format!("tls:\n  grpc:\n{}", files.into_iter().flatten().collect::<String>()))
    }

    fn store(&self, lost: &mut Vec<String>) -> Result<Option<String>, Failure> {
        match self.get("BACKEND_TYPE") {
            None | Some("redis") => {}
            Some("memcache") => return Ok(self.memcached(lost)),
            Some(_) => {
                lost.push("BACKEND_TYPE: counters are in memory until `store.url` names a store".to_owned());
                return Ok(None);
            }
        }
        let Some(servers) = self.get("REDIS_URL") else { return Ok(None) };
        if servers.starts_with('/') {
            lost.push("REDIS_URL: there is no Unix socket: write redis://host:port".to_owned());
            return Ok(None);
        }
        let servers = servers.trim_start_matches("redis://").trim_start_matches("rediss://");
        let kind = self.get("REDIS_TYPE").unwrap_or("SINGLE").to_ascii_uppercase();
        let is_encrypted = self.is_true("REDIS_TLS");
        let url = match (kind.as_str(), is_encrypted) {
            ("SINGLE", false) => format!("redis://{servers}"),
            ("SINGLE", true) => format!("rediss://{servers}"),
            ("CLUSTER", false) => format!("redis+cluster://{servers}"),
            ("CLUSTER", true) => format!("rediss+cluster://{servers}"),
            // Theirs begins with the name of the master.
            ("SENTINEL", _) => match servers.split_once(',') {
                Some((name, sentinels)) if is_encrypted => format!("rediss+sentinel://{sentinels}/{name}"),
                Some((name, sentinels)) => format!("redis+sentinel://{sentinels}/{name}"),
                None => {
                    return Err(Failure::new(
                        "REDIS_URL: a sentinel group is written name,host:port,host:port",
                    ));
                }
            },
            (other, _) => {
                return Err(Failure::new(format!(
                    "REDIS_TYPE: `{other}` is none of SINGLE, SENTINEL, CLUSTER"
                )));
            }
        };
        let mut section = format!("store:\n  url: {}\n", quoted(&url));
        if let Some(auth) = self.get("REDIS_AUTH") {
            let password = auth.split_once(':').map_or(auth, |(_, password)| password);
            section += &format!("  password: {}\n", quoted(password));
            if let Some((user, _)) = auth.split_once(':').filter(|(user, _)| !user.is_empty()) {
                lost.push(format!("REDIS_AUTH: write the user into the url: //{user}@host"));
            }
        }
        section += &self.key_prefix();
        let files = [
            ("ca", "REDIS_TLS_CACERT"),
            ("certificate", "REDIS_TLS_CLIENT_CERT"),
            ("key", "REDIS_TLS_CLIENT_KEY"),
        ];
        let files: Vec<String> = files
            .iter()
            .filter_map(|(field, name)| Some(format!("{field}: {}", quoted(self.get(name)?))))
            .collect();
        if !files.is_empty() {
            section += &format!("  tls: {{ {} }}\n", files.join(", "));
        }
        Ok(Some(section))
    }

    fn key_prefix(&self) -> String {
        let field = |prefix| format!("  key_prefix: {}\n", quoted(prefix));
        self.get("CACHE_KEY_PREFIX").map_or_else(String::new, field)
    }

    /// Their other backend. Its servers are a list, or what an SRV record names at the time.
    fn memcached(&self, lost: &mut Vec<String>) -> Option<String> {
        if self.is_true("MEMCACHE_TLS") {
            lost.push(
                "MEMCACHE_TLS: connections are not encrypted: keep them on a private network".to_owned(),
            );
        }
        let servers: Vec<&str> = self
            .get("MEMCACHE_HOST_PORT")
            .into_iter()
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .filter(|server| !server.is_empty())
            .collect();
        if let Some(record) = self.get("MEMCACHE_SRV") {
            lost.push(format!(
                "MEMCACHE_SRV: SRV records are not looked up: list the servers of `{record}` in `store.url`, memcached://host:port,host:port"
            ));
            return None;
        }
        if servers.is_empty() {
            lost.push(
                "MEMCACHE_HOST_PORT: it is not set: name the servers in `store.url`, memcached://host:port"
                    .to_owned(),
            );
            return None;
        }
        let url = format!("memcached://{}", servers.join(","));
        Some(format!("store:\n  url: {}\n{}", quoted(&url), self.key_prefix()))
    }

    /// Where the limits come from.
    fn limits(&self, lost: &mut Vec<String>) -> Option<String> {
        if self.get("CONFIG_TYPE") == Some("GRPC_XDS_SOTW") {
            return None;
        }
        let root = self.get("RUNTIME_ROOT").unwrap_or("/srv/runtime_data/current");
        let parts =
            [self.get("RUNTIME_SUBDIRECTORY"), Some(self.get("RUNTIME_APPDIRECTORY").unwrap_or("config"))];
        let directory = parts
            .into_iter()
            .flatten()
            .fold(root.trim_end_matches('/').to_owned(), |path, part| format!("{path}/{part}"));
        if self.get("RUNTIME_ROOT").is_none() {
            lost.push(format!("RUNTIME_ROOT: it is not set, so this is its default, {root}"));
        }
        Some(format!("rules:\n  envoy_config: {}\n", quoted(&directory)))
    }

    fn rls(&self) -> Option<String> {
        let mut section = String::new();
        if self.is_true("LIMIT_RESPONSE_HEADERS_ENABLED") {
            let name = |variable: &str, default: &str| quoted(self.get(variable).unwrap_or(default));
            section += &format!(
                "  header_names: {{ limit: {}, remaining: {}, reset: {} }}\n",
                name("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
                name("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
                name("LIMIT_RESET_HEADER", "RateLimit-Reset"),
            );
        }
        if self.get("CONFIG_TYPE") == Some("GRPC_XDS_SOTW") {
            section += "  xds:\n";
            section += &format!(
                "    address: {}\n",
                quoted(self.get("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or("localhost:18000"))
            );
            section += &format!(
                "    node_id: {}\n",
                quoted(self.get("CONFIG_GRPC_XDS_NODE_ID").unwrap_or("default"))
            );
            if self.is_true("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
                let files = [
                    ("ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
                    ("certificate", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
                    ("key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
                    ("server_name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
                ];
                let files: Vec<String> = files
                    .iter()
                    .filter_map(|(field, name)| Some(format!("{field}: {}", quoted(self.get(name)?))))
                    .collect();
                section += &format!("    tls: {{ {} }}\n", files.join(", "));
            }
        }
        (!section.is_empty()).then(|| format!("rls:\n{section}"))
    }

    fn telemetry(&self, lost: &mut Vec<String>, defaults: &mut Vec<String>) -> Option<String> {
        let mut section = String::new();
        // Theirs sends StatsD unless it is told not to.
        let by_default = self.get("USE_STATSD").is_none();
        let to_default = by_default && self.get("STATSD_HOST").is_none();
        let is_dog = self.is_true("USE_DOG_STATSD");
        let is_stopped = self.is_true("DISABLE_STATS") || self.is_true("USE_PROMETHEUS");
        if to_default && !is_dog && !is_stopped {
            defaults.push("USE_STATSD: theirs sends to localhost:8125 where it is not set: if something listens there, add `statsd: { address: localhost:8125 }` to `telemetry`".to_owned());
        }
        let statsd = is_dog || self.is_true("USE_STATSD") || (by_default && !to_default);
        if statsd && !self.is_true("DISABLE_STATS") {
            let (host, port) =
                (self.get("STATSD_HOST").unwrap_or("localhost"), self.get("STATSD_PORT").unwrap_or("8125"));
            section += &format!("  statsd:\n    address: {}\n", quoted(&format!("{host}:{port}")));
            if !is_here(host) {
                section += "    plaintext: true\n";
            }
            section += &format!("    every: {}\n", self.get("STATS_FLUSH_INTERVAL").unwrap_or("10s"));
            let tags: Vec<String> = self
                .get("EXTRA_TAGS")
                .into_iter()
                .flat_map(|tags| tags.split(','))
                .map(|tag| quoted(tag.trim()))
                .collect();
            if !tags.is_empty() {
                section += &format!("    tags: [{}]\n", tags.join(", "));
            }
        }
        if self.is_true("TRACING_ENABLED") {
            lost.push("TRACING_ENABLED: add `otlp: { endpoint: http://127.0.0.1:4318 }` with the address of your collector to `telemetry`".to_owned());
        }
        (!section.is_empty()).then(|| format!("telemetry:\n{section}"))
    }

    fn log(&self) -> Option<String> {
        let level = self.get("LOG_LEVEL").map(str::to_ascii_lowercase);
        let level = level.as_deref().map(|level| match level {
            "warning" => "warn",
            "fatal" | "panic" => "error",
            other => other,
        });
        let format = self.get("LOG_FORMAT").filter(|format| *format == "json");
        let fields =
            [level.map(|level| format!("level: {level}")), format.map(|format| format!("format: {format}"))];
        let fields: Vec<String> = fields.into_iter().flatten().collect();
        (!fields.is_empty()).then(|| format!("log: {{ {} }}\n", fields.join(", ")))
    }
}

fn is_here(host: &str) -> bool {
    ["localhost", "127.0.0.1", "::1"].contains(&host)
}

/// A value in single quotes, in which only they mean something.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}
