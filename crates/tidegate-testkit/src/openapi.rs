//! An OpenAPI document, held against what a server really sends.
//!
//! It reads the part of JSON Schema that our documents use, strictly: a field that no schema describes is a mistake, because
//! generated types would lack it.

use serde_json::Value;

use crate::http::Response;

/// The OpenAPI document of a server.
#[derive(Clone, Debug)]
pub struct OpenApi(Value);

impl OpenApi {
    /// A parsed document.
    #[must_use]
    pub fn new(document: Value) -> Self {
        OpenApi(document)
    }

    /// Every path and method, with its operation.
    pub fn operations(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        let paths = self.0["paths"].as_object().into_iter().flatten();
        paths.flat_map(|(path, item)| {
            let methods = item.as_object().into_iter().flatten();
            methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
        })
    }

    /// The value itself, or what it refers to.
    ///
    /// # Panics
    /// The reference leads nowhere.
    #[must_use]
    pub fn resolve<'d>(&'d self, value: &'d Value) -> &'d Value {
        match value["$ref"].as_str() {
            Some(reference) => self.0.pointer(&reference[1..]).expect("the document has what it refers to"),
            None => value,
        }
    }

    /// Checks that the document describes this answer: its status, its media type and each of its fields. Paths and methods
    /// that the document does not have are not checked.
    ///
    /// # Panics
    /// It does not.
    #[track_caller]
    pub fn expect_describes(&self, method: &str, target: &str, answer: &Response) {
        let path = target.split('?').next().unwrap_or_default();
        let is_it = |described: &str| {
            let (described, asked) = (described.split('/'), path.split('/'));
            described.clone().count() == asked.clone().count()
                && described.zip(asked).all(|(part, asked)| part == asked || part.starts_with('{'))
        };
        // A path without parameters is more exact than one with.
        let operation = self
            .operations()
            .filter(|(described, known, _)| known.eq_ignore_ascii_case(method) && is_it(described))
            .min_by_key(|(described, ..)| described.matches('{').count());
        let Some((.., operation)) = operation else { return };
        let at = format!("{method} {path}: {}", answer.status);
        let described = self.resolve(&operation["responses"][answer.status.to_string()]);
        assert!(described.is_object(), "{at} is not described: {}", answer.text());
        let kind = answer.header("content-type").and_then(|kind| kind.split(';').next()).unwrap_or_default();
        if !kind.ends_with("json") {
            return;
        }
        let schema = &described["content"][kind]["schema"];
        assert!(schema.is_object(), "{at} answers {kind}, which is not described");
        self.expect_fits(schema, &answer.json(), &at);
    }

    /// Checks a value against a schema; `at` names the value in the message.
    ///
    /// # Panics
    /// The value does not have the schema.
    #[track_caller]
    pub fn expect_fits(&self, schema: &Value, value: &Value, at: &str) {
        if let Err(misfit) = self.fits(schema, value, at) {
            panic!("{misfit}\nin {value}");
        }
    }

