//! Who is signed in: a session ends with its token, is listed and signed out, and keeps nobody else out.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_rulestore::Role;
use tidegate_testkit::http::{self, Response};

use super::world::{CONFIGURED, Node};

/// A session of a browser.
struct Browser<'n> {
    node: &'n Node,
    cookie: String,
    csrf: String,
}

impl<'n> Browser<'n> {
    #[track_caller]
    fn log_in(node: &'n Node, token: &str) -> Self {
        let answer = log_in(node, token);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        Browser { node, cookie, csrf: answer.json()["csrf"].as_str().unwrap().to_owned() }
    }

    fn ask(&self, method: &str, path: &str) -> Response {
        let headers = [("cookie", &*self.cookie), ("x-csrf-token", &*self.csrf)];
        http::request(self.node.address, method, &format!("/admin/v1{path}"), &headers, b"").unwrap()
    }

    fn is_open(&self) -> bool {
        self.ask("GET", "/session").status == 200
    }

    fn sessions(&self) -> Vec<Value> {
        self.ask("GET", "/sessions").json()["sessions"].as_array().unwrap().clone()
    }

    /// The code of a new sign-in link.
    fn link(&self) -> String {
        self.ask("POST", "/session/link").json()["code"].as_str().unwrap().to_owned()
    }
}

fn log_in(node: &Node, token: &str) -> Response {
    http::post_json(node.address, "/admin/v1/session", &json!({ "token": token }).to_string())
}

/// A new token, and its id.
fn token(node: &Node, role: &str, expires_in: Option<&str>) -> (String, String) {
    let wanted = json!({ "name": role, "role": role, "expires_in": expires_in });
    let made = node.ask("POST", "/tokens", &wanted).json();
    (made["token"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned())
}

fn revoke(node: &Node, id: &str) {
    assert_eq!(node.ask("DELETE", &format!("/tokens/{id}"), &Value::Null).status, 204);
}

#[test]
fn the_sessions_of_a_revoked_token_and_their_links_end_with_it() {
    let node = Node::start();
    let (token, id) = token(&node, "admin", None);
    let (first, other) = (Browser::log_in(&node, &token), Browser::log_in(&node, CONFIGURED));
    let second = Browser::log_in(&node, &first.link());
    let code = second.link();
    assert!(first.is_open() && second.is_open());
    revoke(&node, &id);
    assert!(!first.is_open() && !second.is_open());
    assert_eq!(log_in(&node, &code).status, 401);
    assert!(other.is_open());
}

#[test]
fn the_sessions_of_a_token_that_leaves_the_file_end_with_it() {
    let node = Node::start();
    node.configure(&["the-first-of-the-file", "the-other-of-the-file"]);
    let (first, other) =
        (Browser::log_in(&node, "the-first-of-the-file"), Browser::log_in(&node, "the-other-of-the-file"));
    let of_first = Browser::log_in(&node, &first.link());
    assert!(first.is_open() && of_first.is_open());
    node.configure(&["the-other-of-the-file"]);
    assert!(!first.is_open() && !of_first.is_open());
    assert!(other.is_open());
    assert_eq!(other.sessions().len(), 1, "nor are they listed");
}

#[test]
fn no_chain_of_links_and_sessions_outlives_its_token() {
    let node = Node::start();
    let (token, _) = token(&node, "viewer", Some("90m"));
    let first = Browser::log_in(&node, &token);
    let second = Browser::log_in(&node, &first.link());
    let third = Browser::log_in(&node, &second.link());
    let end = |browser: &Browser<'_>| browser.ask("GET", "/session").json()["expires_at"].clone();
    let ends = node.ask_as(&token, "GET", "/session", &[], &Value::Null).json()["expires_at"].clone();
    assert!(ends.is_string());
    assert_eq!([end(&first), end(&second), end(&third)], [ends.clone(), ends.clone(), ends]);
}

#[test]
fn who_logs_in_without_end_shuts_nobody_out() {
    let node = Node::start();
    let (viewer, _) = token(&node, "viewer", None);
    let (admin, first) = (Browser::log_in(&node, CONFIGURED), Browser::log_in(&node, &viewer));
    let code = admin.link();
    for _ in 0..100 {
        assert_eq!(log_in(&node, &viewer).status, 200);
    }
    assert!(!first.is_open(), "the oldest of that token makes room");
    assert!(admin.is_open());
    assert_eq!(admin.sessions().len(), 101);
    assert_eq!(log_in(&node, &code).status, 200);
}

#[test]
fn a_token_sees_its_own_sessions_and_an_admin_everybodys() {
    let node = Node::start();
    let (viewer, id) = token(&node, "viewer", None);
    let admin = Browser::log_in(&node, CONFIGURED);
    let (first, second) = (Browser::log_in(&node, &viewer), Browser::log_in(&node, &viewer));
    let own = first.sessions();
    assert_eq!(own.iter().map(|one| one["this"].as_bool().unwrap()).collect::<Vec<_>>(), [false, true]);
    for one in &own {
        assert_eq!(
            (&one["name"], &one["token"], &one["from"]),
            (&json!("viewer"), &json!(id), &json!("127.0.0.1"))
        );
    }
    assert_eq!(admin.sessions().len(), 3);
    let of_admin = admin.sessions().iter().find(|one| one["this"] == true).unwrap()["id"].clone();
    let end = |browser: &Browser<'_>, id: &Value| {
        browser.ask("DELETE", &format!("/sessions/{}", id.as_str().unwrap())).status
    };
    assert_eq!(end(&first, &of_admin), 404);
    assert_eq!(end(&first, &own[0]["id"]), 204);
    assert!(!second.is_open() && admin.is_open());
    assert_eq!(end(&admin, &own[1]["id"]), 204);
    assert!(!first.is_open());
    assert_eq!(end(&admin, &own[1]["id"]), 404, "once");
}

