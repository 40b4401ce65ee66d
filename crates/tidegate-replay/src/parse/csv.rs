//! Comma-separated values; the caller says which column is what.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::time::{AnyTime, NO_TIME};
use super::{BadLine, Recorded, Value};

/// The meaning of each column, by its index.
#[derive(Debug)]
pub(super) struct Columns {
    time: usize,
    cost: Option<usize>,
    attributes: Vec<(String, usize)>,
    times: AnyTime,
}

impl Columns {
    pub(super) fn new(header: &[u8], mapping: &[(String, String)]) -> Result<Self, String> {
        let header = split(header).map_err(|bad| format!("the header cannot be read: {bad}"))?;
        let names: Vec<String> =
            header.iter().map(|name| String::from_utf8_lossy(name.trim_ascii()).into_owned()).collect();
        let place = |column: &str| {
            let known = names.iter().position(|name| name == column);
            known
                .ok_or_else(|| format!("there is no column `{column}`; the columns are {}", names.join(", ")))
        };
        let mut columns = Columns { time: 0, cost: None, attributes: Vec::new(), times: AnyTime::default() };
        let mut time = None;
        for (number, (what, column)) in mapping.iter().enumerate() {
            if mapping[..number].iter().any(|(other, _)| other == what) {
                return Err(format!("`{what}` is mapped twice"));
            }
            match what.as_str() {
                "time" => time = Some(place(column)?),
                "cost" => columns.cost = Some(place(column)?),
                _ => columns.attributes.push((what.clone(), place(column)?)),
            }
        }
        columns.time = time.ok_or("say which column is the time: --map time=COLUMN")?;
        Ok(columns)
    }

    pub(super) fn read<'a>(&'a mut self, line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
        let values = split(line)?;
        let time = values.get(self.time).ok_or(NO_TIME)?;
        recorded.at = self.times.read(time.trim_ascii()).ok_or(NO_TIME)?;
        if let Some(cost) = self.cost {
            let text = values.get(cost).map(|value| value.trim_ascii());
            let cost = text.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            recorded.cost = cost.ok_or(BadLine("its cost is not a whole number"))?;
        }
        for (name, place) in &self.attributes {
            let value = values.get(*place).ok_or(BadLine("it has fewer columns than the header"))?;
            if !value.is_empty() {
                recorded.attributes.push((Cow::Borrowed(name), value.clone()));
            }
        }
        Ok(())
    }
}

/// The values of a line. A quoted value may contain commas, and doubled quotes; line breaks are not supported.
fn split(line: &[u8]) -> Result<SmallVec<[Value<'_>; 12]>, BadLine> {
    const UNCLOSED: BadLine = BadLine("a quoted value is not closed on its line");
    let mut values = SmallVec::new();
    let mut rest = line;
    loop {
        let (value, after) = match rest.strip_prefix(b"\"") {
            Some(quoted) => unquote(quoted).ok_or(UNCLOSED)?,
            None => {
                let end = memchr::memchr(b',', rest).unwrap_or(rest.len());
                (Cow::Borrowed(&rest[..end]), &rest[end..])
            }
        };
        values.push(value);
        match after.split_first() {
            None => return Ok(values),
            Some((b',', after)) => rest = after,
            Some(_) => return Err(BadLine("something follows a quoted value")),
        }
    }
}

fn unquote(text: &[u8]) -> Option<(Value<'_>, &[u8])> {
    let mut value: Value<'_> = Cow::Borrowed(&[]);
    let mut rest = text;
    loop {
        let end = memchr::memchr(b'"', rest)?;
        let (part, after) = (&rest[..end], &rest[end + 1..]);
        let doubled = after.first() == Some(&b'"');
        if value.is_empty() && !doubled {
            value = Cow::Borrowed(part);
        } else {
            value.to_mut().extend_from_slice(part);
        }
        if !doubled {
            return Some((value, after));
        }
        value.to_mut().push(b'"');
        rest = &after[1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(what, column)| ((*what).to_owned(), (*column).to_owned())).collect()
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let map = mapping(&[("time", "when"), ("user", "who"), ("cost", "tokens")]);
        let mut columns = Columns::new(b"who,when,other,tokens", &map).unwrap();
        let mut recorded = Recorded::default();
        columns.read(b"\"a \"\"b\"\", c\",2027-01-16T00:00:00Z,x,250", &mut recorded).unwrap();
        assert_eq!((recorded.at.as_micros(), recorded.cost), (1_800_057_600_000_000, 250));
        assert_eq!(
            recorded.attributes.as_slice(),
            [(Cow::Borrowed("user"), Cow::Borrowed(&b"a \"b\", c"[..]))]
        );
    }

    #[test]
    fn a_column_that_is_not_there_and_a_missing_time_are_named() {
        let error = Columns::new(b"a,b", &mapping(&[("time", "c")])).unwrap_err();
        assert_eq!(error, "there is no column `c`; the columns are a, b");
        assert!(Columns::new(b"a,b", &mapping(&[("user", "a")])).unwrap_err().contains("--map time="));
        let twice = Columns::new(b"a,b", &mapping(&[("time", "a"), ("time", "b")])).unwrap_err();
        assert_eq!(twice, "`time` is mapped twice");
    }

    #[test]
    fn broken_lines_say_why() {
        let mut columns = Columns::new(b"t,u", &mapping(&[("time", "t"), ("user", "u")])).unwrap();
        let mut why = |line: &[u8]| columns.read(line, &mut Recorded::default()).unwrap_err().0;
        assert_eq!(why(b"yesterday,x"), NO_TIME.0);
        assert_eq!(why(b"1800057600"), "it has fewer columns than the header");
        assert_eq!(why(b"1800057600,\"x"), "a quoted value is not closed on its line");
        assert_eq!(why(b"1800057600,\"x\"y"), "something follows a quoted value");
    }
}
