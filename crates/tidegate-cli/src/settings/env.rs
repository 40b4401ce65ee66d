//! Environment variables: the list of all of them.
//!
//! A variable is named after its field, with two underscores for a level: `listen.http` is `TIDEGATE_LISTEN__HTTP`.
//! A variable that is not on the list is an error, like an unknown field: `TIDEGATE_STORE_URL` is set for a purpose. Only
//! variables that Kubernetes sets for services named tidegate, or tidegate-something, are ignored.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::DeserializeOwned;

use super::config::Config;
use super::diagnose::{self, suggest};
use super::values::{HeaderSet, Secret};
use crate::failure::Failure;

const PREFIX: &str = "TIDEGATE_";
/// A variable for a secret has a variant with this suffix, which names a file with the secret.
const FILE_SUFFIX: &str = "_FILE";

/// The configuration file itself, which is not a field of it.
pub(crate) const CONFIG: &str = "TIDEGATE_CONFIG";
/// For commands that use the admin API.
pub(crate) const ADMIN: &str = "TIDEGATE_ADMIN";
pub(crate) const CA: &str = "TIDEGATE_CA";
pub(crate) const TOKEN: &str = "TIDEGATE_TOKEN";
pub(crate) const TOKEN_FILE: &str = "TIDEGATE_TOKEN_FILE";

/// The server for `check`: not used by `serve`, but on the list.
pub(crate) const SERVER: &str = "TIDEGATE_SERVER";

/// A variable and the field it sets.
struct Variable {
    name: &'static str,
    help: &'static str,
    secrecy: Secrecy,
    set: fn(&mut Config, &str) -> Result<(), String>,
}

