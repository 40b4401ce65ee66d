//! `/openapi.json` describes what is there, no more and no less.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_access::TokenSource;
use tidegate_server::access::Access;
use tidegate_testkit::http;

use crate::world::World;

/// Rules under which every example in the document is allowed.
const RULES: &str = "
domain: api
rules:
  - { name: per-user, key: [user], limits: [100/minute] }
  - { name: uploads, match: { path: /uploads }, key: [user], limits: [{ algorithm: concurrency, limit: 10, ttl: 60s }] }
";

/// Everything that `HttpCaller::route` answers with something other than 404 and 405.
const SERVED: [(&str, &str); 16] = [
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
    ("/v1/usage", "get"),
    ("/v1/usage", "post"),
    ("/v1/utilization", "post"),
];

fn document(world: &World) -> Value {
    let answer = http::get(world.http(), "/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().iter();
            methods.map(|(method, operation)| (path.clone(), method.clone(), operation.clone()))
        })
        .collect()
}

#[test]
fn it_lists_every_path_and_method_and_no_other() {
    let world = World::new(RULES);
    let described: BTreeSet<_> =
        operations(&document(&world)).into_iter().map(|(path, method, _)| (path, method)).collect();
    let served = SERVED.map(|(path, method)| (path.to_owned(), method.to_owned()));
    assert_eq!(described, BTreeSet::from(served));
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
    let document = document(&world);
    for (path, method, operation) in operations(&document) {
        let content = &resolve(&document, &operation["requestBody"])["content"];
        let mut body = content["application/json"]["example"].clone();
        let described = &content["application/json"]["schema"];
        if path == "/v1/release" || path == "/v1/renew" {
            // A lease cannot be known in advance: the example shows its shape, a check returns a real one.
            assert!(body["lease"].is_string(), "{path}");
            body =
                json!({ "lease": world.check(&json!({ "user": "42", "path": "/uploads" })).json()["lease"] });
        }
        fits(&document, described, &body, &path);
        let sent = if body.is_null() { String::new() } else { body.to_string() };
        let kind = [("content-type", "application/json")];
        let target = format!("{path}{}", query(&document, &operation));
        let answer =
            http::request(world.http(), &method.to_uppercase(), &target, &kind, sent.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        let described = resolve(&document, &operation["responses"]["200"]);
        let kind = answer.header("content-type").unwrap().split(';').next().unwrap().to_owned();
        let schema = &described["content"][&kind]["schema"];
        assert!(schema.is_object(), "{method} {path} answers {kind}");
        if kind == "application/json" {
            fits(&document, schema, &answer.json(), &path);
        }
    }
}

#[test]
fn problems_are_as_it_describes_them() {
    let world = World::new(RULES);
    let document = document(&world);
    let with_body = |(_, _, operation): &(String, String, Value)| operation["requestBody"].is_object();
    for (path, method, operation) in operations(&document).into_iter().filter(with_body) {
        let path = path.as_str();
        for (body, status) in [("{", "400"), (r#"{"x":1}"#, "422")] {
            let kind = [("content-type", "application/json")];
            let answer =
                http::request(world.http(), &method.to_uppercase(), path, &kind, body.as_bytes()).unwrap();
            assert_eq!(answer.status.to_string(), status, "{path}");
            let described = resolve(&document, &operation["responses"][status]);
            let schema = &described["content"]["application/problem+json"]["schema"];
            fits(&document, schema, &answer.json(), path);
        }
    }
}

#[test]
fn it_says_that_a_token_may_be_wanted_wherever_one_is() {
    let tokens = TokenSource::load(vec!["a-token-of-the-gateways".to_owned()], None).unwrap();
    let world = World::with_access(RULES, Arc::new(Access::new(Arc::new(tokens))));
    let bearer = [("authorization", "Bearer a-token-of-the-gateways")];
    let document = http::request(world.http(), "GET", "/openapi.json", &bearer, b"").unwrap().json();
    for (path, method, operation) in operations(&document) {
        let answer = http::request(world.http(), &method.to_uppercase(), &path, &[], b"").unwrap();
        let described = resolve(&document, &operation["responses"]["401"]);
        assert_eq!(answer.status == 401, described.is_object(), "{method} {path}: {}", answer.status);
        if answer.status == 401 {
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            let schema = &described["content"]["application/problem+json"]["schema"];
            fits(&document, schema, &answer.json(), &path);
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
    let mut ids = BTreeSet::new();
    for (path, method, operation) in operations(&document) {
        let at = format!("{method} {path}");
        assert!(ids.insert(operation["operationId"].as_str().expect(&at).to_owned()), "{at}");
        assert!(operation["summary"].is_string(), "{at}");
        let body = resolve(&document, &operation["requestBody"]);
        assert_eq!(body["required"] == true, method == "post" && path != "/v1/auth", "{at}");
        for (status, response) in operation["responses"].as_object().unwrap() {
            let response = resolve(&document, response);
            assert!(response["description"].is_string() && status.len() == 3, "{at} {status}");
        }
    }
}

/// The examples of an operation's parameters, as a query.
fn query(document: &Value, operation: &Value) -> String {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let pairs = parameters.map(|parameter| {
        let parameter = resolve(document, parameter);
        let value = parameter["example"].to_string();
        format!("{}={}", parameter["name"].as_str().unwrap(), value.trim_matches('"'))
    });
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

fn resolve<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    match value["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).unwrap(),
        None => value,
    }
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

/// Checks `value` against the part of JSON Schema that the document uses.
#[track_caller]
fn fits(document: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = resolve(document, schema);
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().map(|one| one.as_str().unwrap()).collect(),
        Value::String(one) => vec![one.as_str()],
        _ => vec![],
    };
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("the schema at {at} has a type {other}"),
    };
    assert!(types.is_empty() || types.iter().any(|kind| is(kind)), "{at}: {value} is no {types:?}");
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(value), "{at}: {value} is none of {values:?}");
    }
    if let Some(constant) = schema.get("const") {
        assert_eq!(value, constant, "{at}");
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(name.as_str().unwrap()).is_some(), "{at}: {name} is missing in {value}");
    }
    let closed = schema["additionalProperties"] == false;
    for (name, value) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match schema["properties"].get(name) {
            Some(schema) => fits(document, schema, value, &at),
            None => assert!(!closed, "{at} is not described"),
        }
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        fits(document, &schema["items"], item, &format!("{at}[{number}]"));
    }
}
