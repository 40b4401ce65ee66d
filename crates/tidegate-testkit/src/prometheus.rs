//! A real Prometheus that scrapes what a test runs, every second.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::http;
use crate::port::Port;
use crate::process::{Process, StartFailure, start_on_free_ports};
use crate::tool::find_tool;

const START_PATIENCE: Duration = Duration::from_secs(30);

/// A Prometheus, gone when dropped.
#[derive(Debug)]
pub struct Prometheus {
    process: Process,
    port: Port,
    _dir: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes `targets` and evaluates the rules in `rule_files`; returns when it answers queries.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start(targets: &[SocketAddr], rule_files: &[&Path]) -> Self {
        let targets: Vec<String> = targets.iter().map(|target| format!("'{target}'")).collect();
        let rules: Vec<String> = rule_files.iter().map(|path| format!("'{}'", path.display())).collect();
        Self::start_with(&format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\n\
             scrape_configs: [{{ job_name: tidegate, static_configs: [{{ targets: [{}] }}] }}]\n",
            rules.join(", "),
            targets.join(", ")
        ))
    }

    /// Starts one with this configuration; returns when it answers queries.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start_with(config: &str) -> Self {
        start_on_free_ports(|| Self::try_start(config))
    }

    /// What an instant query gives: its samples.
    ///
    /// # Panics
    /// When Prometheus refuses the query; the message says why.
    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let answer =
            http::get(self.port.addr(), &format!("/api/v1/query?query={}", escaped(expression))).json();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// The values that a label of a metric has, as Grafana asks for them.
    ///
    /// # Panics
    /// When Prometheus refuses the question; the message says why.
    #[track_caller]
    pub fn label_values(&self, metric: &str, label: &str) -> Vec<String> {
        let path = format!("/api/v1/label/{label}/values?match[]={}", escaped(metric));
        let answer = http::get(self.port.addr(), &path).json();
        assert_eq!(answer["status"], "success", "{metric}, {label}: {answer}");
        let values = answer["data"].as_array().cloned().unwrap_or_default();
        values.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
    }

    /// The exemplars that it keeps of a metric.
    ///
    /// # Panics
    /// When Prometheus refuses the query; the message says why.
    #[track_caller]
    pub fn exemplars(&self, metric: &str) -> Vec<Value> {
        let path = format!("/api/v1/query_exemplars?query={}", escaped(metric));
        let answer = http::get(self.port.addr(), &path).json();
        assert_eq!(answer["status"], "success", "{metric}: {answer}");
        let series = answer["data"].as_array().cloned().unwrap_or_default();
        series.iter().flat_map(|one| one["exemplars"].as_array().cloned().unwrap_or_default()).collect()
    }

    /// The process itself, for its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn try_start(config: &str) -> Result<Self, StartFailure> {
        let dir =
            tempfile::Builder::new().prefix("tidegate-prometheus-").tempdir().expect("a temporary folder");
        let port = Port::reserve();
        let file = dir.path().join("prometheus.yml");
        fs::write(&file, config).expect("a temporary folder is writable");
        let mut command = Command::new(find_tool("prometheus"));
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()));
        command.arg(format!("--web.listen-address={}", port.addr()));
        command.arg("--enable-feature=exemplar-storage");
        let mut process = Process::spawn("prometheus", &command, dir.path());
        let ready = |_: &Process| {
            let answer = http::request(port.addr(), "GET", "/-/ready", &[], b"").ok()?;
            (answer.status == 200).then_some(())
        };
        process.ready(START_PATIENCE, ready)?;
        Ok(Self { process, port, _dir: dir })
    }
}

/// A text as it stands in a query string.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}
