//! From a line of a log to a request and its time.
//!
//! Every format yields the same attributes, with the names of the server's identity: `ip`, `method`, `path`, `host`, and
//! `user` if the log has one. Paths are normalised, and IPv6 addresses grouped by /64, as the server does by default.

mod access;
mod combined;
mod csv;
mod decisions;
mod json;
mod mapped;
mod time;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::net::{IpAddr, Ipv6Addr};

use smallvec::SmallVec;
use tidegate_core::{Micros, Timestamp};
use tidegate_http::identity::{ForwardedPath, NormalPath, PathCase};
use tidegate_limiter::Source;

pub(crate) use decisions::{LineTime, rank_of, time_of};
pub(crate) use time::civil;

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// tidegate's decision log.
    Tidegate,
    /// nginx's and Apache's combined (or common) format.
    Combined,
    /// Envoy's JSON access log, with the field names that Istio uses too.
    Envoy,
    /// Caddy's JSON access log.
    Caddy,
    /// Comma-separated values; needs a mapping of columns.
    Csv,
    /// JSON lines of any shape; needs a mapping of fields.
    Json,
}

impl Format {
    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Tidegate => "tidegate",
            Format::Combined => "combined",
            Format::Envoy => "envoy",
            Format::Caddy => "caddy",
            Format::Csv => "csv",
            Format::Json => "json",
        }
    }

    /// Guesses the format of a line. CSV is never guessed, because it needs a mapping of columns.
    ///
    /// # Errors
    /// The line is in none of the other formats.
    pub fn of(line: &[u8]) -> Result<Format, UnknownFormat> {
        if line.first() != Some(&b'{') {
            let read = combined::Combined::default().read(line, &mut Recorded::default());
            return read.map(|()| Format::Combined).map_err(|_| UnknownFormat);
        }
        let (mut timed, mut ours, mut caddy, mut envoy) = (false, false, false, false);
        let read = json::fields(line, |name, walk| {
            timed |= name == b"time_us";
            ours |= name == b"verdict" || name == b"event";
            caddy |= name == b"request";
            envoy |= name == b"start_time";
            walk.ignore()
        });
        match (read, ours && timed, caddy, envoy) {
            (Ok(()), true, _, _) => Ok(Format::Tidegate),
            (Ok(()), _, true, _) => Ok(Format::Caddy),
            (Ok(()), _, _, true) => Ok(Format::Envoy),
            _ => Err(UnknownFormat),
        }
    }
}

/// A log in no known format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log is in none of the formats tidegate, combined, envoy and caddy")]
pub struct UnknownFormat;

/// Names and values.
pub type Attributes<'a> = SmallVec<[(Cow<'a, str>, Cow<'a, [u8]>); 6]>;

/// A recorded request; or, in the decision log, another event that changed limits.
#[derive(Clone, Debug)]
pub struct Recorded<'a> {
    /// When it came, by the clock of the log's writer.
    pub at: Timestamp,
    /// What the line records.
    pub tells: Tells,
    /// Its domain, if the log says so.
    pub domain: Option<Cow<'a, str>>,
    /// Its logged attributes.
    pub attributes: Attributes<'a>,
    /// The hits that it spends.
    pub cost: u64,
    /// The number of requests that the line stands for, if the log is a sample.
    pub weight: u32,
    /// Whether it was refused at the time, if the log says so.
    pub refused: Option<bool>,
    /// How long it took, if the log says so.
    pub took: Option<Micros>,
    /// Fields of the decision log only.
    pub own: Own<'a>,
}

/// What a line records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tells {
    /// A request.
    #[default]
    Request,
    /// Released leases.
    Released,
    /// Renewed leases.
    Renewed,
    /// Refunded hits, and how long before they were spent.
    Refunded(u64, Option<Micros>),
    /// Hits charged after the fact, and how long before they were spent.
    Charged(u64, Option<Micros>),
    /// Cells restored to their full quota.
    Reset,
    /// The start of a penalty, in older logs.
    Penalized,
}

/// The order of lines with the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rank {
    /// Releases, renewals, refunds and resets.
    GivesBack,
    /// An admitted request.
    Admitted,
    /// A line without a store time: these keep their order.
    Unknown,
    /// A refused request, by its position in the store call, or refused from a deny cache.
    Refused(u32),
    /// Penalties and charges, which follow a refusal or come after the fact.
    Takes,
}

impl Rank {
    fn refused(nth: Option<u32>) -> Self {
        Rank::Refused(nth.unwrap_or(u32::MAX))
    }
}

