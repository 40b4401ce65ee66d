//! What an operator watches: metrics, the rules and the dashboard that are shipped for them, and the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_testkit::{
    Certificates, Nginx, Prometheus, Redis, TidegateServer, Upstream, eventually, find_tool, http, poll,
};

use crate::redis_world::{BINARY, Node, PATIENCE, PATIENT};
use crate::tidegate;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn reference() -> String {
    fs::read_to_string(root("docs/reference/metrics.md")).expect("the page is there")
}

#[test]
fn the_page_of_metrics_is_what_the_registry_says() {
    let written = tidegate(&["schema", "metrics"]).output().unwrap().stdout;
    let written = String::from_utf8(written).unwrap();
    assert!(
        reference() == written,
        "docs/reference/metrics.md is out of date: run `cargo run -- schema metrics > docs/reference/metrics.md`"
    );
}

/// A metric's labels, and the values of each where they are a fixed set.
type Labels = BTreeMap<String, BTreeSet<String>>;

/// The names on the page, and the labels of each.
fn known_metrics() -> BTreeMap<String, Labels> {
    let rows = reference();
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let labels = |rest: &str| {
        let cell = rest.split(" | ").nth(1).unwrap_or_default();
        let labels = cell.split("; ").filter_map(|label| label.strip_prefix('`')?.split_once('`'));
        let words = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        labels.map(|(name, values)| (name.to_owned(), words(values))).collect()
    };
    rows.map(|(name, rest)| (name.to_owned(), labels(rest))).collect()
}

/// The labels of a metric, or of the histogram of which it is a part.
#[track_caller]
fn labels_of<'k>(known: &'k BTreeMap<String, Labels>, name: &str, place: &str) -> &'k Labels {
    let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let found = known.get(name).or_else(|| known.get(family?));
    found.unwrap_or_else(|| panic!("{place}: there is no metric {name}"))
}

/// What a metric's labels must be: `reason="a"`, `reason=~"a|b.*"`, `reason!~"a"`, `reason`. Values are checked where the page has them all.
#[track_caller]
fn assert_labels(name: &str, labels: &Labels, inside: &str, place: &str) {
    for matcher in inside.split(',').filter(|matcher| !matcher.is_empty()) {
        let (label, value) = matcher.split_once(['=', '!']).unwrap_or((matcher, ""));
        let label = label.trim();
        if ["instance", "le"].contains(&label) {
            continue;
        }
        let Some(values) = labels.get(label) else { panic!("{place}: {name} has no label {label}") };
        let wanted = value.trim_start_matches(['=', '~']).trim_matches('"');
        for one in wanted.split('|').filter(|one| !one.is_empty() && !values.is_empty()) {
            let exists = match one.strip_suffix(".*") {
                Some(start) => values.iter().any(|value| value.starts_with(start)),
                None => values.contains(one),
            };
            assert!(exists, "{place}: {label} of {name} is never {one}, but {values:?}");
        }
    }
}

/// Every `tidegate_…{label…}` in a text names a metric that exists, and labels and values that it has.
#[track_caller]
fn assert_known(text: &str, place: &str) {
    let known = known_metrics();
    let mut rest = text;
    let mut found = 0;
    while let Some(at) = rest.find("tidegate_") {
        let word = &rest[at..];
        let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        rest = after;
        let labels = labels_of(&known, name, place);
        found += 1;
        if let Some(inside) = after.strip_prefix('{').and_then(|inside| inside.split('}').next()) {
            assert_labels(name, labels, inside, place);
        }
    }
    assert!(found > 0, "{place} names no metric");
}

/// Every series that a server shows is on the page, with its labels and their values.
#[track_caller]
fn assert_on_the_page(metrics: &str) {
    let known = known_metrics();
    let samples: Vec<&str> = metrics.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(samples.len() > 50, "{metrics}");
    for sample in samples {
        let name = sample.split(['{', ' ']).next().unwrap();
        let inside = sample
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'))
            .map_or("", |(inside, _)| inside);
        assert_labels(name, labels_of(&known, name, sample), inside, sample);
    }
}

