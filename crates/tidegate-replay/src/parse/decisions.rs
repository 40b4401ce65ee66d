//! The decision log: one JSON object per decision, and per other event that changed limits.

use std::borrow::Cow;

use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::Source;

use super::json::{self, Raw, Walk, quote_or_backslash, unescaped};
use super::time::NO_TIME;
use super::{Also, Attributes, BadLine, Rank, Recorded, Tells};

/// The most requests that one line may stand for: each is decided separately, and no node decides more in a second.
const MOST_WEIGHT: u64 = 10_000_000;

/// The most descriptors read of one request: as many as we write, and some more.
const MOST_ALSO: usize = 64;

/// Parses a line. Almost all are requests with fields in the order in which we write them: a fast path reads those without
/// looking up names. It saves 22 % of the instructions of a whole replay (15,070 a line without it, 11,690 with it).
pub(super) fn read<'a>(line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
    if (InOrder { rest: line }).read(recorded).is_some() {
        return Ok(());
    }
    *recorded = Recorded::default();
    read_in_any_order(line, recorded)
}

fn read_in_any_order<'a>(line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
    let mut seen = Seen::default();
    json::fields(line, |name, walk| seen.field(name, walk, recorded))?;
    let at = seen.at.filter(|at| *at <= Timestamp::MAX.as_micros()).ok_or(NO_TIME)?;
    recorded.at = Timestamp::from_micros(at);
    if let Some(event) = seen.event {
        recorded.tells = seen.tells(event)?;
    }
    match recorded.tells {
        Tells::Released | Tells::Renewed if recorded.own.lease.is_none() => {
            return Err(BadLine("it does not say which lease"));
        }
        Tells::Released | Tells::Renewed | Tells::Penalized => {}
        _ if !seen.has_attributes => return Err(BadLine("it has no attributes")),
        _ => {}
    }
    if seen.unreadable {
        return Err(BadLine("its cost, n or attributes are not as we write them"));
    }
    Ok(())
}

/// The rest of a request line with fields exactly in the order in which we write them.
struct InOrder<'a> {
    rest: &'a [u8],
}

impl<'a> InOrder<'a> {
    /// Parses all of it; `None` if it has anything that we write rarely, or never.
    #[inline]
    fn read(mut self, recorded: &mut Recorded<'a>) -> Option<()> {
        self.skip(b"{\"time_us\":")?;
        recorded.at = self.time()?;
        if self.skip(b",\"decided_us\":").is_some() {
            recorded.own.decided_at = Some(self.time()?);
        }
        recorded.own.nth = self.nth()?;
        self.skip(b",\"domain\":\"")?;
        recorded.domain = Some(Cow::Borrowed(std::str::from_utf8(self.string()?).ok()?));
        self.skip(b",\"rule\":")?;
        if self.skip(b"null").is_none() {
            self.skip(b"\"")?;
            self.string()?;
        }
        self.skip(b",\"verdict\":\"")?;
        let is_admitted = self.skip(b"admitted\"").is_some();
        if !is_admitted {
            self.skip(b"refused\"")?;
        }
        recorded.refused = Some(!is_admitted);
        if self.skip(b",\"limit\":").is_some() {
            self.number()?;
        }
        if self.skip(b",\"remaining\":").is_some() {
            self.number()?;
        }
        if self.skip(b",\"retry_after_ms\":").is_some() {
            self.number()?;
        }
        self.skip(b",\"source\":\"")?;
        recorded.own.source = source(Raw::Text(self.string()?));
        self.skip(b",\"node\":\"")?;
        self.string()?;
        self.skip(b",\"version\":")?;
        recorded.own.version = Some(self.number()?);
        self.skip(b",\"n\":")?;
        let n = self.number().filter(|n| (1..=MOST_WEIGHT).contains(n))?;
        recorded.weight = u32::try_from(n).ok()?;
        self.skip(b",\"cost\":")?;
        recorded.cost = self.number()?;
        self.skip(b",\"answered_in_us\":")?;
        recorded.own.answered_in = Some(Micros::new(self.number()?));
        if self.skip(b",\"lease\":\"").is_some() {
            recorded.own.lease = Some(mark(Raw::Text(self.string()?))?);
        }
        self.skip(b",\"key\":[")?;
        let mut is_over = self.skip(b"]").is_some();
        while !is_over {
            self.skip(b"\"")?;
            self.string()?;
            is_over = self.skip(b",").is_none();
            if is_over {
                self.skip(b"]")?;
            }
        }
        self.skip(b",\"attributes\":{")?;
        let mut is_over = self.skip(b"}").is_some();
        while !is_over {
            self.skip(b"\"")?;
            let name = std::str::from_utf8(self.string()?).ok()?;
            self.skip(b":\"")?;
            recorded.attributes.push((Cow::Borrowed(name), Cow::Borrowed(self.string()?)));
            is_over = self.skip(b",").is_none();
            if is_over {
                self.skip(b"}")?;
            }
        }
        (self.rest == b"}").then_some(())
    }

