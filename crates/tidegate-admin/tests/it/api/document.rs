//! `/admin/v1/openapi.json` describes exactly the routes that exist.

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate_testkit::http;

use crate::api::world::Node;

/// Method, path with its parameters filled in, and the role it takes, as the document has it.
pub(crate) fn operations(document: &Value) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{domain}", "api").replace("{rule}", "per-user").replace("{number}", "1");
        let path = path.replace("{id}", "0000000000000000");
        for (method, operation) in item.as_object().unwrap() {
            let role = operation["x-role"].as_str().unwrap().to_owned();
            found.push((method.to_uppercase(), path.clone(), role));
        }
    }
    found
}

#[test]
fn it_is_served_to_anyone_and_every_operation_has_a_name_of_its_own() {
    let node = Node::start();
    let answer = http::get(node.address, "/admin/v1/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let document = answer.json();
    let operations: Vec<&Value> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
        .collect();
    let names: BTreeSet<&str> = operations.iter().map(|one| one["operationId"].as_str().unwrap()).collect();
    assert_eq!(names.len(), operations.len());
}

#[test]
fn every_method_that_it_does_not_list_is_not_allowed() {
    let node = Node::start();
    let document = http::get(node.address, "/admin/v1/openapi.json").json();
    let listed = operations(&document);
    let paths: BTreeSet<&String> = listed.iter().map(|(_, path, _)| path).collect();
    for path in paths {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            if method == "GET" && path.ends_with("/events") {
                continue;
            }
            let known = listed.iter().any(|(known, of, _)| known == method && of == path);
            let path = path.strip_prefix("/admin/v1").unwrap();
            let status = node.ask(method, path, &Value::Null).status;
            assert_eq!(status != 405, known, "{method} {path}: {status}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let node = Node::start();
    let answer = http::get(node.address, "/admin/v1/openapi.json");
    let document = answer.json();
    for part in answer.text().split("\"$ref\":").skip(1) {
        let reference = part.split('"').nth(1).unwrap();
        assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
    }
}