#[test]
fn the_table_of_alerts_names_metrics_and_labels_that_exist() {
    let guide = fs::read_to_string(root("docs/operate/alerts.md")).unwrap();
    let table = guide.as_str();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let names: String =
        cells.map(|cell| format!("`{cell}").replace('`', " tidegate_").replace(", ", " ")).collect();
    // Each cell begins and ends its names with backquotes: every second prefix stands before nothing.
    let names: String = names
        .split_whitespace()
        .filter(|name| *name != "tidegate_")
        .map(|name| format!("{name}\n"))
        .collect();
    assert_known(&names, "alerts.md");
    let rules = fs::read_to_string(root("deploy/prometheus/tidegate.rules.yml")).unwrap();
    for name in names.lines().map(|name| name.split('{').next().unwrap()) {
        assert!(rules.contains(name), "alerts.md: no shipped rule is about {name}");
    }
}

#[test]
fn what_the_table_of_alerts_says_of_a_metric_are_values_of_its_own_labels() {
    let known = known_metrics();
    let all: BTreeSet<&String> = known.values().flat_map(|labels| labels.values().flatten()).collect();
    let guide = fs::read_to_string(root("docs/operate/alerts.md")).unwrap();
    let table = guide.as_str();
    let mut found = 0;
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let words = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let (names, rest) = row[2..].split_once(" | ").unwrap();
        let names =
            words(names).into_iter().map(|name| format!("tidegate_{}", name.split('{').next().unwrap()));
        let own: BTreeSet<&String> = names
            .flat_map(|name| labels_of(&known, &name, row).values().flatten().collect::<Vec<_>>())
            .collect();
        for word in words(rest).iter().filter(|word| all.contains(word)) {
            found += 1;
            assert!(own.contains(word), "{word} is a value of another metric: {row}");
        }
    }
    assert!(found > 10, "only {found} values found");
}

#[test]
fn shipped_rules_pass_promtool_and_its_unit_tests() {
    let promtool = find_tool("promtool");
    for arguments in [["check", "rules", "tidegate.rules.yml"], ["test", "rules", "tidegate.test.yml"]] {
        let ran =
            Command::new(&promtool).args(arguments).current_dir(root("deploy/prometheus")).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{arguments:?}: {said}");
    }
    let rules = fs::read_to_string(root("deploy/prometheus/tidegate.rules.yml")).unwrap();
    assert_known(&rules.replace("tidegate:", "recorded:"), "tidegate.rules.yml");
}

/// Every query of the dashboard, with its variables as Grafana would put them in for «All».
fn dashboard_queries() -> Vec<(String, String)> {
    let text = fs::read_to_string(root("deploy/grafana/tidegate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| {
            let query = target["expr"].as_str().unwrap();
            let query = ["$instance", "$domain", "$rule"]
                .iter()
                .fold(query.to_owned(), |query, name| query.replace(name, ".*"));
            (panel["title"].as_str().unwrap().to_owned(), query)
        })
    });
    queries.collect()
}