impl Variable {
    /// The field of the file that it sets: `identity` for `TIDEGATE_IDENTITY`.
    fn field(&self) -> String {
        let path = self.name.trim_start_matches("TIDEGATE_");
        path.rsplit("__").next().unwrap_or(path).to_lowercase()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Secrecy {
    Open,
    /// May also be given as a file.
    Secret,
}

const fn open(
    name: &'static str,
    help: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
) -> Variable {
    Variable { name, help, secrecy: Secrecy::Open, set }
}

const fn secret(
    name: &'static str,
    help: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
) -> Variable {
    Variable { name, help, secrecy: Secrecy::Secret, set }
}

const VARIABLES: &[Variable] = &[
    open("TIDEGATE_LISTEN__HTTP", "HTTP listener, or off", |to, text| put(&mut to.listen.http, text)),
    open("TIDEGATE_LISTEN__GRPC", "gRPC listener, or off", |to, text| put(&mut to.listen.grpc, text)),
    open("TIDEGATE_LISTEN__ADMIN", "admin listener, or off", |to, text| put(&mut to.listen.admin, text)),
    open("TIDEGATE_LISTEN__RESP", "listener for the Redis protocol, or off", |to, text| {
        put(&mut to.listen.resp, text)
    }),
    secret("TIDEGATE_STORE__URL", "where counters live", |to, text| put(&mut to.store.url, text)),
    secret("TIDEGATE_STORE__PASSWORD", "the password for the url's user", |to, text| {
        put(&mut to.store.password, text)
    }),
    open("TIDEGATE_STORE__REQUIRED", "whether to start only where the store can be used", |to, text| {
        put(&mut to.store.required, text)
    }),
    open("TIDEGATE_STORE__TIMEOUT", "how long a request waits for the store", |to, text| {
        put(&mut to.store.timeout, text)
    }),
    open("TIDEGATE_STORE__CLOSED_STATUS", "503 or 429, where a closed rule has no store", |to, text| {
        put(&mut to.store.closed_status, text)
    }),
    open("TIDEGATE_STORE__BREAKER__FAILURES", "failures in a row after which a node is gone", |to, text| {
        put(&mut to.store.breaker.failures, text)
    }),
    open("TIDEGATE_STORE__BREAKER__OPEN_FOR", "how long no request tries it then", |to, text| {
        put(&mut to.store.breaker.open_for, text)
    }),
    open("TIDEGATE_STORE__KEY_PREFIX", "what every key begins with", |to, text| {
        to.store.key_prefix = Some(text.to_owned());
        Ok(())
    }),
    open("TIDEGATE_STORE__EXPECTED_NODES", "how many nodes share the store", |to, text| {
        put(&mut to.store.expected_nodes, text)
    }),
    open("TIDEGATE_STORE__REMEMBERED_CELLS", "counters whose last state is remembered", |to, text| {
        put(&mut to.store.remembered_cells, text)
    }),
    secret(
        "TIDEGATE_STORE__LEASE_SECRET",
        "what leases are signed with, the same on all nodes",
        |to, text| put(&mut to.store.lease_secret, text),
    ),
    secret(
        "TIDEGATE_STORE__FLEET_SECRET",
        "what nodes sign what they tell each other with, the same on all nodes",
        |to, text| put(&mut to.store.fleet_secret, text),
    ),
    open("TIDEGATE_STORE__TLS__CA", "PEM file with the authorities to trust", |to, text| {
        to.store.tls.ca = Some(PathBuf::from(text));
        Ok(())
    }),
    open("TIDEGATE_STORE__TLS__CERTIFICATE", "PEM file with the certificate to show", |to, text| {
        to.store.tls.certificate = Some(PathBuf::from(text));
        Ok(())
    }),
    open("TIDEGATE_STORE__TLS__KEY", "PEM file with its private key", |to, text| {
        to.store.tls.key = Some(PathBuf::from(text));
        Ok(())
    }),
    open("TIDEGATE_STORE__SENTINEL__USER", "who logs in at the sentinels", |to, text| {
        to.store.sentinel.user = Some(text.to_owned());
        Ok(())
    }),
    secret("TIDEGATE_STORE__SENTINEL__PASSWORD", "with which password", |to, text| {
        put(&mut to.store.sentinel.password, text)
    }),
    secret("TIDEGATE_RESP__PASSWORD", "what clients of the Redis protocol must give", |to, text| {
        put(&mut to.resp.password, text)
    }),
    secret("TIDEGATE_RESP__USERS", "more users, as YAML", |to, text| put_yaml(&mut to.resp.users, text)),
    open("TIDEGATE_RESP__LOGIN_TIMEOUT", "how long a client may take to log in", |to, text| {
        put(&mut to.resp.login_timeout, text)
    }),
    open("TIDEGATE_RESP__IDLE_TIMEOUT", "how long a client may send nothing", |to, text| {
        put(&mut to.resp.idle_timeout, text)
    }),
    open("TIDEGATE_TLS__HTTP", "certificate, key and client_ca of the HTTP listener, as YAML", |to, text| {
        put_yaml(&mut to.tls.http, text)
    }),
    open("TIDEGATE_TLS__GRPC", "the same for gRPC", |to, text| put_yaml(&mut to.tls.grpc, text)),
    open("TIDEGATE_TLS__RESP", "the same for the Redis protocol", |to, text| {
        put_yaml(&mut to.tls.resp, text)
    }),
    open("TIDEGATE_TLS__ADMIN", "the same for the admin listener", |to, text| {
        put_yaml(&mut to.tls.admin, text)
    }),
    open("TIDEGATE_ACCESS__TOKENS", "tokens for HTTP and gRPC, with spaces between", |to, text| {
        put_secrets(&mut to.access.tokens, text)
    }),
    open("TIDEGATE_ACCESS__TOKENS_FILE", "a file with one on each line", |to, text| {
        to.access.tokens_file = Some(PathBuf::from(text));
        Ok(())
    }),
    open("TIDEGATE_ADMIN__TOKENS", "tokens for the admin listener, with spaces between", |to, text| {
        put_secrets(&mut to.admin.tokens, text)
    }),
    open("TIDEGATE_ADMIN__TOKENS_FILE", "a file with one on each line", |to, text| {
        to.admin.tokens_file = Some(PathBuf::from(text));
        Ok(())
    }),
    open("TIDEGATE_ADMIN__HOSTS", "names of the admin listener, with spaces between", |to, text| {
        to.admin.hosts = Some(text.split_whitespace().map(str::to_owned).collect());
        Ok(())
    }),
    open("TIDEGATE_DATA", "directory of the embedded database", |to, text| {
        to.data = Some(PathBuf::from(text));
        Ok(())
    }),
    secret("TIDEGATE_ADMIN__DATABASE", "sqlite:PATH, postgres://… or none", |to, text| {
        put(&mut to.admin.database, text)
    }),
    open("TIDEGATE_ADMIN__ENVIRONMENT", "what the dashboard calls this installation", |to, text| {
        to.admin.environment = Some(text.to_owned());
        Ok(())
    }),
    open("TIDEGATE_ADMIN__NODE", "what this node is called", |to, text| {
        to.admin.node = Some(text.to_owned());
        Ok(())
    }),
    open("TIDEGATE_RULES__SOURCE", "file or database", |to, text| put(&mut to.rules.source, text)),
    open("TIDEGATE_RULES__PATHS", "rule files or directories, separated by colons", |to, text| {
        to.rules.paths = Some(std::env::split_paths(text).collect());
        Ok(())
    }),
    open("TIDEGATE_RULES__ENVOY_CONFIG", "configuration directory of envoyproxy/ratelimit", |to, text| {
        to.rules.envoy_config = Some(PathBuf::from(text));
        Ok(())
    }),
    open("TIDEGATE_HEADERS", "x-ratelimit, ietf, both with a comma between, or empty", |to, text| {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        to.headers = Some(names.map(HeaderSet::from_str).collect::<Result<_, _>>()?);
        Ok(())
    }),
    open("TIDEGATE_X_RATELIMIT__RESET", "unix or delta", |to, text| put(&mut to.x_ratelimit.reset, text)),
    open("TIDEGATE_RLS__RESPONSE_HEADERS", "none, x-ratelimit, ietf, ietf-11 or ietf-next", |to, text| {
        put(&mut to.rls.response_headers, text)
    }),
    open("TIDEGATE_RLS__HEADER_NAMES", "names of limit, remaining and reset, as YAML", |to, text| {
        put_yaml(&mut to.rls.header_names, text)
    }),
    open("TIDEGATE_RLS__DYNAMIC_METADATA", "whether answers to Envoy have metadata", |to, text| {
        put(&mut to.rls.dynamic_metadata, text)
    }),
    open("TIDEGATE_LIMITADOR__HTTP_API", "whether to serve Limitador's API", |to, text| {
        put(&mut to.limitador.http_api, text)
    }),
    open("TIDEGATE_RLS__XDS", "the server that sends the limits, as YAML", |to, text| {
        put_yaml(&mut to.rls.xds, text)
    }),
    Variable {
        name: "TIDEGATE_IDENTITY",
        help: "the section `identity` as YAML",
        secrecy: Secrecy::Secret,
        set: |to, text| put_yaml(&mut to.identity, text),
    },
    Variable {
        name: "TIDEGATE_PROXY",
        help: "the section `proxy` as YAML",
        secrecy: Secrecy::Secret,
        set: |to, text| put_yaml(&mut to.proxy, text),
    },
    secret("TIDEGATE_DECISION_LOG", "the section `decision_log` as YAML", |to, text| {
        put_yaml(&mut to.decision_log, text)
    }),
    open("TIDEGATE_SHEDDING", "the section `shedding` as YAML", |to, text| put_yaml(&mut to.shedding, text)),
    open("TIDEGATE_LIMITS__MAX_CELLS", "most counters in memory", |to, text| {
        put(&mut to.limits.max_cells, text)
    }),
    open("TIDEGATE_LIMITS__MAX_LOG_BYTES", "most bytes for sliding logs and leases in memory", |to, text| {
        put(&mut to.limits.max_log_bytes, text)
    }),
    open("TIDEGATE_LIMITS__MAX_BODY", "most bytes in a request's body", |to, text| {
        put(&mut to.limits.max_body, text)
    }),
    open("TIDEGATE_LIMITS__MAX_CONNECTIONS", "most connections on each listener", |to, text| {
        put(&mut to.limits.max_connections, text)
    }),
    open("TIDEGATE_LIMITS__MAX_CONNECTIONS_PER_PEER", "most of one address", |to, text| {
        put(&mut to.limits.max_connections_per_peer, text)
    }),
    open(
        "TIDEGATE_LIMITS__MAX_CONNECTION_MEMORY",
        "most bytes of a connection's half requests",
        |to, text| put(&mut to.limits.max_connection_memory, text),
    ),
    open("TIDEGATE_LIMITS__MAX_WORKER_MEMORY", "the same for a worker's connections", |to, text| {
        put(&mut to.limits.max_worker_memory, text)
    }),
    open("TIDEGATE_LIMITS__HEAD_TIMEOUT", "how long a request's head may take", |to, text| {
        put(&mut to.limits.head_timeout, text)
    }),
    open("TIDEGATE_LIMITS__BODY_TIMEOUT", "how long its body may take", |to, text| {
        put(&mut to.limits.body_timeout, text)
    }),
    open("TIDEGATE_LIMITS__IDLE_TIMEOUT", "how long a connection may go without one", |to, text| {
        put(&mut to.limits.idle_timeout, text)
    }),
    open("TIDEGATE_WORKERS", "threads that serve requests", |to, text| put(&mut to.workers, text)),
    open("TIDEGATE_DRAIN__DELAY", "how long to say `not ready` and serve on", |to, text| {
        put(&mut to.drain.delay, text)
    }),
    open(
        "TIDEGATE_DRAIN__TIMEOUT",
        "how long requests in flight may take when the server stops",
        |to, text| put(&mut to.drain.timeout, text),
    ),
    open("TIDEGATE_DRAIN__TUNNELS", "how long tunnels may go on then", |to, text| {
        put(&mut to.drain.tunnels, text)
    }),
    open("TIDEGATE_FLAGS__FILE", "file of feature flags that rules follow", |to, text| {
        to.flags.file = Some(PathBuf::from(text));
        Ok(())
    }),
    secret("TIDEGATE_FLAGS__OFREP", "server of feature flags (OFREP), as YAML", |to, text| {
        put_yaml(&mut to.flags.ofrep, text)
    }),
    open("TIDEGATE_TELEMETRY__STATSD", "StatsD or DogStatsD, as YAML", |to, text| {
        put_yaml(&mut to.telemetry.statsd, text)
    }),
    secret("TIDEGATE_TELEMETRY__OTLP", "the OpenTelemetry receiver, as YAML", |to, text| {
        put_yaml(&mut to.telemetry.otlp, text)
    }),
    open("TIDEGATE_TELEMETRY__EMF", "stdout: CloudWatch's lines", |to, text| {
        put_yaml(&mut to.telemetry.emf, text)
    }),
    open("TIDEGATE_TELEMETRY__EMF_EVERY", "how often they are written", |to, text| {
        put(&mut to.telemetry.emf_every, text)
    }),
    open("TIDEGATE_TELEMETRY__EMF_NAMESPACE", "their namespace", |to, text| {
        to.telemetry.emf_namespace = Some(text.to_owned());
        Ok(())
    }),
    open("TIDEGATE_ALERTS__ENABLED", "whether anything is watched", |to, text| {
        put(&mut to.alerts.enabled, text)
    }),
    secret("TIDEGATE_ALERTS__WEBHOOK", "who receives alerts, as YAML", |to, text| {
        put_yaml(&mut to.alerts.webhook, text)
    }),
    open("TIDEGATE_ALERTS__DASHBOARD", "the dashboard's address, for links", |to, text| {
        to.alerts.dashboard = Some(text.to_owned());
        Ok(())
    }),
    open("TIDEGATE_ALERTS__STORE_P99", "p99 of the store above which it is slow", |to, text| {
        put(&mut to.alerts.store_p99, text)
    }),
    open(
        "TIDEGATE_ALERTS__STORE_MEMORY",
        "part of its memory above which the store is nearly full",
        |to, text| put_yaml(&mut to.alerts.store_memory, text),
    ),
    open(
        "TIDEGATE_ALERTS__CERTIFICATE_DAYS",
        "days before its end that a certificate raises an alert",
        |to, text| put_yaml(&mut to.alerts.certificate_days, text),
    ),
    open(
        "TIDEGATE_ALERTS__SHADOW_REFUSALS",
        "part of its requests that a shadow rule would refuse",
        |to, text| put_yaml(&mut to.alerts.shadow_refusals, text),
    ),
    open("TIDEGATE_LOG__LEVEL", "error, warn, info, debug, trace, or module=level", |to, text| {
        put(&mut to.log.level, text)
    }),
    open("TIDEGATE_LOG__FORMAT", "text or json", |to, text| put(&mut to.log.format, text)),
];

/// The list, for the help text.
pub(crate) fn help() -> String {
    let mut lines = vec![format!("  {CONFIG:39} configuration file")];
    for variable in VARIABLES {
        lines.push(format!("  {:39} {}", variable.name, variable.help));
        if variable.secrecy == Secrecy::Secret {
            lines.push(format!("  {:39} the same, in a file", format!("{}{FILE_SUFFIX}", variable.name)));
        }
    }
    for (name, help) in [
        (SERVER, "for `tidegate check`: the server to ask"),
        (ADMIN, "for `tidegate rules`, `keys` and `top`: the admin listener to ask"),
        (TOKEN, "the same: the token to ask it with"),
        (TOKEN_FILE, "the same, in a file"),
        (CA, "for commands that ask a server over https: a PEM file with its certificate authority"),
    ] {
        lines.push(format!("  {name:39} {help}"));
    }
    format!("Environment:\n{}", lines.join("\n"))
}

/// The settings in the environment.
pub(crate) fn read(environment: impl Iterator<Item = (OsString, OsString)>) -> Result<Config, Failure> {
    let mut config = Config::default();
    let mut seen: Vec<&'static str> = Vec::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let Some((variable, from_file)) = find(name) else {
            if is_for_others(name) {
                continue;
            }
            return Err(unknown(name));
        };
        if seen.contains(&variable.name) {
            return Err(Failure::new(format!("{0} and {0}{FILE_SUFFIX} are both set", variable.name))
                .hint("keep one of them"));
        }
        seen.push(variable.name);
        let not_text = |_| Failure::new(format!("the variable {name} is not UTF-8 text"));
        let mut text = value.into_string().map_err(not_text)?;
        if from_file {
            text = read_secret(name, &text)?;
        }
        (variable.set)(&mut config, &text).map_err(|why| match diagnose::example(&variable.field()) {
            Some(example) if !why.contains('\n') => bad_value(name, &format!("{why}\n{example}")),
            _ => bad_value(name, &why),
        })?;
    }
    Ok(config)
}

