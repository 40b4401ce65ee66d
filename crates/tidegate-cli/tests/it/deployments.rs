//! `deploy/kubernetes` and `deploy/compose.yaml`: what they tell a container to run is run, and what they probe is probed.
//!
//! Only addresses, and the folders that Kubernetes would mount, are replaced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_testkit::{
    Postgres, Prometheus, Redis, RedisCluster, TidegateServer, eventually, find_python_with, http,
};

use crate::access::{BINARY, PATIENCE};
use crate::tidegate;

fn manifest(path: &str) -> Value {
    serde_saphyr::from_str(&deployed(&format!("kubernetes/{path}"))).unwrap()
}

fn deployed(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)).unwrap()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// A container as one manifest and its patches describe it.
pub(crate) struct Container {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Where each volume goes.
    pub(crate) mounts: Vec<(String, String)>,
    deployment: Value,
}

impl Container {
    pub(crate) fn of(overlays: &[&str]) -> Container {
        let mut container = Container::rendered(manifest("base/deployment.yaml"));
        overlays.iter().for_each(|path| container.patch(&manifest(path)));
        container
    }

    /// The container of a Deployment that is whole.
    pub(crate) fn rendered(deployment: Value) -> Container {
        let mut container =
            Container { args: Vec::new(), env: Vec::new(), mounts: Vec::new(), deployment: Value::Null };
        container.patch(&deployment);
        container.deployment = deployment;
        container
    }

    /// Lists are merged by name, as kustomize does.
    fn patch(&mut self, deployment: &Value) {
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        if let Some(args) = container["args"].as_array() {
            self.args = args.iter().map(text).collect();
        }
        for variable in list(&container["env"]) {
            let name = text(&variable["name"]);
            self.env.retain(|(known, _)| *known != name);
            if variable["$patch"] != "delete" {
                self.env.push((name, text(&variable["value"])));
            }
        }
        for mount in list(&container["volumeMounts"]) {
            self.mounts.push((text(&mount["name"]), text(&mount["mountPath"])));
        }
    }

    pub(crate) fn container(&self) -> &Value {
        &self.deployment["spec"]["template"]["spec"]["containers"][0]
    }

    /// Starts it with these files in its volumes and these variables replaced.
    pub(crate) fn start(
        mut self,
        files: &[(&str, &str, &str)],
        replaced: &[(&str, String)],
    ) -> (TidegateServer, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let at = |volume: &str| -> PathBuf { dir.path().join(volume) };
        for (volume, name, content) in files {
            fs::create_dir_all(at(volume)).unwrap();
            fs::write(at(volume).join(name), content).unwrap();
        }
        // The longer path first: one is the beginning of the other.
        self.mounts.sort_by_key(|(_, path)| std::cmp::Reverse(path.len()));
        let mounted = |word: &mut String| {
            for (volume, path) in &self.mounts {
                *word = word.replace(path.as_str(), at(volume).to_str().unwrap());
            }
        };
        self.args.iter_mut().for_each(mounted);
        for (name, value) in &mut self.env {
            mounted(value);
            if let Some(listener) = name.strip_prefix("TIDEGATE_LISTEN__") {
                let ports = &self.deployment["spec"]["template"]["spec"]["containers"][0]["ports"];
                let port = list(ports).iter().find(|port| port["name"] == listener.to_lowercase()).unwrap();
                let (address, number) = value.split_once(':').unwrap();
                assert_eq!(number, port["containerPort"].to_string());
                // The address stays: beyond loopback a server asks for more.
                *value = format!("{address}:0");
            }
            if let Some((_, other)) = replaced.iter().find(|(known, _)| known == name) {
                value.clone_from(other);
            }
        }
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let (command, args) = args.split_first().unwrap();
        assert_eq!(*command, "serve");
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (&**name, &**value)).collect();
        let mut server = TidegateServer::start_with_env(BINARY, args, &env);
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let get = &self.container()[probe]["httpGet"];
            let address = server.addr(&text(&get["port"]));
            let answer = http::get(address, &text(&get["path"]));
            assert_eq!(answer.status, 200, "{probe}: {}", server.stderr());
        }
        (server, dir)
    }
}

pub(crate) const RULES: &str = include_str!("../../../../deploy/kubernetes/base/rules.yaml");

pub(crate) fn is_allowed(server: &mut TidegateServer) -> bool {
    let check = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    http::post_json(server.addr("http"), "/v1/check", check).json()["allowed"] == true
}

