//! What a server tells other programs by itself, to receivers that are real sockets.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_testkit::{
    Certificates, Nginx, Received, Redis, TidegateServer, Upstream, eventually, http, poll, resp,
};

use crate::redis_world::{BINARY, PATIENCE, check, now, tell};

/// A server in a folder of its own, with one rule of five a minute for each user.
struct Server {
    server: TidegateServer,
    http: SocketAddr,
    admin: SocketAddr,
    _dir: TempDir,
}

impl Server {
    fn start(store: &str, sections: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rules = "domain: api\nrules:\n- { name: per-user, key: [user], limits: [5/minute] }\n";
        fs::write(dir.path().join("rules.yaml"), rules).unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: off, resp: '127.0.0.1:0', admin: '127.0.0.1:0' }}\n\
             store: {{ url: '{store}' }}\nrules: {{ paths: [rules.yaml] }}\n{sections}\n"
        );
        let file = dir.path().join("tidegate.yaml");
        fs::write(&file, config).unwrap();
        let mut server = TidegateServer::start(BINARY, &["--config", file.to_str().unwrap()]);
        let [http, admin] = ["http", "admin"].map(|name| server.addr(name));
        Server { server, http, admin, _dir: dir }
    }

    fn check(&self, user: &str, traceparent: Option<&str>) -> u16 {
        let body = format!("{{\"domain\":\"api\",\"attributes\":{{\"user\":\"{user}\"}}}}");
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(traceparent.map(|parent| ("traceparent", parent)));
        http::request(self.http, "POST", "/v1/check", &headers, body.as_bytes()).unwrap().status
    }
}

#[test]
fn counters_reach_a_statsd_receiver_under_the_names_of_envoys_rate_limit_service() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let section = format!(
        "telemetry: {{ statsd: {{ address: '{}', every: 200ms, tags: ['env:test'] }} }}",
        receiver.local_addr().unwrap()
    );
    let server = Server::start("memory:", &section);
    let refused = (0..9).filter(|_| server.check("42", None) == 429).count();
    assert_eq!(refused, 4);
    let wanted = [("total_hits", 9), ("over_limit", 4), ("within_limit", 5)];
    let (mut sums, mut packet) = ([0_u64; 3], [0; 65_536]);
    while sums.iter().zip(&wanted).any(|(sum, (_, wanted))| sum < wanted) {
        let length = receiver.recv(&mut packet).unwrap();
        for line in String::from_utf8_lossy(&packet[..length]).lines() {
            for (sum, (stat, _)) in sums.iter_mut().zip(&wanted) {
                let name = format!("ratelimit.service.rate_limit.api.per-user.{stat}:");
                let count = line.strip_prefix(&name).and_then(|rest| rest.strip_suffix("|c|#env:test"));
                *sum += count.map_or(0, |count| count.parse::<u64>().unwrap());
            }
        }
    }
    assert_eq!(sums, wanted.map(|(_, count)| count), "nothing is counted twice");
}