    #[inline]
    fn skip(&mut self, text: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    #[inline]
    fn time(&mut self) -> Option<Timestamp> {
        self.number().filter(|at| *at <= Timestamp::MAX.as_micros()).map(Timestamp::from_micros)
    }

    /// The position in its store call, if given; `None` if it is unreadable.
    #[inline]
    fn nth(&mut self) -> Option<Option<u32>> {
        if self.skip(b",\"nth\":").is_none() {
            return Some(None);
        }
        self.number().and_then(|nth| u32::try_from(nth).ok()).map(Some)
    }

    /// The rank of a request whose line is read up to its times.
    fn rank(&mut self) -> Option<Rank> {
        let nth = self.nth()?;
        self.skip(b",\"domain\":\"")?;
        self.string()?;
        self.skip(b",\"rule\":")?;
        if self.skip(b"null").is_none() {
            self.skip(b"\"")?;
            self.string()?;
        }
        self.skip(b",\"verdict\":\"")?;
        Some(if self.skip(b"refused\"").is_some() { Rank::refused(nth) } else { Rank::Admitted })
    }

    /// Digits, as many as cannot overflow.
    #[inline]
    fn number(&mut self) -> Option<u64> {
        let (mut number, mut digits) = (0u64, 0);
        while let Some(digit) =
            self.rest.get(digits).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10)
        {
            (number, digits) = (number.wrapping_mul(10).wrapping_add(u64::from(digit)), digits + 1);
        }
        self.rest = &self.rest[digits..];
        (1..=19).contains(&digits).then_some(number)
    }

    /// The rest of a string without escapes, after the opening quote.
    #[inline]
    fn string(&mut self) -> Option<&'a [u8]> {
        let end = quote_or_backslash(self.rest).filter(|end| self.rest[*end] == b'"')?;
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(text)
    }
}

/// Fields of a line that are converted before they go into a [`Recorded`].
#[derive(Default)]
struct Seen<'a> {
    at: Option<u64>,
    event: Option<Raw<'a>>,
    amount: Option<u64>,
    age: Option<u64>,
    has_attributes: bool,
    unreadable: bool,
}

impl<'a> Seen<'a> {
    #[inline]
    fn field(
        &mut self,
        name: &[u8],
        walk: &mut Walk<'a>,
        recorded: &mut Recorded<'a>,
    ) -> Result<(), BadLine> {
        match name {
            b"time_us" => self.at = walk.value()?.integer(),
            b"decided_us" => recorded.own.decided_at = time(walk.value()?),
            b"nth" => recorded.own.nth = walk.value()?.integer().and_then(|nth| nth.try_into().ok()),
            b"domain" => recorded.domain = walk.value()?.text().and_then(text),
            b"cost" => match walk.value()?.integer() {
                Some(cost) => recorded.cost = cost,
                None => self.unreadable = true,
            },
            b"n" => {
                let n = walk.value()?.integer().filter(|n| *n > 0);
                if n.is_some_and(|n| n > MOST_WEIGHT) {
                    return Err(BadLine("it stands for more than 10,000,000 requests"));
                }
                match n.and_then(|n| u32::try_from(n).ok()) {
                    Some(n) => recorded.weight = n,
                    None => self.unreadable = true,
                }
            }
            b"verdict" => recorded.refused = Some(walk.value()? == Raw::Text(b"refused")),
            b"attributes" if walk.is_object() => {
                self.has_attributes = true;
                self.unreadable |= !attributes(walk, &mut recorded.attributes)?;
            }
            b"source" => recorded.own.source = source(walk.value()?),
            b"version" => recorded.own.version = walk.value()?.integer(),
            b"answered_in_us" => recorded.own.answered_in = walk.value()?.integer().map(Micros::new),
            b"lease" => {
                recorded.own.lease = mark(walk.value()?);
                self.unreadable |= recorded.own.lease.is_none();
            }
            _ => return self.rare_field(name, walk, recorded),
        }
        Ok(())
    }

