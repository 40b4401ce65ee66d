//! Access to listeners: TLS, tokens and users, and their validation.
//!
//! Files are read when the server starts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_access::{Offers, SecretDigest, ServerTls, TlsFiles, TokenSource};
use tidegate_server::resp::Users;

use super::values::Secret;
use crate::failure::Failure;

/// TLS towards clients, listener by listener: the proxy's stands under `proxy`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListenerTls {
    /// HTTP/JSON: in the clear by default
    pub(crate) http: Option<ServerFiles>,
    /// gRPC: in the clear by default
    pub(crate) grpc: Option<ServerFiles>,
    /// The Redis protocol: in the clear by default
    pub(crate) resp: Option<ServerFiles>,
    /// Metrics and administration: in the clear by default
    pub(crate) admin: Option<ServerFiles>,
}

/// PEM files, relative to the configuration file. They are read again on SIGHUP, and when they change
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerFiles {
    /// The certificate, with those between it and its authority
    pub(crate) certificate: PathBuf,
    /// Its private key
    pub(crate) key: PathBuf,
    /// The authorities that must have signed a client's certificate (mTLS): clients need none by default
    pub(crate) client_ca: Option<PathBuf>,
}

/// Client tokens: at least 16 characters, or `sha256:` and the digest of one
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tokens {
    /// Accepted tokens: several, so that they can be replaced one after the other
    pub(crate) tokens: Option<Vec<Secret>>,
    /// A file with a token on each line, relative to the configuration file. It is read again on SIGHUP, and when it changes
    pub(crate) tokens_file: Option<PathBuf>,
}

/// A user of the Redis protocol
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RespUser {
    /// What stands before the password in `AUTH name password`; `default` where none does
    name: String,
    /// Any of these will do; each may be `sha256:` and the digest of one
    passwords: Vec<Secret>,
}

impl ListenerTls {
    /// A relative path is relative to the configuration file.
    pub(super) fn resolve_against(&mut self, directory: &Path) {
        let all = [&mut self.http, &mut self.grpc, &mut self.resp, &mut self.admin];
        all.into_iter().flatten().for_each(|files| files.resolve_against(directory));
    }
}

impl ServerFiles {
    pub(super) fn resolve_against(&mut self, directory: &Path) {
        for path in [&mut self.certificate, &mut self.key].into_iter().chain(&mut self.client_ca) {
            *path = directory.join(&*path);
        }
    }

    /// Reads the files; `field` is where they were given.
    pub(crate) fn load(&self, field: &str, offers: Offers) -> Result<Arc<ServerTls>, Failure> {
        let ServerFiles { certificate, key, client_ca } = self.clone();
        let loaded = ServerTls::load(TlsFiles { certificate, key, client_ca }, offers);
        loaded.map(Arc::new).map_err(|error| {
            Failure::new(format!("{field}: {}", with_causes(&error)))
                .hint("certificates, authorities and keys are PEM files")
        })
    }
}

impl Tokens {
    pub(super) fn resolve_against(&mut self, directory: &Path) {
        self.tokens_file.iter_mut().for_each(|path| *path = directory.join(&*path));
    }

    /// Whether no token is needed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens_file.is_none() && self.tokens.as_ref().is_none_or(Vec::is_empty)
    }

    /// Reads the file; `field` is where the tokens were given. `None` if no token is needed.
    pub(crate) fn load(&self, field: &str) -> Result<Option<Arc<TokenSource>>, Failure> {
        if self.is_empty() {
            return Ok(None);
        }
        let given = self.tokens.iter().flatten().map(|token| token.reveal().to_owned()).collect();
        let loaded = TokenSource::load(given, self.tokens_file.clone());
        loaded.map(|tokens| Some(Arc::new(tokens))).map_err(|error| {
            Failure::new(format!("{field}: {}", with_causes(&error)))
                .hint("make one with `openssl rand -hex 32`; `printf %s TOKEN | sha256sum` is its digest")
        })
    }
}

/// The users of the Redis protocol: the section's users, and the one that `password` stands for.
pub(crate) fn resp_users(password: Option<&Secret>, users: &[RespUser]) -> Result<Users, Failure> {
    let digest = |field: &str, secret: &Secret| {
        SecretDigest::read(secret.reveal()).map_err(|error| Failure::new(format!("{field}: {error}")))
    };
    let mut all = Users::default();
    if let Some(password) = password {
        all = all.with("default", vec![digest("resp.password", password)?]);
    }
    for user in users {
        if user.passwords.is_empty() || user.name.is_empty() {
            return Err(Failure::new("resp.users: each has a name and at least one password"));
        }
        let digests = user.passwords.iter().map(|secret| digest("resp.users", secret));
        all = all.with(&user.name, digests.collect::<Result<_, _>>()?);
    }
    Ok(all)
}

/// A client of the admin listener can read metrics and change rules: beyond loopback it must be authenticated.
pub(crate) fn check_admin(
    address: Option<SocketAddr>,
    tls: Option<&ServerFiles>,
    tokens: &Tokens,
) -> Result<(), Failure> {
    let is_open = address.is_some_and(|address| !address.ip().is_loopback());
    let knows_callers = !tokens.is_empty() || tls.is_some_and(|files| files.client_ca.is_some());
    if is_open && !knows_callers {
        return Err(Failure::new("listen.admin: beyond this machine it needs to know who asks")
            .hint("give `admin.tokens` or `admin.tokens_file`, or `tls.admin` with a `client_ca`")
            .hint("or keep it on 127.0.0.1"));
    }
    Ok(())
}

/// An error with all its causes.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        why = format!("{why}: {error}");
        cause = error.source();
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        text.parse().unwrap()
    }

    #[test]
    fn an_admin_listener_beyond_loopback_needs_a_token_or_certificates() {
        let files = |client_ca: Option<&str>| ServerFiles {
            certificate: "c".into(),
            key: "k".into(),
            client_ca: client_ca.map(PathBuf::from),
        };
        let token = Tokens { tokens: Some(vec![secret("0123456789abcdef")]), ..Tokens::default() };
        let none = Tokens::default();
        let at = |address: &str| Some(address.parse().unwrap());
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            assert!(check_admin(at(open), None, &none).is_err(), "{open}");
            assert!(check_admin(at(open), Some(&files(None)), &none).is_err(), "{open}");
            assert!(check_admin(at(open), Some(&files(Some("ca"))), &none).is_ok(), "{open}");
            assert!(check_admin(at(open), None, &token).is_ok(), "{open}");
        }
        assert!(check_admin(at("127.0.0.1:1"), None, &none).is_ok());
        assert!(check_admin(at("[::1]:1"), None, &none).is_ok());
        assert!(check_admin(None, None, &none).is_ok());
    }

    #[test]
    fn a_token_that_cannot_be_used_is_not_repeated() {
        let short = Tokens { tokens: Some(vec![secret("hunter2")]), ..Tokens::default() };
        let failure = format!("{:?}", short.load("access.tokens").unwrap_err());
        assert!(failure.contains("at least 16") && !failure.contains("hunter2"), "{failure}");
        let users = [RespUser { name: "a".to_owned(), passwords: vec![secret("sha256:hunter2")] }];
        let failure = format!("{:?}", resp_users(None, &users).unwrap_err());
        assert!(failure.contains("64 hexadecimal") && !failure.contains("hunter2"), "{failure}");
    }
}