/// The variable called `name`, and whether that is the name of its file variant.
fn find(name: &str) -> Option<(&'static Variable, bool)> {
    VARIABLES.iter().find_map(|variable| match name.strip_prefix(variable.name)? {
        "" => Some((variable, false)),
        FILE_SUFFIX if variable.secrecy == Secrecy::Secret => Some((variable, true)),
        _ => None,
    })
}

/// Whether it is not a setting of `serve`: another command's, the tests', or one that Kubernetes sets for every service
/// whose name begins with ours (`TIDEGATE_SERVICE_HOST`, `TIDEGATE_REDIS_PORT_6379_TCP_ADDR`).
fn is_for_others(name: &str) -> bool {
    let known =
        [CONFIG, SERVER, ADMIN, CA, TOKEN, TOKEN_FILE].contains(&name) || name.starts_with("TIDEGATE_TOOL_");
    let parts: Vec<&str> = name.split('_').collect();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_protocol = |part: &str| ["TCP", "UDP", "SCTP"].contains(&part);
    let of_kubernetes = match &parts[..] {
        [.., "PORT", number, protocol] | [.., "PORT", number, protocol, "ADDR" | "PORT" | "PROTO"]
            if is_number(number) && is_protocol(protocol) =>
        {
            true
        }
        [.., "SERVICE", "HOST" | "PORT"] | [.., "PORT"] => true,
        parts => parts.windows(2).any(|pair| pair == ["SERVICE", "PORT"]),
    };
    known || (of_kubernetes && !name.contains("__"))
}

