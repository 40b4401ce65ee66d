//! DynamoDB as `moto` emulates it.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::http;
use crate::port::Port;
use crate::process::{Process, StartFailure, start_on_free_ports};
use crate::tool::find_python_with;

/// It imports for seconds, and longer on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// An emulator of DynamoDB, gone when dropped. It checks no signature.
#[derive(Debug)]
pub struct Moto {
    process: Process,
    port: Port,
    dir: TempDir,
}

impl Moto {
    /// Starts one.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        start_on_free_ports(|| {
            let dir =
                tempfile::Builder::new().prefix("tidegate-moto-").tempdir().expect("a temporary folder");
            let port = Port::reserve();
            let process = serve(&port, &dir)?;
            Ok(Self { process, port, dir })
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The URL of a table in it, which is created.
    #[must_use]
    pub fn url(&self, table: &str) -> String {
        format!("dynamodb://{table}?region=eu-west-1&endpoint=http://{}&create=true", self.addr())
    }

    /// Refuses the next calls so.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn refuse(&self, status: u16, code: &str, count: u32) {
        self.refuse_calls("", status, code, count);
    }

    /// The same of calls of this name: `PutItem`.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn refuse_calls(&self, of: &str, status: u16, code: &str, count: u32) {
        let body = json!({ "of": of, "code": code, "status": status, "count": count }).to_string();
        assert_eq!(http::post_json(self.addr(), "/_refuse", &body).status, 200);
    }

    /// Makes a table with one key of this name, unless it is there.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn create_table(&self, table: &str, key: &str) {
        let body = json!({
            "TableName": table,
            "AttributeDefinitions": [{ "AttributeName": key, "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": key, "KeyType": "HASH" }],
            "BillingMode": "PAY_PER_REQUEST",
        });
        let told = self.call("CreateTable", &body);
        assert!(told.status == 200 || told.text().contains("ResourceInUseException"), "{}", told.text());
    }

    /// What it answers to a call.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    #[track_caller]
    pub fn call(&self, what: &str, body: &serde_json::Value) -> http::Response {
        let target = format!("DynamoDB_20120810.{what}");
        let headers = [
            ("x-amz-target", target.as_str()),
            ("content-type", "application/x-amz-json-1.0"),
            // It checks no signature, and takes the region from it.
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=test/20261119/eu-west-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0",
            ),
        ];
        http::request(self.addr(), "POST", "/", &headers, body.to_string().as_bytes()).expect("it answers")
    }

    /// How many calls it has answered.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    #[track_caller]
    pub fn calls(&self) -> u64 {
        http::get(self.addr(), "/_calls").text().trim().parse().expect("a number")
    }

    /// The process itself, for signals and for its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts a killed server again on its port, empty.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.process = serve(&self.port, &self.dir).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

fn serve(port: &Port, dir: &TempDir) -> Result<Process, StartFailure> {
    let script = dir.path().join("moto_server.py");
    std::fs::write(&script, include_str!("moto_server.py")).expect("the folder can be written to");
    let mut command = Command::new(find_python_with("moto"));
    command.arg(script).arg(port.addr().port().to_string());
    let mut process = Process::spawn("moto", &command, dir.path());
    process.ready(START_PATIENCE, |_| std::net::TcpStream::connect(port.addr()).is_ok().then_some(()))?;
    Ok(process)
}