    fn rare_field(
        &mut self,
        name: &[u8],
        walk: &mut Walk<'a>,
        recorded: &mut Recorded<'a>,
    ) -> Result<(), BadLine> {
        let own = &mut recorded.own;
        match name {
            b"under" => own.under = mark(walk.value()?),
            b"event" => self.event = Some(walk.value()?),
            b"amount" => self.amount = walk.value()?.integer(),
            b"age_us" => self.age = walk.value()?.integer(),
            b"waits" => own.must_go_now = walk.value()? == Raw::Bare(b"false"),
            b"incurred" => own.incurred = walk.value()? == Raw::Bare(b"true"),
            b"banned" => own.banned = walk.value()? == Raw::Bare(b"true"),
            b"readings" => own.readings = walk.value()? == Raw::Bare(b"true"),
            b"own_limit" if walk.is_object() => own.limit = own_limit(walk)?,
            b"also_before" => {
                own.also_before = walk.value()?.integer().and_then(|n| n.try_into().ok()).unwrap_or(0)
            }
            b"also_left_out" => own.also_left_out = walk.value()?.integer().unwrap_or(0),
            b"back" => {
                let mut readable = true;
                own.back.clear();
                walk.items(|walk| {
                    let name = walk.value()?.text().and_then(text);
                    readable &= name.is_some() && own.back.len() < MOST_ALSO;
                    own.back.extend(name.filter(|_| readable).map(Cow::into_owned));
                    Ok(())
                })?;
                self.unreadable |= !readable;
            }
            b"also" => {
                let also = &mut own.also;
                also.clear();
                let mut readable = true;
                walk.items(|walk| {
                    if also.len() >= MOST_ALSO {
                        return Err(BadLine("it has more descriptors than we write"));
                    }
                    let (one, whole) = other(walk)?;
                    readable &= whole;
                    also.push(one);
                    Ok(())
                })?;
                self.unreadable |= !readable;
            }
            _ => walk.ignore()?,
        }
        Ok(())
    }

    fn tells(&self, event: Raw<'_>) -> Result<Tells, BadLine> {
        let hits = || self.amount.ok_or(BadLine("it does not say how many hits"));
        let age = self.age.map(Micros::new);
        match event {
            Raw::Text(b"released") => Ok(Tells::Released),
            Raw::Text(b"renewed") => Ok(Tells::Renewed),
            Raw::Text(b"refunded") => Ok(Tells::Refunded(hits()?, age)),
            Raw::Text(b"charged") => Ok(Tells::Charged(hits()?, age)),
            Raw::Text(b"reset") => Ok(Tells::Reset),
            Raw::Text(b"penalized") => Ok(Tells::Penalized),
            _ => Err(BadLine("it tells of an event that this release does not know")),
        }
    }
}

/// Parses attributes; false if one is not as we write it.
fn attributes<'a>(walk: &mut Walk<'a>, into: &mut Attributes<'a>) -> Result<bool, BadLine> {
    let mut readable = true;
    into.clear();
    walk.fields(|name, walk| {
        let pair = unescaped(name).and_then(text).zip(walk.value()?.text());
        readable &= pair.map(|pair| into.push(pair)).is_some();
        Ok(())
    })?;
    Ok(readable)
}

/// Parses another descriptor, and whether it is as we write it.
fn other<'a>(walk: &mut Walk<'a>) -> Result<(Also<'a>, bool), BadLine> {
    let mut also = Also { cost: 1, incurred: false, limit: None, attributes: Attributes::new() };
    let mut readable = true;
    walk.fields(|name, walk| {
        match name {
            b"cost" => readable &= walk.value()?.integer().map(|cost| also.cost = cost).is_some(),
            b"incurred" => also.incurred = walk.value()? == Raw::Bare(b"true"),
            b"own_limit" if walk.is_object() => also.limit = own_limit(walk)?,
            b"attributes" if walk.is_object() => readable &= attributes(walk, &mut also.attributes)?,
            _ => walk.ignore()?,
        }
        Ok(())
    })?;
    Ok((also, readable))
}

fn own_limit(walk: &mut Walk<'_>) -> Result<Option<(u64, Micros)>, BadLine> {
    let (mut limit, mut window) = (None, None);
    walk.fields(|name, walk| {
        match name {
            b"limit" => limit = walk.value()?.integer(),
            b"window_us" => window = walk.value()?.integer().map(Micros::new),
            _ => walk.ignore()?,
        }
        Ok(())
    })?;
    Ok(limit.zip(window))
}

