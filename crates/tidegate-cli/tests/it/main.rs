//! Runs the real binary, as a person or a script would, and looks at its exit code and what it prints.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod access;
mod alert_delivery;
mod alert_kinds;
mod alert_minutes;
mod alerts;
mod autopilot;
mod bench;
mod bench_grpc;
mod bench_resp;
mod certificates;
mod changed_numbers;
mod check;
mod closed_status;
mod compatibility;
mod control;
mod control_cli;
mod control_clock;
mod control_load;
mod control_world;
mod database_file;
mod decision_log;
mod deployments;
mod dynamodb_store;
mod envoy;
mod exemplars;
mod explain;
mod first_log_in;
mod first_use;
mod flags;
mod fleet_decisions;
mod fleet_refusals;
mod fleet_secret;
mod garbage;
mod gateways;
mod generated;
mod help;
mod http;
mod import;
mod leases;
mod live_and_replay;
mod live_and_replay_at_once;
mod live_and_replay_week;
mod log_lines;
mod many_rules;
mod memcached_store;
mod memory;
mod memory_store;
mod messages;
mod overload;
mod plan;
mod postgres_store;
mod promises;
mod proxy;
mod redis_approximate;
mod redis_bursts;
mod redis_clock;
mod redis_exact;
mod redis_faults;
mod redis_gray;
mod redis_heal;
mod redis_hot_key;
mod redis_load;
mod redis_memory_alike;
mod redis_outage;
mod redis_overload;
mod redis_owed;
mod redis_penalty;
mod redis_regions;
mod redis_request_id;
mod redis_serve;
mod redis_start;
mod redis_topologies;
mod redis_world;
mod reference;
mod releases;
mod rendered;
mod replay;
mod rlqs;
mod rolling;
mod same_checks;
mod serve;
mod serve_mistakes;
mod shorthand;
mod stats_of_one_node;
mod stopping;
mod store_kinds;
mod store_required;
mod store_trouble;
mod stub;
mod supervisor;
mod telemetry;
mod telemetry_out;
mod top_callers;
mod validate;
mod worst_numbers;
mod xds;
mod xds_tls;

use std::path::Path;
use std::process::{Command, Output};

/// The binary with nothing in its environment that could change what it does.
fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    // A server that starts keeps its database out of the source tree.
    command.args(args).env_clear().env("TIDEGATE_DATA", concat!(env!("CARGO_TARGET_TMPDIR"), "/data"));
    command
}

/// What a run left behind, in the shape the snapshots have.
fn ran(output: &Output) -> String {
    let code = output.status.code().expect("it was not killed");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!("exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}")
}

/// Runs it and tells how that went.
fn run(args: &[&str]) -> String {
    ran(&tidegate(args).output().expect("the binary runs"))
}

/// The same in `dir`, so that paths in messages do not depend on where the test runs.
fn run_in(dir: &Path, args: &[&str]) -> String {
    ran(&tidegate(args).current_dir(dir).output().expect("the binary runs"))
}
