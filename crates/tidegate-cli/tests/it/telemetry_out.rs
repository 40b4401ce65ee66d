//! What a server tells other programs by itself, to receivers that are real sockets.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_testkit::{
    Certificates, Nginx, Received, Redis, SteppedClock, TidegateServer, Upstream, eventually,
    find_python_with, find_tool, http, poll, resp,
};

use crate::access::ask_grpc_once;
use crate::alerts::LONG;
use crate::redis_world::{BINARY, PATIENCE, now};

/// A server in a folder of its own, with one rule of five a minute for each user.
pub(crate) struct Server {
    pub(crate) server: TidegateServer,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) dir: TempDir,
}

pub(crate) const RULES: &str = "domain: api\nrules:\n- { name: per-user, key: [user], limits: [5/minute] }\n";
pub(crate) const TOKEN: &str = "a-token-of-twenty-or-more";

impl Server {
    pub(crate) fn start(store: &str, sections: &str) -> Self {
        Server::start_with_env(store, sections, &[])
    }

    /// One that believes this clock to be the machine's.
    pub(crate) fn start_on(clock: &SteppedClock, store: &str, sections: &str) -> Self {
        let env = clock.env().map(|(name, path)| (name, path.to_str().unwrap().to_owned()));
        let env = [0, 1].map(|place: usize| (env[place].0, env[place].1.as_str()));
        Server::start_with_env(store, sections, &env)
    }

