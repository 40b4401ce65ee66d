//! The files in `examples/gateways`, in the real gateways, in front of the real server. Nothing in them is changed but
//! addresses.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_testkit::{Caddy, Envoy, Nginx, TidegateServer, Upstream, http, poll};

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
const FREE_PORTS: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateways")
}

/// An example, with these addresses in place of those that it shows.
#[track_caller]
fn example(name: &str, addresses: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(examples().join(name)).unwrap();
    for (shown, real) in addresses {
        assert!(text.contains(shown), "{name} shows no {shown}");
        text = text.replace(shown, real);
    }
    text
}

/// The server as the examples want it.
fn tidegate() -> TidegateServer {
    let config = examples().join("tidegate.yaml");
    TidegateServer::start(BINARY, &[&FREE_PORTS[..], &["--config", config.to_str().unwrap()]].concat())
}

fn nginx(file: &str, addresses: &[(&str, String)]) -> Nginx {
    Nginx::start(|listen| {
        let listen = listen.to_string();
        let mut all: Vec<(&str, &str)> = vec![("127.0.0.1:8000", &listen)];
        all.extend(addresses.iter().map(|(shown, real)| (*shown, real.as_str())));
        example(file, &all)
    })
}

fn get(gateway: SocketAddr, path: &str, headers: &[(&str, &str)]) -> http::Response {
    http::request(gateway, "GET", path, headers, b"").unwrap()
}

fn with_key(gateway: SocketAddr, key: &str) -> http::Response {
    get(gateway, "/items", &[("x-api-key", key)])
}

/// Three requests an hour pass for each key, with headers; the fourth is refused, says when to come back, and reaches no
/// upstream.
#[track_caller]
fn check_keys_are_limited(gateway: SocketAddr, upstream: &Upstream) {
    let first = with_key(gateway, "alpha");
    assert_eq!(first.status, 200, "{}", first.text());
    assert_eq!(
        [first.header("x-ratelimit-limit"), first.header("x-ratelimit-remaining")],
        [Some("3"), Some("2")]
    );
    assert_eq!(first.json()["path"], "/items");
    assert_eq!([0; 3].map(|_| with_key(gateway, "alpha").status), [200, 200, 429]);
    let refused = with_key(gateway, "alpha");
    assert_eq!((refused.status, refused.header("x-ratelimit-remaining")), (429, Some("0")));
    let wait: u64 = refused.header("retry-after").expect("a refusal says when").parse().unwrap();
    assert!((1..=3600).contains(&wait), "{wait}");
    assert_eq!(with_key(gateway, "beta").status, 200);
    assert_eq!(upstream.requests(), 4);
}

/// Two log-ins an hour pass for each address, however the path is written, and whatever a client claims.
#[track_caller]
fn check_claims_are_not_believed(gateway: SocketAddr) {
    let login = |path, headers: &[(&str, &str)]| {
        http::request(gateway, "POST", path, headers, b"x=1").unwrap().status
    };
    assert_eq!(login("/login", &[]), 200);
    assert_eq!(login("//Login/", &[]), 200);
    assert_eq!(login("/login", &[]), 429);
    for claim in [
        ("x-forwarded-for", "192.0.2.9"),
        ("x-forwarded-uri", "/cheap"),
        ("x-forwarded-method", "GET"),
        ("x-original-uri", "/cheap"),
        ("x-original-url", "http://x/cheap"),
        ("x-original-method", "GET"),
        ("x-original-host", "cheap.example"),
        ("x-real-ip", "192.0.2.9"),
    ] {
        assert_eq!(login("/login", &[claim]), 429, "{claim:?}");
    }
}