#[test]
fn the_base_runs_as_written_and_ends_within_the_time_that_kubernetes_gives() {
    let container = Container::of(&[]);
    let spec = &container.deployment["spec"]["template"]["spec"];
    let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    let span = |name: &str| -> u64 {
        let (_, value) = container.env.iter().find(|(known, _)| known == name).unwrap();
        value.strip_suffix('s').unwrap().parse().unwrap()
    };
    assert!(span("TIDEGATE_DRAIN__DELAY") + span("TIDEGATE_DRAIN__TIMEOUT") + 5 <= grace);
    // A node that stops is seen as such before it stops to serve.
    let probe = &spec["containers"][0]["readinessProbe"];
    let noticed = probe["periodSeconds"].as_u64().unwrap() * probe["failureThreshold"].as_u64().unwrap();
    assert!(noticed < span("TIDEGATE_DRAIN__DELAY"));
    let shortened = [("TIDEGATE_DRAIN__DELAY", "0s".to_owned())];
    let (mut server, _dir) = container.start(&[("rules", "rules.yaml", RULES)], &shortened);
    assert!(is_allowed(&mut server));
    server.process().signal(tidegate_testkit::Signal::TERM);
    let within = Duration::from_secs(grace).max(PATIENCE);
    assert!(server.process().wait_exit(within).expect("it ends").success());
}

#[test]
fn the_overlays_read_their_secrets_from_mounted_files() {
    let redis = Redis::builder().user("gate", "the-password", "~* &* +@all").start();
    let url = format!("redis://gate@{}", redis.addr());
    let database = Postgres::shared().new_database();
    let secrets = [
        ("rules", "rules.yaml", RULES),
        ("store", "password", "the-password\n"),
        ("store", "fleet-secret", "sixteen-bytes-and-more\n"),
        ("admin", "token", "a-token-of-prometheus\n"),
        ("database", "url", &*database),
    ];
    for overlays in
        [&["overlays/redis/store.yaml"][..], &["overlays/redis/store.yaml", "overlays/postgres/rules.yaml"]]
    {
        let container = Container::of(overlays);
        let replaced = [("TIDEGATE_STORE__URL", url.clone()), ("TIDEGATE_DRAIN__DELAY", "0s".to_owned())];
        let (mut server, _dir) = container.start(&secrets, &replaced);
        assert!(is_allowed(&mut server), "{overlays:?}");
        let token = [("authorization", "Bearer a-token-of-prometheus")];
        let metrics = http::request(server.addr("admin"), "GET", "/metrics", &token, b"").unwrap();
        assert_eq!(metrics.status, 200, "{overlays:?}");
        assert!(
            !server.stderr().contains("ERROR") && !server.stderr().contains("\"level\":\"ERROR\""),
            "{}",
            server.stderr()
        );
    }
}

#[test]
fn the_overlay_for_a_cluster_counts_in_one_and_logs_in_with_the_mounted_password() {
    const PASSWORD: &str = "the-password";
    let cluster = RedisCluster::start();
    for setting in ["masterauth", "requirepass"] {
        for node in cluster.nodes() {
            node.cmd(&["CONFIG", "SET", setting, PASSWORD]);
        }
    }
    let container = Container::of(&["overlays/redis/store.yaml", "overlays/redis-cluster/store.yaml"]);
    let (_, named) = container.env.iter().find(|(name, _)| name == "TIDEGATE_STORE__URL").unwrap();
    assert!(named.starts_with("redis+cluster://"), "{named}");
    let start = |password: &str| {
        let container = Container::of(&["overlays/redis/store.yaml", "overlays/redis-cluster/store.yaml"]);
        let files = [
            ("rules", "rules.yaml", RULES),
            ("store", "password", password),
            ("store", "fleet-secret", "sixteen-bytes-and-more\n"),
            ("admin", "token", "a-token-of-prometheus\n"),
        ];
        let replaced = [("TIDEGATE_STORE__URL", cluster.url()), ("TIDEGATE_DRAIN__DELAY", "0s".to_owned())];
        container.start(&files, &replaced)
    };
    let (mut nodes, _dirs): (Vec<_>, Vec<_>) = (0..2).map(|_| start("the-password\n")).unzip();
    for node in &mut nodes {
        let http = node.addr("http");
        eventually("it is in touch with the cluster", PATIENCE, || {
            http::get(http, "/readyz").text() == "ready\n"
        });
    }
    assert!(nodes.iter_mut().all(is_allowed));
    let check = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    let answer = http::post_json(nodes[0].addr("http"), "/v1/check", check).json();
    assert_eq!(
        (&answer["source"], &answer["remaining"]),
        (&json!("store"), &json!(97)),
        "two have counted: {answer}"
    );
}

