//! A real Envoy in front of an upstream, with the real `tidegate serve` as its rate limit service.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_testkit::{Envoy, Port, TidegateServer, Upstream, eventually, http};

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
const PATIENCE: Duration = Duration::from_secs(20);

/// envoyproxy/ratelimit's own format. Years, so that no window ends during a test.
const LIMITS: &str = r#"
domain: edge
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 3 }
    descriptors:
      - key: plan
        value: free
        rate_limit: { unit: year, requests_per_unit: 1 }
      - key: plan
        value: pro*
        rate_limit: { unit: year, requests_per_unit: 2 }
  - key: user
    value: banned
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: user
    value: internal
    rate_limit: { unlimited: true }
  - key: trial
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: weight
    rate_limit: { unit: year, requests_per_unit: 3 }
  - key: tokens
    rate_limit: { unit: year, requests_per_unit: 1000 }
"#;

struct Edge {
    upstream: Upstream,
    envoy: Envoy,
    server: TidegateServer,
    _dir: TempDir,
}

impl Edge {
    fn start() -> Self {
        Edge::with(SocketAddr::from(([127, 0, 0, 1], 0)), "{}")
    }

    /// With the server's gRPC at this address, and this server configuration.
    fn with(grpc: SocketAddr, config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (limits, config_file) = (dir.path().join("limits"), dir.path().join("tidegate.yaml"));
        fs::create_dir(&limits).unwrap();
        fs::write(limits.join("edge.yaml"), LIMITS).unwrap();
        fs::write(&config_file, config).unwrap();
        let mut server = serve(limits.to_str().unwrap(), config_file.to_str().unwrap(), grpc);
        let upstream = Upstream::start();
        let envoy = Envoy::start(&envoy_config(server.addr("grpc"), upstream.addr()));
        Edge { upstream, envoy, server, _dir: dir }
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> http::Response {
        http::request(self.envoy.listener("edge"), "GET", path, headers, b"").expect("Envoy answers")
    }

    fn status(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.get(path, headers).status
    }

    fn statuses(&self, path: &str, headers: &[(&str, &str)], times: usize) -> Vec<u16> {
        (0..times).map(|_| self.status(path, headers)).collect()
    }
}

fn serve(limits: &str, config: &str, grpc: SocketAddr) -> TidegateServer {
    let grpc = grpc.to_string();
    let listeners = ["--http", "127.0.0.1:0", "--grpc", &grpc, "--resp", "off", "--admin", "127.0.0.1:0"];
    TidegateServer::start(BINARY, &[&listeners[..], &["--envoy-config", limits, "--config", config]].concat())
}

/// Routes: `/plain` asks with the user; `/plans` with user and plan; `/trial` in shadow; `/heavy` for two hits; `/own` with a
/// limit of its own, two per year. `/tokens` looks first, and charges what the answer says once it is sent.
fn envoy_config(grpc: SocketAddr, upstream: SocketAddr) -> String {
    let (grpc, upstream) = (grpc.port(), upstream.port());
    let asks_with = |header: &str, key: &str| {
        format!("{{ request_headers: {{ header_name: {header}, descriptor_key: {key} }} }}")
    };
    let (user, plan) = (asks_with("x-user", "user"), asks_with("x-plan", "plan"));
    let (trial, weight) = (asks_with("x-user", "trial"), asks_with("x-user", "weight"));
    let route = |path: &str, limit: &str| {
        format!("{{ match: {{ prefix: {path} }}, route: {{ cluster: upstream, rate_limits: [{limit}] }} }}")
    };
    let own = "limit: { dynamic_metadata: { metadata_key: { key: own, path: [{ key: limit }] } } }";
    // Envoy takes hits only from the filter's own configuration of a route.
    let heavy = format!(
        "{{ match: {{ prefix: /heavy }}, route: {{ cluster: upstream }}, typed_per_filter_config: {{ envoy.filters.http.ratelimit: \
         {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, \
         rate_limits: [{{ actions: [{weight}], hits_addend: {{ number: 2 }} }}] }} }} }}"
    );
    let tokens = asks_with("x-user", "tokens");
    let charged = format!(
        "{{ match: {{ prefix: /tokens }}, route: {{ cluster: upstream }}, \
         response_headers_to_add: [{{ header: {{ key: x-used, value: \"%REQ(x-tokens)%\" }} }}], \
         typed_per_filter_config: {{ envoy.filters.http.ratelimit: \
         {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, \
         rate_limits: [{{ actions: [{tokens}], hits_addend: {{ number: 0 }} }}, \
         {{ actions: [{tokens}], hits_addend: {{ format: \"%RESP(x-used)%\" }}, apply_on_stream_done: true }}] }} }} }}"
    );
    let routes = [
        charged,
        route("/one-token", &format!("{{ actions: [{tokens}] }}")),
        route("/plain", &format!("{{ actions: [{user}] }}")),
        route("/plans", &format!("{{ actions: [{user}, {plan}] }}")),
        route("/trial", &format!("{{ actions: [{trial}] }}")),
        heavy,
        route("/light", &format!("{{ actions: [{weight}] }}")),
        route("/own", &format!("{{ actions: [{user}], {own} }}")),
    ]
    .join("\n              - ");
    format!(
        r#"
static_resources:
  listeners:
  - name: edge
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - {routes}
          http_filters:
          - name: envoy.filters.http.set_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata:
              - metadata_namespace: own
                value: {{ limit: {{ requests_per_unit: 2, unit: YEAR }} }}
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: edge
              timeout: 1s
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {{ envoy_grpc: {{ cluster_name: tidegate }} }}
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: upstream
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {upstream} }} }} }}
  - name: tidegate
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment:
      cluster_name: tidegate
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {grpc} }} }} }}
"#
    )
}

