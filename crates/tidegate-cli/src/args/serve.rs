//! The flags of `serve`. All are optional: the environment, the file or a default may have the value instead.

use std::path::PathBuf;

use clap::Args;

use crate::settings::env;

const EXAMPLES: &str = "\
Examples:
  tidegate serve
  tidegate serve --rules rules/ --http 0.0.0.0:8080
  tidegate serve --rules rules/ --store redis://10.0.0.5:6379
  tidegate serve --envoy-config config/ratelimit/ --grpc 0.0.0.0:8081
  TIDEGATE_LOG__FORMAT=json tidegate serve --config tidegate.yaml";

/// Lists every environment variable once, here: the short help stays short.
fn long_help() -> String {
    format!("{EXAMPLES}\n\n{}", env::help())
}

/// Run the server
///
/// With no arguments: counters in memory, a starter rule set, and a `curl` line to try. Every flag has a field in the
/// configuration file and a variable in the environment; a flag wins over the environment, which wins over the file.
///
/// SIGTERM and SIGINT let requests in flight finish, then exit with 0. SIGHUP, or a change of a rule file, reloads the
/// rules; if they have a mistake the old ones go on.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES, after_long_help = long_help())]
pub(crate) struct ServeArgs {
    /// Configuration file (YAML) [env: TIDEGATE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Rule file, or a directory of them; may be given several times [env: TIDEGATE_RULES__PATHS]
    #[arg(long, value_name = "PATH")]
    pub(crate) rules: Vec<PathBuf>,
    /// Configuration directory of envoyproxy/ratelimit, read as it is [env: TIDEGATE_RULES__ENVOY_CONFIG]
    #[arg(long, value_name = "DIR")]
    pub(crate) envoy_config: Option<PathBuf>,
    /// Directory of the embedded database [env: TIDEGATE_DATA] [default: tidegate-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where counters live: memory:, redis://HOST:PORT, rediss://…, redis+sentinel://…, redis+cluster://…,
    /// redis+sharded://…, postgres://USER@HOST/DATABASE, memcached://HOST,HOST or dynamodb://TABLE?region=REGION
    /// [env: TIDEGATE_STORE__URL] [default: memory:]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// HTTP listener, `off` for none; port 0 picks a free one [env: TIDEGATE_LISTEN__HTTP] [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// gRPC listener, `off` for none [env: TIDEGATE_LISTEN__GRPC] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    pub(crate) grpc: Option<String>,
    /// Listener for the Redis protocol, `off` for none [env: TIDEGATE_LISTEN__RESP] [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDR")]
    pub(crate) resp: Option<String>,
    /// Metrics and administration, `off` for none [env: TIDEGATE_LISTEN__ADMIN] [default: 127.0.0.1:8082]
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
    /// How much to log: error, warn, info, debug, trace, or a filter such as
    /// `info,tidegate_server=debug` [env: TIDEGATE_LOG__LEVEL] [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// Log lines for a person (text) or a collector (json) [env: TIDEGATE_LOG__FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
}
