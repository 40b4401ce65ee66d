//! Servers with their control plane: `tidegate serve` as a person starts it, asked over its admin API.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_testkit::http::{self, Response};
use tidegate_testkit::{TidegateServer, poll};

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
/// Far longer than any of this takes, for machines that are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The token that the configuration gives.
pub(crate) const TOKEN: &str = "a-token-of-the-configuration";

pub(crate) const RULES: &str = "\
# Limits of the API.
domain: api
rules:
  # Each user.
  - name: per-user
    key: [user]
    limits: [{ algorithm: fixed_window, limit: 3, window: 1d }]
";

/// The same with another limit.
pub(crate) fn rules_of(limit: u64) -> String {
    RULES.replace("limit: 3", &format!("limit: {limit}"))
}

pub(crate) struct Node {
    pub(crate) server: TidegateServer,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) dir: TempDir,
}

impl Node {
    /// One with these lines in its configuration.
    pub(crate) fn start(config: &str) -> Node {
        Node::start_with(config, &[])
    }

    /// One that has these variables in its environment, too.
    pub(crate) fn start_with(config: &str, more: &[(&str, &str)]) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: 'off', resp: '127.0.0.1:0', admin: '127.0.0.1:0' }}\n{config}\n"
        );
        fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
        fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
        let path = dir.path().join("tidegate.yaml");
        let own = [("TIDEGATE_DRAIN__DELAY", "0s"), ("TIDEGATE_ADMIN__TOKENS", TOKEN)];
        let env = [&own[..], more].concat();
        let server = TidegateServer::start_with_env(BINARY, &["--config", path.to_str().unwrap()], &env);
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut node = Node { server, http: free, admin: free, dir };
        node.find();
        node
    }

    fn find(&mut self) {
        [self.http, self.admin] = ["http", "admin"].map(|name| self.server.addr(name));
    }

    /// Is killed with SIGKILL, and started again.
    pub(crate) fn come_back(&mut self) {
        self.server.restart();
        self.find();
    }

    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        let bearer = format!("Bearer {TOKEN}");
        let own = [("authorization", &*bearer), ("content-type", "application/json")];
        let headers: Vec<(&str, &str)> = own.into_iter().chain(headers.iter().copied()).collect();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        http::request(self.admin, method, &format!("/admin/v1{path}"), &headers, body.as_bytes()).unwrap()
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &[], &Value::Null);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.ask("POST", path, &[], body)
    }

    /// Publishes one document as the whole set, made on what is in force.
    #[track_caller]
    pub(crate) fn publish(&self, text: &str) -> Response {
        let on = self.get("/rules")["version"].to_string();
        self.publish_on(&on, text)
    }

    #[track_caller]
    pub(crate) fn publish_on(&self, on: &str, text: &str) -> Response {
        let body = json!({ "documents": [{ "domain": "api", "text": text }], "reason": "a test" });
        self.ask("PUT", "/rules", &[("if-match", &format!("\"{on}\""))], &body)
    }

    /// The limit of a user, asked without spending; none where no rule is for it.
    pub(crate) fn limit(&self) -> Option<u64> {
        let body = r#"{"domain":"api","attributes":{"user":"somebody"},"cost":0}"#;
        http::post_json(self.http, "/v1/check", body).json()["limit"].as_u64()
    }

    /// Whether a user may ask, without spending.
    pub(crate) fn allows(&self, user: &str) -> bool {
        let body = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}},"cost":0}}"#);
        http::post_json(self.http, "/v1/check", &body).status == 200
    }

    #[track_caller]
    pub(crate) fn runs(&self, limit: u64) {
        let found = poll(PATIENCE, || (self.limit() == Some(limit)).then_some(()));
        assert!(found.is_some(), "it runs {:?}, not {limit}: {}", self.limit(), self.server.stderr());
    }

    /// A ban of one user; returns its id.
    #[track_caller]
    pub(crate) fn ban(&self, user: &str) -> String {
        let ban = json!({ "domain": "api", "when": { "user": user }, "action": "ban", "reason": "abuse" });
        let made = self.post("/keys/overrides", &ban);
        assert_eq!(made.status, 201, "{}", made.text());
        made.json()["id"].as_str().unwrap().to_owned()
    }

    /// This node, as it and the others tell of it.
    pub(crate) fn notes(&self) -> Vec<Value> {
        self.get("/nodes")["nodes"].as_array().unwrap().clone()
    }
}

/// How long it took until `holds`.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "it measures how long real nodes take")]
pub(crate) fn waited(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = std::time::Instant::now();
    poll(PATIENCE, || holds().then(|| start.elapsed())).unwrap_or_else(|| panic!("never: {what}"))
}