#[test]
fn requests_pass_up_to_the_limit_and_a_refused_one_reaches_no_upstream() {
    let edge = Edge::start();
    assert_eq!(edge.statuses("/plain", &[("x-user", "42")], 5), [200, 200, 200, 429, 429]);
    assert_eq!(edge.upstream.requests(), 3);
    assert_eq!(edge.status("/plain", &[("x-user", "43")]), 200);
    // Without the header Envoy has no descriptor to ask with.
    assert_eq!(edge.status("/plain", &[]), 200);
}

/// Answers of `tokens` each, one after the other, until one is refused: how many passed.
fn answers_until_refused(edge: &Edge, user: &str, tokens: &str) -> usize {
    let headers = [("x-user", user), ("x-tokens", tokens)];
    let asked = || edge.envoy.stat("cluster.tidegate.upstream_rq_completed").unwrap_or(0);
    (0..20)
        .take_while(|_| {
            let before = asked();
            let passed = edge.status("/tokens", &headers) == 200;
            // Envoy asks, and charges when the answer is sent.
            let calls = if passed { 2 } else { 1 };
            edge.envoy.wait_for_stat("cluster.tidegate.upstream_rq_completed", |now| now >= before + calls);
            passed
        })
        .count()
}

fn enforces_what_is_charged_after_the_answer(edge: &Edge) {
    // Of 1,000: 1,200; 600 and 600; 400, 400 and 400.
    for (tokens, passed) in [("1200", 1), ("600", 2), ("400", 3)] {
        assert_eq!(answers_until_refused(edge, tokens, tokens), passed, "answers of {tokens}");
        assert_eq!(edge.status("/one-token", &[("x-user", tokens)]), 429, "nor does a single hit pass");
    }
    assert_eq!(edge.status("/one-token", &[("x-user", "another")]), 200);
}

#[test]
fn tokens_charged_after_the_answer_are_enforced() {
    enforces_what_is_charged_after_the_answer(&Edge::start());
}

#[test]
fn tokens_charged_after_the_answer_are_enforced_on_redis() {
    let redis = tidegate_testkit::Redis::start();
    let config = format!("store: {{ url: \"{}\", timeout: 1s }}", redis.url());
    enforces_what_is_charged_after_the_answer(&Edge::with(SocketAddr::from(([127, 0, 0, 1], 0)), &config));
}