/// The metric and the label of every variable that Grafana fills in.
fn dashboard_variables() -> Vec<(String, String)> {
    let text = fs::read_to_string(root("deploy/grafana/tidegate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let queries = variables.filter_map(|variable| variable["query"]["query"].as_str());
    let inside = queries.map(|query| query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap());
    inside.map(|inside| inside.split_once(", ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap()).collect()
}

const RULES: &str = "\
- { name: per-user, key: [user], limits: [5/minute] }
- { name: watched, key: [user], shadow: true, limits: [2/minute] }
- { name: tried, key: [user], limits: [1000/minute], experiment: { split: 50%, limits: [2000/minute] } }
";

#[test]
fn every_query_of_the_dashboard_is_answered_by_a_prometheus_that_scrapes_a_loaded_server() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    redis.cmd(&["CONFIG", "SET", "maxmemory", "200mb"]);
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::for_loopback(dir.path());
    fs::write(dir.path().join("rules.yaml"), format!("domain: api\nrules:\n{RULES}")).unwrap();
    let config = format!(
        "listen: {{ http: '127.0.0.1:0', grpc: off, resp: '127.0.0.1:0', admin: '127.0.0.1:0' }}\n\
         tls: {{ resp: {{ certificate: '{}', key: '{}' }} }}\n\
         telemetry: {{ statsd: {{ address: '127.0.0.1:9' }} }}\n\
         store: {{ url: '{}', timeout: 5s }}\nrules: {{ paths: [rules.yaml] }}\nshedding: {{ workers: 20 }}\n\
         proxy: {{ listen: '127.0.0.1:0', domain: api, upstreams: [{{ name: back, targets: ['http://{}'] }}] }}\n",
        certificates.cert.display(),
        certificates.key.display(),
        redis.url(),
        upstream.addr()
    );
    let file = dir.path().join("tidegate.yaml");
    fs::write(&file, config).unwrap();
    let mut server = TidegateServer::start(BINARY, &["--config", file.to_str().unwrap()]);
    let [http, proxy, admin] = ["http", "proxy", "admin"].map(|name| server.addr(name));
    let prometheus = Prometheus::start(&[admin], &[&root("deploy/prometheus/tidegate.rules.yml")]);
    let load = || {
        for user in 0..20 {
            let body = format!("{{\"domain\":\"api\",\"attributes\":{{\"user\":\"{user}\"}}}}");
            let _ = http::post_json(http, "/v1/check", &body);
        }
        let _ = http::get(proxy, "/");
    };
    let mut left = dashboard_queries();
    assert!(left.len() > 40, "only {} queries found", left.len());
    let asked = left.len();
    // A rate needs two scrapes; load goes on until every query has an answer.
    let answered = poll(Duration::from_secs(120), || {
        load();
        left.retain(|(_, query)| prometheus.query(query).is_empty());
        left.is_empty().then_some(())
    });
    assert!(answered.is_some(), "{} of {asked} queries have no answer: {left:#?}", left.len());
    let refused = prometheus.query("sum(tidegate_decisions_total{rule=\"per-user\",result=\"refused\"}) > 0");
    assert_eq!(refused.len(), 1, "the load is seen");
    let limit = prometheus.query("tidegate_limit{rule=\"per-user\"} == 5");
    assert_eq!(limit.len(), 1, "the limit itself is a metric");
    let variables = dashboard_variables();
    assert_eq!(variables.len(), 3);
    let values: Vec<Vec<String>> =
        variables.iter().map(|(metric, label)| prometheus.label_values(metric, label)).collect();
    assert_eq!(
        values,
        [
            vec![admin.to_string()],
            vec!["api".to_owned()],
            ["per-user", "tried", "watched"].map(str::to_owned).to_vec()
        ]
    );
    assert_on_the_page(&http::get(admin, "/metrics").text());
    for (title, query) in dashboard_queries() {
        assert_known(&query.replace("process_", "tidegate_build_info "), &title);
    }
}

#[test]
fn what_a_server_with_its_memory_shows_is_on_the_page() {
    let node = Node::start("memory:", PATIENT, "- { name: r, key: [user], limits: [5/minute] }\n");
    assert_on_the_page(&http::get(node.admin, "/metrics").text());
}

#[test]
fn a_trace_that_came_in_is_an_exemplar_of_the_duration_and_only_in_openmetrics() {
    let node = Node::start("memory:", PATIENT, "- { name: r, key: [user], limits: [5/minute] }\n");
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let body = b"{\"domain\":\"api\",\"attributes\":{\"user\":\"1\"}}";
    for (trace, sampled) in [(trace, "01"), ("1af7651916cd43dd8448eb211c80319c", "00")] {
        let parent = format!("00-{trace}-b7ad6b7169203331-{sampled}");
        let headers = [("content-type", "application/json"), ("traceparent", &*parent)];
        assert_eq!(http::request(node.http, "POST", "/v1/check", &headers, body).unwrap().status, 200);
    }
    let accept = [("accept", "application/openmetrics-text; version=1.0.0")];
    let text = http::request(node.admin, "GET", "/metrics", &accept, b"").unwrap().text();
    let exemplars: Vec<&str> = text.lines().filter(|line| line.contains(" # {")).collect();
    assert_eq!(exemplars.len(), 1, "{exemplars:?}");
    let (sample, exemplar) = exemplars[0].split_once(" # ").unwrap();
    assert!(sample.starts_with("tidegate_decision_duration_seconds_bucket{"), "{sample}");
    assert!(exemplar.starts_with(&format!("{{trace_id=\"{trace}\"}} ")), "{exemplar}");
    let numbers: Vec<f64> = exemplar.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
    let bound: f64 = sample.split("le=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
    assert!(numbers[0] <= bound && numbers[1] > 1.6e9, "{exemplar} in the bucket up to {bound}");
    let classic = http::get(node.admin, "/metrics").text();
    assert!(!classic.contains(" # {"), "the older format has no exemplars");
    // And a real Prometheus keeps it.
    let prometheus = Prometheus::start(&[node.admin], &[]);
    let kept = || prometheus.exemplars("tidegate_decision_duration_seconds_bucket");
    eventually("the trace is found from the histogram", PATIENCE, || {
        kept().iter().any(|one| one["labels"]["trace_id"] == trace)
    });
}

/// A proxy before one server, which waits half a second for its connection and for its answer.
struct Proxied {
    proxy: SocketAddr,
    admin: SocketAddr,
    _server: TidegateServer,
    _dir: TempDir,
}

impl Proxied {
    /// `upstream` is how it is reached, as the configuration says it.
    fn before(upstream: &str) -> Proxied {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("rules.yaml"),
            "domain: api\nrules:\n- { name: r, limits: [500/minute] }\n",
        )
        .unwrap();
        let config = format!(
            "listen: {{ http: off, grpc: off, resp: off, admin: '127.0.0.1:0' }}\nrules: {{ paths: [rules.yaml] }}\n\
             proxy:\n  listen: '127.0.0.1:0'\n  domain: api\n  timeouts: {{ connect: 500ms, head: 500ms }}\n  \
             upstreams: [{{ name: back, {upstream} }}]\n"
        );
        let file = dir.path().join("tidegate.yaml");
        fs::write(&file, config).unwrap();
        let mut server = TidegateServer::start(BINARY, &["--config", file.to_str().unwrap()]);
        let [proxy, admin] = ["proxy", "admin"].map(|name| server.addr(name));
        Proxied { proxy, admin, _server: server, _dir: dir }
    }

    /// Failures by why, those that occurred.
    fn failures(&self) -> Vec<(String, u64)> {
        let text = http::get(self.admin, "/metrics").text();
        let start = "tidegate_upstream_failures_total{upstream=\"back\",reason=\"";
        let counted = text.lines().filter_map(|line| line.strip_prefix(start)?.split_once("\"} "));
        let counted = counted.map(|(reason, count)| (reason.to_owned(), count.parse().unwrap()));
        counted.filter(|(_, count)| *count > 0).collect()
    }

    fn answers(&self, path: &str, status: u16) {
        assert_eq!(http::get(self.proxy, path).status, status);
    }
}

#[test]
fn an_upstream_server_that_is_gone_is_counted_by_why() {
    // A port that was just given back: nobody listens there.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let world = Proxied::before(&format!("targets: ['http://{gone}']"));
    (0..4).for_each(|_| world.answers("/", 502));
    assert_eq!(world.failures(), [("unreachable".to_owned(), 4)]);
    let text = http::get(world.admin, "/metrics").text();
    assert!(text.contains("tidegate_upstream_answers_total{upstream=\"back\"} 0\n"), "{text}");
    assert!(text.contains("tidegate_upstream_servers{upstream=\"back\",state=\"unwell\"} 1\n"), "{text}");
}

#[test]
fn an_upstream_server_that_takes_no_connection_is_counted_by_why() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let full = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.listen(1).unwrap()
    });
    let address = full.local_addr().unwrap();
    // Nobody accepts, so those who wait to be take all the room there is; to others the system says nothing.
    let one_more = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let waiting: Vec<TcpStream> = std::iter::repeat_with(one_more).map_while(Result::ok).collect();
    assert!(!waiting.is_empty());
    let world = Proxied::before(&format!("targets: ['http://{address}']"));
    world.answers("/", 504);
    assert_eq!(world.failures(), [("connect_timeout".to_owned(), 1)]);
}

