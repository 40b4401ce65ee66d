//! Our own decision log: one JSON object per decision.

use std::borrow::Cow;

use tidegate_core::Timestamp;

use super::json::{self, Raw, unescaped};
use super::time::NO_TIME;
use super::{BadLine, Recorded};

/// The most requests that one line may stand for: each is decided by itself, and a second has no more.
const MOST_WEIGHT: u64 = 10_000_000;

pub(super) fn read<'a>(line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
    let (mut at, mut has_attributes, mut readable) = (None, false, true);
    json::fields(line, |name, walk| {
        match name {
            b"time_us" => at = walk.value()?.integer(),
            b"domain" => recorded.domain = walk.value()?.text().and_then(text),
            b"cost" => readable &= walk.value()?.integer().map(|cost| recorded.cost = cost).is_some(),
            b"n" => {
                let n = walk.value()?.integer().filter(|n| *n > 0);
                if n.is_some_and(|n| n > MOST_WEIGHT) {
                    return Err(BadLine("it stands for more than 10,000,000 requests"));
                }
                let n = n.and_then(|n| u32::try_from(n).ok());
                readable &= n.map(|n| recorded.weight = n).is_some();
            }
            b"verdict" => recorded.refused = Some(walk.value()? == Raw::Text(b"refused")),
            b"attributes" if walk.is_object() => {
                has_attributes = true;
                recorded.attributes.clear();
                walk.fields(|name, walk| {
                    let pair = unescaped(name).and_then(text).zip(walk.value()?.text());
                    readable &= pair.map(|pair| recorded.attributes.push(pair)).is_some();
                    Ok(())
                })?;
            }
            _ => walk.ignore()?,
        }
        Ok(())
    })?;
    let at = at.filter(|at| *at <= Timestamp::MAX.as_micros()).ok_or(NO_TIME)?;
    recorded.at = Timestamp::from_micros(at);
    if !has_attributes {
        return Err(BadLine("it has no attributes"));
    }
    if !readable {
        return Err(BadLine("its cost, n or attributes are not as we write them"));
    }
    Ok(())
}

fn text(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[u8]) -> Result<Recorded<'_>, BadLine> {
        let mut recorded = Recorded::default();
        read(line, &mut recorded).map(|()| recorded)
    }

    #[test]
    fn a_decision_is_read() {
        let line = br##"{"time_us":1800057600250000,"domain":"api","rule":"per-user","verdict":"refused","n":3,"cost":2,"attributes":{"user":"#4f","path":"/v1/\"x"}}"##;
        let recorded = parse(line).unwrap();
        assert_eq!((recorded.at.as_micros(), recorded.weight, recorded.cost), (1_800_057_600_250_000, 3, 2));
        assert_eq!((recorded.domain.as_deref(), recorded.refused), (Some("api"), Some(true)));
        let attributes: Vec<(&str, &[u8])> =
            recorded.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(attributes, [("user", &b"#4f"[..]), ("path", b"/v1/\"x")]);
    }

    #[test]
    fn lines_that_lack_something_say_what() {
        assert_eq!(parse(br#"{"domain":"api"}"#).unwrap_err(), NO_TIME);
        assert_eq!(parse(br#"{"time_us":1}"#).unwrap_err().0, "it has no attributes");
        assert!(parse(br#"{"time_us":1,"n":0,"attributes":{}}"#).unwrap_err().0.contains("not as we write"));
    }
}
