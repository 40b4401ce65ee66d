//! Logs that a real Caddy and a real Envoy wrote.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_replay::Format;
use tidegate_testkit::{Caddy, Envoy, http, poll};

use crate::replay;

const FIVE: &str = "- { name: items, match: { path: /v1/items, method: GET }, key: [ip], limits: [{ algorithm: sliding_log, limit: 5, window: 1h }] }";

/// Makes eight requests that the rule counts, and two others, and replays the log.
fn check(address: SocketAddr, log: &Path, format: Format) {
    for n in 0..8 {
        let path = format!("/V1//items/?page={n}");
        assert_eq!(http::get(address, &path).status, 204);
    }
    (0..2).for_each(|_| assert_eq!(http::post_json(address, "/other", "{}").status, 204));
    let written = poll(Duration::from_secs(30), || {
        let text = fs::read_to_string(log).ok()?;
        let requests: String = text
            .lines()
            .filter(|line| line.contains("/V1//items/") || line.contains("/other"))
            .map(|line| format!("{line}\n"))
            .collect();
        (requests.lines().count() == 10).then_some(requests)
    });
    let text = written.unwrap_or_else(|| panic!("{}", fs::read_to_string(log).unwrap_or_default()));
    assert_eq!(Format::of(text.lines().next().unwrap().as_bytes()), Ok(format), "{text}");
    let report = replay(&text, format, FIVE, None);
    assert_eq!((report.lines.played, report.lines.bad), (10, 0), "{text}");
    let rule = &report.rules[0];
    assert_eq!((rule.requests, rule.refused.now, rule.callers), (8, 3, 1), "{text}");
    assert_eq!(rule.hit_most[0].caller, "ip=127.0.0.1");
}

#[test]
fn a_real_caddys_log_is_played() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("access.log");
    let caddy = Caddy::start(|listen| {
        format!(
            "{{\n admin off\n auto_https off\n}}\nhttp://{listen} {{\n log {{\n  output file {}\n  format json\n }}\n respond 204\n}}\n",
            path.display()
        )
    });
    check(caddy.addr(), &path, Format::Caddy);
}

#[test]
fn a_real_envoys_log_is_played() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("access.log");
    fs::write(&path, "").unwrap();
    let fields = [
        ("start_time", "%START_TIME%"),
        ("method", "%REQ(:METHOD)%"),
        ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
        ("response_code", "%RESPONSE_CODE%"),
        ("duration", "%DURATION%"),
        ("authority", "%REQ(:AUTHORITY)%"),
        ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
        ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ];
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: \"{value}\"")).collect();
    let config = format!(
        "static_resources:
  listeners:
    - name: edge
      address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
      filter_chains:
        - filters:
            - name: hcm
              typed_config:
                \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: edge
                access_log:
                  - name: file
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: {}
                      log_format: {{ json_format: {{ {} }} }}
                http_filters:
                  - name: router
                    typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: [\"*\"]
                      routes: [{{ match: {{ prefix: / }}, direct_response: {{ status: 204 }} }}]
",
        path.display(),
        fields.join(", ")
    );
    let envoy = Envoy::start(&config);
    check(envoy.listener("edge"), &path, Format::Envoy);
}