fn read_secret(name: &str, path: &str) -> Result<String, Failure> {
    let unreadable = |why: String| Failure::new(format!("cannot read {path}, named by {name}: {why}"));
    // Reading a pipe without a writer would block for ever.
    if !fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.is_file() {
        return Err(unreadable("it is not a regular file".to_owned()));
    }
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    // Editors and `echo` end a file with a line break that is not part of the secret.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn unknown(name: &str) -> Failure {
    let mut known: Vec<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
    let section = format!("{name}__");
    if known.iter().any(|known| known.starts_with(&section)) {
        known.retain(|known| known.starts_with(&section));
    }
    Failure::new(format!("unknown variable {name} in the environment")).hint(suggest(name, &known))
}

fn bad_value(name: &str, why: &str) -> Failure {
    match why.split_once('\n') {
        Some((message, hint)) => Failure::new(format!("{name}: {message}")).hint(hint),
        None => Failure::new(format!("{name}: {why}")),
    }
}

fn put_secrets(field: &mut Option<Vec<Secret>>, text: &str) -> Result<(), String> {
    *field = Some(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?);
    Ok(())
}

fn put<T: FromStr<Err = String>>(field: &mut Option<T>, text: &str) -> Result<(), String> {
    *field = Some(text.parse()?);
    Ok(())
}

