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
    // Five, and one more for each server that a busy machine kept from Redis for longer than its deadline. Alone, they
    // would admit ten.
    assert!((5..=7).contains(&admitted), "{admitted}");
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