#[test]
fn what_the_manifests_name_is_what_is_there() {
    let pod = json!({ "app.kubernetes.io/name": "tidegate" });
    let deployment = manifest("base/deployment.yaml");
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], pod);
    assert_eq!(deployment["spec"]["template"]["metadata"]["labels"], pod);
    assert_eq!(manifest("base/service.yaml")["spec"]["selector"], pod);
    assert_eq!(manifest("base/disruption.yaml")["spec"]["selector"]["matchLabels"], pod);
    assert_eq!(manifest("base/network.yaml")["spec"]["podSelector"]["matchLabels"], pod);
    let scale = manifest("overlays/redis/scale.yaml");
    let metric = text(&scale["spec"]["metrics"][0]["pods"]["metric"]["name"]);
    assert!(include_str!("../../../../docs/reference/metrics.md").contains(&format!("`{metric}`")));
    let ports = |value: &Value| list(value).iter().map(|port| text(&port["name"])).collect::<Vec<_>>();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let named = ports(&container["ports"]);
    assert!(ports(&manifest("base/service.yaml")["spec"]["ports"]).iter().all(|port| named.contains(port)));
    let monitor = manifest("overlays/redis/monitor.yaml");
    assert!(named.contains(&text(&monitor["spec"]["podMetricsEndpoints"][0]["port"])));
}

/// The manifests that are whole; the overlays' other files are patches of these.
const MANIFESTS: [&str; 6] = [
    "base/namespace.yaml",
    "base/deployment.yaml",
    "base/service.yaml",
    "base/disruption.yaml",
    "base/network.yaml",
    "overlays/redis/scale.yaml",
];

#[test]
fn manifests_follow_the_schemas_of_kubernetes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes");
    let files: Vec<PathBuf> = MANIFESTS.iter().map(|path| folder.join(path)).collect();
    validate(&files, MANIFESTS.len());
}

