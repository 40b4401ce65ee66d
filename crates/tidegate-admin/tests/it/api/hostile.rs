//! Names that are markup, bodies that are too large, and listeners that read nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_rulestore::Role;
use tidegate_testkit::http;

use super::document::operations;
use super::sessions::pass_on;
use super::world::{CONFIGURED, Node};

const MARKUP: &str = "<img src=x onerror=alert(1)>";

#[test]
fn markup_in_names_and_keys_stays_json_that_no_browser_takes_for_a_page() {
    let node = Node::start();
    let text = format!("domain: api\nrules:\n  - {{ name: '{MARKUP}', key: [user], limits: [1/s] }}\n");
    assert_eq!(node.publish(1, &text).status, 200);
    let ban = json!({ "domain": "api", "when": { MARKUP: MARKUP }, "action": "ban", "reason": MARKUP });
    assert_eq!(node.ask("POST", "/keys/overrides", &ban).status, 201);
    let wrong = node.ask("POST", "/keys/lookup", &json!({ "domain": MARKUP }));
    let answers = ["/rules", "/keys/overrides", "/audit"].map(|path| node.ask("GET", path, &Value::Null));
    for answer in answers.iter().chain([&wrong]) {
        assert!(answer.text().contains(MARKUP));
        let kind = answer.header("content-type").unwrap();
        assert!(["application/json", "application/problem+json"].contains(&kind), "{kind}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
}

#[test]
fn a_number_that_is_none_is_answered_with_how_to_write_one() {
    let node = Node::start();
    for (query, says) in [
        ("/audit?limit=two", "expected a whole number in digits, such as 50"),
        ("/versions?limit=", "expected a whole number in digits, such as 50"),
        ("/decisions?limit=-1", "expected a whole number in digits, such as 50"),
        ("/keys/top?limit=99999999999999999999", "the number is too large: write less, such as 50"),
    ] {
        let answer = node.ask("GET", query, &Value::Null);
        let told = answer.json();
        assert_eq!(
            (answer.status, &told["field"], &told["detail"]),
            (422, &json!("limit"), &json!(says)),
            "{query}"
        );
    }
}

#[test]
fn a_mistake_names_its_field_and_no_type_of_ours() {
    let node = Node::start();
    let ban = |domain: &str, rule: &str| json!({ "domain": domain, "rule": rule, "when": { "user": "1" }, "action": "ban" });
    let mut large = ban("api", "per-user");
    large["action"] = json!("limits");
    large["limits"] = json!(vec!["1000000000/hour"; 1_000]);
    for (method, path, body, field) in [
        ("GET", "/audit?limit=many", Value::Null, "limit"),
        ("GET", "/stats?range=1h", Value::Null, "range"),
        ("POST", "/keys/overrides", ban("nowhere", "per-user"), "domain"),
        ("POST", "/keys/overrides", ban("api", "nothing"), "rule"),
        ("POST", "/keys/overrides", json!([]), ""),
        ("POST", "/keys/overrides", large, ""),
        ("POST", "/keys/overrides", json!({ "domain": 7 }), "domain"),
    ] {
        let answer = node.ask(method, path, &body);
        assert_eq!((answer.status, &answer.json()["field"]), (422, &json!(field)), "{}", answer.text());
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(
            !["struct", "deserialize", "invalid digit"].iter().any(|word| detail.contains(word)),
            "{detail}"
        );
    }
}

/// The answer to a body that the server need not read to its end: it may close while we still send.
fn answer_while_sending(node: &Node, (method, path): (&str, &str), body: &[u8]) -> String {
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {CONFIGURED}\r\nif-match: \"1\"\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let _ = stream.write_all(body);
    let mut answer = [0; 64];
    let read = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[test]
fn a_body_beyond_its_bound_is_refused() {
    let node = Node::start();
    let large = json!({ "domain": "x".repeat(70 << 10), "attributes": {} });
    assert_eq!(node.ask("POST", "/keys/lookup", &large).status, 413);
    let body = json!({ "documents": [{ "domain": "api", "text": "#".repeat(33 << 20) }] }).to_string();
    let document = http::get(node.address, "/admin/v1/openapi.json").json();
    // Creating a link, and ending a token or a session, need no body: it is not read.
    let reads = |(method, path, _): &(String, String, String)| {
        ["POST", "PUT"].contains(&&**method) && !path.ends_with("/session/link")
    };
    for (method, path, _) in operations(&document).into_iter().filter(reads) {
        let answer = answer_while_sending(&node, (&method, &path), body.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 413 "), "{method} {path}: {answer}");
    }
    assert_eq!(node.get("/rules")["version"], 1, "nothing was changed by any of them");
    let many: serde_json::Map<String, Value> = (0..100).map(|n| (n.to_string(), json!(""))).collect();
    assert_eq!(node.ask("POST", "/keys/lookup", &json!({ "domain": "api", "attributes": many })).status, 422);
}

#[test]
fn a_path_cannot_leave_the_api() {
    let node = Node::start();
    for path in [
        "/admin/v1/../../etc/passwd",
        "/admin/v1/%2e%2e/%2e%2e/etc/passwd",
        "/admin/v1//etc/passwd",
        "/admin/v1/rules/api%2f..%2f/x",
    ] {
        let headers = [("authorization", &*format!("Bearer {CONFIGURED}"))];
        let status = http::request(node.address, "GET", path, &headers, b"").unwrap().status;
        assert_eq!(status, 404, "{path}");
    }
}

/// A listener to events that reads only when asked to.
fn listen(node: &Node) -> TcpStream {
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head = format!(
        "GET /admin/v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {CONFIGURED}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn events_tell_of_a_publish_and_listeners_that_read_nothing_harm_nobody() {
    let node = Node::start();
    let mut listeners: Vec<TcpStream> = (0..64).map(|_| listen(&node)).collect();
    let mut reader = BufReader::new(listeners.remove(0));
    let mut until = |wanted: &str| {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "closed before {wanted}");
        }
    };
    until("200 OK");
    until("event: hello");
    // All of them have a permit once the last one is answered.
    let is_full = || node.ask("GET", "/events", &Value::Null).status == 503;
    tidegate_testkit::eventually("no more than 64 listen", Duration::from_secs(10), is_full);
    let metrics = http::get(node.address, "/metrics").text();
    assert!(metrics.contains("\ntidegate_event_listeners 64\n"), "{metrics}");
    assert!(!metrics.contains("\ntidegate_event_listeners_refused_total 0\n"), "{metrics}");
    for version in 1..30 {
        let text = format!("domain: api\nrules: [{{ name: a, limits: [{version}/s] }}]\n");
        assert_eq!(node.publish(version, &text).status, 200);
    }
    until("event: version");
    assert_eq!(node.get("/rules")["version"], 30);
    drop(listeners);
    drop(reader);
    tidegate_testkit::eventually("places are free again", Duration::from_secs(30), || {
        let mut stream = listen(&node);
        let mut line = String::new();
        let _ = BufReader::new(&mut stream).read_line(&mut line);
        line.contains("200")
    });
}

#[test]
fn a_crowd_of_listeners_that_read_nothing_shuts_nobody_out() {
    let node = Node::start();
    let crowd: Vec<TcpStream> = (0..600).map(|_| listen(&node)).collect();
    assert_eq!(node.get("/rules")["version"], 1);
    assert_eq!(node.publish(1, "domain: api\nrules: [{ name: a, limits: [1/s] }]\n").status, 200);
    drop(crowd);
}

#[test]
fn a_reason_is_a_few_lines_of_text() {
    let node = Node::start();
    let ban = |when: &str, reason: &str| {
        let ban =
            json!({ "domain": "api", "when": { when: "a\u{0}\nb" }, "action": "ban", "reason": reason });
        let answer = node.ask("POST", "/keys/overrides", &ban);
        (answer.status, answer.json()["field"].clone())
    };
    assert_eq!(ban("user", "two\nlines, 😀").0, 201, "a key may hold anything");
    assert_eq!(ban("user", "\u{0}"), (422, json!("reason")));
    assert_eq!(ban("user", "\u{1b}[2J"), (422, json!("reason")));
    assert_eq!(ban("user", &"r".repeat(1_001)), (422, json!("reason")));
    assert_eq!(ban("us\u{0}er", ""), (422, json!("when")));
    let reset = json!({ "domain": "api", "attributes": { "user": "1" }, "reason": "\u{0}" });
    assert_eq!(node.ask("POST", "/keys/reset", &reset).status, 422);
    assert_eq!(node.get("/keys/overrides")["total"], 1);
}

/// A connection from an address of this machine that other tests do not use.
fn connect_from(address: [u8; 4], node: &Node) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&node.address.into()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    socket.into()
}

/// The first line of the answer to `request`.
fn first_line(mut stream: TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[test]
fn unfinished_bodies_shut_nobody_out() {
    const ASK: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let node = Node::start();
    let unfinished: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = connect_from([127, 0, 0, 2], &node);
            let head = "POST /admin/v1/session HTTP/1.1\r\nhost: localhost\r\n\
                        content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
            // Beyond its share, the address's own connections make room.
            let _ = stream.write_all(head.as_bytes());
            stream
        })
        .collect();
    for address in [[127, 0, 0, 1], [127, 0, 0, 2], [127, 0, 0, 3]] {
        let line = first_line(connect_from(address, &node), ASK);
        assert!(line.starts_with("HTTP/1.1 200"), "{address:?}: {line}");
    }
    drop(unfinished);
}

#[test]
fn an_event_stream_outlasts_idle_connections_of_strangers() {
    let node = Node::start();
    let mut reader = BufReader::new(listen(&node));
    let mut until = |wanted: &str| {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "closed before {wanted}");
        }
    };
    until("event: hello");
    let strangers: Vec<TcpStream> =
        (0..300).map(|n| connect_from([127, 0, 1, u8::try_from(n % 250 + 1).unwrap()], &node)).collect();
    assert_eq!(node.publish(1, "domain: api\nrules: [{ name: a, limits: [1/s] }]\n").status, 200);
    until("event: version");
    drop(strangers);
}

