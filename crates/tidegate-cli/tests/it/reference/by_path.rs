//! Writes the fields of a configuration in the order of its file: one table per section, named by its path in YAML.

use serde_json::Value;

use super::generate::{cell, plain};

/// The tables of a schema: the file itself, then each section after the one that holds it.
pub(super) fn sections(schema: &Value) -> String {
    let mut text = String::new();
    add("", schema, schema, &mut text);
    text
}

fn add(path: &str, section: &Value, schema: &Value, text: &mut String) {
    *text += &table(path, section, schema);
    for (name, field) in section["properties"].as_object().into_iter().flatten() {
        for (below, section) in sections_in(&joined(path, name), field, schema) {
            add(&below, section, schema, text);
        }
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The sections that a field is, holds in its list (`[]`), or has under any name (`.*`).
fn sections_in<'a>(path: &str, field: &'a Value, schema: &'a Value) -> Vec<(String, &'a Value)> {
    let mut found = Vec::new();
    for one in alternatives(field, schema) {
        if one["properties"].is_object() {
            found.push((path.to_owned(), one));
        }
        if one["items"].is_object() {
            found.extend(sections_in(&format!("{path}[]"), &one["items"], schema));
        }
        if one["additionalProperties"].is_object() && !one["properties"].is_object() {
            found.extend(sections_in(&format!("{path}.*"), &one["additionalProperties"], schema));
        }
    }
    found
}

/// What a field may be, behind references, without `null`.
fn alternatives<'a>(field: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    if let Some(name) = field["$ref"].as_str() {
        return alternatives(definition(name, schema), schema);
    }
    match field["anyOf"].as_array().or(field["oneOf"].as_array()) {
        Some(several) => several.iter().flat_map(|one| alternatives(one, schema)).collect(),
        None if field["type"] == "null" => Vec::new(),
        None => vec![field],
    }
}

fn definition<'a>(name: &str, schema: &'a Value) -> &'a Value {
    schema.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("the schema has no {name}"))
}

fn table(path: &str, section: &Value, schema: &Value) -> String {
    let title = if path.is_empty() { "The file".to_owned() } else { format!("`{path}`") };
    let mut text = format!("### {title}\n\n");
    if let Some(about) = section["description"].as_str() {
        text += &format!("{}.\n\n", cell(about).trim_end_matches('.'));
    }
    text += "| Field | Is | Means |\n|---|---|---|\n";
    let required: Vec<&str> =
        section["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in section["properties"].as_object().into_iter().flatten() {
        let needed = if required.contains(&name.as_str()) { ", required" } else { "" };
        let about = field["description"].as_str().map(cell).unwrap_or_default();
        text += &format!("| `{name}` | {}{needed} | {about} |\n", kind(&joined(path, name), field, schema));
    }
    text + "\n"
}

/// What a value is, in a few words; a section is a link to its table.
fn kind(path: &str, field: &Value, schema: &Value) -> String {
    if let Some(words) = in_words(field) {
        return words.to_owned();
    }
    if field["$ref"].is_null() && (field["anyOf"].is_array() || field["oneOf"].is_array()) {
        let several = field["anyOf"].as_array().or(field["oneOf"].as_array()).into_iter().flatten();
        let kinds: Vec<String> =
            several.filter(|one| one["type"] != "null").map(|one| kind(path, one, schema)).collect();
        return kinds.join(" or ");
    }
    let field = field["$ref"].as_str().map_or(field, |name| definition(name, schema));
    if field["properties"].is_object() {
        let anchor: String = path.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        return format!("[section](#{})", anchor.to_lowercase());
    }
    if let Some(only) = field.get("const") {
        return format!("`{}`", plain(only));
    }
    if let Some(words) = field["enum"].as_array() {
        return words.iter().map(|word| format!("`{}`", plain(word))).collect::<Vec<_>>().join(", ");
    }
    if field["oneOf"].is_array() {
        return kind(path, field, schema);
    }
    let names = [&field["type"]].into_iter().chain(field["type"].as_array().into_iter().flatten());
    match names.filter_map(Value::as_str).find(|name| *name != "null") {
        Some("array") => format!("list: {}", kind(&format!("{path}[]"), &field["items"], schema)),
        Some("object") => match &field["additionalProperties"] {
            values if values.is_object() => {
                format!("by name: {}", kind(&format!("{path}.*"), values, schema))
            }
            _ => "mapping".to_owned(),
        },
        Some("integer") => "whole number".to_owned(),
        Some("boolean") => "`true` or `false`".to_owned(),
        Some("string") => "text".to_owned(),
        Some(other) => other.to_owned(),
        None => "anything".to_owned(),
    }
}

/// Texts and numbers that are read further.
fn in_words(field: &Value) -> Option<&'static str> {
    match field["$ref"].as_str()?.rsplit('/').next()? {
        "Count" => Some("whole number above 0"),
        "Span" => Some("length of time"),
        "ListenAddr" => Some("address, or `off`"),
        _ => None,
    }
}
