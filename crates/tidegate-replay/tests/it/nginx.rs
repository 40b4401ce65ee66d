//! A log that a real nginx wrote.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tempfile::TempDir;
use tidegate_replay::{Format, text};
use tidegate_testkit::{Nginx, http, poll};

use crate::replay;

#[test]
fn a_real_nginxs_log_is_played() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("access.log");
    let nginx = Nginx::start(|listen| {
        let log = path.display();
        format!("server {{ listen {listen}; access_log {log} combined; location / {{ return 204; }} }}")
    });
    // nginx notes the user that a client claims to be. base64 of `alice:` and `bob:`.
    let users = [("YWxpY2U6", 8), ("Ym9iOg==", 4)];
    for (user, times) in users {
        for n in 0..times {
            let basic = format!("Basic {user}");
            let path = format!("/V1//items/?page={n}&q=%22");
            let headers = [("authorization", &*basic), ("user-agent", "a \"quoted\" agent [x]")];
            assert_eq!(http::request(nginx.addr(), "GET", &path, &headers, b"").unwrap().status, 204);
        }
    }
    // A client that greets with TLS: nginx writes what it sent where a request should be.
    let mut stranger = TcpStream::connect(nginx.addr()).unwrap();
    stranger.write_all(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").unwrap();
    let _ = stranger.read_to_end(&mut Vec::new());
    let log = poll(std::time::Duration::from_secs(20), || {
        let log = fs::read_to_string(&path).ok()?;
        (log.lines().count() == 13).then_some(log)
    });
    let log = log.unwrap_or_else(|| panic!("nginx wrote {}", fs::read_to_string(&path).unwrap_or_default()));
    assert_eq!(Format::of(log.lines().next().unwrap().as_bytes()), Ok(Format::Combined));
    let five = "- { name: items, match: { path: /v1/items, method: GET }, key: [user], limits: [{ algorithm: sliding_log, limit: 5, window: 1h }] }";
    let report = replay(&log, Format::Combined, five, None);
    assert_eq!((report.lines.played, report.lines.bad), (12, 1), "{log}");
    let rule = &report.rules[0];
    assert_eq!(
        (rule.requests, rule.refused.now, rule.callers, rule.callers_refused.now),
        (12, 3, 2, 1),
        "{log}"
    );
    assert_eq!(rule.hit_most[0].caller, "user=alice");
    assert!(text(&report, 80).contains("its request line is not an HTTP request"));
}