#[test]
fn nginx_asks_before_it_forwards_and_turns_403_into_429() {
    let (mut server, upstream) = (tidegate(), Upstream::start());
    let gateway = nginx(
        "nginx/auth_request.conf",
        &[
            ("127.0.0.1:8080", server.addr("http").to_string()),
            ("127.0.0.1:3000", upstream.addr().to_string()),
        ],
    );
    check_keys_are_limited(gateway.addr(), &upstream);
    assert_eq!(with_key(gateway.addr(), "alpha").header("content-type"), Some("application/problem+json"));
    check_claims_are_not_believed(gateway.addr());
    // Which of two keys the service would take is anybody's guess.
    let before = upstream.requests();
    let twice = get(gateway.addr(), "/items", &[("x-api-key", "gamma"), ("x-api-key", "delta")]);
    assert_eq!((twice.status, upstream.requests()), (400, before));
    // A 403 of the service's own is not taken for ours.
    upstream.set_status(403);
    assert_eq!(get(gateway.addr(), "/", &[]).status, 403);
}

#[test]
fn what_nginx_logged_is_replayed_to_the_same_refusals_as_live() {
    let (mut server, upstream, dir) = (tidegate(), Upstream::start(), TempDir::new().unwrap());
    let (tidegate, service) = (server.addr("http").to_string(), upstream.addr().to_string());
    let log = dir.path().join("access.log");
    let gateway = Nginx::start(|listen| {
        let listen = listen.to_string();
        let addresses =
            [("127.0.0.1:8000", &*listen), ("127.0.0.1:8080", &tidegate), ("127.0.0.1:3000", &service)];
        let listening = format!("listen {listen};");
        let logging = format!("{listening}\n    access_log {} combined;", log.display());
        example("nginx/auth_request.conf", &addresses).replace(&listening, &logging)
    });
    // Log-ins are limited by address, on whatever path that means the same; nothing else is, without a key.
    let mut live = Vec::new();
    for (method, path) in [
        ("POST", "/login"),
        ("GET", "/items"),
        ("POST", "//Login/?next=%2F"),
        ("POST", "/login"),
        ("GET", "/login"),
        ("POST", "/logins"),
        ("POST", "/%6cogin"),
        ("GET", "/items"),
        ("POST", "/login"),
    ] {
        live.push(http::request(gateway.addr(), method, path, &[], b"").unwrap().status);
    }
    assert!(live.contains(&200) && live.contains(&429), "{live:?}");
    let written = || fs::read_to_string(&log).ok().filter(|log| log.lines().count() == live.len());
    let written = poll(Duration::from_secs(20), written).expect("nginx writes every line");
    // nginx tells the status: the log itself says who was refused live.
    let logged: Vec<u16> = written
        .lines()
        .map(|line| line.rsplit('"').nth(4).unwrap().split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(logged, live, "{written}");
    // Line by line: a log of the first n lines refuses one more than that of n - 1 where the n-th was refused.
    let rules = examples().join("rules.yaml");
    let mut before = 0;
    for (n, status) in (1..).zip(&live) {
        let start: String = written.lines().take(n).map(|line| format!("{line}\n")).collect();
        fs::write(dir.path().join("start.log"), start).unwrap();
        let rules = rules.to_str().unwrap();
        let args = ["replay", "start.log", "--rules", rules, "--domain", "gateway", "--output", "json"];
        let output = crate::tidegate(&args).current_dir(dir.path()).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(report["lines"]["played"], n, "{report}");
        let refused = report["refused"]["now"].as_u64().unwrap();
        assert_eq!(refused - before == 1, *status == 429, "line {n} of\n{written}");
        before = refused;
    }
}

#[test]
fn nginx_answers_503_where_a_closed_rule_has_no_store() {
    let (dir, upstream) = (TempDir::new().unwrap(), Upstream::start());
    let rules = dir.path().join("rules.yaml");
    let closed =
        "domain: gateway\nrules: [{ name: all, key: [], limits: [5/hour], on_store_failure: closed }]\n";
    fs::write(&rules, closed).unwrap();
    // Nobody listens there.
    let store = ["--store", "redis://127.0.0.1:1", "--rules", rules.to_str().unwrap()];
    let mut server = TidegateServer::start(BINARY, &[&FREE_PORTS[..], &store].concat());
    for file in ["nginx/auth_request.conf", "nginx/sticky.conf"] {
        let gateway = nginx(
            file,
            &[
                ("127.0.0.1:8080", server.addr("http").to_string()),
                ("127.0.0.1:3000", upstream.addr().to_string()),
            ],
        );
        // Repeatedly: nginx lets pass what a busy machine does not decide within its 100 ms.
        let refused = || (get(gateway.addr(), "/", &[]).status == 503).then_some(());
        poll(Duration::from_secs(20), refused).unwrap_or_else(|| panic!("{file}: no 503"));
    }
}

#[test]
fn nginx_answers_503_to_what_is_shed() {
    let (dir, upstream) = (TempDir::new().unwrap(), Upstream::start());
    let rules = "domain: gateway\nrules: [{ name: all, key: [], limits: [100000/hour] }]\n";
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let config = dir.path().join("tidegate.yaml");
    fs::write(&config, "rules: { paths: [rules.yaml] }\nshedding: { workers: 1000 }\n").unwrap();
    let args = [&FREE_PORTS[..], &["--config", config.to_str().unwrap()]].concat();
    let mut server = TidegateServer::start(BINARY, &args);
    for file in ["nginx/auth_request.conf", "nginx/sticky.conf"] {
        let gateway = nginx(
            file,
            &[
                ("127.0.0.1:8080", server.addr("http").to_string()),
                ("127.0.0.1:3000", upstream.addr().to_string()),
            ],
        );
        // Repeatedly: what was reported counts for some seconds, and nginx lets pass what takes longer than its 100 ms.
        let shed = || {
            let busy = r#"{"in_use":20,"capacity":20}"#;
            assert_eq!(http::post_json(server.addr("http"), "/v1/utilization", busy).status, 200);
            let status = get(gateway.addr(), "/", &[]).status;
            assert_ne!(status, 429, "{file}: its quota is not used up");
            (status == 503).then_some(())
        };
        poll(Duration::from_secs(20), shed).unwrap_or_else(|| panic!("{file}: no 503"));
    }
}

#[test]
fn nginx_lets_pass_while_tidegate_is_away() {
    let (mut server, upstream) = (tidegate(), Upstream::start());
    let gateway = nginx(
        "nginx/auth_request.conf",
        &[
            ("127.0.0.1:8080", server.addr("http").to_string()),
            ("127.0.0.1:3000", upstream.addr().to_string()),
        ],
    );
    assert_eq!([0; 4].map(|_| with_key(gateway.addr(), "alpha").status), [200, 200, 200, 429]);
    assert_eq!(server.terminate().code(), Some(0));
    assert_eq!(with_key(gateway.addr(), "alpha").status, 200);
}

#[test]
fn caddy_asks_before_it_forwards_and_passes_the_refusal_on() {
    let (mut server, upstream) = (tidegate(), Upstream::start());
    let (http, behind) = (server.addr("http").to_string(), upstream.addr().to_string());
    let gateway = Caddy::start(|listen| {
        let listen = listen.to_string();
        example(
            "caddy/Caddyfile",
            &[("127.0.0.1:8000", &listen), ("127.0.0.1:8080", &http), ("127.0.0.1:3000", &behind)],
        )
    });
    check_keys_are_limited(gateway.addr(), &upstream);
    let refused = with_key(gateway.addr(), "alpha");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.json()["violated-policies"], serde_json::json!(["per-key"]));
    check_claims_are_not_believed(gateway.addr());
}

