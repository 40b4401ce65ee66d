//! Traces that come in, whichever way: each is an exemplar of the duration of its transport.

use std::fs;
use std::net::SocketAddr;

use tempfile::TempDir;
use tidegate_testkit::{TidegateServer, Upstream, http};

use crate::access::ask_grpc_once;
use crate::redis_world::BINARY;

const SAMPLED: &str = "0af7651916cd43dd8448eb211c80319c";
const NOT_SAMPLED: &str = "1af7651916cd43dd8448eb211c80319c";

/// A server that is asked every way there is.
struct World {
    server: TidegateServer,
    admin: SocketAddr,
    _upstream: Upstream,
    _dir: TempDir,
}

impl World {
    fn start() -> World {
        let (upstream, dir) = (Upstream::start(), tempfile::tempdir().unwrap());
        fs::write(
            dir.path().join("rules.yaml"),
            "domain: api\nrules:\n- { name: r, limits: [500/minute] }\n",
        )
        .unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: '127.0.0.1:0', resp: off, admin: '127.0.0.1:0' }}\n\
             rules: {{ paths: [rules.yaml] }}\n\
             proxy: {{ listen: '127.0.0.1:0', domain: api, upstreams: [{{ name: back, targets: ['http://{}'] }}] }}\n",
            upstream.addr()
        );
        let file = dir.path().join("tidegate.yaml");
        fs::write(&file, config).unwrap();
        let mut server = TidegateServer::start(BINARY, &["--config", file.to_str().unwrap()]);
        let admin = server.addr("admin");
        World { server, admin, _upstream: upstream, _dir: dir }
    }

    /// Asks with a trace that is sampled, and with one that is not.
    #[track_caller]
    fn assert_an_exemplar_of(mut self, transport: &str, listener: &str, ask: impl Fn(SocketAddr, &str)) {
        let address = self.server.addr(listener);
        for (trace, flags) in [(SAMPLED, "01"), (NOT_SAMPLED, "00")] {
            ask(address, &format!("00-{trace}-b7ad6b7169203331-{flags}"));
        }
        let accept = [("accept", "application/openmetrics-text; version=1.0.0")];
        let text = http::request(self.admin, "GET", "/metrics", &accept, b"").unwrap().text();
        let exemplars: Vec<&str> = text.lines().filter(|line| line.contains(" # {")).collect();
        assert_eq!(exemplars.len(), 1, "{exemplars:?}");
        let (sample, exemplar) = exemplars[0].split_once(" # ").unwrap();
        let bucket = sample.strip_prefix("tidegate_decision_duration_seconds_bucket{");
        let labels = bucket.unwrap_or_else(|| panic!("{sample}"));
        assert!(labels.contains(&format!("transport=\"{transport}\"")), "{labels}");
        assert!(exemplar.starts_with(&format!("{{trace_id=\"{SAMPLED}\"}} ")), "{exemplar}");
    }
}

#[test]
fn a_trace_that_came_in_over_grpc_is_an_exemplar() {
    World::start().assert_an_exemplar_of("grpc", "grpc", |address, parent| {
        ask_grpc_once(address, "traceparent", Some(parent)).unwrap();
    });
}

#[test]
fn a_trace_that_came_in_with_a_gateways_question_is_an_exemplar() {
    World::start().assert_an_exemplar_of("auth", "http", |address, parent| {
        let headers = [("traceparent", parent)];
        assert_eq!(http::request(address, "GET", "/v1/auth?domain=api", &headers, b"").unwrap().status, 200);
    });
}

#[test]
fn a_trace_that_came_in_through_the_proxy_is_an_exemplar_and_goes_on_to_the_server_behind() {
    World::start().assert_an_exemplar_of("proxy", "proxy", |address, parent| {
        let answer = http::request(address, "GET", "/", &[("traceparent", parent)], b"").unwrap();
        // The server behind answers with what it received.
        assert_eq!((answer.status, &answer.json()["headers"]["traceparent"]), (200, &parent.into()));
    });
}
