//! Every figure we quote has one command: a row of this table.

use std::env;
use std::path::Path;

use crate::command::CommandLine;
use crate::steps::Failure;

/// A benchmark: what it shows, and the bench target that prints it.
struct Bench {
    name: &'static str,
    shows: &'static str,
    package: &'static str,
    target: &'static str,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "redis-costs",
        shows: "what a decision costs Redis in CPU time, and its latency beside a bare EVALSHA",
        package: "tidegate-store-redis",
        target: "redis_costs",
    },
    Bench {
        name: "limiter-redis",
        shows: "a check through the limiter beside a bare EVALSHA, and 1 to 8 calls under way compared",
        package: "tidegate-cli",
        target: "limiter_redis",
    },
    Bench {
        name: "stores",
        shows: "decisions a second on each store that nodes can share, beside pgbench's transactions",
        package: "tidegate-cli",
        target: "stores",
    },
    Bench {
        name: "memory-table",
        shows: "bytes per user of every algorithm, in memory and in Redis, beside the paper's table",
        package: "tidegate-store-redis",
        target: "memory_table",
    },
    Bench {
        name: "store",
        shows: "the memory store's call beside governor's: nanoseconds, bytes per key",
        package: "tidegate-store",
        target: "beside_governor",
    },
    Bench {
        name: "instructions",
        shows: "instructions per decision, counted by valgrind, so the same on a busy machine",
        package: "tidegate-store",
        target: "instructions",
    },
    Bench {
        name: "check",
        shows: "a whole check on the memory store beside the bare store call and governor",
        package: "tidegate-limiter",
        target: "check",
    },
    Bench {
        name: "many-rules",
        shows: "a whole check among 10,000 rules, and one that 10 to 300 rules match",
        package: "tidegate-limiter",
        target: "many_rules",
    },
    Bench {
        name: "decision-log",
        shows: "what the decision log adds to a decision: off, at its default, and keeping everything",
        package: "tidegate-decisions",
        target: "decision_log",
    },
    Bench {
        name: "publish",
        shows: "p99 while 10,000 rules are published under 20,000 requests/s, beside p99 before, and the memory that stays",
        package: "tidegate-cli",
        target: "control_plane",
    },
    Bench {
        name: "control-plane",
        shows: "CPU time per request with control plane, dashboards and history, beside none",
        package: "tidegate-cli",
        target: "control_plane",
    },
    Bench {
        name: "layer",
        shows: "what the tower middleware adds to a bare axum handler",
        package: "tidegate-tower",
        target: "layer",
    },
    Bench {
        name: "matching",
        shows: "finding the rules of a request among 10 and among 10,000",
        package: "tidegate-rules",
        target: "matching",
    },
    Bench {
        name: "proxy",
        shows: "what the reverse proxy adds to a request's latency, beside what nginx adds",
        package: "tidegate-proxy",
        target: "proxy",
    },
    Bench {
        name: "replay",
        shows: "lines per second of a replay on one core, for each log format, alone and against other rules",
        package: "tidegate-replay",
        target: "replay",
    },
    Bench {
        name: "telemetry",
        shows: "instructions per request with decision log, StatsD, OTLP and alerts, beside none, counted by valgrind",
        package: "tidegate-cli",
        target: "telemetry_cost",
    },
    Bench {
        name: "many-keys",
        shows: "memory and the size of /metrics after ten million callers, with all telemetry and with none",
        package: "tidegate-cli",
        target: "telemetry_cost",
    },
    Bench {
        name: "resp",
        shows: "CL.THROTTLE over the Redis protocol beside redis-server's own PING, at pipelines 1, 16 and 64",
        package: "tidegate-server",
        target: "resp",
    },
    Bench {
        name: "server",
        shows: "CPU per request over gRPC and HTTP, beside bare tonic and bare axum",
        package: "tidegate-server",
        target: "server",
    },
    Bench {
        name: "profiles",
        shows: "CPU per request of the two builds, `dist` (tidegate) and `release` (other build)",
        package: "tidegate-server",
        target: "server",
    },
    Bench {
        name: "server-redis",
        shows: "CPU per request over gRPC with a Redis behind the server, beside bare tonic",
        package: "tidegate-server",
        target: "server",
    },
    Bench {
        name: "under-load",
        shows: "decisions/s, who decides and what it costs Redis, with up to 1,024 requests in flight over 100,000 keys",
        package: "tidegate-server",
        target: "under_load",
    },
];

