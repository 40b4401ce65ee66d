//! Verified claims of JSON Web Tokens.
//!
//! Every key has one algorithm, chosen by the configuration and never by the token: so a token cannot ask to be checked with
//! a public key as if that were a secret, nor not to be checked at all. If anything is wrong with a token, its bearer is
//! anonymous: no claim of it is read, and its requests are counted by address.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, HeaderName};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use tidegate_core::{Micros, Timestamp};

use super::config::{self, JwtConfig};
use super::error::IdentityError;
use super::fields::{Bearer, Credential, Credentials};
use super::jwks::{self, JwksError, Key, read_text};
use super::secret::Secret;
use super::{Identity, RequestHead, base64, fields};
use crate::problem::Problem;

/// The longest token: verifying is work that anyone may cause.
const MOST_TOKEN_BYTES: usize = 16 * 1024;
const LEEWAY: Micros = Micros::from_secs(5);

/// The accepted tokens, and their claims.
pub(super) struct Jwt {
    header: HeaderName,
    claims: Vec<(String, String)>,
    issuer: Option<String>,
    audience: Option<String>,
    leeway: Micros,
    algorithms: Option<Vec<Algorithm>>,
    keys: ArcSwap<Vec<Key>>,
    /// The URL of published keys, if any.
    url: Option<String>,
    /// Whether a token named an unknown key.
    unknown_key: AtomicBool,
}

impl Jwt {
    pub(super) fn new(config: &JwtConfig) -> Result<Self, IdentityError> {
        let header = config.header.as_deref().map(|name| config::header("jwt.header", name)).transpose()?;
        let algorithms = algorithms(config)?;
        let (keys, url) = keys(config, algorithms.as_deref())?;
        Ok(Jwt {
            header: header.unwrap_or(AUTHORIZATION),
            claims: config.claims.clone().unwrap_or_default().0,
            issuer: config.issuer.clone(),
            audience: config.audience.clone(),
            leeway: leeway(config)?,
            algorithms,
            keys: ArcSwap::from_pointee(keys),
            unknown_key: AtomicBool::new(url.is_some()),
            url,
        })
    }

    pub(super) fn header(&self) -> &HeaderName {
        &self.header
    }

    /// The claims of the request's token, by the names of their attributes; empty if there is no token.
    ///
    /// A genuine token that only a lenient server would accept (its signature padded or with characters between, another
    /// scheme before it) counts for its bearer, and for its address.
    ///
    /// # Errors
    /// There are two tokens: the server behind may use the other.
    pub(super) fn read(&self, head: &RequestHead<'_>) -> Result<Credentials<Vec<(&str, String)>>, Problem> {
        let Some(Bearer { value, token }) = fields::bearer(head.headers, &self.header)? else {
            return Ok(Credentials::new());
        };
        if let Some(claims) = token.and_then(|token| self.verified(token, head.now)) {
            return Ok(Credentials::from_iter([Credential::Known(self.named(&claims))]));
        }
        let respelled = base64::tokens(value).into_iter().filter(|other| Some(other.as_slice()) != token);
        let genuine = respelled.filter_map(|token| self.verified(&token, head.now));
        let mut claims: Credentials<_> =
            genuine.map(|claims| Credential::Known(self.named(&claims))).collect();
        claims.push(Credential::Unreadable);
        Ok(claims)
    }

    fn named(&self, claims: &Map<String, Value>) -> Vec<(&str, String)> {
        let text = |(attribute, claim)| Some((attribute, text_of(claims, claim)?));
        self.claims
            .iter()
            .map(|(attribute, claim)| (attribute.as_str(), claim.as_str()))
            .filter_map(text)
            .collect()
    }

    /// The attributes that a token would have provided.
    pub(super) fn attributes(&self) -> impl Iterator<Item = &str> {
        self.claims.iter().map(|(attribute, _)| attribute.as_str())
    }

    fn verified(&self, token: &[u8], now: Timestamp) -> Option<Map<String, Value>> {
        if token.len() > MOST_TOKEN_BYTES {
            return None;
        }
        let header = decode_header(token).ok()?;
        if header.crit.is_some() {
            // Critical extensions, none of which are supported.
            return None;
        }
        let keys = self.keys.load();
        let Some(key) = choose(&keys, header.kid.as_deref()) else {
            self.unknown_key.store(true, Ordering::Relaxed);
            return None;
        };
        if header.alg != key.algorithm {
            return None;
        }
        let claims = decode::<Map<String, Value>>(token, &key.key, &signature_alone(key.algorithm)).ok()?;
        self.holds(&claims.claims, now).then_some(claims.claims)
    }

    /// Whether a genuine token is also for us, and valid now.
    fn holds(&self, claims: &Map<String, Value>, now: Timestamp) -> bool {
        let now = now.as_micros() as f64 / 1e6;
        let leeway = self.leeway.get() as f64 / 1e6;
        let time = |name: &str| claims.get(name).map(|value| value.as_f64().unwrap_or(f64::NAN));
        // Written so that a value that is not a number never passes.
        let begun = time("nbf").is_none_or(|begins| begins <= now + leeway);
        let lasts = time("exp").is_none_or(|ends| ends + leeway > now);
        let issuer = self.issuer.as_deref().is_none_or(|issuer| is_or_has(claims.get("iss"), issuer));
        let audience = self.audience.as_deref().is_none_or(|ours| is_or_has(claims.get("aud"), ours));
        begun && lasts && issuer && audience
    }
}

impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt")
            .field("header", &self.header)
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

/// Published keys.
impl Identity {
    /// Where the issuer publishes its keys, if they come from there. Until they are [set](Identity::set_jwks), every bearer
    /// is anonymous.
    #[must_use]
    pub fn jwks_url(&self) -> Option<&str> {
        self.jwt.as_ref()?.url.as_deref()
    }

    /// Whether to fetch keys again: there are none yet, or a token named an unknown one.
    #[must_use]
    pub fn wants_jwks(&self) -> bool {
        self.jwt.as_ref().is_some_and(|jwt| jwt.url.is_some() && jwt.unknown_key.load(Ordering::Relaxed))
    }

    /// Takes over the keys of a JWKS document and returns their number. The old ones stay if it has none.
    ///
    /// # Errors
    /// It is not such a document, or has no usable key.
    pub fn set_jwks(&self, document: &[u8]) -> Result<usize, JwksError> {
        let Some(jwt) = &self.jwt else { return Ok(0) };
        let keys = jwks::parse(document, jwt.algorithms.as_deref())?;
        let count = keys.len();
        jwt.keys.store(keys.into());
        jwt.unknown_key.store(false, Ordering::Relaxed);
        Ok(count)
    }
}

/// The key called `kid`. For a token that names none there must be exactly one key.
fn choose<'k>(keys: &'k [Key], kid: Option<&str>) -> Option<&'k Key> {
    match (kid, keys) {
        (_, [only]) if only.id.is_none() => Some(only),
        (Some(kid), keys) => keys.iter().find(|key| key.id.as_deref() == Some(kid)),
        (None, [only]) => Some(only),
        (None, _) => None,
    }
}

/// Checks only the signature: that library would read the system clock, and our time is a parameter.
fn signature_alone(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

/// A claim by its name, or by its path if no claim has that name.
fn text_of(claims: &Map<String, Value>, name: &str) -> Option<String> {
    let found = claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, step| value.get(step))
    })?;
    match found {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

fn is_or_has(claim: Option<&Value>, ours: &str) -> bool {
    match claim {
        Some(Value::String(text)) => text == ours,
        Some(Value::Array(several)) => several.iter().any(|one| one == ours),
        _ => false,
    }
}

fn leeway(config: &JwtConfig) -> Result<Micros, IdentityError> {
    let Some(text) = &config.leeway else { return Ok(LEEWAY) };
    tidegate_rules::parse_duration(text)
        .map_err(|error| IdentityError::new("jwt.leeway", error, "a duration such as 5s"))
}

fn algorithms(config: &JwtConfig) -> Result<Option<Vec<Algorithm>>, IdentityError> {
    let Some(names) = &config.algorithms else { return Ok(None) };
    let wrong = |problem: String| {
        IdentityError::new("jwt.algorithms", problem, "such as [RS256, ES256], or leave it out")
    };
    if names.is_empty() {
        return Err(wrong("no token could be believed".to_owned()));
    }
    let read = |name: &String| {
        Algorithm::from_str(name).map_err(|_| wrong(format!("`{name}` is no algorithm that can be verified")))
    };
    names.iter().map(read).collect::<Result<_, _>>().map(Some)
}

/// The initial keys, and where to fetch others.
fn keys(
    config: &JwtConfig,
    algorithms: Option<&[Algorithm]>,
) -> Result<(Vec<Key>, Option<String>), IdentityError> {
    const ONE: &str = "give one of jwks, secret and secret_file";
    let unreadable = |field, problem| IdentityError::new(field, problem, "check the path");
    match (&config.jwks, &config.secret, &config.secret_file) {
        (Some(url), None, None) if config::is_url(url) => Ok((Vec::new(), Some(url.clone()))),
        (Some(file), None, None) => {
            let text = read_text(file.as_ref()).map_err(|problem| unreadable("jwt.jwks", problem))?;
            let keys = jwks::parse(text.as_bytes(), algorithms);
            let keys = keys.map_err(|error| IdentityError::new("jwt.jwks", error, "a JSON Web Key Set"))?;
            Ok((keys, None))
        }
        (None, Some(secret), None) => Ok((vec![shared(secret, algorithms)?], None)),
        (None, None, Some(file)) => {
            let text = read_text(file).map_err(|problem| unreadable("jwt.secret_file", problem))?;
            // Editors end a file with a line break that is not part of the secret.
            let secret = Secret::new(text.trim_end_matches(['\r', '\n']));
            Ok((vec![shared(&secret, algorithms)?], None))
        }
        (None, None, None) => Err(IdentityError::new("jwt", "has no key to verify tokens with", ONE)),
        _ => Err(IdentityError::new("jwt", "has more than one source of keys", ONE)),
    }
}

fn shared(secret: &Secret, algorithms: Option<&[Algorithm]>) -> Result<Key, IdentityError> {
    if secret.as_bytes().is_empty() {
        return Err(IdentityError::new("jwt.secret", "is empty", "32 random bytes or more"));
    }
    let algorithm = match algorithms {
        None => Algorithm::HS256,
        Some([one]) if one.family() == AlgorithmFamily::Hmac => *one,
        Some(_) => {
            let hint = "one of [HS256], [HS384] and [HS512] with a shared secret";
            return Err(IdentityError::new("jwt.algorithms", "does not fit a shared secret", hint));
        }
    };
    Ok(Key { id: None, algorithm, key: DecodingKey::from_secret(secret.as_bytes()) })
}
