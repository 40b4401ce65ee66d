//! Checks before serving: servers that are too old, or configured so that they could drop counters or refuse decisions.

use std::fmt;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tidegate_store::StoreError;

use crate::client::{Call, Route};
use crate::link::Deadline;
use crate::observer::Operation;
use crate::store::{Inner, RedisStore, nonsense};

/// The result of checking one server.
#[derive(Debug)]
pub struct ServerReport {
    /// The server's name for operators.
    pub endpoint: String,
    /// The result.
    pub finding: Finding,
}

/// The result of checking a server.
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding {
    /// It does not answer now. The store keeps retrying.
    Away(StoreError),
    /// It is too old to run the scripts.
    TooOld {
        /// Its version.
        version: String,
    },
    /// It can be used.
    Usable {
        /// Its version.
        version: String,
        /// What an operator should change.
        warnings: Vec<String>,
        /// The number of keys in all its databases.
        keys: u64,
        /// Memory in use.
        bytes: u64,
        /// The `maxmemory` limit; 0 if there is none.
        most_bytes: u64,
        /// Keys evicted for lack of memory since it started: each eviction lost a counter.
        evicted: u64,
    },
}

/// The oldest version that supports everything the scripts use (`SET … EXAT`).
const OLDEST: (u32, u32) = (6, 2);

impl RedisStore {
    /// Checks every server once.
    pub async fn check_servers(&self) -> Vec<ServerReport> {
        let inner = &self.inner;
        let partitions = match inner.client.route() {
            Route::One { .. } => vec![0],
            Route::Sharded { endpoints, .. } => (0..).take(endpoints.len()).collect(),
            Route::Cluster(cluster) => {
                // A call for any slot loads the cluster map.
                let asked = info(inner, 0).await;
                let slots = cluster.slot_per_master();
                if let (true, Err(error)) = (slots.is_empty(), asked) {
                    let endpoint = cluster.seeds()[0].to_string();
                    return vec![ServerReport { endpoint, finding: Finding::Away(error) }];
                }
                slots
            }
        };
        let look = |partition| async move {
            let finding = match info(inner, partition).await {
                Ok(text) => finding(&text, &ServerSettings::read(inner, partition).await),
                Err(error) => Finding::Away(error),
            };
            ServerReport { endpoint: inner.client.name(partition), finding }
        };
        join_all(partitions.into_iter().map(look)).await
    }
}

async fn info(inner: &Inner, partition: u16) -> Result<String, StoreError> {
    let mut command = Cmd::new();
    command.arg("INFO");
    let call = Call { operation: Operation::Probe, command: &command, source: None, items: 1 };
    match inner.client.run(partition, call, Deadline::from_now(inner.patience())).await? {
        Value::BulkString(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Value::VerbatimString { text, .. } => Ok(text),
        _ => Err(nonsense("information")),
    }
}

/// Settings that `INFO` does not contain; none if the server does not report them.
#[derive(Default)]
struct ServerSettings {
    lazy_expire: Option<String>,
    min_replicas: Option<String>,
    full_coverage: Option<String>,
}

impl ServerSettings {
    async fn read(inner: &Inner, partition: u16) -> Self {
        let lazy_expire = setting(inner, partition, "lazyfree-lazy-expire").await;
        let min_replicas = setting(inner, partition, "min-replicas-to-write").await;
        let full_coverage = match inner.client.route() {
            Route::Cluster(_) => setting(inner, partition, "cluster-require-full-coverage").await,
            Route::One { .. } | Route::Sharded { .. } => None,
        };
        ServerSettings { lazy_expire, min_replicas, full_coverage }
    }

    fn warnings(&self, replicas: u64) -> impl Iterator<Item = String> {
        let lazy = (self.lazy_expire.as_deref() == Some("no")).then(|| {
            "large expired keys are freed while others wait: use `lazyfree-lazy-expire yes`".to_owned()
        });
        let least = self.min_replicas.as_deref().and_then(|least| least.parse::<u64>().ok()).unwrap_or(0);
        let scarce = (least > 0 && replicas <= least).then(|| {
            format!(
                "`min-replicas-to-write {least}` with {replicas} replicas: if one is lost, the master decides nothing \
                 (NOREPLICAS): use one replica more"
            )
        });
        let coverage = (self.full_coverage.as_deref() == Some("yes")).then(|| {
            "if one master is lost, all others decide nothing either (CLUSTERDOWN): use `cluster-require-full-coverage no`"
                .to_owned()
        });
        [lazy, scarce, coverage].into_iter().flatten()
    }
}

async fn setting(inner: &Inner, partition: u16, name: &str) -> Option<String> {
    let mut command = Cmd::new();
    command.arg("CONFIG").arg("GET").arg(name);
    let call = Call { operation: Operation::Probe, command: &command, source: None, items: 1 };
    let answer = inner.client.run(partition, call, Deadline::from_now(inner.patience())).await.ok()?;
    let Value::Array(pair) = answer else { return None };
    match &pair[..] {
        [_, Value::BulkString(value)] => Some(String::from_utf8_lossy(value).into_owned()),
        _ => None,
    }
}

/// Below this `hz`, one expiry step takes long enough to delay calls.
const ENOUGH_HZ: u32 = 50;

fn finding(info: &str, settings: &ServerSettings) -> Finding {
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim())
    };
    // Valkey reports the Redis version it is compatible with, and its own version next to it.
    let compatible = field("redis_version").unwrap_or_default();
    let version = match field("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {compatible}"),
    };
    if !is_recent(compatible) {
        return Finding::TooOld { version };
    }
    let mut warnings = Vec::new();
    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" {
        let when = match field("maxmemory") {
            None | Some("0") => "once `maxmemory` is set and reached",
            Some(_) => "when memory is full",
        };
        warnings
            .push(format!("`maxmemory-policy {policy}` forgets who has spent what {when}: use `noeviction`"));
    }
    if let Some(hz) =
        field("configured_hz").and_then(|hz| hz.parse::<u32>().ok()).filter(|hz| *hz < ENOUGH_HZ)
    {
        warnings.push(format!("`hz {hz}` expires keys in pauses of up to 25 ms: use `hz 100`"));
    }
    if is_active_active(info) {
        warnings.push(
            "it is part of an Active-Active database, where the last of two writes wins and the other's count is lost: use a \
             store of its own for each region, and `regions.home` for what they count together"
                .to_owned(),
        );
    }
    let number = |name: &str| field(name).and_then(|number| number.parse().ok()).unwrap_or_default();
    warnings.extend(settings.warnings(number("connected_slaves")));
    let (bytes, most_bytes) = (number("used_memory"), number("maxmemory"));
    Finding::Usable {
        version,
        warnings,
        keys: keys(info),
        bytes,
        most_bytes,
        evicted: number("evicted_keys"),
    }
}