/// Fields of a request that only the decision log has.
#[derive(Clone, Debug, Default)]
pub struct Own<'a> {
    /// When the store decided it, by the store's clock.
    pub decided_at: Option<Timestamp>,
    /// The position among several requests that one store call decided at the same time.
    pub nth: Option<u32>,
    /// How long the answer took. It was decided, or done, at most half of that before or after the line's time.
    pub answered_in: Option<Micros>,
    /// The mark of the lease that it took, or that was released or renewed.
    pub lease: Option<u64>,
    /// The mark of the only limit whose lease was released.
    pub under: Option<u64>,
    /// Whether the caller could not be asked to wait.
    pub must_go_now: bool,
    /// Whether its cost was incurred before it was known.
    pub incurred: bool,
    /// The limit that came with the request, and its window.
    pub limit: Option<(u64, Micros)>,
    /// Its other descriptors.
    pub also: Vec<Also<'a>>,
    /// How many of them precede the descriptor of this line.
    pub also_before: usize,
    /// The number of further descriptors left out.
    pub also_left_out: u64,
    /// Whether its descriptors are alternative readings of one request.
    pub readings: bool,
    /// What decided it at the time.
    pub source: Option<Source>,
    /// The version of the rules at the time.
    pub version: Option<u64>,
    /// Whether a ban refused it.
    pub banned: bool,
    /// Limits that had already regained the hits by their own refill, and got none.
    pub back: Vec<String>,
}

/// A further descriptor of a request.
#[derive(Clone, Debug)]
pub struct Also<'a> {
    /// The hits that it spends.
    pub cost: u64,
    /// Whether its cost was incurred before it was known.
    pub incurred: bool,
    /// The limit that came with it, and its window.
    pub limit: Option<(u64, Micros)>,
    /// Its logged attributes.
    pub attributes: Attributes<'a>,
}

impl<'a> Recorded<'a> {
    /// A request at this time, with all other fields empty.
    #[must_use]
    pub fn at(at: Timestamp) -> Self {
        Recorded {
            at,
            tells: Tells::Request,
            domain: None,
            attributes: SmallVec::new(),
            cost: 1,
            weight: 1,
            refused: None,
            took: None,
            own: Own::default(),
        }
    }

    /// When to replay it: when the store decided it or, if unknown, when it came.
    #[must_use]
    pub fn when(&self) -> Timestamp {
        self.own.decided_at.unwrap_or(self.at)
    }

    /// Its order among lines of the same [time](Recorded::when). Requests of one store call were decided at one moment, in
    /// which cells only fill: so admissions come before refusals. Refusals may count, so they keep their order.
    #[must_use]
    pub fn rank(&self) -> Rank {
        match (self.own.decided_at, self.tells) {
            (None, _) => Rank::Unknown,
            (_, Tells::Released | Tells::Renewed | Tells::Refunded(..) | Tells::Reset) => Rank::GivesBack,
            (_, Tells::Charged(..) | Tells::Penalized) => Rank::Takes,
            (_, Tells::Request) if self.refused == Some(true) => Rank::refused(self.own.nth),
            (_, Tells::Request) => Rank::Admitted,
        }
    }

    /// The cost of the descriptor at this index.
    pub(crate) fn cost_of(&self, descriptor: usize) -> u64 {
        self.also_at(descriptor).map_or(self.cost, |also| also.cost)
    }

    /// The value of an attribute in the descriptor at this index.
    pub(crate) fn attribute(&self, descriptor: usize, name: &str) -> Option<&[u8]> {
        let attributes = self.also_at(descriptor).map_or(&self.attributes, |also| &also.attributes);
        attributes.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// The further descriptor at this index; `None` if it is the one that the line is about.
    fn also_at(&self, descriptor: usize) -> Option<&Also<'a>> {
        let before = self.own.also_before.min(self.own.also.len());
        match descriptor.cmp(&before) {
            Ordering::Less => self.own.also.get(descriptor),
            Ordering::Equal => None,
            Ordering::Greater => self.own.also.get(descriptor - 1),
        }
    }

    /// Copies what it borrows from its line.
    pub(crate) fn into_owned(self) -> Recorded<'static> {
        let Recorded { at, tells, domain, attributes, cost, weight, refused, took, own } = self;
        let also = |also: Also<'_>| Also { attributes: owned(also.attributes), ..also };
        let own = Own { also: own.also.into_iter().map(also).collect(), ..own };
        let domain = domain.map(|domain| Cow::Owned(domain.into_owned()));
        Recorded { at, tells, domain, attributes: owned(attributes), cost, weight, refused, took, own }
    }
}

