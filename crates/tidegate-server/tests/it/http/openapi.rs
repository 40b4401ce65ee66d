//! `/openapi.json` describes what is there, no more and no less.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_access::TokenSource;
use tidegate_server::access::Access;
use tidegate_testkit::{OpenApi, http};

use crate::world::World;

/// Rules under which every example in the document is allowed.
const RULES: &str = "
domain: api
rules:
  - { name: per-user, key: [user], limits: [100/minute] }
  - { name: uploads, match: { path: /uploads }, key: [user], limits: [{ algorithm: concurrency, limit: 10, ttl: 60s }] }
";

/// Everything that `HttpCaller::route` answers with something other than 404 and 405.
const SERVED: [(&str, &str); 17] = [
    ("/healthcheck", "get"),
    ("/healthz", "get"),
    ("/json", "post"),
    ("/openapi.json", "get"),
    ("/readyz", "get"),
    ("/rlconfig", "get"),
    ("/v1/auth", "get"),
    ("/v1/auth", "post"),
    ("/v1/check", "post"),
    ("/v1/check/batch", "post"),
    ("/v1/refund", "post"),
    ("/v1/release", "post"),
    ("/v1/renew", "post"),
    ("/v1/take", "post"),
    ("/v1/usage", "get"),
    ("/v1/usage", "post"),
    ("/v1/utilization", "post"),
];

fn document(world: &World) -> Value {
    let answer = http::get(world.http(), "/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

#[test]
fn it_lists_every_path_and_method_and_no_other() {
    let world = World::new(RULES);
    let api = OpenApi::new(document(&world));
    let described: BTreeSet<_> = api.operations().map(|(path, method, _)| (path, method)).collect();
    assert_eq!(described, BTreeSet::from(SERVED));
    // What is listed here is served, and nothing similar is.
    for (path, _) in SERVED {
        for tried in ["get", "post", "put", "delete", "patch"] {
            let answer = http::request(world.http(), &tried.to_uppercase(), path, &[], b"").unwrap();
            assert_eq!(answer.status != 405, SERVED.contains(&(path, tried)), "{tried} {path}");
            assert_ne!(answer.status, 404, "{tried} {path}");
        }
    }
}

#[test]
fn its_examples_work_and_answer_what_it_says() {
    let world = World::new(RULES);
    let api = OpenApi::new(document(&world));
    for (path, method, operation) in api.operations() {
        let content = &api.resolve(&operation["requestBody"])["content"];
        let mut body = content["application/json"]["example"].clone();
        let described = &content["application/json"]["schema"];
        if path == "/v1/release" || path == "/v1/renew" {
            // A lease cannot be known in advance: the example shows its shape, a check returns a real one.
            assert!(body["lease"].is_string(), "{path}");
            body =
                json!({ "lease": world.check(&json!({ "user": "42", "path": "/uploads" })).json()["lease"] });
        }
        api.expect_fits(described, &body, path);
        let sent = if body.is_null() { String::new() } else { body.to_string() };
        let kind = [("content-type", "application/json")];
        let target = format!("{path}{}", query(&api, operation));
        let answer =
            http::request(world.http(), &method.to_uppercase(), &target, &kind, sent.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        api.expect_describes(method, &target, &answer);
    }
}

#[test]
fn problems_are_as_it_describes_them() {
    let world = World::new(RULES);
    let api = OpenApi::new(document(&world));
    for (path, method, _) in api.operations().filter(|(.., operation)| operation["requestBody"].is_object()) {
        for (body, status) in [("{", 400), (r#"{"x":1}"#, 422)] {
            let kind = [("content-type", "application/json")];
            let answer =
                http::request(world.http(), &method.to_uppercase(), path, &kind, body.as_bytes()).unwrap();
            assert_eq!(answer.status, status, "{path}");
            api.expect_describes(method, path, &answer);
        }
    }
}

#[test]
fn it_says_that_a_token_may_be_wanted_wherever_one_is() {
    let tokens = TokenSource::load(vec!["a-token-of-the-gateways".to_owned()], None).unwrap();
    let world = World::with_access(RULES, Arc::new(Access::new(Arc::new(tokens))));
    let bearer = [("authorization", "Bearer a-token-of-the-gateways")];
    let api = OpenApi::new(http::request(world.http(), "GET", "/openapi.json", &bearer, b"").unwrap().json());
    for (path, method, operation) in api.operations() {
        let answer = http::request(world.http(), &method.to_uppercase(), path, &[], b"").unwrap();
        let described = api.resolve(&operation["responses"]["401"]);
        assert_eq!(answer.status == 401, described.is_object(), "{method} {path}: {}", answer.status);
        if answer.status == 401 {
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            api.expect_describes(method, path, &answer);
        }
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let document = document(&World::new(RULES));
    let mut references = BTreeSet::new();
    collect_references(&document, &mut references);
    for reference in &references {
        assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
    }
    for (kind, components) in document["components"].as_object().unwrap() {
        for name in components.as_object().unwrap().keys() {
            let reference = format!("#/components/{kind}/{name}");
            assert!(references.contains(&reference), "nobody refers to {reference}");
        }
    }
}

#[test]
fn it_is_an_openapi_3_1_document() {
    let document = document(&World::new(RULES));
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["info"]["title"].is_string() && document["info"]["version"].is_string());
    let (api, mut ids) = (OpenApi::new(document), BTreeSet::new());
    for (path, method, operation) in api.operations() {
        let at = format!("{method} {path}");
        assert!(ids.insert(operation["operationId"].as_str().expect(&at).to_owned()), "{at}");
        assert!(operation["summary"].is_string(), "{at}");
        let body = api.resolve(&operation["requestBody"]);
        assert_eq!(body["required"] == true, method == "post" && path != "/v1/auth", "{at}");
        for (status, response) in operation["responses"].as_object().unwrap() {
            let response = api.resolve(response);
            assert!(response["description"].is_string() && status.len() == 3, "{at} {status}");
        }
    }
}

/// The examples of an operation's parameters, as a query.
fn query(api: &OpenApi, operation: &Value) -> String {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let pairs = parameters.map(|parameter| {
        let parameter = api.resolve(parameter);
        let value = parameter["example"].to_string();
        format!("{}={}", parameter["name"].as_str().unwrap(), value.trim_matches('"'))
    });
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

fn collect_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().filter(|_| name == "$ref") {
                    Some(reference) => drop(found.insert(reference.to_owned())),
                    None => collect_references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
        _ => {}
    }
}
