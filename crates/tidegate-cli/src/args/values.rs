//! Parsers for values that are more than a word or a number.

use std::str::FromStr;
use std::time::Duration;

/// One `key=value` of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl FromStr for Attribute {
    type Err = String;

    /// Splits at the first `=`: a value may hold more of them, a key may not.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text.ends_with(".yaml") || text.ends_with(".yml") => {
                Err(format!("expected key=value, such as user=42; rules are given with --rules {text}"))
            }
            None => Err(format!("expected key=value, such as user=42; `{text}` has no `=`")),
            Some(("", _)) => Err("expected key=value, such as user=42; the key is empty".to_owned()),
            Some((key, value)) => Ok(Attribute { key: key.to_owned(), value: value.to_owned() }),
        }
    }
}

/// Parses a duration in the format of rule files.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let span = tidegate_rules::parse_duration(text);
    let span = span.map_err(|error| format!("{}; {}", error.problem, error.hint))?;
    Ok(span.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_splits_at_the_first_equals_sign() {
        let attribute: Attribute = "token=a=b".parse().unwrap();
        assert_eq!(attribute, Attribute { key: "token".to_owned(), value: "a=b".to_owned() });
    }

    #[test]
    fn an_empty_value_is_a_value_and_an_empty_key_is_not() {
        assert_eq!("user=".parse::<Attribute>().unwrap().value, "");
        assert!("=42".parse::<Attribute>().is_err());
        assert!("user".parse::<Attribute>().is_err());
    }
}