/// A mark as we write it: sixteen hexadecimal digits.
fn mark(raw: Raw<'_>) -> Option<u64> {
    let Raw::Text(text) = raw else { return None };
    let digits = std::str::from_utf8(text).ok().filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

fn time(raw: Raw<'_>) -> Option<Timestamp> {
    let at = raw.integer().filter(|at| *at <= Timestamp::MAX.as_micros());
    at.map(Timestamp::from_micros)
}

fn source(raw: Raw<'_>) -> Option<Source> {
    let Raw::Text(text) = raw else { return None };
    Source::ALL.into_iter().find(|source| source.name().as_bytes() == text)
}

/// The time of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineTime {
    /// By the node's clock.
    pub(crate) noted: u64,
    /// By the store's clock, if the line has it.
    pub(crate) decided: Option<u64>,
}

/// The time of a line. Does not parse the rest if the time comes first, as we write it.
pub(crate) fn time_of(line: &[u8]) -> Option<LineTime> {
    quick_time(&mut InOrder { rest: line }).or_else(|| {
        let (mut noted, mut decided) = (None, None);
        let read = json::fields(line, |name, walk| {
            match name {
                b"time_us" => noted = walk.value()?.integer(),
                b"decided_us" => decided = time(walk.value()?).map(Timestamp::as_micros),
                _ => walk.ignore()?,
            }
            Ok(())
        });
        read.ok().and(noted).map(|noted| LineTime { noted, decided })
    })
}

fn quick_time(line: &mut InOrder<'_>) -> Option<LineTime> {
    line.skip(b"{\"time_us\":")?;
    let noted = line.number()?;
    let decided = match line.skip(b",\"decided_us\":") {
        Some(()) => Some(line.time()?.as_micros()),
        None => None,
    };
    // A torn line may be followed directly by another.
    matches!(line.rest, [b',' | b'}', ..]).then_some(LineTime { noted, decided })
}