/// A section that is too deep for one variable per field.
fn put_yaml<T: DeserializeOwned>(section: &mut Option<T>, text: &str) -> Result<(), String> {
    // The position and the content are left out: the text may contain a secret.
    let parsed = serde_saphyr::from_str(text);
    *section = Some(parsed.map_err(|error| diagnose::without_values(&error))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(variables: &[(&str, &str)]) -> Result<Config, Failure> {
        read(variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
    }

    #[test]
    fn every_field_of_the_file_has_a_variable() {
        fn names(prefix: &str, of: &serde_json::Value, schema: &serde_json::Value) -> Vec<String> {
            let each = of["properties"].as_object().unwrap().iter().flat_map(|(field, shape)| {
                let section = shape["$ref"].as_str().map(|path| path.rsplit('/').next().unwrap());
                let inner = section.map(|name| &schema["$defs"][name]);
                match inner.filter(|inner| inner["properties"].is_object()) {
                    Some(inner) => names(&format!("{prefix}{field}__"), inner, schema),
                    None => vec![format!("{prefix}{field}").to_uppercase()],
                }
            });
            each.collect()
        }
        let schema = serde_json::to_value(schemars::schema_for!(Config)).unwrap();
        let mut missing = names(PREFIX, &schema, &schema);
        assert!(missing.contains(&"TIDEGATE_STORE__BREAKER__OPEN_FOR".to_owned()), "{missing:?}");
        missing.retain(|name| find(name).is_none());
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn values_are_read_as_in_the_file() {
        let config = read_all(&[
            ("TIDEGATE_LISTEN__HTTP", "0.0.0.0:80"),
            ("TIDEGATE_HEADERS", "ietf"),
            ("TIDEGATE_LIMITS__MAX_CELLS", "1000"),
            ("TIDEGATE_RULES__PATHS", "a.yaml:b"),
        ]);
        let config = config.unwrap();
        assert_eq!(config.listen.http, Some("0.0.0.0:80".parse().unwrap()));
        assert_eq!(config.headers, Some(vec![HeaderSet::Ietf]));
        assert_eq!(config.limits.max_cells.unwrap().0.get(), 1000);
        assert_eq!(config.rules.paths.unwrap(), [PathBuf::from("a.yaml"), PathBuf::from("b")]);
    }

    #[test]
    fn an_unknown_variable_is_an_error_that_names_the_right_one() {
        for (wrong, right) in [
            ("TIDEGATE_STORE__ULR", "TIDEGATE_STORE__URL"),
            ("TIDEGATE_STORE_URL", "TIDEGATE_STORE__URL"),
            ("TIDEGATE_LISTEN_HTTP", "TIDEGATE_LISTEN__HTTP"),
            ("TIDEGATE_DRAIN", "TIDEGATE_DRAIN__"),
        ] {
            let failure = format!("{:?}", read_all(&[(wrong, "x")]).unwrap_err());
            assert!(failure.contains(wrong) && failure.contains(right), "{failure}");
        }
        assert!(read_all(&[("TIDEGATE_STORE__NO_PORT", "x")]).is_err());
    }

    #[test]
    fn what_kubernetes_sets_is_left_alone() {
        let service = [
            "TIDEGATE_PORT",
            "TIDEGATE_SERVICE_HOST",
            "TIDEGATE_SERVICE_PORT",
            "TIDEGATE_SERVICE_PORT_HTTP_ADMIN",
            "TIDEGATE_PORT_8080_TCP",
            "TIDEGATE_PORT_8080_TCP_ADDR",
            "TIDEGATE_REDIS_PORT_6379_TCP_PROTO",
        ];
        assert!(read_all(&service.map(|name| (name, "x"))).is_ok());
    }

    #[test]
    fn a_secret_may_be_in_a_file_but_not_in_both_places() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "memory:\n").unwrap();
        let path = file.path().to_str().unwrap();
        let config = read_all(&[("TIDEGATE_STORE__URL_FILE", path)]).unwrap();
        assert_eq!(config.store.url.unwrap().reveal(), "memory:");
        assert!(read_all(&[("TIDEGATE_STORE__URL_FILE", path), ("TIDEGATE_STORE__URL", "memory:")]).is_err());
    }

    #[test]
    fn a_deep_section_is_given_whole() {
        let proxy = "{ listen: '127.0.0.1:0', domain: api, upstreams: [{ name: a, targets: ['http://b'] }] }";
        let config = read_all(&[("TIDEGATE_PROXY", proxy), ("TIDEGATE_IDENTITY", "{ hops: 1 }")]).unwrap();
        assert!(config.proxy.is_some());
        assert_eq!(config.identity.unwrap().hops, Some(1));
        assert!(read_all(&[("TIDEGATE_IDENTITY", "{ hop: 1 }")]).is_err());
    }

    #[test]
    fn zero_is_no_bound() {
        assert!(read_all(&[("TIDEGATE_LIMITS__MAX_CELLS", "0")]).is_err());
    }
}