/// What OpenTelemetry's own messages make of a body.
fn decoded(kind: &str, body: &[u8]) -> Value {
    let private = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/venv/bin/python");
    let chosen = std::env::var_os("TIDEGATE_TOOL_OPENTELEMETRY_PROTO").filter(|path| !path.is_empty());
    let python = chosen.map_or(private, PathBuf::from);
    assert!(python.exists(), "there is no {}\nhint: run `cargo xtask tools`", python.display());
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), body).unwrap();
    let module = format!("opentelemetry.proto.collector.{kind}.v1.{kind}_service_pb2");
    let message = if kind == "trace" { "ExportTraceServiceRequest" } else { "ExportMetricsServiceRequest" };
    let script = format!(
        "import sys, {module} as m\nfrom google.protobuf.json_format import MessageToJson\n\
         message = m.{message}()\nmessage.ParseFromString(open(sys.argv[1], 'rb').read())\nprint(MessageToJson(message))"
    );
    let ran = Command::new(python).arg("-c").arg(script).arg(file.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// The last body that a receiver got under `path`.
fn last(receiver: &Upstream, path: &str) -> Option<Received> {
    receiver.received().into_iter().rfind(|one| one.path == path)
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "a-caller-whom-nobody-may-see";

#[test]
fn metrics_and_sampled_traces_reach_an_otlp_receiver_over_tls_and_no_key_does() {
    let (receiver, dir) = (Upstream::recording(), tempfile::tempdir().unwrap());
    let certificates = Certificates::for_loopback(dir.path());
    let nginx = Nginx::start(|addr| {
        let (cert, key) = (certificates.cert.display(), certificates.key.display());
        format!(
            "server {{ listen {addr} ssl; ssl_certificate {cert}; ssl_certificate_key {key}; client_max_body_size 50m;\n\
             location / {{ proxy_pass http://{}; }} }}",
            receiver.addr()
        )
    });
    let section = format!(
        "telemetry:\n  otlp: {{ endpoint: 'https://localhost:{}', ca: '{}', metrics_every: 300ms, headers: {{ x-token: t0ken }} }}",
        nginx.addr().port(),
        certificates.ca.display()
    );
    let server = Server::start("memory:", &section);
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    assert_eq!(server.check(CALLER, Some(&parent)), 200);
    assert_eq!(server.check(CALLER, Some("00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")), 200);

    eventually("a trace arrives", PATIENCE, || last(&receiver, "/v1/traces").is_some());
    let traces = last(&receiver, "/v1/traces").unwrap();
    assert!(traces.headers.contains(&("x-token".to_owned(), "t0ken".to_owned())), "{:?}", traces.headers);
    let message = decoded("trace", &traces.body);
    let spans = message["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 1, "only the sampled one: {message}");
    // Bytes are base64 in protobuf's JSON.
    assert_eq!(spans[0]["traceId"], "CvdlGRbNQ92ESOshHIAxnA==");
    assert_eq!(spans[0]["parentSpanId"], "t61rcWkgMzE=");
    assert_eq!(spans[0]["kind"], "SPAN_KIND_SERVER");
    let attributes = spans[0]["attributes"].to_string();
    for wanted in ["\"per-user\"", "\"http\"", "\"boolValue\":true", "\"store\""] {
        assert!(attributes.contains(wanted), "{attributes}");
    }
    let resource = message["resourceSpans"][0]["resource"].to_string();
    assert!(resource.contains("service.name") && resource.contains("\"tidegate\""), "{resource}");

    let found = poll(PATIENCE, || {
        let message = decoded("metrics", &last(&receiver, "/v1/metrics")?.body);
        let metrics = message["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array()?.clone();
        let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name).cloned();
        let decisions = named("tidegate_decisions")?;
        let points = decisions["sum"]["dataPoints"].as_array()?.clone();
        let allowed = points.iter().find(|point| point["attributes"].to_string().contains("\"allowed\""))?;
        (allowed["asDouble"] == 2.0)
            .then(|| (decisions["sum"].clone(), named("tidegate_decision_duration_seconds")))
    });
    let (sum, duration) = found.expect("both checks are counted");
    assert_eq!(
        (&sum["isMonotonic"], &sum["aggregationTemporality"]),
        (&true.into(), &"AGGREGATION_TEMPORALITY_CUMULATIVE".into())
    );
    assert_eq!(duration.unwrap()["histogram"]["dataPoints"][0]["count"], "2");
    for one in receiver.received() {
        let seen = one.body.windows(CALLER.len()).any(|bytes| bytes == CALLER.as_bytes());
        assert!(!seen, "a key left through {}", one.path);
    }
}

#[test]
fn a_receiver_whose_certificate_is_not_trusted_gets_nothing_and_the_log_says_so_once() {
    let (receiver, dir) = (Upstream::recording(), tempfile::tempdir().unwrap());
    let certificates = Certificates::for_loopback(dir.path());
    let other = tempfile::tempdir().unwrap();
    let strangers = Certificates::for_loopback(other.path());
    let nginx = Nginx::start(|addr| {
        let (cert, key) = (certificates.cert.display(), certificates.key.display());
        format!(
            "server {{ listen {addr} ssl; ssl_certificate {cert}; ssl_certificate_key {key}; location / {{ proxy_pass http://{}; }} }}",
            receiver.addr()
        )
    });
    let section = format!(
        "telemetry: {{ otlp: {{ endpoint: 'https://localhost:{}', ca: '{}', metrics_every: 200ms }} }}",
        nginx.addr().port(),
        strangers.ca.display()
    );
    let server = Server::start("memory:", &section);
    let line = "the OTLP receiver does not take it";
    eventually("the log says so", PATIENCE, || server.server.stderr().contains(line));
    assert_eq!(server.server.stderr().matches(line).count(), 1);
    assert_eq!(receiver.requests(), 0);
}

/// The alerts in all bodies that a webhook got: kind and state, in order.
fn told(webhook: &Upstream) -> Vec<(String, String)> {
    let bodies = webhook.received();
    let alerts = bodies.iter().flat_map(|one| {
        let body: Value = serde_json::from_slice(&one.body).unwrap();
        body["alerts"].as_array().unwrap().clone()
    });
    alerts
        .map(|alert| {
            (alert["kind"].as_str().unwrap().to_owned(), alert["state"].as_str().unwrap().to_owned())
        })
        .collect()
}

/// Alerts of this kind and state that a webhook got.
fn count(webhook: &Upstream, kind: &str, state: &str) -> usize {
    told(webhook).iter().filter(|(one, in_state)| one == kind && in_state == state).count()
}

/// Whether telling is some node's duty.
fn is_held(redis: &Redis) -> bool {
    matches!(redis.cmd(&["KEYS", "*whose duty*"]), resp::Value::Array(keys) if !keys.is_empty())
}

#[test]
fn a_killed_redis_is_at_the_webhook_within_ten_seconds_and_its_end_after() {
    let (redis, webhook) = (Redis::start(), Upstream::recording());
    let section = format!(
        "alerts:\n  webhook: {{ url: 'http://{}/hook', secret: s3cret }}\n  dashboard: 'https://gate.example'",
        webhook.addr()
    );
    let mut server = Server::start(&redis.url(), &section);
    let mut client = resp::Client::connect(server.server.addr("resp"));
    let mut ask = || drop(check(&mut client, &[("user", "42")], 1));
    ask();
    assert_eq!(told(&webhook), []);
    // A machine that stands still for seconds tells nothing about alerts: then the whole is measured again.
    let mut outages = 0;
    let in_time = (0..3).any(|_| {
        outages += 1;
        eventually("it holds the lease", PATIENCE, || is_held(&redis));
        redis.kill();
        let killed = now();
        // A node that had not heard yet that the lease is its own tells after 15 s.
        let told_after = poll(Duration::from_secs(60), || {
            ask();
            (count(&webhook, "store_down", "firing") == outages).then(|| killed.elapsed())
        });
        let told_after = told_after.unwrap_or_else(|| panic!("nobody was told: {:?}", told(&webhook)));
        tell!("store_down was at the webhook after {told_after:?}");
        redis.restart();
        eventually("its end is told", Duration::from_secs(60), || {
            ask();
            count(&webhook, "store_down", "resolved") == outages
        });
        assert_eq!(count(&webhook, "store_down", "firing"), outages, "one outage is one alert");
        told_after < Duration::from_secs(10)
    });
    assert!(in_time, "it took longer than ten seconds, three times");
    let body = &webhook.received()[0];
    let value: Value = serde_json::from_slice(&body.body).unwrap();
    assert_eq!(value["alerts"][0]["link"], "https://gate.example/#/stores", "{value}");
    assert!(!value["alerts"][0]["next"].as_str().unwrap().is_empty());
    let signed = &body.headers.iter().find(|(name, _)| name == "x-tidegate-signature").unwrap().1;
    assert_eq!(*signed, openssl_signature(signed, "s3cret", &body.body));
    let metrics = http::get(server.admin, "/metrics").text();
    assert!(metrics.contains("tidegate_alerts_active "), "{metrics}");
}

/// The same signature, made by somebody else.
fn openssl_signature(ours: &str, secret: &str, body: &[u8]) -> String {
    let at = ours.strip_prefix("t=").unwrap().split(',').next().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), [at.as_bytes(), b".", body].concat()).unwrap();
    let ran =
        Command::new("openssl").args(["dgst", "-sha256", "-hmac", secret]).arg(file.path()).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    format!("t={at},v1={}", said.trim().rsplit(' ').next().unwrap())
}

#[test]
fn of_two_nodes_on_one_store_only_one_tells_what_both_see() {
    let (redis, webhook) = (Redis::start(), Upstream::recording());
    let section = format!("alerts: {{ webhook: {{ url: 'http://{}/hook' }} }}", webhook.addr());
    let nodes = [0, 1].map(|_| Server::start(&redis.url(), &section));
    let ask = || nodes.iter().map(|node| node.check("42", None)).max();
    // After an outage of 15 s the other node tells too, lest nobody does. Where a machine is that slow, another is tried.
    let short = (0..3).find_map(|_| {
        eventually("one of them holds the lease", PATIENCE, || is_held(&redis));
        let before = count(&webhook, "store_down", "firing");
        redis.kill();
        let killed = now();
        eventually("both see it", PATIENCE, || {
            ask();
            nodes
                .iter()
                .all(|node| !http::get(node.admin, "/metrics").text().contains("tidegate_alerts_active 0\n"))
        });
        eventually("it is told", PATIENCE, || count(&webhook, "store_down", "firing") > before);
        let lasted = killed.elapsed();
        redis.restart();
        eventually("its end is told", Duration::from_secs(60), || {
            ask();
            count(&webhook, "store_down", "resolved") > before
        });
        (lasted < Duration::from_secs(12)).then(|| count(&webhook, "store_down", "firing") - before)
    });
    assert!(matches!(short, None | Some(1)), "{:?}", told(&webhook));
}