    fn start_with_env(store: &str, sections: &str, env: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: off, resp: '127.0.0.1:0', admin: '127.0.0.1:0' }}\n\
             store: {{ url: '{store}' }}\nrules: {{ paths: [rules.yaml] }}\n{sections}\n"
        );
        let file = dir.path().join("tidegate.yaml");
        fs::write(&file, config).unwrap();
        let env = [env, &[("TIDEGATE_ADMIN__TOKENS", TOKEN), ("TIDEGATE_DRAIN__DELAY", "0s")]].concat();
        let mut server = TidegateServer::start_with_env(BINARY, &["--config", file.to_str().unwrap()], &env);
        let [http, admin] = ["http", "admin"].map(|name| server.addr(name));
        Server { server, http, admin, dir }
    }

    /// Puts this text in the place of its rules.
    pub(crate) fn offer_rules(&mut self, text: &str) {
        fs::write(self.dir.path().join("rules.yaml"), text).unwrap();
        self.server.reload();
    }

    pub(crate) fn api(&self, method: &str, path: &str, body: &str) -> http::Response {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", &*bearer), ("content-type", "application/json")];
        http::request(self.admin, method, &format!("/admin/v1/{path}"), &headers, body.as_bytes()).unwrap()
    }

    /// A metric without labels, or with these.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = http::get(self.admin, "/metrics").text();
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    pub(crate) fn check(&self, user: &str, traceparent: Option<&str>) -> u16 {
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
    // Hits, not requests: three of five, then three that are one too many. Of a look, which costs nothing, there are none.
    for (cost, status) in [(3, 200), (3, 429), (0, 200)] {
        let body = format!("{{\"domain\":\"api\",\"attributes\":{{\"user\":\"43\"}},\"cost\":{cost}}}");
        assert_eq!(http::post_json(server.http, "/v1/check", &body).status, status);
    }
    // Of five, the fifth lies above floor(0.8 x 5).
    let wanted = [("total_hits", 15), ("over_limit", 7), ("within_limit", 8), ("near_limit", 1)];
    let (mut sums, mut packet) = ([0_u64; 4], [0; 65_536]);
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

#[test]
fn metrics_for_cloudwatch_are_lines_on_stdout() {
    let server =
        Server::start("memory:", "telemetry: { emf: stdout, emf_every: 200ms, emf_namespace: tests }");
    let refused = (0..9).filter(|_| server.check("42", None) == 429).count();
    assert_eq!(refused, 4);
    // Each line counts what is new; lines of other kinds stay on stdout, and CloudWatch ignores them.
    let sum = |metric: &str| {
        let text = server.server.stdout();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_domain = events.filter(|event| event["Domain"] == "api");
        of_domain.filter_map(|event| event[metric].as_f64()).sum::<f64>()
    };
    let wanted = [("Allowed", 5.0), ("Refused", 4.0), ("RuleRefused", 4.0)];
    eventually("the lines add up", PATIENCE, || wanted.iter().all(|(metric, count)| sum(metric) == *count));
    let text = server.server.stdout();
    assert!(text.contains("listening http") && text.contains("\"Namespace\":\"tests\""), "{text}");
    expect_embedded_metrics(&text);
}

/// Holds each line of metrics against the format's schema.
fn expect_embedded_metrics(stdout: &str) {
    const CHECK: &str = "import json, sys, jsonschema\n\
        schema = jsonschema.Draft7Validator(json.load(open(sys.argv[1])))\n\
        lines = [json.loads(line) for line in open(sys.argv[2])]\n\
        print([error.message for line in lines for error in schema.iter_errors(line)], len(lines))";
    let lines: Vec<&str> = stdout.lines().filter(|line| line.starts_with('{')).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lines");
    fs::write(&file, lines.join("\n")).unwrap();
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/emf.schema.json");
    let mut command = Command::new(find_python_with("jsonschema"));
    let ran = command.args(["-c", CHECK, schema]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert_eq!(said.trim(), format!("[] {}", lines.len()));
    assert!(lines.len() > 2, "{stdout}");
}

/// Nobody knows whether a request that a failure policy refused was over the limit.
#[test]
fn what_is_refused_without_the_store_is_over_no_limit() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let statsd = format!("statsd: {{ address: '{}', every: 200ms }}", receiver.local_addr().unwrap());
    // Nobody listens there.
    let section = format!("telemetry: {{ {statsd}, emf: stdout, emf_every: 200ms, emf_namespace: tests }}");
    let server = Server::start("redis://127.0.0.1:1", &section);
    let refused = (0..9).filter(|_| server.check("42", None) == 429).count() as u64;
    assert!(refused >= 4, "the share is five at most: {refused}");
    let (mut sums, mut packet) = (BTreeMap::<String, u64>::new(), [0; 65_536]);
    while sums.get("total_hits") != Some(&9) {
        let length = receiver.recv(&mut packet).unwrap_or_else(|error| panic!("{error}: {sums:?}"));
        for line in String::from_utf8_lossy(&packet[..length]).lines() {
            let Some(rest) = line.strip_prefix("ratelimit.service.rate_limit.api.per-user.") else {
                continue;
            };
            let (stat, count) = rest.strip_suffix("|c").unwrap().split_once(':').unwrap();
            *sums.entry(stat.to_owned()).or_default() += count.parse::<u64>().unwrap();
        }
    }
    assert_eq!((sums.get("without_store"), sums.get("over_limit")), (Some(&refused), None), "{sums:?}");
    let sum = |metric: &str| {
        let text = server.server.stdout();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter_map(|event| event[metric].as_f64()).sum::<f64>()
    };
    eventually("CloudWatch has the refusals", PATIENCE, || sum("Refused") == refused as f64);
    assert_eq!(sum("RuleRefused"), 0.0, "{}", server.server.stdout());
}

/// Limits of the examples in envoyproxy/ratelimit's documentation, with smaller numbers.
const MESSAGING: &str = "\
domain: messaging
descriptors:
- key: message_type
  value: marketing
  descriptors:
  - key: to_number
    rate_limit: { unit: day, requests_per_unit: 5 }
- key: to_number
  rate_limit: { unit: day, requests_per_unit: 100 }
";
const DATABASES: &str = "\
domain: mongo_cps
descriptors:
- { key: database, value: users, rate_limit: { unit: second, requests_per_unit: 500 } }
- { key: database, value: default, rate_limit: { unit: second, requests_per_unit: 500 } }
";

#[test]
fn limits_of_an_envoy_config_are_told_under_the_names_that_its_documentation_gives() {
    let (receiver, dir) = (UdpSocket::bind("127.0.0.1:0").unwrap(), tempfile::tempdir().unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let limits = dir.path().join("config");
    fs::create_dir(&limits).unwrap();
    fs::write(limits.join("messaging.yaml"), MESSAGING).unwrap();
    fs::write(limits.join("databases.yaml"), DATABASES).unwrap();
    let file = dir.path().join("tidegate.yaml");
    let config = format!(
        "listen: {{ http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }}\n\
         telemetry: {{ statsd: {{ address: '{}', every: 200ms }} }}\n",
        receiver.local_addr().unwrap()
    );
    fs::write(&file, config).unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--envoy-config", limits.to_str().unwrap()];
    let mut server = TidegateServer::start(BINARY, &arguments);
    let http = server.addr("http");
    let ask = |domain: &str, entries: &[(&str, &str)]| {
        let entries: Vec<Value> =
            entries.iter().map(|(key, value)| serde_json::json!({ "key": key, "value": value })).collect();
        let body = serde_json::json!({ "domain": domain, "descriptors": [{ "entries": entries }] });
        http::post_json(http, "/json", &body.to_string()).status
    };
    let marketing = [("message_type", "marketing"), ("to_number", "2061234567")];
    let statuses: Vec<u16> = (0..7).map(|_| ask("messaging", &marketing)).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(ask("messaging", &[("to_number", "2061234567")]), 200);
    assert_eq!(ask("mongo_cps", &[("database", "users")]), 200);
    let expected = [
        "messaging.message_type_marketing.to_number.near_limit:1",
        "messaging.message_type_marketing.to_number.over_limit:2",
        "messaging.message_type_marketing.to_number.total_hits:7",
        "messaging.message_type_marketing.to_number.within_limit:5",
        "messaging.to_number.total_hits:1",
        "messaging.to_number.within_limit:1",
        "mongo_cps.database_users.total_hits:1",
        "mongo_cps.database_users.within_limit:1",
    ];
    let (mut sums, mut packet) = (BTreeMap::<String, u64>::new(), [0; 65_536]);
    let told = |sums: &BTreeMap<String, u64>| -> Vec<String> {
        sums.iter().map(|(name, sum)| format!("{name}:{sum}")).collect()
    };
    while told(&sums) != expected {
        let length = receiver.recv(&mut packet).unwrap_or_else(|error| panic!("{error}: {sums:#?}"));
        for line in String::from_utf8_lossy(&packet[..length]).lines() {
            let Some(rest) = line.strip_prefix("ratelimit.service.rate_limit.") else { continue };
            let (name, count) = rest.strip_suffix("|c").unwrap().split_once(':').unwrap();
            *sums.entry(name.to_owned()).or_default() += count.parse::<u64>().unwrap();
        }
    }
}

/// A StatsD receiver: what came, added up by name.
struct Statsd {
    socket: UdpSocket,
    counted: BTreeMap<String, u64>,
    /// Milliseconds, in order.
    timed: Vec<(String, f64)>,
}

impl Statsd {
    fn start() -> Statsd {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        Statsd { socket, counted: BTreeMap::new(), timed: Vec::new() }
    }

    fn section(&self) -> String {
        format!(
            "telemetry: {{ statsd: {{ address: '{}', every: 200ms }} }}",
            self.socket.local_addr().unwrap()
        )
    }

    /// Adds the next packet, if one comes, and tells what a counter has reached.
    fn counted(&mut self, name: &str) -> u64 {
        let mut packet = [0; 65_536];
        if let Ok(length) = self.socket.recv(&mut packet) {
            for line in std::str::from_utf8(&packet[..length]).unwrap().lines() {
                let (name, rest) = line.split_once(':').unwrap();
                match rest.split_once('|').unwrap() {
                    (count, "c") => {
                        *self.counted.entry(name.to_owned()).or_default() += count.parse::<u64>().unwrap();
                    }
                    (span, "ms") => self.timed.push((name.to_owned(), span.parse().unwrap())),
                    _ => panic!("neither a counter nor a time: {line}"),
                }
            }
        }
        self.counted.get(name).copied().unwrap_or_default()
    }
}

#[test]
fn requests_over_grpc_and_their_time_are_told_under_the_names_of_envoys_rate_limit_service() {
    let mut statsd = Statsd::start();
    let listen = [("TIDEGATE_LISTEN__GRPC", "127.0.0.1:0")];
    let mut server = Server::start_with_env("memory:", &statsd.section(), &listen);
    let grpc = server.server.addr("grpc");
    assert_eq!(server.check("42", None), 200, "over HTTP, which is none of them");
    let longest = (0..7).map(|_| {
        let asked = now();
        ask_grpc_once(grpc, "x-any", None).unwrap();
        asked.elapsed().as_secs_f64() * 1_000.0
    });
    let longest = longest.fold(0.0, f64::max);
    let requests = "ratelimit_server.ShouldRateLimit.total_requests";
    eventually("all seven are told", PATIENCE, || statsd.counted(requests) >= 7);
    assert_eq!(statsd.counted(requests), 7);
    assert!(!statsd.timed.is_empty());
    for (name, mean_ms) in &statsd.timed {
        assert_eq!(name, "ratelimit_server.ShouldRateLimit.response_time");
        assert!(*mean_ms > 0.0 && *mean_ms < longest, "{mean_ms} ms, where the longest took {longest} ms");
    }
}

#[test]
fn rules_that_were_taken_and_refused_are_told_under_the_names_of_envoys_rate_limit_service() {
    let mut statsd = Statsd::start();
    let mut server = Server::start("memory:", &statsd.section());
    let [taken, refused] = ["success", "error"].map(|how| format!("ratelimit.service.config_load_{how}"));
    server.offer_rules(&RULES.replace("5/minute", "6/minute"));
    eventually("new rules are told", PATIENCE, || statsd.counted(&taken) > 0);
    assert_eq!(statsd.counted(&refused), 0);
    let before = statsd.counted(&taken);
    server.offer_rules("domain: [");
    eventually("refused ones are told", PATIENCE, || statsd.counted(&refused) > 0);
    assert_eq!(statsd.counted(&taken), before);
}

#[test]
fn errors_of_a_killed_redis_are_told_under_the_name_of_envoys_rate_limit_service() {
    let (mut statsd, redis) = (Statsd::start(), Redis::start());
    let server = Server::start(&redis.url(), &statsd.section());
    let [errors, hits] = ["call.should_rate_limit.redis_error", "rate_limit.api.per-user.total_hits"]
        .map(|name| format!("ratelimit.service.{name}"));
    assert_eq!(server.check("42", None), 200);
    eventually("the first hit is told", PATIENCE, || statsd.counted(&hits) == 1);
    assert_eq!(statsd.counted(&errors), 0);
    redis.kill();
    let mut users = (0..).map(|user| user.to_string());
    eventually("errors are told", PATIENCE, || {
        server.check(&users.next().unwrap(), None);
        statsd.counted(&errors) > 0
    });
}

/// What OpenTelemetry's own messages make of a body.
fn decoded(kind: &str, body: &[u8]) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), body).unwrap();
    let module = format!("opentelemetry.proto.collector.{kind}.v1.{kind}_service_pb2");
    let message = if kind == "trace" { "ExportTraceServiceRequest" } else { "ExportMetricsServiceRequest" };
    let script = format!(
        "import sys, {module} as m\nfrom google.protobuf.json_format import MessageToJson\n\
         message = m.{message}()\nmessage.ParseFromString(open(sys.argv[1], 'rb').read())\nprint(MessageToJson(message))"
    );
    let ran = Command::new(find_python_with("opentelemetry-proto"))
        .arg("-c")
        .arg(script)
        .arg(file.path())
        .output()
        .unwrap();
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
    let attributes: BTreeMap<&str, &Value> = spans[0]["attributes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["key"].as_str().unwrap(), &one["value"]))
        .collect();
    let text = |text: &str| serde_json::json!({ "stringValue": text });
    let expected = [
        ("rate_limit.allowed", &serde_json::json!({ "boolValue": true })),
        ("rate_limit.domain", &text("api")),
        ("rate_limit.rule", &text("per-user")),
        ("rate_limit.source", &text("store")),
        ("rate_limit.transport", &text("http")),
    ];
    assert_eq!(attributes, BTreeMap::from(expected));
    let guide = include_str!("../../../../docs/guides/monitoring.md");
    let documented = guide.lines().filter(|line| line.starts_with("| `rate_limit.")).count();
    assert_eq!(documented, attributes.len(), "docs/guides/monitoring.md lists each");
    assert!(attributes.keys().all(|name| guide.contains(&format!("| `{name}` |"))), "{attributes:?}");
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
    let line = "the OTLP receiver does not accept exports";
    eventually("the log says so", PATIENCE, || server.server.stderr().contains(line));
    assert_eq!(server.server.stderr().matches(line).count(), 1);
    assert_eq!(receiver.requests(), 0);
}