#[test]
fn an_upstream_server_that_does_not_answer_is_counted_by_why() {
    // The system takes its connections, and nobody reads them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let world = Proxied::before(&format!("targets: ['http://{}']", silent.local_addr().unwrap()));
    world.answers("/", 504);
    assert_eq!(world.failures(), [("answer_timeout".to_owned(), 1)]);
}

#[test]
fn an_upstream_server_that_breaks_off_is_counted_by_why() {
    let breaking = TcpListener::bind("127.0.0.1:0").unwrap();
    let world = Proxied::before(&format!("targets: ['http://{}']", breaking.local_addr().unwrap()));
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in breaking.incoming() {
            // A request came, and its answer begins and does not go on.
            let _ = stream.as_ref().unwrap().read(&mut [0; 1_024]).unwrap();
            stream.unwrap().write_all(b"HTTP/1.1 2").unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    (0..3).for_each(|_| world.answers("/", 502));
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked >= 3, "{asked}");
    assert_eq!(world.failures(), [("broke_off".to_owned(), asked)]);
}

#[test]
fn an_upstream_server_whose_certificate_is_not_trusted_is_counted_by_why() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (own, strangers) = (Certificates::for_loopback(dir.path()), Certificates::for_loopback(other.path()));
    let nginx = Nginx::start(|addr| {
        let (cert, key) = (own.cert.display(), own.key.display());
        format!(
            "server {{ listen {addr} ssl; ssl_certificate {cert}; ssl_certificate_key {key}; return 204; }}"
        )
    });
    let behind = |ca: &Path| {
        let port = nginx.addr().port();
        Proxied::before(&format!("targets: ['https://localhost:{port}'], ca: '{}'", ca.display()))
    };
    let [trusting, doubting] = [&own.ca, &strangers.ca].map(|ca| behind(ca));
    trusting.answers("/", 204);
    assert_eq!(trusting.failures(), []);
    doubting.answers("/", 502);
    assert_eq!(doubting.failures(), [("handshake".to_owned(), 1)]);
}