#[test]
fn a_link_of_any_role_becomes_a_token_and_survives_a_mistake() {
    let node = Node::start();
    let (viewer, id) = token(&node, "viewer", None);
    let link = node.ask_as(&viewer, "POST", "/session/link", &[], &Value::Null).json();
    let keep = |name: &str| {
        let wanted = json!({ "code": link["code"], "name": name }).to_string();
        http::post_json(node.address, "/admin/v1/session/token", &wanted)
    };
    assert_eq!(keep("").status, 422);
    let made = keep("laptop");
    assert_eq!((made.status, &made.json()["role"]), (201, &json!("viewer")), "{}", made.text());
    assert_eq!(keep("laptop").status, 401, "it works once");
    let kept = made.json()["token"].as_str().unwrap().to_owned();
    let rules = || node.ask_as(&kept, "GET", "/rules", &[], &Value::Null).status;
    assert_eq!(rules(), 200);
    revoke(&node, &id);
    assert_eq!(rules(), 401, "it ends with the token that made the link");
}

/// A token that `token` makes for another machine with a link.
pub(super) fn pass_on(node: &Node, token: &str, name: &str) -> String {
    let link = node.ask_as(token, "POST", "/session/link", &[], &Value::Null).json();
    let wanted = json!({ "code": link["code"], "name": name }).to_string();
    let made = http::post_json(node.address, "/admin/v1/session/token", &wanted);
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()["token"].as_str().unwrap().to_owned()
}

#[test]
fn who_makes_a_token_with_a_link_takes_no_name_of_another() {
    let node = Node::start();
    let (viewer, _) = token(&node, "viewer", None);
    let name = |token: &str| {
        node.ask_as(token, "GET", "/session", &[], &Value::Null).json()["name"].as_str().unwrap().to_owned()
    };
    assert_eq!((name(CONFIGURED), name(&viewer)), ("configured".to_owned(), "viewer".to_owned()));
    for other in ["configured", "editor"] {
        let made = pass_on(&node, &viewer, other);
        assert_eq!(
            (name(&made), &*Browser::log_in(&node, &made).sessions()[0]["name"].to_string()),
            ("viewer".to_owned(), "\"viewer\"")
        );
    }
    // Its own name says in the list of tokens which machine it is for.
    let tokens = node.get("/tokens")["tokens"].to_string();
    assert!(
        tokens.contains("\"name\":\"editor\"") && tokens.contains("\"created_by\":\"viewer\""),
        "{tokens}"
    );
    let actors = node.get("/audit")["entries"].clone();
    let of_viewer = actors
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["action"].as_str().unwrap().starts_with("login"));
    for entry in of_viewer {
        assert_eq!((&entry["actor"], &entry["target"]), (&json!("viewer"), &json!("viewer")));
    }
}

#[test]
fn only_the_newest_link_of_a_token_works() {
    let node = Node::start();
    let browser = Browser::log_in(&node, CONFIGURED);
    let (first, second) = (browser.link(), browser.link());
    assert_eq!((log_in(&node, &first).status, log_in(&node, &second).status), (401, 200));
}

/// Reads events until the server ends the stream.
fn listen_to_the_end(node: &Node, header: (&str, &str), meanwhile: impl FnOnce()) {
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let (name, value) = header;
    let head = format!(
        "GET /admin/v1/events HTTP/1.1\r\nhost: {}\r\n{name}: {value}\r\nconnection: close\r\n\r\n",
        node.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("event: hello") {
        let mut some = [0; 512];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&some[..read]);
    }
    meanwhile();
    // Events come in every second: only the end of the stream ends this.
    stream.read_to_end(&mut seen).unwrap();
    assert!(seen.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&seen));
}

#[test]
fn events_end_when_their_session_is_signed_out() {
    let node = Node::start();
    let browser = Browser::log_in(&node, &node.token(Role::Viewer, false));
    listen_to_the_end(&node, ("cookie", &browser.cookie), || {
        assert_eq!(browser.ask("DELETE", "/session").status, 204);
    });
}

#[test]
fn events_end_when_their_token_is_revoked() {
    let node = Node::start();
    let (token, id) = token(&node, "viewer", None);
    listen_to_the_end(&node, ("authorization", &format!("Bearer {token}")), || revoke(&node, &id));
}

#[test]
fn events_end_when_their_token_expires() {
    let node = Node::start();
    let (token, _) = token(&node, "viewer", Some("3s"));
    listen_to_the_end(&node, ("authorization", &format!("Bearer {token}")), || ());
}

#[test]
fn events_end_when_their_token_leaves_the_file() {
    let node = Node::start();
    node.configure(&["the-first-of-the-file"]);
    let browser = Browser::log_in(&node, "the-first-of-the-file");
    listen_to_the_end(&node, ("cookie", &browser.cookie), || node.configure(&[]));
}