#[test]
fn a_receiver_that_never_answers_holds_up_no_request_and_what_it_misses_is_counted() {
    // Connections to it are taken by the system, and nobody reads them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let failing = Upstream::recording();
    failing.set_status(503);
    let to =
        |address| format!("telemetry: {{ otlp: {{ endpoint: 'http://{address}', metrics_every: 200ms }} }}");
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let hung = Server::start("memory:", &to(silent.local_addr().unwrap()));
    (0..50).for_each(|n| assert_eq!(hung.check(&format!("user-{n}"), Some(&parent)), 200));
    assert_eq!(
        hung.metric(
            "tidegate_decisions_total{domain=\"api\",rule=\"per-user\",result=\"allowed\",source=\"store\"}"
        ),
        Some(50.0)
    );

    let refused = Server::start("memory:", &to(failing.addr()));
    (0..7).for_each(|n| assert_eq!(refused.check(&format!("user-{n}"), Some(&parent)), 200));
    eventually("lost spans and exports are counted", PATIENCE, || {
        refused.metric("tidegate_telemetry_lost_total{to=\"otlp_traces\"}") == Some(7.0)
            && refused
                .metric("tidegate_telemetry_lost_total{to=\"otlp_metrics\"}")
                .is_some_and(|lost| lost > 1.0)
    });
}