#[test]
fn a_reload_says_what_changed() {
    let mut node =
        Node::start("memory:", PATIENT, "- { name: per-user, key: [user], limits: [100/minute] }\n");
    node.change_rules(
        "- { name: per-user, key: [user], limits: [200/minute] }\n- { name: more, limits: [9/s] }\n",
    );
    eventually("the reload is logged", PATIENCE, || {
        node.server.stderr().contains("rules reloaded: +1 rules, ~1, -0: per-user 100/1m -> 200/1m; +more")
    });
}

#[test]
fn what_redis_holds_may_hold_and_has_evicted_is_told() {
    let redis = Redis::start();
    let mut client = redis.client();
    client.cmd(&["CONFIG", "SET", "maxmemory", "200mb"]);
    client.cmd(&["SET", "somebody-elses", "1"]);
    let node = Node::ready(&redis.url(), PATIENT, "- { name: r, key: [user], limits: [5/minute] }\n");
    eventually("INFO has been read", PATIENCE, || node.metric_sum("tidegate_store_memory_max_bytes") > 0.0);
    assert_eq!(node.metric("tidegate_store_memory_max_bytes"), f64::from(200 << 20));
    assert!(node.metric("tidegate_store_keys") >= 1.0);
    assert_eq!(node.metric("tidegate_store_evicted_keys_total"), 0.0);
}
