//! Authorization: every route with no token, a wrong one, an expired one, and each role.

use serde_json::{Value, json};
use tidegate_rules::Timestamp;
use tidegate_rulestore::{Role, TokenKind};
use tidegate_store::{Clock as _, SystemClock};
use tidegate_testkit::http::{self, Response};

use super::document::operations;
use super::world::{CONFIGURED, Node};

fn roles() -> [(Role, &'static str); 3] {
    [(Role::Viewer, "viewer"), (Role::Editor, "editor"), (Role::Admin, "admin")]
}

fn all(node: &Node) -> Vec<(String, String, String)> {
    let found = operations(&http::get(node.address, "/admin/v1/openapi.json").json());
    // A stream has no end to wait for; it is tested with the others where it is refused.
    assert!(found.len() > 25, "{found:?}");
    found
}

fn bare(node: &Node, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    http::request(node.address, method, path, headers, b"").unwrap()
}

#[test]
fn nothing_works_without_a_token() {
    let node = Node::start();
    for (method, path, role) in all(&node) {
        let answer = bare(&node, &method, &path, &[]);
        assert_eq!(answer.status == 401, role != "anyone", "{method} {path}: {}", answer.text());
    }
}

#[test]
fn a_wrong_or_expired_token_opens_nothing() {
    let routes = all(&Node::start());
    let guarded: Vec<_> = routes.iter().filter(|(_, _, role)| role != "anyone").collect();
    // A node answers ten guesses of an address, and then refuses: nine are made on each.
    for routes in guarded.chunks(3) {
        let node = Node::start();
        let expired = node.token(Role::Admin, true);
        for ((method, path, role), token) in routes
            .iter()
            .flat_map(|route| [*route; 3].into_iter().zip([&*expired, "wrong", "tg_0123456789abcdef_0123"]))
        {
            let path = path.strip_prefix("/admin/v1").unwrap();
            let status = node.ask_as(token, method, path, &[], &Value::Null).status;
            assert_eq!(status, 401, "{method} {path} for {role} with {token}");
        }
    }
}

#[test]
fn every_change_of_a_session_takes_the_secret_that_only_its_page_has() {
    let node = Node::start();
    let token = node.token(Role::Admin, false);
    let answer = http::post_json(node.address, "/admin/v1/session", &json!({ "token": token }).to_string());
    let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let mut changes = 0;
    for (method, path, role) in all(&node) {
        if method == "GET" || role == "anyone" {
            continue;
        }
        changes += 1;
        let given = [("cookie", &*cookie), ("content-type", "application/json")];
        let told = bare(&node, &method, &path, &given);
        assert_eq!(told.status, 403, "{method} {path}: {}", told.text());
        assert!(told.text().contains("CSRF"), "{method} {path}: {}", told.text());
    }
    assert!(changes > 10, "{changes}");
}

#[test]
fn a_role_may_do_what_its_routes_take_and_nothing_more() {
    let node = Node::start();
    let tokens = roles().map(|(role, name)| (role, name, node.token(role, false)));
    for (method, path, needs) in all(&node).into_iter().filter(|(_, _, role)| role != "anyone") {
        let needs: Role = needs.parse().unwrap();
        for (role, name, token) in &tokens {
            if path.ends_with("/events") && *role >= needs {
                continue;
            }
            let path = path.strip_prefix("/admin/v1").unwrap();
            // An empty body is rejected after the role check: only that order matters here.
            let status = node.ask_as(token, &method, path, &[], &Value::Null).status;
            assert_eq!(status == 403, *role < needs, "{method} {path} as {name}: {status}");
            assert_ne!(status, 401, "{method} {path} as {name}");
        }
    }
}

#[test]
fn an_address_that_guesses_has_to_wait_even_with_the_right_token() {
    let node = Node::start();
    let guess = || node.ask_as("wrong", "GET", "/rules", &[], &Value::Null);
    let statuses: Vec<u16> = (0..11).map(|_| guess().status).collect();
    assert_eq!(statuses, [vec![401; 10], vec![429]].concat());
    let right = node.ask("GET", "/rules", &Value::Null);
    assert_eq!(right.status, 429);
    assert!(right.header("retry-after").is_some_and(|wait| wait.parse::<u64>().unwrap() <= 6));
}

#[test]
fn who_shows_what_has_ended_is_refused_and_locks_nobody_out() {
    let node = Node::start();
    let now = SystemClock::new().now();
    let before = Timestamp::from_micros(now.as_micros() - 1_000_000);
    let session = node.secret(TokenKind::Session, Role::Admin, Some(before));
    let token = node.token(Role::Admin, true);
    let cookie = format!("tidegate_session_{}={session}", node.address.port());
    let made = node.ask("POST", "/tokens", &json!({ "name": "gone", "role": "viewer" })).json();
    let revoked = made["token"].as_str().unwrap();
    let id = made["id"].as_str().unwrap();
    assert_eq!(node.ask("DELETE", &format!("/tokens/{id}"), &Value::Null).status, 204);
    node.configure(&["was-in-the-file-once"]);
    node.configure(&[]);
    for _ in 0..15 {
        for ended in [&*token, revoked, "was-in-the-file-once"] {
            assert_eq!(node.ask_as(ended, "GET", "/rules", &[], &Value::Null).status, 401);
        }
        assert_eq!(bare(&node, "GET", "/admin/v1/rules", &[("cookie", &cookie)]).status, 401);
    }
    assert_eq!(node.ask("GET", "/rules", &Value::Null).status, 200);
    // The name of one is no secret: what follows it is.
    let guess = format!("{}{}", &token[..token.len() - 8], "00000000");
    let last = (0..11).map(|_| node.ask_as(&guess, "GET", "/rules", &[], &Value::Null).status).last();
    assert_eq!(last, Some(429));
}

#[test]
fn a_session_is_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let node = Node::start();
    let token = node.token(Role::Editor, false);
    let answer = http::post_json(node.address, "/admin/v1/session", &json!({ "token": token }).to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let cookie = answer.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let csrf = answer.json()["csrf"].as_str().unwrap().to_owned();
    let json = ("content-type", "application/json");
    let reset = |headers: &[(&str, &str)]| {
        let body = json!({ "domain": "api", "attributes": { "user": "1" } }).to_string();
        http::request(node.address, "POST", "/admin/v1/keys/reset", headers, body.as_bytes()).unwrap().status
    };
    assert_eq!(bare(&node, "GET", "/admin/v1/rules", &[("cookie", &cookie)]).status, 200);
    assert_eq!(reset(&[("cookie", &cookie), json]), 403, "without the page's secret");
    assert_eq!(reset(&[("cookie", &cookie), json, ("x-csrf-token", "0")]), 403);
    assert_eq!(reset(&[("cookie", &cookie), ("x-csrf-token", &csrf), ("content-type", "text/plain")]), 415);
    assert_eq!(reset(&[("cookie", &cookie), json, ("x-csrf-token", &csrf)]), 200);
    let out = bare(&node, "DELETE", "/admin/v1/session", &[("cookie", &cookie), ("x-csrf-token", &csrf)]);
    assert_eq!(out.status, 204);
    assert_eq!(bare(&node, "GET", "/admin/v1/rules", &[("cookie", &cookie)]).status, 401);
}

#[test]
fn a_log_in_link_works_once() {
    let node = Node::start();
    let soon = Timestamp::from_micros(SystemClock::new().now().as_micros() + 60_000_000);
    let code = node.secret(TokenKind::LogIn, Role::Admin, Some(soon));
    let log_in = || http::post_json(node.address, "/admin/v1/session", &json!({ "token": code }).to_string());
    let first = log_in();
    assert_eq!((first.status, &first.json()["role"]), (200, &json!("admin")));
    assert_eq!(log_in().status, 401);
    assert_eq!(node.ask_as(&code, "GET", "/rules", &[], &Value::Null).status, 401, "it is no token");
}

#[test]
fn a_token_is_shown_once_and_ends_when_it_is_revoked() {
    let node = Node::start();
    let made = node.ask("POST", "/tokens", &json!({ "name": "ci", "role": "viewer", "expires_in": "30d" }));
    assert_eq!(made.status, 201, "{}", made.text());
    let (token, id) =
        (made.json()["token"].as_str().unwrap().to_owned(), made.json()["id"].as_str().unwrap().to_owned());
    assert_eq!(node.ask_as(&token, "GET", "/rules", &[], &Value::Null).status, 200);
    assert!(!node.get("/tokens").to_string().contains(&token));
    assert!(!node.get("/audit").to_string().contains(&token));
    assert_eq!(node.ask("DELETE", &format!("/tokens/{id}"), &Value::Null).status, 204);
    assert_eq!(node.ask_as(&token, "GET", "/rules", &[], &Value::Null).status, 401);
    assert_eq!(node.ask_as(CONFIGURED, "DELETE", &format!("/tokens/{id}"), &[], &Value::Null).status, 404);
}

#[test]
fn sign_ins_failures_and_sign_outs_are_audited() {
    let node = Node::start();
    let token = node.token(Role::Editor, false);
    let log_in = |token: &str| {
        http::post_json(node.address, "/admin/v1/session", &json!({ "token": token }).to_string())
    };
    assert_eq!(log_in("wrong").status, 401);
    let session = log_in(&token);
    let cookie = session.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let csrf = session.json()["csrf"].as_str().unwrap().to_owned();
    let headers = [("cookie", &*cookie), ("x-csrf-token", &*csrf)];
    assert_eq!(bare(&node, "DELETE", "/admin/v1/session", &headers).status, 204);
    let audit = node.get("/audit");
    let entries = audit["entries"].as_array().unwrap();
    let written: Vec<[&str; 3]> = entries
        .iter()
        .map(|entry| ["actor", "action", "target"].map(|field| entry[field].as_str().unwrap()))
        .filter(|[_, action, _]| action.starts_with("log"))
        .collect();
    let editor = Role::Editor.name();
    let expected =
        [[editor, "logout", editor], [editor, "login", editor], ["unknown", "login.failed", "127.0.0.1"]];
    assert_eq!(written, expected);
    // What can be filtered by is what is written.
    for entry in entries {
        assert!(audit["actions"].as_array().unwrap().contains(&entry["action"]), "{entry}");
    }
}
