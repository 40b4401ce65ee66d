//! Runs what a page shows on a console, in order, against a server with the rules of docs/reference/example.yaml.
//!
//! `$ command` is run by bash in the checkout; the lines below it are what it prints, where `…` stands for anything. The ports
//! of the examples are exchanged for those of the server.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tidegate_testkit::{TidegateServer, find_tool};

/// The fenced blocks of one language.
pub(super) fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block: Option<(bool, String)> = None;
    for line in text.lines() {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(of)) => block = Some((of == language, String::new())),
            (Some((wanted, body)), Some("")) => {
                found.extend(wanted.then(|| body.clone()));
                block = None;
            }
            (Some((_, body)), _) => *body += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(block.is_none(), "a fenced block does not end");
    found
}

/// Runs every command of `blocks`, compares what it prints, and returns both.
pub(super) fn check_console(root: &Path, page: &Path, blocks: &[String]) -> Vec<(String, String)> {
    let rules = root.join("docs/reference/example.yaml");
    let any = "127.0.0.1:0";
    let args =
        ["--rules", rules.to_str().unwrap(), "--http", any, "--resp", any, "--grpc", "off", "--admin", any];
    let mut server = TidegateServer::start(env!("CARGO_BIN_EXE_tidegate"), &args);
    let (http, resp, admin) = (server.addr("http"), server.addr("resp"), server.addr("admin"));
    let tools = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_tidegate"), tools.path().join("tidegate")).unwrap();
    symlink(find_tool("redis-cli"), tools.path().join("redis-cli")).unwrap();
    let mut session = Vec::new();
    for (shown, expected) in blocks.iter().flat_map(|block| commands(block)) {
        let command = with_ports(&shown, http, resp, admin);
        let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
        let ran = Command::new("bash")
            .args(["-c", &command])
            .current_dir(root)
            .env("PATH", path)
            .env("TIDEGATE_SERVER", format!("http://{http}"))
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).replace('\r', "");
        assert!(
            is_as_shown(&printed, &expected),
            "{}\n$ {command}\n--- printed\n{printed}--- shown\n{expected}",
            page.display()
        );
        session.push((shown, printed));
    }
    session
}

fn with_ports(command: &str, http: SocketAddr, resp: SocketAddr, admin: SocketAddr) -> String {
    command
        .replace("localhost:8080", &http.to_string())
        .replace("localhost:8082", &admin.to_string())
        .replace("-p 6380", &format!("-p {}", resp.port()))
}

/// Each command and what it prints. A command goes on where its line ends with a backslash.
pub(super) fn commands(block: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut goes_on = false;
    for line in block.lines() {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push((command.to_owned(), String::new())),
            (None, Some((command, _))) if goes_on => *command += &format!("\n{line}"),
            (None, Some((_, expected))) => *expected += &format!("{line}\n"),
            (None, None) => panic!("an example begins with `$ command`: {line}"),
        }
        goes_on = line.ends_with('\\');
    }
    found
}

/// Line by line; a line of `…` alone stands for any number of lines, elsewhere it stands for any run of characters.
pub(super) fn is_as_shown(printed: &str, shown: &str) -> bool {
    fn lines(printed: &[&str], shown: &[&str]) -> bool {
        match (printed, shown) {
            (_, ["…", rest @ ..]) => (0..=printed.len()).any(|skip| lines(&printed[skip..], rest)),
            ([line, printed @ ..], [wanted, shown @ ..]) => is_line(line, wanted) && lines(printed, shown),
            (printed, shown) => printed.is_empty() && shown.is_empty(),
        }
    }
    let (printed, shown): (Vec<&str>, Vec<&str>) = (
        printed.trim_end().lines().map(str::trim_end).collect(),
        shown.trim_end().lines().map(str::trim_end).collect(),
    );
    lines(&printed, &shown)
}

fn is_line(line: &str, wanted: &str) -> bool {
    let mut parts = wanted.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn an_ellipsis_stands_for_anything_and_nothing_else_does() {
    assert!(is_as_shown("a: 17\nb\n", "a: …\nb\n"));
    assert!(is_as_shown("a\nb\nc\n", "a\n…\n"));
    assert!(!is_as_shown("a: 17\nb\n", "a: …\n"));
    assert!(!is_as_shown("a\n", "b\n"));
    assert!(!is_as_shown("ac\n", "a…b\n"));
}