/// Benchmarks that start the real binary: it is built first and named to them in `TIDEGATE`.
const STARTS_TIDEGATE: &[&str] = &[
    "control-plane",
    "many-keys",
    "profiles",
    "publish",
    "server",
    "server-redis",
    "telemetry",
    "under-load",
];

/// Rows that run another row's target in another way.
const FLAGS: &[(&str, &[&str])] = &[
    ("control-plane", &["cost"]),
    ("many-keys", &["keys"]),
    ("publish", &["publish"]),
    ("server-redis", &["--redis", "--only", "grpc"]),
    ("telemetry", &["cost"]),
];

/// Runs the benchmark called `name` with `rest` appended, or lists them all.
pub(crate) fn run(root: &Path, name: Option<&str>, rest: &[String]) -> Result<(), Failure> {
    let Some(name) = name else {
        println!("{}", listing());
        return Ok(());
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        return Err(Failure { what: format!("there is no benchmark `{name}`"), hint: listing() });
    };
    let mut command =
        CommandLine::new(["cargo", "bench", "--locked", "-p", bench.package, "--bench", bench.target]);
    if STARTS_TIDEGATE.contains(&name) {
        command = command.env("TIDEGATE", built(root, "dist")?);
    }
    let mut rest = rest.to_vec();
    if name == "profiles" {
        rest.extend(["--beside".to_owned(), built(root, "release")?]);
    }
    let flags = FLAGS.iter().filter(|(row, _)| *row == name).flat_map(|(_, flags)| *flags);
    let rest: Vec<String> = flags.map(|flag| (*flag).to_owned()).chain(rest).collect();
    let command = if rest.is_empty() { command } else { command.args(["--"]).args(rest) };
    command.run(root).map_err(|why| Failure::of_command(&command, &why))
}

/// Builds the binary with this profile, and says where it is.
fn built(root: &Path, profile: &str) -> Result<String, Failure> {
    let build = CommandLine::new(["cargo", "build", "--profile", profile, "--locked", "-p", "tidegate-cli"]);
    build.run(root).map_err(|why| Failure::of_command(&build, &why))?;
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(root.join(target).join(profile).join("tidegate").display().to_string())
}

fn listing() -> String {
    let rows = BENCHES.iter().map(|bench| format!("\n  {:<16} {}", bench.name, bench.shows));
    format!("run one with `cargo xtask bench NAME`:{}", rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_bench_target_has_a_row_and_every_row_a_target() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace root");
        let metadata = CommandLine::new(["cargo", "metadata", "--no-deps", "--format-version", "1"]);
        let metadata = metadata.output(root).expect("cargo metadata runs");
        let metadata: serde_json::Value =
            serde_json::from_str(&metadata).expect("cargo metadata prints JSON");
        let list = |value: &serde_json::Value| value.as_array().expect("metadata holds lists").clone();
        let text = |value: &serde_json::Value| value.as_str().expect("names are strings").to_owned();
        let mut targets = BTreeSet::new();
        for package in list(&metadata["packages"]) {
            for target in list(&package["targets"]) {
                if list(&target["kind"]).contains(&"bench".into()) {
                    targets.insert((text(&package["name"]), text(&target["name"])));
                }
            }
        }
        let rows = BENCHES.iter().map(|bench| (bench.package.to_owned(), bench.target.to_owned())).collect();
        assert_eq!(targets, rows, "hint: the rows are in xtask/src/bench.rs");
    }

    #[test]
    fn benchmarks_md_names_every_benchmark_and_pages_name_none_that_is_gone() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace root");
        let named = |page: &str| -> BTreeSet<String> {
            let text = std::fs::read_to_string(root.join(page)).expect("the page is there");
            let names = text.split("`cargo xtask bench ").skip(1);
            let name = |rest: &str| rest.split(['`', ' ']).next().map(str::to_owned);
            names.filter_map(name).collect()
        };
        let benches: BTreeSet<String> = BENCHES.iter().map(|bench| bench.name.to_owned()).collect();
        assert_eq!(named("docs/benchmarks.md"), benches, "a benchmark has a row in docs/benchmarks.md");
        for page in [
            "README.md",
            "docs/guides/choosing.md",
            "docs/guides/control-plane.md",
            "docs/guides/installing.md",
            "docs/guides/telemetry.md",
            "docs/operate/sizing.md",
            "docs/operate/stores.md",
        ] {
            assert!(named(page).is_subset(&benches), "{page} names {:?}", named(page));
        }
    }
}