/// A rule's name may hold what has a meaning in the formats that it ends up in.
const ODD: &str = "a:b|c@d#e,f \"g\" {h} \\i é";

#[test]
fn a_rule_with_an_odd_name_breaks_neither_the_metrics_nor_statsd() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let section =
        format!("telemetry: {{ statsd: {{ address: '{}', every: 200ms }} }}", receiver.local_addr().unwrap());
    let mut server = Server::start("memory:", &section);
    let rules = serde_json::json!({ "domain": "api", "rules": [{ "name": ODD, "key": ["user"], "limits": ["5/minute"] }] });
    server.offer_rules(&rules.to_string());
    let metrics = poll(PATIENCE, || {
        server.check("42", None);
        let text = http::get(server.admin, "/metrics").text();
        text.contains("a:b|c@d").then_some(text)
    });
    let metrics = metrics.unwrap_or_else(|| panic!("the rule is not in use: {}", server.server.stderr()));
    let mut promtool = Command::new(find_tool("promtool"))
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), metrics.as_bytes()).unwrap();
    let ran = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!said.contains("error while linting"), "{said}");
    // A socket that nobody reads drops what comes, and a counter is told when it moved: ask for more while looking.
    receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut packet = [0; 65_536];
    let line = poll(PATIENCE, || {
        server.check("42", None);
        let length = receiver.recv(&mut packet).ok()?;
        let text = String::from_utf8(packet[..length].to_vec()).unwrap();
        text.lines().find(|line| line.contains("a_b") && line.contains("total_hits")).map(str::to_owned)
    });
    let line = line.expect("the rule's hits are told");
    let (name, rest) = line.split_once(':').unwrap();
    assert_eq!(name, "ratelimit.service.rate_limit.api.a_b_c_d_e_f_\"g\"_{h}_\\i_é.total_hits");
    assert!(rest.ends_with("|c") && rest.matches('|').count() == 1, "{line}");
}