#[test]
fn envoy_asks_over_its_own_protocol() {
    let (mut server, upstream) = (tidegate(), Upstream::start());
    let port = |addr: SocketAddr| format!("port_value: {}", addr.port());
    let gateway = Envoy::start(&example(
        "envoy/rls.yaml",
        &[
            ("port_value: 8000", "port_value: 0"),
            ("port_value: 8081", &port(server.addr("grpc"))),
            ("port_value: 3000", &port(upstream.addr())),
            // A busy machine may take longer than a deployment should wait.
            ("timeout: 0.05s", "timeout: 5s"),
        ],
    ));
    check_keys_are_limited(gateway.listener("clients"), &upstream);
}

#[test]
fn envoy_says_when_a_token_bucket_may_be_tried_again_and_not_when_it_is_full() {
    let (dir, upstream) = (tempfile::tempdir().unwrap(), Upstream::start());
    let rules = dir.path().join("rules.yaml");
    let bucket = "{ algorithm: token_bucket, rate: 1/100s, burst: 3 }";
    let text =
        format!("{{ domain: gateway, rules: [{{ name: per-key, key: [api_key], limits: [{bucket}] }}] }}");
    fs::write(&rules, text).unwrap();
    let args = [&FREE_PORTS[..], &["--rules", rules.to_str().unwrap()]].concat();
    let mut server = TidegateServer::start(BINARY, &args);
    let port = |addr: SocketAddr| format!("port_value: {}", addr.port());
    let gateway = Envoy::start(&example(
        "envoy/rls.yaml",
        &[
            ("port_value: 8000", "port_value: 0"),
            ("port_value: 8081", &port(server.addr("grpc"))),
            ("port_value: 3000", &port(upstream.addr())),
            (
                "timeout: 0.05s",
                "timeout: 5s\n                      enable_x_ratelimit_headers: DRAFT_VERSION_03",
            ),
        ],
    ));
    let told = |_: u8| {
        let answer = with_key(gateway.listener("clients"), "a");
        let reset = answer.header("x-ratelimit-reset").expect("Envoy tells").parse::<u64>().unwrap();
        (answer.status, reset)
    };
    let [_, _, (last, full_after), (refused, try_after)] = [0; 4].map(told);
    assert_eq!((last, refused), (200, 429));
    // Of three tokens, one comes every hundred seconds.
    assert!((201..=300).contains(&full_after) && (1..=100).contains(&try_after), "{full_after} {try_after}");
}

