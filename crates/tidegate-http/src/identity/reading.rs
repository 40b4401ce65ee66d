//! From a head to attributes: read once, in every way that the server behind may read it.
//!
//! Almost every head has one reading. If it has several, rules count it under each; if it has too many, or two of which only
//! one could be counted, it is rejected.

use std::borrow::Cow;

use http::HeaderName;
use smallvec::SmallVec;

use super::attributes::{Attributes, MOST_VALUE_BYTES};
use super::config::names;
use super::fields::{self, Credential};
use super::method::{self, Methods};
use super::path::{GoesOn, NormalPath, PathError};
use super::secret::hash_secret;
use super::{Identity, RequestHead};
use crate::problem::{Kind, Problem};

/// More readings than any honest request has.
pub(super) const MOST_READINGS: usize = 16;

/// An attribute and its value.
type Field<'a> = (&'a str, Cow<'a, [u8]>);
/// An attribute and the hashes of its possible cookies.
type Cookies<'a> = (&'a str, SmallVec<[String; 1]>);

/// The values of a head, before a reading is chosen among alternatives.
struct Said<'a> {
    methods: Methods<'a>,
    path: NormalPath<'a>,
    host: Option<Cow<'a, [u8]>>,
    /// From headers and query parameters: one value each.
    fields: SmallVec<[Field<'a>; 4]>,
    /// The distinct cookies of each name, hashed.
    cookies: SmallVec<[Cookies<'a>; 1]>,
    claims: Credential<Vec<(&'a str, String)>>,
    api_key: Credential<String>,
    ip: Option<String>,
}

impl Identity {
    /// All attributes of `head`, normalised, in every reading.
    ///
    /// # Errors
    /// The server behind may read it in a way that cannot be counted, or a value is too long to be matched whole.
    pub fn attributes<'a>(&'a self, head: &RequestHead<'a>) -> Result<Attributes<'a>, Problem> {
        let said = self.said(head)?;
        let count = said.readings();
        if count > MOST_READINGS {
            return Err(Problem::new(Kind::MalformedRequest, "the request can be read in too many ways")
                .hint("send each thing once, and paths without `;`, `%2F` and final dots"));
        }
        let mut attributes = self.reading(&said, 0);
        attributes.others = (1..count).map(|number| self.reading(&said, number)).collect();
        attributes.path = said.path;
        Ok(attributes)
    }

    fn said<'a>(&'a self, head: &RequestHead<'a>) -> Result<Said<'a>, Problem> {
        let methods = method::readings(head)?;
        let path = NormalPath::read(head.uri.path(), self.path_case, head.goes_on).map_err(refused_path)?;
        if path.matching() == "*" && head.method != http::Method::OPTIONS {
            return Err(Problem::new(Kind::MalformedRequest, "only OPTIONS asks about `*`").at("path"));
        }
        self.refuse_aliases(head)?;
        let mut fields = SmallVec::new();
        for (name, header) in &self.headers {
            if let Some(value) = fields::single(head.headers, header)? {
                fields.push((name.as_str(), whole(header.as_str(), Cow::Borrowed(value))?));
            }
        }
        for (name, parameter) in &self.query {
            if let Some(value) = fields::query(head.uri, parameter)? {
                fields.push((name.as_str(), whole("query", value)?));
            }
        }
        let cookies = self.cookies.iter().map(|(name, cookie)| (name.as_str(), cookie_hashes(head, cookie)));
        #[cfg(feature = "jwt")]
        let claims = self.jwt.as_ref().map_or(Ok(Credential::Absent), |jwt| jwt.read(head))?;
        #[cfg(not(feature = "jwt"))]
        let claims = Credential::Absent;
        let api_key = match &self.api_key {
            Some(header) => match fields::credential(head.headers, header)? {
                Credential::Known(key) => Credential::Known(hash_secret(key)),
                Credential::Unreadable => Credential::Unreadable,
                Credential::Absent => Credential::Absent,
            },
            None => Credential::Absent,
        };
        let ip = self.client_ip.of(head).map(|address| self.client_ip.group(address));
        fields::single(head.headers, &http::header::HOST)?;
        let host = fields::host(head);
        Ok(Said { methods, path, host, fields, cookies: cookies.collect(), claims, api_key, ip })
    }

    /// `X_Tenant` is `X-Tenant` to CGI and its descendants. A surface that forwards requests itself drops such names; if
    /// another program forwards them, it is unknown what happens.
    fn refuse_aliases(&self, head: &RequestHead<'_>) -> Result<(), Problem> {
        if head.goes_on == GoesOn::Normalised {
            return Ok(());
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        for name in head.headers.keys().filter(|name| !name.as_str().bytes().all(plain)) {
            let dashed = name.as_str().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
            if HeaderName::try_from(&dashed).is_ok_and(|dashed| self.reads(&dashed)) {
                let detail = format!("{name} and {dashed} are one header to many servers");
                return Err(Problem::new(Kind::MalformedRequest, detail).at(name.as_str()));
            }
        }
        Ok(())
    }

    /// The reading with this number.
    fn reading<'a>(&'a self, said: &Said<'a>, number: usize) -> Attributes<'a> {
        let mut choice = Choice(number);
        let mut attributes = Attributes::new();
        attributes.push(names::METHOD, said.methods[choice.of(said.methods.len())].clone());
        if let Some(host) = &said.host {
            attributes.push(names::HOST, host.clone());
        }
        match choice.of(said.path.readings().count()) {
            0 => {
                self.routes.read(said.path.matching(), &mut attributes);
                attributes.push(names::PATH, said.path.matching_bytes());
            }
            other => {
                let path = said.path.readings().nth(other).expect("a reading that was counted");
                self.routes.read(path, &mut attributes);
                attributes.push(names::PATH, path.as_bytes().to_vec());
            }
        }
        for (name, value) in &said.fields {
            attributes.push(*name, value.clone());
        }
        for (name, values) in &said.cookies {
            if !values.is_empty() {
                attributes.push(*name, values[choice.of(values.len())].clone().into_bytes());
            }
        }
        self.push_who(said, &mut attributes);
        for (name, parts) in &self.composites {
            attributes.push_composite(name, parts);
        }
        attributes
    }

    /// Claims, API key, address, and the best of them.
    fn push_who<'a>(&'a self, said: &Said<'a>, attributes: &mut Attributes<'a>) {
        if let Credential::Known(claims) = &said.claims {
            for (attribute, value) in claims {
                attributes.push(*attribute, value.clone().into_bytes());
            }
        }
        if let Credential::Known(key) = &said.api_key {
            attributes.push(names::API_KEY, key.clone().into_bytes());
        }
        if let Some(ip) = &said.ip {
            attributes.push(names::IP, ip.clone().into_bytes());
        }
        let best = self.client.iter().find_map(|name| Some((name, attributes.get(name)?)));
        if let Some((name, value)) = best {
            // No name contains `=`, so no two clients have the same text.
            let client = [name.as_bytes(), b"=", value].concat();
            attributes.push(names::CLIENT, client);
        }
        self.push_anonymous(said, attributes);
    }

    /// A credential that is unreadable here may be valid for the server behind. So it must not lift a limit that counts by
    /// the attributes it would have provided: there the request counts by its address.
    fn push_anonymous<'a>(&'a self, said: &Said<'a>, attributes: &mut Attributes<'a>) {
        // No text begins with this byte, so it never equals a claim or a key.
        let anonymous = || [b"\xff", said.ip.as_deref().unwrap_or("unknown").as_bytes()].concat();
        #[cfg(feature = "jwt")]
        if said.claims == Credential::Unreadable {
            let names = self.jwt.iter().flat_map(super::jwt::Jwt::attributes);
            names.for_each(|name| attributes.push(name, anonymous()));
        }
        if said.api_key == Credential::Unreadable {
            attributes.push(names::API_KEY, anonymous());
        }
    }
}

impl Said<'_> {
    fn readings(&self) -> usize {
        let cookies = self.cookies.iter().map(|(_, values)| values.len().max(1)).product::<usize>();
        self.methods.len() * self.path.readings().count() * cookies
    }
}