/// As many callers as a test has time for: `cargo xtask bench many-keys` lets ten million ask.
const CALLERS: usize = 200_000;

#[test]
fn many_callers_make_neither_the_metrics_nor_what_is_kept_of_them_larger() {
    let away = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let sections = format!(
        "decision_log: {{ admissions_one_in: 1 }}\ntelemetry: {{ statsd: {{ address: '{away}', every: 200ms }} }}\nlimits: {{ max_cells: 400000 }}"
    );
    let mut server = Server::start("memory:", &sections);
    let mut client = resp::Client::connect(server.server.addr("resp"));
    client.set_patience(PATIENCE).unwrap();
    let mut ask = |callers: std::ops::Range<usize>| {
        let words =
            |caller: usize| vec!["TG.CHECK".into(), "api".into(), "user".into(), format!("caller-{caller}")];
        let commands: Vec<Vec<String>> = callers.map(words).collect();
        commands.chunks(1_000).for_each(|some| assert_eq!(client.pipeline(some).len(), some.len()));
    };
    ask(0..1_000);
    let before = http::get(server.admin, "/metrics").body.len();
    ask(1_000..CALLERS);
    let after = http::get(server.admin, "/metrics").body.len();
    assert!(after < before + 1_000, "{before} bytes, then {after}");
    let value = |name: &str| server.metric(name).unwrap_or_else(|| panic!("there is no {name}"));
    assert!(value("tidegate_cells") >= CALLERS as f64);
    assert!(value("tidegate_decision_log_bytes") <= f64::from(17 << 20), "the ring of 16 MiB");
    // Rankings have 256 places each, and what a limit's callers ask for at their busiest 4,096 of two days.
    assert!(value("tidegate_ranked_callers") <= 12_000.0, "{}", value("tidegate_ranked_callers"));
    assert!(value("tidegate_alert_baselines") <= 1.0);
}

