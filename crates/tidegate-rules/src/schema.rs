//! The JSON Schema of our rule format, for editors and linters.
//!
//! It is written by hand, because the explanations that an author of rules needs cannot be derived from the compiler. Tests
//! compare it with the fields and words that the compiler knows; if the two differ in judgement, the compiler is right.

/// The schema, as JSON text.
pub const SCHEMA: &str = include_str!("rules.schema.json");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::SCHEMA;
    use crate::algorithms::{ALGORITHMS, fields_of};
    use crate::native;

    fn schema() -> Value {
        serde_json::from_str(SCHEMA).unwrap()
    }

    fn properties(schema: &Value) -> BTreeSet<&str> {
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect()
    }

    fn words(schema: &Value) -> Vec<&str> {
        schema["enum"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
    }

    #[test]
    fn it_has_the_fields_that_the_compiler_has() {
        let schema = schema();
        let defs = &schema["$defs"];
        assert_eq!(properties(&schema), native::FILE_FIELDS.into());
        assert_eq!(properties(&defs["rule"]), native::RULE_FIELDS.into());
        assert_eq!(properties(&defs["key_override"]), native::KEY_OVERRIDE_FIELDS.into());
        assert_eq!(properties(&defs["experiment"]), native::EXPERIMENT_FIELDS.into());
        assert_eq!(properties(&defs["when"]), native::WHEN_FIELDS.into());
        assert_eq!(properties(&defs["autopilot"]), native::AUTOPILOT_FIELDS.into());
        assert_eq!(properties(&defs["defaults"]), native::DEFAULT_FIELDS.into());
        assert_eq!(properties(&defs["condition"]["anyOf"][1]), native::CONDITION_FIELDS.into());
        for (name, algorithm) in ALGORITHMS {
            let expected = fields_of(algorithm).iter().copied().chain(["algorithm", "name"]).collect();
            assert_eq!(properties(&defs[name]), expected, "{name}");
        }
    }

    #[test]
    fn it_has_the_words_that_the_compiler_has() {
        let schema = schema();
        let rule = &schema["$defs"]["rule"]["properties"];
        assert_eq!(words(&rule["on_missing_key"]), native::ON_MISSING_KEY.map(|(word, _)| word));
        assert_eq!(words(&rule["on_store_failure"]), native::ON_STORE_FAILURE.map(|(word, _)| word));
        assert_eq!(words(&rule["coordination"]), native::COORDINATION.map(|(word, _)| word));
        assert_eq!(words(&rule["scope"]), native::SCOPE.map(|(word, _)| word));
        assert_eq!(words(&rule["consistency"]), native::CONSISTENCY.map(|(word, _)| word));
        assert_eq!(words(&rule["over"]), crate::limits::OVER.map(|(word, _)| word));
        assert_eq!(words(&rule["priority"]), native::PRIORITY.map(|(word, _)| word));
        let calendar = &schema["$defs"]["fixed_window"]["properties"]["window"]["anyOf"][0];
        assert_eq!(words(calendar), crate::calendar::CalendarUnit::NAMES);
    }

    #[test]
    fn every_reference_in_it_leads_somewhere() {
        fn check(value: &Value, defs: &Value) {
            if let Some(name) = value.get("$ref").and_then(Value::as_str) {
                let name = name.strip_prefix("#/$defs/").unwrap();
                assert!(defs.get(name).is_some(), "{name}");
            }
            let items = value.as_array().into_iter().flatten();
            items
                .chain(value.as_object().into_iter().flat_map(|fields| fields.values()))
                .for_each(|one| check(one, defs));
        }
        let schema = schema();
        check(&schema, &schema["$defs"]);
    }
}