/// An upload of 31 MiB, of which one byte comes.
fn begin_upload(node: &Node, (header, value): (&str, &str)) -> TcpStream {
    let mut stream = TcpStream::connect(node.address).unwrap();
    let head = format!(
        "POST /admin/v1/replay/log HTTP/1.1\r\nhost: {}\r\n{header}: {value}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{{",
        node.address,
        31 << 20
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn unfinished_uploads_of_one_caller_are_bounded_before_they_are_read() {
    let node = Node::start();
    let token = node.token(Role::Viewer, false);
    let begin = || begin_upload(&node, ("authorization", &format!("Bearer {token}")));
    let mut uploads: Vec<TcpStream> = (0..30).map(|_| begin()).collect();
    // All but the one that came first are refused, at once: the one that was taken is given up after 30 s.
    let answer_of_any = |uploads: &mut Vec<TcpStream>| {
        let found = uploads.iter_mut().enumerate().find_map(|(at, stream)| {
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let mut answer = [0; 1024];
            let read = stream.read(&mut answer).ok()?;
            Some((at, String::from_utf8_lossy(&answer[..read]).into_owned()))
        });
        found.map(|(at, answer)| (uploads.remove(at), answer).1)
    };
    for _ in 1..30 {
        let answer = tidegate_testkit::poll(Duration::from_secs(20), || answer_of_any(&mut uploads));
        let answer = answer.expect("29 of 30 are refused");
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("too-many-uploads"), "{answer}");
    }
    // Another caller is not locked out.
    let large = format!("domain: api\nrules: [{{ name: a, limits: [1/s] }}]\n#{}\n", "x".repeat(1 << 20));
    assert_eq!(node.publish(1, &large).status, 200);
    drop(uploads);
}

#[test]
fn tokens_made_with_links_share_the_bounds_of_the_token_behind_them() {
    let node = Node::start();
    let viewer = node.token(Role::Viewer, false);
    // Of them all one upload finds room: 31 MiB of 32. One has the name of the token that publishes below.
    let tokens = [pass_on(&node, &viewer, "configured"), pass_on(&node, &viewer, "other"), viewer];
    let session =
        http::post_json(node.address, "/admin/v1/session", &json!({ "token": tokens[1] }).to_string());
    let (cookie, csrf) =
        (session.header("set-cookie").unwrap(), session.json()["csrf"].as_str().unwrap().to_owned());
    let of_session = format!("{}\r\nx-csrf-token: {csrf}", cookie.split(';').next().unwrap());
    let mut uploads: Vec<TcpStream> = tokens
        .iter()
        .map(|token| begin_upload(&node, ("authorization", &format!("Bearer {token}"))))
        .chain([begin_upload(&node, ("cookie", &of_session))])
        .collect();
    let mut refused = 0;
    let three_are_refused = || {
        uploads.retain_mut(|stream| {
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let mut answer = [0; 1024];
            let Ok(read) = stream.read(&mut answer) else { return true };
            let answer = String::from_utf8_lossy(&answer[..read]);
            assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("your other uploads"), "{answer}");
            refused += 1;
            false
        });
        (refused == 3).then_some(())
    };
    tidegate_testkit::poll(Duration::from_secs(20), three_are_refused).expect("three of four are refused");
    let large = format!("domain: api\nrules: [{{ name: a, limits: [1/s] }}]\n#{}\n", "x".repeat(8 << 20));
    assert_eq!(node.publish(1, &large).status, 200);
    drop(uploads);
}
