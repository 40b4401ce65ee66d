//! The examples build, run, and do what they say. They are a workspace of their own, as a user's project is.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tidegate_testkit::{Redis, http};

/// Builds them all, once, beside everything else that was built, and gives the one called `name`.
fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--target-dir"])
            .arg(target)
            .current_dir(workspace)
            .status()
            .unwrap();
        assert!(status.success(), "the examples do not build");
        target.join("debug")
    });
    folder.join(name)
}

/// What an example prints that ends by itself.
fn printed(name: &str) -> String {
    let output = Command::new(example(name)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An example that serves, until dropped.
struct Serving {
    process: Child,
    address: SocketAddr,
}

impl Serving {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut process = Command::new(example(name)).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening ").unwrap().parse().unwrap();
        Serving { process, address }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_axum_example_limits_its_clients() {
    let server = Serving::start("example-axum", &["127.0.0.1:0"]);
    let statuses: Vec<u16> = (0..6).map(|_| http::get(server.address, "/").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(http::get(server.address, "/import/a").status, 200);
}

#[test]
fn the_axum_example_shares_its_limits_on_redis() {
    let redis = Redis::start();
    let url = redis.url();
    let servers = [(); 2].map(|()| Serving::start("example-axum", &["127.0.0.1:0", &url]));
    let asked = (0..10).map(|number| http::get(servers[number % 2].address, "/").status);
    let admitted = asked.filter(|status| *status == 200).count();
    // Alone, they would admit ten.
    assert_eq!(admitted, 5);
}

#[test]
fn the_tonic_example_exhausts_its_resource() {
    let printed = printed("example-tonic");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 4, "{printed}");
    assert_eq!(lines[2], "call 3: ok, 0 left");
    assert!(lines[3].starts_with("call 4: ResourceExhausted"), "{printed}");
}

#[test]
fn the_job_example_keeps_tenants_and_connections_in_bounds() {
    let printed = printed("example-jobs");
    assert!(printed.contains("queued 15, put off 9"), "{printed}");
    let most = printed.trim_end().strip_suffix(" connections at once").unwrap();
    assert!(most.ends_with(" 1") || most.ends_with(" 2"), "{printed}");
    assert!(printed.contains("sent 15"), "{printed}");
}

/// With the default features, which have no `tracing`.
#[test]
fn the_mistyped_example_is_warned_once_on_standard_error() {
    let output = Command::new(example("example-mistyped")).output().unwrap();
    let (told, warned) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(told.matches("allowed true, not counted by [\"per-user\"]").count(), 3, "{told}");
    let warning = "tidegate: rule per-user of domain api did not count a request without `user` (its attributes: `usr`)";
    assert_eq!((warned.matches(warning).count(), warned.lines().count()), (1, 1), "{warned}");
}

#[test]
fn the_tenants_example_limits_authenticated_users_by_route_in_its_own_words() {
    let server = Serving::start("example-tenants", &["127.0.0.1:0"]);
    let ask = |method: &str, path: &str, user: &str| {
        let token = format!("Bearer {user}");
        http::request(server.address, method, path, &[("authorization", &token)], b"").unwrap()
    };
    let searches: Vec<u16> = (0..4).map(|_| ask("GET", "/api/search", "ann").status).collect();
    assert_eq!(searches, [200, 200, 200, 429]);
    assert_eq!(ask("POST", "/api/export", "ann").status, 200);
    let refused = ask("POST", "/api/export", "ann");
    assert_eq!(
        (refused.status, refused.text().trim()),
        (429, r#"{"error":"too many requests","limit":"export"}"#)
    );
    assert!(ask("GET", "/api/search", "bob").text().contains("bob may search 2 more times"));
    assert_eq!(http::get(server.address, "/api/search").status, 400, "nobody passes unknown");
}

#[test]
fn the_actix_example_checks_each_request() {
    let server = Serving::start("example-actix", &["127.0.0.1:0"]);
    let statuses: Vec<u16> = (0..4).map(|_| http::get(server.address, "/hello/ann").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert!(http::get(server.address, "/hello/ann").header("retry-after").is_some());
    assert_eq!(http::get(server.address, "/hello/bob").status, 200);
}

#[test]
fn the_cli_example_shares_a_quota_and_settles_what_calls_cost() {
    let redis = Redis::start();
    let run = |member: &str, calls: &str| {
        let output =
            Command::new(example("example-cli")).args([&redis.url(), member, calls]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // 11 and 12 of 40: the third would set 20 aside, and there are 17.
    let ann = run("ann", "3");
    assert!(ann.contains("call 1: 11 units") && ann.contains("call 2: 12 units"), "{ann}");
    assert!(ann.contains("call 3: refused by `member`"), "{ann}");
    let bob = run("bob", "2");
    assert!(bob.contains("call 2: 12 units"), "{bob}");
    // 46 of 100 are gone; 23 more for each of two.
    run("cid", "2");
    run("dan", "2");
    let eve = run("eve", "1");
    assert!(eve.contains("refused by `team`"), "{eve}");
    let members = "local n = 0 for _, key in ipairs(redis.call('KEYS', '*{members}*')) do n = n + redis.call('ZCARD', key) end return n";
    assert_eq!(redis.cmd(&["EVAL", members, "0"]).int(), 0, "nobody is left in the fleet");
}

#[test]
fn the_client_example_paces_backs_off_and_throttles_itself() {
    let printed = printed("example-client");
    let number_after = |start: &str, unit: &str| -> u64 {
        let line = printed.lines().find(|line| line.starts_with(start)).unwrap();
        line.split(&[',', ' '][..])
            .zip(line.split(&[',', ' '][..]).skip(1))
            .find(|(_, word)| *word == unit)
            .unwrap()
            .0
            .parse()
            .unwrap()
    };
    // Without pacing 25 of 30 calls in a row would be refused.
    assert!(number_after("paced", "refused") <= 6, "{printed}");
    assert!(number_after("backed off", "tries") >= 2, "{printed}");
    assert!(number_after("throttled", "sent") <= 120, "{printed}");
}