/// Holds these files against the schemas, and so many objects in them are valid.
#[track_caller]
pub(crate) fn validate(files: &[PathBuf], objects: usize) {
    let said = Command::new(find_python_with("kubernetes-validate"))
        .args(["-m", "kubernetes_validate", "--strict"])
        .args(files)
        .output()
        .unwrap();
    let said = [said.stdout, said.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let passed = said.lines().filter(|line| line.contains("passed for resource")).count();
    assert_eq!(passed, objects, "{said}");
}

#[test]
fn the_nodes_of_the_compose_file_are_one_fleet() {
    let compose: Value = serde_saphyr::from_str(&deployed("compose.yaml")).unwrap();
    let mounted = text(&compose["x-node"]["volumes"][0]);
    let (ours, theirs) = mounted.split_once(':').unwrap();
    let command: Vec<String> = list(&compose["x-node"]["command"]).iter().map(text).collect();
    assert_eq!(command, ["serve", "--config", theirs.trim_end_matches(":ro")]);
    let redis = redis_of_compose(&compose);
    let config = deployed(ours)
        .replace("redis:6379", &redis.addr().to_string())
        .replace("postgres://tidegate:tidegate@postgres/tidegate", &Postgres::shared().new_database());
    let config = ["8080", "8081", "8082", "6380"]
        .iter()
        .fold(config, |config, port| config.replace(&format!("0.0.0.0:{port}"), "0.0.0.0:0"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    fs::write(&file, config).unwrap();
    let mut nodes: Vec<TidegateServer> = ["node-1", "node-2", "node-3"]
        .iter()
        .map(|node| {
            assert_eq!(compose["services"][node]["environment"]["TIDEGATE_ADMIN__NODE"], *node);
            let env = [("TIDEGATE_ADMIN__NODE", *node), ("TIDEGATE_DRAIN__DELAY", "0s")];
            TidegateServer::start_with_env(BINARY, &["--config", file.to_str().unwrap()], &env)
        })
        .collect();
    assert!(nodes.iter_mut().all(is_allowed));
    let check = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    let left = http::post_json(nodes[0].addr("http"), "/v1/check", check).json()["remaining"].as_u64();
    assert_eq!(left, Some(96), "three nodes have counted one each, and this is the fourth");
    for node in &nodes {
        let looked = format!("store {}", redis.addr());
        eventually("it has looked at Redis", PATIENCE, || node.stderr().contains(&looked));
        let stderr = node.stderr();
        // Listeners are open to the other containers; nothing else is worth a warning at the start.
        let mut warned = stderr.lines().filter(|line| line.contains("WARN") && !line.contains("listener"));
        assert_eq!(warned.next(), None, "{stderr}");
    }
    let login = ["login", "--config", file.to_str().unwrap()];
    let says_how = |node: &TidegateServer| {
        node.stdout().contains(&format!("Sign-in link: tidegate {}\n", login.join(" ")))
    };
    assert!(nodes.iter().all(says_how), "{}", nodes[0].stdout());
    let link = tidegate(&login).output().unwrap();
    let link = String::from_utf8(link.stdout).unwrap();
    assert!(link.starts_with("http://127.0.0.1:0/#/login?code="), "{link}");
    let prometheus = prometheus_of_compose(&mut nodes);
    eventually("it scrapes every node with its token", PATIENCE, || {
        prometheus.query("up == 1").len() == nodes.len()
    });
    eventually("it has read the rules", PATIENCE, || {
        !prometheus.query("count({__name__=~\"tidegate:.*\"})").is_empty()
    });
}

/// Redis with the settings of compose: its words, as lines of a configuration.
fn redis_of_compose(compose: &Value) -> Redis {
    let words: Vec<String> = list(&compose["services"]["redis"]["command"]).iter().map(text).collect();
    let (program, settings) = words.split_first().unwrap();
    assert_eq!(program, "redis-server");
    let lines = settings.chunks(2).map(|pair| {
        let name = pair[0].strip_prefix("--").unwrap_or_else(|| panic!("no setting: {pair:?}"));
        if pair[1].is_empty() { format!("{name} \"\"") } else { format!("{name} {}", pair[1]) }
    });
    lines.fold(Redis::builder(), tidegate_testkit::RedisBuilder::config).start()
}

#[test]
fn images_of_the_compose_file_are_of_a_version() {
    let compose: Value = serde_saphyr::from_str(&deployed("compose.yaml")).unwrap();
    let services = compose["services"].as_object().unwrap().values();
    let images: Vec<String> = services
        .filter_map(|one| one["image"].as_str())
        .chain(compose["x-node"]["image"].as_str())
        .map(str::to_owned)
        .collect();
    assert!(images.len() > 4, "{images:?}");
    for image in images {
        let tag = image.rsplit(':').next().unwrap();
        assert!(tag.contains(|c: char| c.is_ascii_digit()), "{image}: name a version");
    }
}

/// Prometheus with the configuration of compose; only names and paths of containers are replaced.
fn prometheus_of_compose(nodes: &mut [TidegateServer]) -> Prometheus {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus/tidegate.rules.yml");
    let mut config = deployed("compose/prometheus.yml");
    let mut replace = |theirs: &str, ours: &str| {
        assert!(config.contains(theirs), "{theirs} in {config}");
        config = config.replace(theirs, ours);
    };
    replace("rule_files: [tidegate.rules.yml]", &format!("rule_files: ['{}']", rules.display()));
    for (number, node) in (1..).zip(nodes) {
        replace(&format!("node-{number}:8082"), &node.addr("admin").to_string());
    }
    Prometheus::start_with(&config)
}

#[test]
fn grafana_of_the_compose_file_finds_the_dashboard_and_prometheus() {
    let read = |path: &str| -> Value { serde_saphyr::from_str(&deployed(path)).unwrap() };
    let compose = read("compose.yaml");
    let mounts: Vec<(String, String)> = list(&compose["services"]["grafana"]["volumes"])
        .iter()
        .map(|volume| text(volume).trim_end_matches(":ro").to_owned())
        .map(|volume| volume.split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap())
        .collect();
    let mounted_at = |ours: &str| {
        let (_, theirs) =
            mounts.iter().find(|(path, _)| path == ours).unwrap_or_else(|| panic!("{ours} is not mounted"));
        PathBuf::from(theirs)
    };
    let provider = read("compose/grafana-dashboards.yaml");
    let folder = text(&provider["providers"][0]["options"]["path"]);
    assert_eq!(mounted_at("./grafana/tidegate.json").parent().unwrap(), Path::new(&folder));
    let provisioning = Path::new("/etc/grafana/provisioning");
    assert!(mounted_at("./compose/grafana-dashboards.yaml").starts_with(provisioning.join("dashboards")));
    assert!(mounted_at("./compose/grafana-source.yaml").starts_with(provisioning.join("datasources")));
    let source = read("compose/grafana-source.yaml")["datasources"][0].clone();
    let service = text(&source["url"])
        .strip_prefix("http://")
        .and_then(|url| url.strip_suffix(":9090").map(str::to_owned));
    assert!(compose["services"][service.unwrap()].is_object());
    // The dashboard lets people choose a source of this kind, and takes the default one first.
    let dashboard: Value = serde_json::from_str(&deployed("grafana/tidegate.json")).unwrap();
    assert_eq!(dashboard["templating"]["list"][0]["query"], source["type"]);
    assert_eq!(source["isDefault"], true);
}