#[test]
fn envoy_passes_our_headers_on_to_its_caller_where_that_is_configured() {
    let edge = Edge::with(SocketAddr::from(([127, 0, 0, 1], 0)), "rls: { response_headers: x-ratelimit }");
    let first = edge.get("/plain", &[("x-user", "42")]);
    assert_eq!(first.status, 200);
    assert_eq!(
        [first.header("x-ratelimit-limit"), first.header("x-ratelimit-remaining")],
        [Some("3"), Some("2")]
    );
    assert_eq!(first.header("retry-after"), None);
    edge.statuses("/plain", &[("x-user", "42")], 2);
    let refused = edge.get("/plain", &[("x-user", "42")]);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let wait: u64 = refused.header("retry-after").expect("a refusal says when").parse().unwrap();
    assert!((1..=365 * 86_400).contains(&wait), "{wait}");
}

#[test]
fn nested_descriptors_wildcards_bans_and_unlimited_keys_decide_as_the_file_says() {
    let edge = Edge::start();
    let plan = |user: &'static str, plan: &'static str| [("x-user", user), ("x-plan", plan)];
    assert_eq!(edge.statuses("/plans", &plan("1", "free"), 2), [200, 429]);
    assert_eq!(edge.statuses("/plans", &plan("1", "pro-yearly"), 3), [200, 200, 429]);
    // No limit has this depth and value: nothing is counted.
    assert_eq!(edge.statuses("/plans", &plan("1", "other"), 4), [200; 4]);
    assert_eq!(edge.statuses("/plain", &[("x-user", "banned")], 2), [429, 429]);
    assert_eq!(edge.statuses("/plain", &[("x-user", "internal")], 6), [200; 6]);
}

#[test]
fn a_shadow_limit_refuses_nothing_but_is_counted() {
    let mut edge = Edge::start();
    assert_eq!(edge.statuses("/trial", &[("x-user", "1")], 3), [200; 3]);
    let metrics = http::get(edge.server.addr("admin"), "/metrics").text();
    let refused = metrics.lines().find(|line| line.contains("shadow_refused") && line.contains("trial"));
    assert!(refused.is_some_and(|line| line.ends_with(" 2")), "{metrics}");
}

#[test]
fn hits_that_a_route_adds_are_spent_together_or_not_at_all() {
    let edge = Edge::start();
    assert_eq!(edge.status("/heavy", &[("x-user", "1")]), 200);
    // One of three is left: two do not fit and are not spent, one does.
    assert_eq!(edge.status("/heavy", &[("x-user", "1")]), 429);
    // As there, a cost above what is left is counted.
    assert_eq!(edge.statuses("/light", &[("x-user", "1")], 2), [429, 429]);
}

#[test]
fn a_limit_that_the_route_brings_along_replaces_the_file() {
    let edge = Edge::start();
    assert_eq!(edge.statuses("/own", &[("x-user", "1")], 3), [200, 200, 429]);
    assert_eq!(edge.status("/plain", &[("x-user", "1")]), 200);
}

#[test]
fn envoy_lets_pass_while_the_server_is_away_and_limits_again_when_it_is_back() {
    // Reserved until the end, so that the server comes back to the same place.
    let port = Port::reserve();
    let Edge { upstream, envoy, mut server, _dir } = Edge::with(port.addr(), "{}");
    let get = |user: &str| {
        http::request(envoy.listener("edge"), "GET", "/plain", &[("x-user", user)], b"").unwrap().status
    };
    assert_eq!([get("1"), get("1"), get("1"), get("1")], [200, 200, 200, 429]);

    assert_eq!(server.terminate().code(), Some(0));
    assert_eq!(get("1"), 200);
    assert_eq!(upstream.requests(), 4);

    server.restart();
    // Memory starts anew; what matters is that Envoy finds the server again by itself.
    eventually("Envoy asks the server again", PATIENCE, || get("2") == 429);
}
