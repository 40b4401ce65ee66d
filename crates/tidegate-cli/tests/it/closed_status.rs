//! The status of a refusal for lack of a store: the real binary, on every HTTP surface.

use std::fs;

use tidegate_testkit::http;

use crate::access::serve;
use crate::{ran, tidegate};

const RULES: &str =
    "domain: api\nrules: [{ name: all, key: [], limits: [5/hour], on_store_failure: closed }]\n";

#[track_caller]
fn check_every_surface(setting: &str, env: &[(&str, &str)], status: u16) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    // Nobody listens at either address.
    let config = format!(
        "rules: {{ paths: [rules.yaml] }}\n\
         store: {{ url: 'redis://127.0.0.1:1'{setting} }}\n\
         proxy: {{ listen: 127.0.0.1:0, domain: api, upstreams: [{{ name: a, targets: ['http://127.0.0.1:1'] }}] }}\n"
    );
    let mut server = serve(dir.path(), &config, env);
    let [http, proxy] = ["http", "proxy"].map(|listener| server.addr(listener));
    let json = [("content-type", "application/json")];
    let question = br#"{"domain":"api","attributes":{}}"#;
    let told = http::request(http, "POST", "/v1/check", &json, question).unwrap();
    assert_eq!((told.status, told.json()["error"].as_str()), (status, Some("store_unavailable")));
    for (surface, refused) in
        [("/v1/auth", http::get(http, "/v1/auth?domain=api")), ("the proxy", http::get(proxy, "/"))]
    {
        let problem = refused.json();
        assert_eq!((refused.status, problem["status"].as_u64()), (status, Some(status.into())), "{surface}");
        assert_eq!(problem["type"], "urn:tidegate:problem:store-unavailable", "{surface}");
        assert_eq!(refused.header("retry-after"), Some("1"), "{surface}");
    }
    let for_nginx = http::get(http, "/v1/auth?domain=api&deny_status=403");
    let meant = status.to_string();
    assert_eq!((for_nginx.status, for_nginx.header("x-tidegate-status")), (403, Some(&*meant)));
}

#[test]
fn closed_rules_without_a_store_answer_503() {
    check_every_surface("", &[], 503);
}

#[test]
fn closed_status_is_what_the_setting_says_on_every_surface() {
    check_every_surface(", closed_status: 429", &[], 429);
    check_every_surface("", &[("TIDEGATE_STORE__CLOSED_STATUS", "429")], 429);
}

#[test]
fn closed_status_that_is_no_refusal_is_a_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = tidegate(&["serve"]);
    command.env("TIDEGATE_STORE__CLOSED_STATUS", "200").current_dir(dir.path());
    let by_variable = ran(&command.output().unwrap());
    fs::write(dir.path().join("tidegate.yaml"), "store: { closed_status: 200 }\n").unwrap();
    let by_file = crate::run_in(dir.path(), &["serve", "--config", "tidegate.yaml"]);
    for (said, name) in [(by_variable, "TIDEGATE_STORE__CLOSED_STATUS"), (by_file, "`closed_status`")] {
        assert!(said.contains(name) && said.contains("hint: use 503 or 429"), "{said}");
    }
}