#[test]
fn what_the_keys_of_redis_are_is_estimated_by_the_one_node_that_tells_of_alerts() {
    let redis = Redis::start();
    redis.cmd(&["EVAL", "for n = 1, 600 do redis.call('SET', 'session:' .. n, 1) end", "0"]);
    let store = format!("{}', timeout: '5s", redis.url());
    let other = Server::start(&store, "alerts: { enabled: false }");
    (0..200).for_each(|user| assert_eq!(other.check(&format!("u{user}"), None), 200));
    let teller = Server::start(&store, "");
    let keys = |node: &Server, kind| node.metric(&format!("tidegate_store_keys_by_kind{{kind=\"{kind}\"}}"));
    let cells = poll(LONG, || keys(&teller, "cell")).expect("it is estimated");
    // Of 400 drawn from 800 or so, the part of a kind is within five standard deviations of the truth.
    let foreign = keys(&teller, "foreign").unwrap();
    assert!((cells - 200.0).abs() < 100.0 && (foreign - 600.0).abs() < 100.0, "{cells} and {foreign}");
    assert!(keys(&teller, "record").unwrap() + keys(&teller, "fleet").unwrap() < 100.0);
    assert_eq!(keys(&teller, "other_layout"), Some(0.0));
    assert_eq!(keys(&other, "cell"), None);
}