/// A number that is decomposed into one choice after the other.
struct Choice(usize);

impl Choice {
    fn of(&mut self, choices: usize) -> usize {
        let chosen = self.0 % choices;
        self.0 /= choices;
        chosen
    }
}

/// The distinct cookies of this name, hashed. A session cookie opens the session, so it must not be stored, like a password.
fn cookie_hashes(head: &RequestHead<'_>, name: &str) -> SmallVec<[String; 1]> {
    fields::cookies(head.headers, name).iter().map(hash_secret).collect()
}

fn whole<'a>(field: &str, value: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, Problem> {
    if value.len() <= MOST_VALUE_BYTES {
        return Ok(value);
    }
    let kind = if field == "query" { Kind::TargetTooLong } else { Kind::HeaderTooLarge };
    Err(Problem::new(kind, format!("a value of more than {MOST_VALUE_BYTES} bytes is not read")).at(field))
}

fn refused_path(error: PathError) -> Problem {
    let (kind, hint) = match error {
        PathError::TooLong => (Kind::TargetTooLong, "put into the body what is long"),
        PathError::Dots => (Kind::MalformedRequest, "send it without `..`"),
        PathError::Escape => (Kind::MalformedRequest, "write `%` as %25"),
        PathError::Backslash | PathError::Control | PathError::Overlong => {
            (Kind::MalformedRequest, "send it without")
        }
    };
    Problem::new(kind, error.to_string()).at("path").hint(hint)
}