/// Each of many keys gets exactly its limit, although two nodes that share nothing decide; and both of them do.
#[track_caller]
fn check_sticky(gateway: SocketAddr, nodes: &mut [TidegateServer; 2]) {
    for number in 0..24 {
        let key = format!("key-{number}");
        let statuses = [0; 5].map(|_| with_key(gateway, &key).status);
        assert_eq!(statuses, [200, 200, 200, 429, 429], "{key}");
    }
    for node in nodes {
        let metrics = http::get(node.addr("admin"), "/metrics").text();
        let decided = |line: &&str| line.starts_with("tidegate_decisions_total") && line.contains("per-key");
        let total: f64 = metrics.lines().filter(decided).map(count).sum();
        assert!(total >= 5.0, "a node had nothing to decide: {metrics}");
    }
}

fn count(line: &str) -> f64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A node of its own, with the sticky rules and this configuration.
fn node(dir: &TempDir, name: &str, config: &str) -> TidegateServer {
    fs::write(dir.path().join("sticky-rules.yaml"), example("sticky-rules.yaml", &[])).unwrap();
    let file = dir.path().join(name);
    fs::write(&file, config).unwrap();
    TidegateServer::start(BINARY, &[&FREE_PORTS[..], &["--config", file.to_str().unwrap()]].concat())
}

#[test]
fn nginx_sends_each_key_to_one_of_two_nodes_that_share_nothing() {
    let (dir, upstream) = (tempfile::tempdir().unwrap(), Upstream::start());
    let config = "{ rules: { paths: [sticky-rules.yaml] }, identity: { api_key: { header: x-api-key } } }";
    let mut nodes = ["one.yaml", "two.yaml"].map(|name| node(&dir, name, config));
    let [one, two] = nodes.each_mut().map(|node| node.addr("http").to_string());
    let gateway = nginx(
        "nginx/sticky.conf",
        &[("127.0.0.1:8080", one), ("127.0.0.1:8180", two), ("127.0.0.1:3000", upstream.addr().to_string())],
    );
    check_sticky(gateway.addr(), &mut nodes);
    assert_eq!(upstream.requests(), 24 * 3);
}