/// The rank of a line among those of the same time.
pub(crate) fn rank_of(line: &[u8]) -> Rank {
    let mut in_order = InOrder { rest: line };
    if let Some(LineTime { decided: Some(_), .. }) = quick_time(&mut in_order)
        && let Some(rank) = in_order.rank()
    {
        return rank;
    }
    let mut recorded = Recorded::default();
    read(line, &mut recorded).map_or(Rank::Unknown, |()| recorded.rank())
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

    /// Lines as we write them, and similar ones.
    const WRITTEN: [&str; 5] = [
        r##"{"time_us":1800057600250000,"domain":"api","rule":"per-user","verdict":"refused","limit":100,"remaining":0,"retry_after_ms":18000,"source":"store","node":"gate-1","version":3,"n":1,"cost":1,"answered_in_us":350,"key":["user"],"attributes":{"user":"#b1f3c0de9a417d22","path":"/v1/items"}}"##,
        r#"{"time_us":1,"domain":"a","rule":null,"verdict":"admitted","source":"none","node":"","version":0,"n":7,"cost":0,"answered_in_us":0,"key":[],"attributes":{}}"#,
        r#"{"time_us":12,"domain":"a","rule":"r","verdict":"admitted","limit":1,"remaining":0,"source":"deny_cache","node":"n","version":1,"n":1,"cost":1,"answered_in_us":1,"lease":"00000000000000ff","key":["a","b"],"attributes":{"a":"1"}}"#,
        r#"{"time_us":12,"domain":"a\"b","rule":"r","verdict":"admitted","source":"store","node":"n","version":1,"n":1,"cost":1,"answered_in_us":1,"waits":false,"key":["a"],"attributes":{"a":"1"},"also":[]}"#,
        r#"{"time_us":12,"decided_us":14,"nth":2,"domain":"a","rule":"r","verdict":"refused","limit":1,"remaining":0,"retry_after_ms":9,"source":"deny_cache","node":"n","version":1,"n":1,"cost":1,"answered_in_us":1,"key":["a","b"],"attributes":{"a":"1"}}"#,
    ];

    #[test]
    fn what_we_write_most_is_read_in_order() {
        let in_order = |line: &&str| (InOrder { rest: line.as_bytes() }).read(&mut Recorded::default());
        assert_eq!(WRITTEN.each_ref().map(in_order), [Some(()), Some(()), Some(()), None, Some(())]);
    }

    #[test]
    fn a_line_that_is_read_in_order_says_what_it_says_in_any_whatever_stands_in_it() {
        let instead =
            ["", "0", "\"", "\\", "{", "}", ",", ":", " ", "-", "e", "\u{e9}", "99999999999999999999"];
        let mut in_order = 0;
        for (line, missing) in WRITTEN.iter().flat_map(|line| [0, 1, 2].map(|missing| (line, missing))) {
            for (start, instead) in (0..line.len()).flat_map(|start| instead.map(|text| (start, text))) {
                let mut line = line.as_bytes().to_vec();
                line.splice(start..line.len().min(start + missing), instead.bytes());
                let (mut quick, mut slow) = (Recorded::default(), Recorded::default());
                if (InOrder { rest: &line }).read(&mut quick).is_some() {
                    in_order += 1;
                    let text = String::from_utf8_lossy(&line);
                    assert_eq!(read_in_any_order(&line, &mut slow), Ok(()), "{text}");
                    assert_eq!(format!("{quick:?}"), format!("{slow:?}"), "{text}");
                }
            }
        }
        assert!(in_order > 1_000, "{in_order}");
    }

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
    fn what_a_lease_a_refund_and_several_descriptors_say_is_read() {
        let line = br#"{"time_us":5,"event":"released","lease":"00000000000000ff","node":"a","n":1}"#;
        let recorded = parse(line).unwrap();
        assert_eq!((recorded.tells, recorded.own.lease), (Tells::Released, Some(255)));
        let line = br#"{"time_us":5,"event":"refunded","domain":"api","amount":3,"age_us":70,"attributes":{"user":"a"}}"#;
        assert_eq!(parse(line).unwrap().tells, Tells::Refunded(3, Some(Micros::new(70))));
        let line = br#"{"time_us":5,"verdict":"admitted","source":"deny_cache","version":7,"waits":false,"banned":true,"readings":true,
            "own_limit":{"limit":4,"window_us":9},"attributes":{"a":"1"},
            "also":[{"cost":2,"attributes":{"b":"2"}},{"cost":3,"own_limit":{"limit":1,"window_us":2},"attributes":{}}]}"#;
        let own = parse(line).unwrap().own;
        assert_eq!((own.source, own.version), (Some(Source::DenyCache), Some(7)));
        assert!(own.must_go_now && own.banned && own.readings);
        assert_eq!(own.limit, Some((4, Micros::new(9))));
        let also: Vec<_> =
            own.also.iter().map(|also| (also.cost, also.limit, also.attributes.len())).collect();
        assert_eq!(also, [(2, None, 1), (3, Some((1, Micros::new(2))), 0)]);
    }

    #[test]
    fn events_that_lack_something_or_are_unknown_say_so() {
        let why = |line: &str| parse(line.as_bytes()).unwrap_err().0;
        assert!(why(r#"{"time_us":1,"event":"released"}"#).contains("which lease"));
        assert!(why(r#"{"time_us":1,"event":"released","lease":"xyz"}"#).contains("which lease"));
        assert!(why(r#"{"time_us":1,"event":"refunded","attributes":{}}"#).contains("how many hits"));
        assert!(why(r#"{"time_us":1,"event":"painted","attributes":{}}"#).contains("does not know"));
    }

    #[test]
    fn the_time_of_a_line_is_found_wherever_it_stands() {
        let noted = |noted| Some(LineTime { noted, decided: None });
        assert_eq!(time_of(br#"{"time_us":12,"n":1}"#), noted(12));
        assert_eq!(time_of(br#"{ "n":{"time_us":1}, "time_us" : 13 }"#), noted(13));
        let both = Some(LineTime { noted: 12, decided: Some(15) });
        assert_eq!(time_of(br#"{"time_us":12,"decided_us":15,"n":1}"#), both);
        assert_eq!(time_of(br#"{"decided_us":15,"n":1,"time_us":12}"#), both);
        assert_eq!(time_of(br#"{"time_us":12,"decided_us":"15"}"#), noted(12));
        assert_eq!(time_of(br#"{"time_us":"12"}"#), None);
        assert_eq!(time_of(b"no line"), None);
        // The rest of a torn line, and the next one.
        assert_eq!(time_of(br#"{"time_us":18{"time_us":19}"#), None);
    }

    #[test]
    fn lines_that_lack_something_say_what() {
        assert_eq!(parse(br#"{"domain":"api"}"#).unwrap_err(), NO_TIME);
        assert_eq!(parse(br#"{"time_us":1}"#).unwrap_err().0, "it has no attributes");
        assert!(parse(br#"{"time_us":1,"n":0,"attributes":{}}"#).unwrap_err().0.contains("not as we write"));
    }
}
