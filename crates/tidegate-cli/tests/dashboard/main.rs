//! The dashboard in a real Chromium, of a real server with a real Redis and the database it starts with.
//!
//! The stories are in `browser.cjs`. What the pages look like is kept in `target/screenshots`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_testkit::{Redis, TidegateServer, find_node_package, find_tool, poll};

/// Has Chromium live through `story` on a server that was just started.
#[track_caller]
fn live_through(story: &str) {
    let (redis, data) = (Redis::start(), TempDir::new().expect("a temporary folder"));
    let mut server = TidegateServer::start(
        env!("CARGO_BIN_EXE_tidegate"),
        &[
            "--http=127.0.0.1:0",
            "--grpc=off",
            "--resp=off",
            "--admin=127.0.0.1:0",
            &format!("--store={}", redis.url()),
            &format!("--data={}", data.path().display()),
        ],
    );
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    let told = Command::new(find_tool("node"))
        .args([script().as_os_str(), story.as_ref()])
        .env("HTTP", http.to_string())
        .env("ADMIN", admin.to_string())
        .env("LINK", log_in_link(&server))
        .env("REDIS_PID", redis.process().pid().to_string())
        .env("CHROMIUM", find_tool("chromium"))
        .env("PLAYWRIGHT", find_node_package("playwright-core"))
        .env("AXE", find_node_package("axe-core"))
        .env("SCREENSHOTS", screenshots())
        .output()
        .expect("node runs");
    assert!(
        told.status.success(),
        "{}\nthe server said\n{}{}",
        String::from_utf8_lossy(&told.stderr),
        server.stdout(),
        server.stderr()
    );
}

/// The link that a first start prints, after the addresses.
#[track_caller]
fn log_in_link(server: &TidegateServer) -> String {
    let link = poll(Duration::from_secs(30), || {
        let said = server.stdout();
        let (whole, _) = said.rsplit_once('\n')?;
        whole.split_whitespace().find(|word| word.contains("/#/login?code=")).map(str::to_owned)
    });
    link.unwrap_or_else(|| panic!("no log-in link:\n{}{}", server.stdout(), server.stderr()))
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard/browser.cjs")
}

fn screenshots() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots")
}

#[test]
fn a_rule_is_written_mended_published_watched_and_rolled_back() {
    live_through("rules");
}

#[test]
fn a_key_is_reset_banned_and_lifted() {
    live_through("keys");
}

#[test]
fn charts_move_and_a_lost_redis_is_a_banner_that_goes() {
    live_through("outage");
}

#[test]
fn every_page_can_be_read_by_all_on_a_desk_and_on_a_phone() {
    live_through("pages");
}

#[test]
fn a_stranger_sees_nothing_and_a_code_works_once() {
    live_through("strangers");
}
