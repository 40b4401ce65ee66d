//! The link that `tidegate serve` shows on a terminal, and the session that it opens.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tempfile::TempDir;
use tidegate_testkit::http::{self, Response};
use tidegate_testkit::{TidegateServer, eventually};

use crate::control_world::PATIENCE;
use crate::tidegate;

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
const FREE_PORTS: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--admin", "127.0.0.1:0"];

/// A server whose output is a terminal.
struct OnTerminal {
    terminal: Child,
    shown: PathBuf,
    admin: SocketAddr,
}

impl OnTerminal {
    /// Starts it with the database in `dir`, and waits until it has said how to log in.
    fn start(dir: &Path) -> OnTerminal {
        let shown = dir.join("shown");
        let _ = fs::remove_file(&shown);
        // `script` is a terminal to what it runs.
        let mut command = Command::new("script");
        command.args(["--quiet", "--flush", "--return", "--command"]);
        command.arg(format!(
            "echo pid $$; exec {BINARY} serve {} --data {}",
            FREE_PORTS.join(" "),
            dir.display()
        ));
        command.arg(&shown).env("TIDEGATE_DRAIN__DELAY", "0s");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let terminal = command.spawn().expect("`script`, of util-linux, is there");
        let mut server = OnTerminal { terminal, shown, admin: SocketAddr::from(([127, 0, 0, 1], 0)) };
        eventually("it says how to log in", PATIENCE, || {
            server.link().is_some() || server.text().contains("Sign-in link: tidegate login")
        });
        server.admin = server.line("listening admin ").parse().unwrap();
        server
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.shown).unwrap_or_default()
    }

    /// What follows `start` on its line.
    fn line(&self, start: &str) -> String {
        self.text().lines().find_map(|line| line.trim().strip_prefix(start)).unwrap_or_default().to_owned()
    }

    fn link(&self) -> Option<String> {
        let text = self.text();
        let (whole, _) = text.rsplit_once('\n')?;
        whole.lines().map(str::trim).find(|line| line.contains("/#/login?code=")).map(str::to_owned)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.line("pid ")).status();
        let _ = self.terminal.wait();
    }
}

fn log_in(admin: SocketAddr, link: &str) -> Response {
    let code = link.split_once("code=").unwrap().1;
    http::post_json(admin, "/admin/v1/session", &json!({ "token": code }).to_string())
}

#[test]
fn a_terminal_shows_a_link_until_somebody_has_logged_in() {
    let dir = TempDir::new().unwrap();
    let server = OnTerminal::start(dir.path());
    let link = server.link().expect("a link is shown");
    assert!(link.starts_with(&format!("http://{}/#/login?code=", server.admin)), "{link}");
    assert_eq!(log_in(server.admin, &link).status, 200);
    assert_eq!(log_in(server.admin, &link).status, 401, "it works once");
    drop(server);
    assert_eq!(OnTerminal::start(dir.path()).link(), None);
}

#[test]
fn a_start_replaces_the_link_of_the_last_one() {
    let dir = TempDir::new().unwrap();
    let first = OnTerminal::start(dir.path()).link().unwrap();
    let server = OnTerminal::start(dir.path());
    assert_eq!(log_in(server.admin, &first).status, 401);
    assert_eq!(log_in(server.admin, &server.link().unwrap()).status, 200);
}

#[test]
fn a_session_outlives_a_restart_of_its_server() {
    let mut server = TidegateServer::start(BINARY, &FREE_PORTS);
    let admin = server.addr("admin");
    let url = format!("http://{admin}");
    let made = tidegate(&["login", "--admin", &url]).env("TIDEGATE_DATA", server.data()).output().unwrap();
    let link = String::from_utf8(made.stdout).unwrap();
    assert_eq!(http::get(admin, "/admin/v1/rules").status, 401, "nothing works without a token");
    assert_eq!(http::get(admin, "/").status, 200, "the page itself holds no secret");

    let first = log_in(admin, link.trim());
    assert_eq!((first.status, &first.json()["role"]), (200, &json!("admin")), "{}", first.text());
    let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let rules = http::request(admin, "GET", "/admin/v1/rules", &[("cookie", &cookie)], b"").unwrap();
    assert_eq!((rules.status, &rules.json()["source"]), (200, &json!("database")));

    server.restart();
    let admin = server.addr("admin");
    eventually("the dashboard is named", PATIENCE, || server.stdout().contains(&format!("http://{admin}/")));
    assert!(server.stdout().contains("the starter rules apply"));
    // A browser keeps the cookie of each port apart.
    let (_, session) = cookie.split_once('=').unwrap();
    let cookie = format!("tidegate_session_{}={session}", admin.port());
    let rules = http::request(admin, "GET", "/admin/v1/rules", &[("cookie", &cookie)], b"").unwrap();
    assert_eq!(rules.json()["version"], 1, "the database is the same, and the session goes on");
    let (csrf, out) = (first.json()["csrf"].clone(), "/admin/v1/session");
    let given = [("cookie", &*cookie), ("x-csrf-token", csrf.as_str().unwrap())];
    assert_eq!(http::request(admin, "DELETE", out, &given, b"").unwrap().status, 204);
}