    fn fits(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        self.fits_itself(schema, value, at)?;
        for (name, field) in value.as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            match self.field(schema, name) {
                Some(schema) => self.fits(schema, field, &at)?,
                None if self.is_open(schema) => {}
                None => return Err(format!("{at} is not described")),
            }
        }
        Ok(())
    }

    /// Checks all but the fields: a schema made of parts has those of all of them.
    fn fits_itself(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let schema = self.resolve(schema);
        for part in list(schema, "allOf") {
            self.fits_itself(part, value, at)?;
        }
        for either in ["oneOf", "anyOf"] {
            let mut misfits = list(schema, either).map(|one| self.fits(one, value, at)).peekable();
            if misfits.peek().is_some() && !misfits.any(|fits| fits.is_ok()) {
                return Err(format!("{at} is none of those in {either}"));
            }
        }
        let types = match &schema["type"] {
            Value::String(one) => vec![one.as_str()],
            _ => list(schema, "type").filter_map(Value::as_str).collect(),
        };
        if !types.is_empty() && !types.iter().any(|kind| is_of_type(value, kind)) {
            return Err(format!("{at} is no {types:?}"));
        }
        if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
            return Err(format!("{at} is none of {}", schema["enum"]));
        }
        if schema.get("const").is_some_and(|constant| constant != value) {
            return Err(format!("{at} is not {}", schema["const"]));
        }
        let is_object = value.is_object();
        let mut needed = list(schema, "required").filter_map(Value::as_str);
        if let Some(missing) = needed.find(|name| is_object && value.get(name).is_none()) {
            return Err(format!("{at}.{missing} is missing"));
        }
        for (number, item) in value.as_array().into_iter().flatten().enumerate() {
            self.fits(&schema["items"], item, &format!("{at}[{number}]"))?;
        }
        Ok(())
    }

    /// The schema of a field; `None` if it is not described.
    fn field<'d>(&'d self, schema: &'d Value, name: &str) -> Option<&'d Value> {
        let schema = self.resolve(schema);
        let own = schema["properties"].get(name);
        own.or_else(|| list(schema, "allOf").find_map(|part| self.field(part, name)))
            .or_else(|| schema.get("additionalProperties").filter(|of| of.is_object()))
    }

    /// Whether any field may be there: where the document says so, and where it says nothing of fields, or says it elsewhere.
    fn is_open(&self, schema: &Value) -> bool {
        let schema = self.resolve(schema);
        let parts: Vec<&Value> = list(schema, "allOf").collect();
        schema["additionalProperties"] == true
            || match parts.is_empty() {
                true => schema.get("properties").is_none(),
                false => parts.iter().all(|part| self.is_open(part)),
            }
    }
}

fn list<'s>(schema: &'s Value, name: &str) -> impl Iterator<Item = &'s Value> + use<'s> {
    schema[name].as_array().into_iter().flatten()
}

fn is_of_type(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn misfit(schema: Value, value: &Value) -> Option<String> {
        let named =
            json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
        OpenApi(json!({ "named": named })).fits(&schema, value, "it").err()
    }

    #[test]
    fn field_that_is_wrong_missing_or_not_described_is_named() {
        let named = || json!({ "$ref": "#/named" });
        assert_eq!(misfit(named(), &json!({ "name": "a" })), None);
        assert_eq!(misfit(named(), &json!({ "name": 1 })).unwrap(), r#"it.name is no ["string"]"#);
        assert_eq!(misfit(named(), &json!({})).unwrap(), "it.name is missing");
        assert_eq!(misfit(named(), &json!({ "name": "a", "age": 1 })).unwrap(), "it.age is not described");
        let rows = json!({ "type": "array", "items": named() });
        assert_eq!(misfit(rows, &json!([{ "name": "a" }, {}])).unwrap(), "it[1].name is missing");
    }

    #[test]
    fn parts_are_all_needed_and_alternatives_one_of_them() {
        let age =
            json!({ "type": "object", "properties": { "age": { "type": "integer" } }, "required": ["age"] });
        let both = json!({ "allOf": [{ "$ref": "#/named" }, age] });
        assert_eq!(misfit(both.clone(), &json!({ "name": "a", "age": 1 })), None);
        assert_eq!(misfit(both.clone(), &json!({ "name": "a" })).unwrap(), "it.age is missing");
        assert_eq!(misfit(both, &json!({ "name": "a", "age": 1, "x": 1 })).unwrap(), "it.x is not described");
        let either = json!({ "oneOf": [{ "$ref": "#/named" }, { "type": "null" }] });
        assert_eq!(misfit(either.clone(), &Value::Null), None);
        assert_eq!(misfit(either, &json!(1)).unwrap(), "it is none of those in oneOf");
    }

    #[test]
    fn map_has_any_names_and_values_of_its_schema() {
        let map = || json!({ "type": "object", "additionalProperties": { "type": "string" } });
        assert_eq!(misfit(map(), &json!({ "a": "b" })), None);
        assert_eq!(misfit(map(), &json!({ "a": 1 })).unwrap(), r#"it.a is no ["string"]"#);
    }
}