fn owned(attributes: Attributes<'_>) -> Attributes<'static> {
    let owned = |(name, value): (Cow<'_, str>, Cow<'_, [u8]>)| {
        (Cow::Owned(name.into_owned()), Cow::Owned(value.into_owned()))
    };
    attributes.into_iter().map(owned).collect()
}

impl Default for Recorded<'_> {
    /// A request with all fields empty, even the time.
    fn default() -> Self {
        Recorded::at(Timestamp::default())
    }
}

/// Parses a line of the decision log.
///
/// # Errors
/// It is not one.
pub fn decision_line(line: &[u8]) -> Result<Recorded<'_>, BadLine> {
    read(|recorded| decisions::read(line, recorded))
}

fn read<'a>(fill: impl FnOnce(&mut Recorded<'a>) -> Result<(), BadLine>) -> Result<Recorded<'a>, BadLine> {
    let mut recorded = Recorded::default();
    fill(&mut recorded).map(|()| recorded)
}

/// Why a line could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct BadLine(pub &'static str);

/// Parses lines of one format.
#[derive(Debug)]
pub struct Parser(Kind);

#[derive(Debug)]
enum Kind {
    Tidegate,
    Combined(Box<combined::Combined>),
    Envoy(Box<access::Envoy>),
    Caddy,
    Csv(csv::Columns),
    Json(mapped::Fields),
}

impl Parser {
    /// A parser for any format that needs no mapping.
    #[must_use]
    pub fn new(format: Format) -> Option<Parser> {
        let kind = match format {
            Format::Tidegate => Kind::Tidegate,
            Format::Combined => Kind::Combined(Box::default()),
            Format::Envoy => Kind::Envoy(Box::default()),
            Format::Caddy => Kind::Caddy,
            Format::Csv | Format::Json => return None,
        };
        Some(Parser(kind))
    }

    /// A parser for CSV with this header line. `mapping` gives the column of each attribute and of `time`; other columns are
    /// ignored.
    ///
    /// # Errors
    /// The header lacks a column, or `mapping` has no `time`.
    pub fn csv(header: &[u8], mapping: &[(String, String)]) -> Result<Parser, String> {
        csv::Columns::new(header, mapping).map(|columns| Parser(Kind::Csv(columns)))
    }

    /// A parser for JSON lines. `mapping` gives the field of each attribute and of `time`, `a.b` for one inside another.
    ///
    /// # Errors
    /// `mapping` has no `time`.
    pub fn json(mapping: &[(String, String)]) -> Result<Parser, String> {
        mapped::Fields::new(mapping).map(|fields| Parser(Kind::Json(fields)))
    }

    /// Its format.
    #[must_use]
    pub fn format(&self) -> Format {
        match self.0 {
            Kind::Tidegate => Format::Tidegate,
            Kind::Combined(_) => Format::Combined,
            Kind::Envoy(_) => Format::Envoy,
            Kind::Caddy => Format::Caddy,
            Kind::Csv(_) => Format::Csv,
            Kind::Json(_) => Format::Json,
        }
    }

    /// Parses a line.
    ///
    /// # Errors
    /// It is not in the format, or has no time.
    pub fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Recorded<'a>, BadLine> {
        read(|recorded| self.read(line, recorded))
    }

    /// Parses a line into an empty `recorded`: it is large, so it is filled in place.
    pub(crate) fn read<'a>(&'a mut self, line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
        match &mut self.0 {
            Kind::Tidegate => decisions::read(line, recorded),
            Kind::Combined(combined) => combined.read(line, recorded),
            Kind::Envoy(envoy) => envoy.read(line, recorded),
            Kind::Caddy => access::read_caddy(line, recorded),
            Kind::Csv(columns) => columns.read(line, recorded),
            Kind::Json(fields) => fields.read(line, recorded),
        }
    }
}

type Value<'a> = Cow<'a, [u8]>;

/// The path of a request target, as rules see it.
fn path(target: Value<'_>) -> Value<'_> {
    // Almost all are, and this check is much faster than normalising.
    if let Cow::Borrowed(target) = target
        && let Some(path) = normal_path(target)
    {
        return Cow::Borrowed(path);
    }
    let end = memchr::memchr2(b'?', b'#', &target).unwrap_or(target.len());
    let path = match target {
        Cow::Borrowed(target) => Cow::Borrowed(&target[..end]),
        Cow::Owned(mut target) => {
            target.truncate(end);
            Cow::Owned(target)
        }
    };
    let normal = std::str::from_utf8(&path).ok();
    let normal =
        normal.and_then(|path| NormalPath::read(path, PathCase::Insensitive, ForwardedPath::AsWritten).ok());
    let normal = normal.map(|normal| normal.matching().as_bytes().to_vec());
    normal.map_or(path, Cow::Owned)
}

/// The path of a target if it is certainly normalised: no empty segments or unusual encodings.
fn normal_path(target: &[u8]) -> Option<&[u8]> {
    let (mut last, mut end) = (b'.', target.len());
    for (place, byte) in target.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => {}
            b'/' if last != b'/' => {}
            b'?' | b'#' => {
                end = place;
                break;
            }
            _ => return None,
        }
        last = *byte;
    }
    (target.first() == Some(&b'/') && last != b'/').then(|| &target[..end])
}

