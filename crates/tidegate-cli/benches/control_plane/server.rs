//! A server with its control plane, and the load on it.

use std::error::Error;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use serde_json::json;
use tidegate_testkit::http::{self, Response};

pub(crate) const TOKEN: &str = "a-token-of-the-benchmark";
pub(crate) const ADMIN: (&str, &str) = ("authorization", "Bearer a-token-of-the-benchmark");

/// One rule that every request matches and nobody reaches, and `more` that none matches.
pub(crate) fn rules(more: usize) -> String {
    let limit = "{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }";
    let mut text = format!("domain: api\nrules:\n  - {{ name: per-user, key: [user], limits: [{limit}] }}\n");
    for number in 0..more {
        let _ = writeln!(
            text,
            "  - {{ name: rule-{number}, match: {{ path: '/v1/{number}/*' }}, key: [user], limits: [5/s, 100/minute] }}"
        );
    }
    text
}

/// Publishes one document as the whole set.
pub(crate) fn publish(admin: SocketAddr, text: &str) -> Result<(), Box<dyn Error>> {
    let on = ask(admin, "GET", "/versions?limit=1", &[], "")?.json()["versions"][0]["number"].to_string();
    let body =
        json!({ "documents": [{ "domain": "api", "text": text }], "reason": "a benchmark" }).to_string();
    let answer = ask(admin, "PUT", "/rules", &[("if-match", &format!("\"{on}\""))], &body)?;
    if answer.status == 200 { Ok(()) } else { Err(answer.text().into()) }
}

pub(crate) fn ask(
    admin: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Response> {
    let own = [ADMIN, ("content-type", "application/json")];
    let headers: Vec<(&str, &str)> = own.into_iter().chain(headers.iter().copied()).collect();
    http::request(admin, method, &format!("/admin/v1{path}"), &headers, body.as_bytes())
}

/// What `tidegate bench` prints.
#[derive(Deserialize)]
pub(crate) struct Load {
    pub(crate) achieved_per_s: f64,
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    pub(crate) errors: u64,
    pub(crate) latency_us: Latency,
}

#[derive(Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// Offers `rate` (a number, or `closed`) over gRPC for `secs`, after `warm_up` seconds.
pub(crate) fn offer(
    ours: &Path,
    to: SocketAddr,
    rate: &str,
    (warm_up, secs): (u32, u32),
) -> std::io::Result<Child> {
    let mut load = Command::new(ours);
    load.args(["bench", "--protocol", "grpc", "--connections", "4", "--in-flight", "64", "--keys", "10000"]);
    load.args(["--output", "json", "--rate", rate, "--address", &to.to_string()]);
    load.args(["--warm-up", &format!("{warm_up}s"), "--duration", &format!("{secs}s"), "--timeout", "30s"]);
    load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

pub(crate) fn finish(load: Child) -> Result<Load, Box<dyn Error>> {
    let output = load.wait_with_output()?;
    serde_json::from_slice(&output.stdout)
        .map_err(|why| format!("{why}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
