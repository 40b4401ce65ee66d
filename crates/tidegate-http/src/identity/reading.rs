//! From a head to attributes: read once, in every way that the server behind may read it.
//!
//! Almost every head has one reading. If it has several, rules count it under each; if it has too many, or two of which only
//! one could be counted, it is rejected.

use std::borrow::Cow;

use http::HeaderName;
use smallvec::SmallVec;

use super::attributes::{Attributes, MOST_VALUE_BYTES};
use super::config::names;
use super::fields::{self, Credential, Credentials};
use super::method::{self, Methods};
use super::path::{ForwardedPath, NormalPath, PathError};
use super::secret::hash_secret;
use super::spellings::Alternatives;
use super::{Identity, RequestHead};
use crate::problem::{Kind, Problem};

/// More readings than any honest request has.
pub(super) const MOST_READINGS: usize = 16;

/// An attribute and its possible values.
type Field<'a> = (&'a str, Alternatives<'a>);
/// Attributes of claims, and their values.
type NamedClaims<'a> = Vec<(&'a str, String)>;

/// The values of a head, before a reading is chosen among alternatives.
struct Said<'a> {
    methods: Methods<'a>,
    path: NormalPath<'a>,
    host: Option<Cow<'a, [u8]>>,
    /// From headers, query parameters and cookies: only those that were sent.
    fields: SmallVec<[Field<'a>; 4]>,
    claims: Credentials<NamedClaims<'a>>,
    /// Hashed.
    api_key: Credentials<String>,
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
        let path =
            NormalPath::read(head.uri.path(), self.path_case, head.forwarded_path).map_err(refused_path)?;
        if path.matching() == "*" && head.method != http::Method::OPTIONS {
            return Err(Problem::new(Kind::MalformedRequest, "only OPTIONS asks about `*`").at("path"));
        }
        self.refuse_aliases(head)?;
        let fields = self.fields(head)?;
        #[cfg(feature = "jwt")]
        let claims = self.jwt.as_ref().map_or(Ok(Credentials::new()), |jwt| jwt.read(head))?;
        #[cfg(not(feature = "jwt"))]
        let claims = Credentials::new();
        let api_key = match &self.api_key {
            Some(header) => fields::credential(head.headers, header)?.into_iter().map(hashed_key).collect(),
            None => Credentials::new(),
        };
        let ip = self.client_ip.of(head).map(|address| self.client_ip.group(address));
        fields::single(head.headers, &http::header::HOST)?;
        let host = fields::host(head);
        Ok(Said { methods, path, host, fields, claims, api_key, ip })
    }

    /// The configured headers, query parameters and cookies.
    fn fields<'a>(&'a self, head: &RequestHead<'a>) -> Result<SmallVec<[Field<'a>; 4]>, Problem> {
        let mut fields: SmallVec<[Field<'a>; 4]> = SmallVec::new();
        for (name, header) in &self.headers {
            fields.push((name.as_str(), whole(header.as_str(), fields::trimmed(head.headers, header)?)?));
        }
        for (name, parameter) in &self.query {
            fields.push((name.as_str(), whole("query", fields::query(head.uri, parameter)?)?));
        }
        for (name, cookie) in &self.cookies {
            // A session cookie opens the session, so it must not be stored, like a password.
            let hashed = |value: Cow<'_, [u8]>| Cow::Owned(hash_secret(&value).into_bytes());
            fields.push((name.as_str(), fields::cookies(head.headers, cookie).map(hashed)));
        }
        fields.retain(|(_, values)| !values.is_empty());
        Ok(fields)
    }

    /// `X_Tenant` is `X-Tenant` to CGI and its descendants. A surface that forwards requests itself drops such names; if
    /// another program forwards them, it is unknown what happens.
    fn refuse_aliases(&self, head: &RequestHead<'_>) -> Result<(), Problem> {
        if head.forwarded_path == ForwardedPath::Normalised {
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
        for (name, values) in &said.fields {
            attributes.push(*name, values.get(choice.of(values.len())).clone());
        }
        let claims = choice.among(&said.claims);
        let api_key = choice.among(&said.api_key);
        self.push_who(claims, api_key, said.ip.as_deref(), &mut attributes);
        for (name, parts) in &self.composites {
            attributes.push_composite(name, parts);
        }
        attributes
    }

    /// Claims, API key, address, and the best of them.
    fn push_who<'a>(
        &'a self,
        claims: Option<&Credential<NamedClaims<'a>>>,
        api_key: Option<&Credential<String>>,
        ip: Option<&str>,
        attributes: &mut Attributes<'a>,
    ) {
        if let Some(Credential::Known(claims)) = claims {
            for (attribute, value) in claims {
                attributes.push(*attribute, value.clone().into_bytes());
            }
        }
        if let Some(Credential::Known(key)) = api_key {
            attributes.push(names::API_KEY, key.clone().into_bytes());
        }
        if let Some(ip) = ip {
            attributes.push(names::IP, ip.to_owned().into_bytes());
        }
        let best = self.client.iter().find_map(|name| Some((name, attributes.get(name)?)));
        if let Some((name, value)) = best {
            // No name contains `=`, so no two clients have the same text.
            let client = [name.as_bytes(), b"=", value].concat();
            attributes.push(names::CLIENT, client);
        }
        // A credential that is unreadable here may be valid for the server behind. So it must not lift a limit that counts
        // by the attributes it would have provided: there the request counts by its address. No text begins with this byte,
        // so it never equals a claim or a key.
        let anonymous = || [b"\xff", ip.unwrap_or("unknown").as_bytes()].concat();
        #[cfg(feature = "jwt")]
        if claims == Some(&Credential::Unreadable) {
            let names = self.jwt.iter().flat_map(super::jwt::Jwt::attributes);
            names.for_each(|name| attributes.push(name, anonymous()));
        }
        if api_key == Some(&Credential::Unreadable) {
            attributes.push(names::API_KEY, anonymous());
        }
    }
}

impl Said<'_> {
    fn readings(&self) -> usize {
        let fields = self.fields.iter().map(|(_, values)| values.len());
        let credentials = [self.claims.len(), self.api_key.len()].map(|count| count.max(1));
        let counts = fields.chain(credentials).chain([self.methods.len(), self.path.readings().count()]);
        counts.fold(1, usize::saturating_mul)
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

    fn among<'t, T>(&mut self, choices: &'t [T]) -> Option<&'t T> {
        if choices.is_empty() { None } else { Some(&choices[self.of(choices.len())]) }
    }
}

fn hashed_key(key: Credential<Cow<'_, [u8]>>) -> Credential<String> {
    match key {
        Credential::Known(key) => Credential::Known(hash_secret(&key)),
        Credential::Unreadable => Credential::Unreadable,
    }
}

fn whole<'a>(field: &str, values: Alternatives<'a>) -> Result<Alternatives<'a>, Problem> {
    if values.iter().all(|value| value.len() <= MOST_VALUE_BYTES) {
        return Ok(values);
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