/// An address as the server writes it to `ip`: without a port, IPv6 by its /64.
fn address(text: &[u8]) -> Option<Value<'_>> {
    // The usual case.
    if let Some(bare) = ipv4(text) {
        return Some(Cow::Borrowed(bare));
    }
    let text = std::str::from_utf8(text).ok()?;
    let bare = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None if text.bytes().filter(|byte| *byte == b':').count() == 1 => text.split_once(':')?.0,
        None => text,
    };
    let address: IpAddr = bare.parse().ok()?;
    Some(Cow::Owned(match address.to_canonical() {
        IpAddr::V4(address) => address.to_string().into_bytes(),
        IpAddr::V6(address) => {
            let network = Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64));
            format!("{network}/64").into_bytes()
        }
    }))
}

/// An IPv4 address in its usual form, without a port that may follow; `None` otherwise.
fn ipv4(text: &[u8]) -> Option<&[u8]> {
    let (mut points, mut digits, mut number, mut end) = (0, 0, 0, text.len());
    for (place, byte) in text.iter().enumerate() {
        match byte {
            // Only 0 itself starts with 0.
            b'0'..=b'9' if digits == 0 || number > 0 => {
                (digits, number) = (digits + 1, number * 10 + u32::from(byte - b'0'));
                if number > 255 {
                    return None;
                }
            }
            b'.' if digits > 0 => (points, digits, number) = (points + 1, 0, 0),
            b':' if !text[place + 1..].contains(&b':') => {
                end = place;
                break;
            }
            _ => return None,
        }
    }
    (points == 3 && digits > 0).then(|| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_told_by_a_line() {
        let of = |line: &str| Format::of(line.as_bytes()).map(Format::name);
        assert_eq!(
            of(r#"203.0.113.7 - - [16/Nov/2026:02:30:16 +0000] "GET / HTTP/1.1" 200 12 "-" "curl""#),
            Ok("combined")
        );
        assert_eq!(of(r#"{"level":"info","ts":1.5,"request":{"method":"GET"},"status":200}"#), Ok("caddy"));
        assert_eq!(of(r#"{"start_time":"2026-11-16T02:30:16.123Z","method":"GET","path":"/"}"#), Ok("envoy"));
        assert_eq!(of(r#"{"time_us":1,"domain":"api","verdict":"refused"}"#), Ok("tidegate"));
        // Other formats have fields with these names, too.
        assert_eq!(of(r#"{"event":"served","ts":1.5,"request":{"method":"GET"}}"#), Ok("caddy"));
        assert_eq!(of(r#"{"event":"served","start_time":"2026-11-16T02:30:16Z"}"#), Ok("envoy"));
        assert_eq!(of("a,b,c"), Err(UnknownFormat));
        assert_eq!(of(r#"{"hello":"#), Err(UnknownFormat));
    }

    #[test]
    fn paths_are_those_that_rules_see() {
        let path =
            |target: &str| String::from_utf8(path(Cow::Borrowed(target.as_bytes())).into_owned()).unwrap();
        assert_eq!(path("/v1/items?id=3"), "/v1/items");
        assert_eq!(path("//V1/%69tems/"), "/v1/items");
        assert_eq!(path("/"), "/");
        assert_eq!(path("*"), "*");
        assert_eq!(path("/a\\b"), "/a\\b", "what the server would refuse stays as it is");
    }

    #[test]
    fn addresses_are_those_that_rules_see() {
        let address =
            |text: &str| address(text.as_bytes()).map(|ip| String::from_utf8(ip.into_owned()).unwrap());
        assert_eq!(address("203.0.113.7").as_deref(), Some("203.0.113.7"));
        assert_eq!(address("203.0.113.7:4711").as_deref(), Some("203.0.113.7"));
        assert_eq!(address("2001:db8:1:2:3::4").as_deref(), Some("2001:db8:1:2::/64"));
        assert_eq!(address("[2001:db8::1]:443").as_deref(), Some("2001:db8::/64"));
        assert_eq!(address("::ffff:203.0.113.7").as_deref(), Some("203.0.113.7"));
        assert_eq!(address("example.com"), None);
        assert_eq!(address("203.0.113.256"), None);
        assert_eq!(address("203.0.113.07"), None);
    }
}