#[test]
fn envoy_sends_each_key_to_one_of_two_proxies_that_share_nothing() {
    let (dir, upstream) = (tempfile::tempdir().unwrap(), Upstream::start());
    let behind = upstream.addr().to_string();
    let config =
        example("sticky-node.yaml", &[("127.0.0.1:8090", "127.0.0.1:0"), ("127.0.0.1:3000", &behind)]);
    let mut nodes = ["one.yaml", "two.yaml"].map(|name| node(&dir, name, &config));
    let [one, two] = nodes.each_mut().map(|node| format!("port_value: {}", node.addr("proxy").port()));
    let gateway = Envoy::start(&example(
        "envoy/sticky.yaml",
        &[("port_value: 8000", "port_value: 0"), ("port_value: 8090", &one), ("port_value: 8190", &two)],
    ));
    check_sticky(gateway.listener("clients"), &mut nodes);
    assert_eq!(upstream.requests(), 24 * 3);
}

#[test]
fn rules_beside_another_configuration_are_warned_of_with_the_line_to_add() {
    let (rules, dir) = (examples().join("rules.yaml"), tempfile::tempdir().unwrap());
    let rules = rules.to_str().unwrap();
    let alone = crate::tidegate(&["validate", rules]).output().unwrap();
    assert_eq!(String::from_utf8(alone.stderr).unwrap(), "", "callers may send what the rules count by");
    let other = dir.path().join("other.yaml");
    fs::write(
        &other,
        format!("identity: {{ headers: {{ tenant: x-tenant }} }}\nrules: {{ paths: ['{rules}'] }}\n"),
    )
    .unwrap();
    let other = other.to_str().unwrap();
    let validated = crate::tidegate(&["validate", "--config", other]).output().unwrap();
    let warned = String::from_utf8(validated.stderr).unwrap();
    assert!(validated.status.success());
    assert!(warned.contains("rule `per-key` of `gateway` counts by `api_key`"), "{warned}");
    assert!(warned.contains("identity: { api_key: { header: x-api-key } }"), "{warned}");
    let config = examples().join("tidegate.yaml");
    let validated = crate::tidegate(&["validate", "--config", config.to_str().unwrap()]).output().unwrap();
    assert_eq!(String::from_utf8(validated.stderr).unwrap(), "");
    let mut server = TidegateServer::start(BINARY, &[&FREE_PORTS[..], &["--config", other]].concat());
    assert_eq!(http::get(server.addr("http"), "/healthz").status, 200);
    let said = server.stderr();
    assert!(said.contains("counts by `api_key`") && said.contains("x-api-key"), "{said}");
}

#[test]
fn a_gateway_that_asks_for_what_nothing_reads_is_logged_with_its_first_request() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.yaml");
    let text = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [1/hour] }] }";
    fs::write(&rules, text).unwrap();
    let args = [&FREE_PORTS[..], &["--rules", rules.to_str().unwrap()]].concat();
    let mut server = TidegateServer::start(BINARY, &args);
    let address = server.addr("http");
    let warned = |server: &TidegateServer| {
        server.stderr().contains("a rule counts by what /v1/auth is not configured to read")
    };
    // Whoever sends what the rule counts by is limited: the rule is right for them.
    let check = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    assert_eq!([0; 2].map(|_| http::post_json(address, "/v1/check", check).status), [200, 429]);
    assert!(!warned(&server), "{}", server.stderr());
    assert_eq!([0; 2].map(|_| http::get(address, "/v1/auth?domain=api").status), [200, 200]);
    assert!(warned(&server) && server.stderr().contains("rule=\"per-user\""), "{}", server.stderr());
}

#[test]
fn a_recipe_that_only_a_stand_in_runs_says_so() {
    assert!(example("kong/kong.yaml", &[]).contains("Kong itself was not run"));
}