/// Whether the server merges what others write: such databases tell of `crdt` in fields, or as a module.
fn is_active_active(info: &str) -> bool {
    info.lines().any(|line| line.starts_with("crdt") || line.starts_with("module:name=crdt"))
}

/// The sum of all lines such as `db0:keys=7,expires=7,avg_ttl=100`.
fn keys(info: &str) -> u64 {
    let count = |line: &str| -> Option<u64> {
        line.strip_prefix("db")?.split_once(":keys=")?.1.split(',').next()?.parse().ok()
    };
    info.lines().filter_map(count).sum()
}

fn is_recent(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= OLDEST,
        _ => false,
    }
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = &self.endpoint;
        match &self.finding {
            Finding::Away(error) => {
                write!(f, "{endpoint}: does not answer: {error}")?;
                std::error::Error::source(error).map_or(Ok(()), |source| write!(f, ": {source}"))
            }
            Finding::TooOld { version } => {
                write!(f, "{endpoint}: {version} is too old, use Redis 6.2 or later, or Valkey")
            }
            Finding::Usable { version, warnings, .. } if warnings.is_empty() => {
                write!(f, "{endpoint}: {version}")
            }
            Finding::Usable { version, warnings, .. } => {
                write!(f, "{endpoint}: {version}, but {}", warnings.join("; "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(info: &str) -> String {
        ServerReport { endpoint: "h:1".to_owned(), finding: finding(info, &ServerSettings::default()) }
            .to_string()
    }

    #[test]
    fn a_server_that_is_too_old_is_named_with_its_version() {
        let info = "redis_version:6.0.16\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(shown(info), "h:1: Redis 6.0.16 is too old, use Redis 6.2 or later, or Valkey");
        assert!(shown("redis_version:nonsense\r\n").contains("too old"));
    }

    #[test]
    fn a_recent_server_will_do() {
        assert_eq!(shown("redis_version:6.2.0\r\nmaxmemory_policy:noeviction\r\n"), "h:1: Redis 6.2.0");
        assert_eq!(shown("redis_version:7.2.4\r\nvalkey_version:8.1.0\r\n"), "h:1: Valkey 8.1.0");
        assert_eq!(shown("redis_version:10.0.1\r\n"), "h:1: Redis 10.0.1");
    }

    #[test]
    fn a_database_that_merges_what_others_write_is_warned_about() {
        let info = "redis_version:7.2.4\r\nmaxmemory_policy:noeviction\r\n";
        for line in ["crdt_replica_id:1", "module:name=crdt,ver=100,api=1"] {
            let told = shown(&format!("{info}{line}\r\n"));
            assert!(told.contains("Active-Active") && told.contains("regions.home"), "{told}");
        }
        let search = "module:name=search,ver=20809,api=1\r\nrole:master\r\n";
        assert_eq!(shown(&format!("{info}{search}")), "h:1: Redis 7.2.4");
    }

    #[test]
    fn a_policy_that_evicts_is_warned_about() {
        let info = "redis_version:7.0.15\r\nmaxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\n";
        let warning =
            "`maxmemory-policy allkeys-lru` forgets who has spent what when memory is full: use `noeviction`";
        assert_eq!(shown(info), format!("h:1: Redis 7.0.15, but {warning}"));
    }
}
