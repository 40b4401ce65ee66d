//! Writes the parts of the reference that other sources already say: schemas, OpenAPI documents, `--help`, problem types.

use serde_json::Value;
use tidegate_http::problem::Kind;

use super::by_path::sections;
use crate::tidegate;

const HTTP: &str = include_str!("../../../../tidegate-server/src/http/openapi.json");
const ADMIN: &str = include_str!("../../../../tidegate-admin/src/api/openapi.json");

/// Page, name of the part, and its text.
pub(super) fn parts() -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("cli.md", "commands", commands()),
        ("rules.md", "fields", fields(&schema("rules"))),
        ("config.md", "fields", sections(&schema("config"))),
        ("http.md", "routes", routes(HTTP)),
        ("admin-api.md", "routes", routes(ADMIN)),
        ("problems.md", "problems", problems()),
    ]
}

/// The page with `part` between the marks that name it; none if it has no such marks.
pub(super) fn put(page: &str, name: &str, part: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), "<!-- end -->");
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n{}\n\n{end}{after}", part.trim()))
}

fn stdout(args: &[&str]) -> String {
    let output = tidegate(args).output().expect("the binary runs");
    String::from_utf8(output.stdout).expect("it prints text")
}

/// The help of every command, and of the commands below it.
fn commands() -> String {
    let mut text = String::new();
    add_command(&[], &mut text);
    text
}

fn add_command(path: &[&str], text: &mut String) {
    let help = stdout(&[&["help"], path].concat());
    let title = ["tidegate"].iter().chain(path).copied().collect::<Vec<_>>().join(" ");
    let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    *text += &format!("## {title}\n\n```text\n{}\n```\n\n", help.trim());
    // What is indented deeper goes on from the line before.
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ")).filter_map(|line| line.split(' ').next());
    for name in names.filter(|name| !["", "help"].contains(name)) {
        add_command(&[path, &[name]].concat(), text);
    }
}

fn schema(of: &str) -> Value {
    serde_json::from_str(&stdout(&["schema", of])).expect("a schema is JSON")
}

/// A table of fields for the whole, and one for each definition that has fields.
fn fields(schema: &Value) -> String {
    let mut text = table("The file", schema);
    for (name, definition) in schema["$defs"].as_object().expect("a schema has definitions") {
        // A condition is patterns, or a mapping: that mapping is what has fields.
        let branches = definition["anyOf"].as_array().into_iter().flatten();
        for with_fields in
            [definition].into_iter().chain(branches).filter(|one| one["properties"].is_object())
        {
            text += &table(&format!("`{name}`"), with_fields);
        }
    }
    text
}

fn table(title: &str, object: &Value) -> String {
    let mut text = format!("### {title}\n\n");
    if let Some(about) = object["description"].as_str() {
        text += &format!("{}.\n\n", cell(about).trim_end_matches('.'));
    }
    text += "| Field | Is | Means |\n|---|---|---|\n";
    let required: Vec<&str> =
        object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in object["properties"].as_object().expect("a table has fields") {
        let needed = if required.contains(&name.as_str()) { ", required" } else { "" };
        let about = field["description"].as_str().map(cell).unwrap_or_default();
        text += &format!("| `{name}` | {}{needed} | {about} |\n", kind(field));
    }
    if let Some(others) = object["additionalProperties"].as_object() {
        text += &format!("| any other | {} | |\n", kind(&Value::Object(others.clone())));
    }
    text + "\n"
}

/// What a value is, in a few words.
fn kind(field: &Value) -> String {
    if let Some(name) = field["$ref"].as_str() {
        return format!("`{}`", name.rsplit('/').next().unwrap_or(name));
    }
    if let Some(only) = field.get("const") {
        return format!("`{}`", plain(only));
    }
    if let Some(words) = field["enum"].as_array() {
        return words.iter().map(|word| format!("`{}`", plain(word))).collect::<Vec<_>>().join(", ");
    }
    if let Some(several) = field["anyOf"].as_array().or(field["oneOf"].as_array()) {
        let kinds = several.iter().filter(|one| one["type"] != "null").map(kind);
        return kinds.collect::<Vec<_>>().join(" or ");
    }
    match &field["type"] {
        Value::String(one) if one == "array" => format!("list of {}", kind(&field["items"])),
        Value::String(one) if one == "object" => match field["additionalProperties"].as_object() {
            Some(values) => format!("mapping to {}", kind(&Value::Object(values.clone()))),
            None => "mapping".into(),
        },
        Value::String(one) => one.clone(),
        Value::Array(several) => {
            let kinds = several.iter().filter(|one| *one != "null").map(plain);
            kinds.collect::<Vec<_>>().join(" or ")
        }
        _ => "anything".into(),
    }
}

pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Text that fits a cell of a table. What ends a paragraph ends a sentence, whether or not it says so.
pub(super) fn cell(text: &str) -> String {
    let paragraphs: Vec<&str> = text.split("\n\n").collect();
    let (last, before) = paragraphs.split_last().expect("a text has a part");
    let sentences = before.iter().map(|part| format!("{}. ", part.trim_end_matches('.')));
    (sentences.collect::<String>() + last).replace('\n', " ").replace('|', "\\|")
}

#[test]
fn paragraphs_become_sentences() {
    assert_eq!(cell("A title\n\nIt says\nmore.\n\nAnd more"), "A title. It says more. And more");
    assert_eq!(cell("a | b"), "a \\| b");
}

fn routes(openapi: &str) -> String {
    let document: Value = serde_json::from_str(openapi).expect("an OpenAPI document is JSON");
    let has_roles = openapi.contains("\"x-role\"");
    let mut text = String::from(if has_roles {
        "| Route | Needs | Does | Answers |\n|---|---|---|---|\n"
    } else {
        "| Route | Does | Answers |\n|---|---|---|\n"
    });
    for (path, methods) in document["paths"].as_object().expect("it has paths") {
        for (method, route) in methods.as_object().expect("a path has methods") {
            let Some(answers) = route["responses"].as_object() else { continue };
            let mut answers: Vec<&str> = answers.keys().map(String::as_str).collect();
            answers.sort_unstable();
            let role = if has_roles {
                format!(" {} |", route["x-role"].as_str().unwrap_or_default())
            } else {
                String::new()
            };
            let does = cell(route["summary"].as_str().unwrap_or_default());
            text +=
                &format!("| `{} {path}` |{role} {does} | {} |\n", method.to_uppercase(), answers.join(", "));
        }
    }
    text
}

fn problems() -> String {
    let mut text = String::from("| `type` | Status | `error` | `title` |\n|---|---|---|---|\n");
    for kind in Kind::ALL {
        let uri = serde_json::to_value(kind).expect("a kind is text");
        text += &format!(
            "| `{}` | {} | `{}` | {} |\n",
            plain(&uri),
            kind.status().as_u16(),
            kind.code(),
            kind.title()
        );
    }
    text
}
