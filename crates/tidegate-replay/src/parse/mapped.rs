//! JSON lines of any shape; the caller says which field is what.

use std::borrow::Cow;

use super::json::{self, Raw, Walk};
use super::time::{AnyTime, NO_TIME};
use super::{BadLine, Recorded, Value};

/// The meaning of each mapped field.
#[derive(Debug)]
pub(super) struct Fields {
    mapped: Vec<(Meaning, Vec<u8>)>,
    times: AnyTime,
}

#[derive(Debug)]
enum Meaning {
    Time,
    Cost,
    Attribute(String),
}

impl Fields {
    /// `mapping` gives the field of each attribute, `time` and `cost`; `a.b` is field `b` of the object in `a`.
    pub(super) fn new(mapping: &[(String, String)]) -> Result<Self, String> {
        for (number, (what, _)) in mapping.iter().enumerate() {
            if mapping[..number].iter().any(|(other, _)| other == what) {
                return Err(format!("`{what}` is mapped twice"));
            }
        }
        if !mapping.iter().any(|(what, _)| what == "time") {
            return Err("say which field is the time: --map time=FIELD".to_owned());
        }
        let meaning = |what: &str| match what {
            "time" => Meaning::Time,
            "cost" => Meaning::Cost,
            _ => Meaning::Attribute(what.to_owned()),
        };
        let mapped = mapping.iter().map(|(what, field)| (meaning(what), field.as_bytes().to_vec()));
        Ok(Fields { mapped: mapped.collect(), times: AnyTime::default() })
    }

    pub(super) fn read<'a>(&'a mut self, line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
        let mut found: Vec<Option<Raw<'a>>> = vec![None; self.mapped.len()];
        let paths: Vec<&[u8]> = self.mapped.iter().map(|(_, path)| path.as_slice()).collect();
        json::fields(line, |name, walk| look(&paths, &mut found, &mut Vec::new(), name, walk))?;
        let mut at = None;
        for ((meaning, _), value) in self.mapped.iter().zip(found) {
            let value: Option<Value<'a>> = value.and_then(Raw::scalar);
            match (meaning, value) {
                (Meaning::Time, Some(value)) => at = self.times.read(value.trim_ascii()),
                (Meaning::Cost, value) => {
                    let text = value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
                    let cost = text.and_then(|text| text.trim().parse().ok());
                    recorded.cost = cost.ok_or(BadLine("its cost is not a whole number"))?;
                }
                (Meaning::Attribute(name), Some(value)) if !value.is_empty() => {
                    recorded.attributes.push((Cow::Borrowed(name), value));
                }
                (Meaning::Time | Meaning::Attribute(_), _) => {}
            }
        }
        recorded.at = at.ok_or(NO_TIME)?;
        Ok(())
    }
}

/// Takes the value of a field if it is mapped, or looks into it if a mapped one is inside. A name that itself has dots is
/// found as it is.
fn look<'a>(
    paths: &[&[u8]],
    found: &mut [Option<Raw<'a>>],
    above: &mut Vec<u8>,
    name: &'a [u8],
    walk: &mut Walk<'a>,
) -> Result<(), BadLine> {
    let length = above.len();
    above.extend_from_slice(name);
    let is_above =
        |path: &&[u8]| path.strip_prefix(above.as_slice()).is_some_and(|rest| rest.starts_with(b"."));
    let read = if paths.contains(&above.as_slice()) {
        walk.value().map(|value| {
            for (place, _) in paths.iter().enumerate().filter(|(_, path)| **path == above.as_slice()) {
                found[place] = Some(value);
            }
        })
    } else if paths.iter().any(is_above) && walk.is_object() {
        above.push(b'.');
        walk.fields(|name, walk| look(paths, found, above, name, walk))
    } else {
        walk.ignore()
    };
    above.truncate(length);
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(what, field)| ((*what).to_owned(), (*field).to_owned())).collect()
    }

    #[test]
    fn fields_are_found_by_their_names_and_inside_others() {
        let map = mapping(&[
            ("time", "ts"),
            ("user", "who.id"),
            ("path", "req.uri.path"),
            ("cost", "n"),
            ("x", "a.b"),
        ]);
        let mut fields = Fields::new(&map).unwrap();
        let line = br#"{"who":{"name":"A","id":42},"ts":"2027-01-16T00:00:00Z","n":3,"req":{"uri":{"path":"/v1"}},"a.b":"dots","z":[1,{}]}"#;
        let mut recorded = Recorded::default();
        fields.read(line, &mut recorded).unwrap();
        assert_eq!((recorded.at.as_micros(), recorded.cost), (1_800_057_600_000_000, 3));
        let found: Vec<(&str, &[u8])> =
            recorded.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(found, [("user", &b"42"[..]), ("path", b"/v1"), ("x", b"dots")]);
    }

    #[test]
    fn broken_lines_say_why() {
        let mut fields = Fields::new(&mapping(&[("time", "t"), ("user", "u"), ("cost", "c")])).unwrap();
        let mut why = |line: &[u8]| fields.read(line, &mut Recorded::default()).unwrap_err().0;
        assert_eq!(why(br#"{"u":"x","c":1}"#), NO_TIME.0);
        assert_eq!(why(br#"{"t":1800057600,"u":"x","c":"many"}"#), "its cost is not a whole number");
        assert_eq!(why(br#"{"t":1800057600,"u":"x""#), "it is not a JSON object");
        assert!(Fields::new(&mapping(&[("user", "u")])).unwrap_err().contains("--map time="));
        assert_eq!(
            Fields::new(&mapping(&[("time", "a"), ("time", "b")])).unwrap_err(),
            "`time` is mapped twice"
        );
    }
}
