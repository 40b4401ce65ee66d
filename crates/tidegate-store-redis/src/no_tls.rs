//! Replaces TLS in a build without it: a URL that requires TLS is refused.

use tidegate_store::BoxError;
use tokio::net::TcpStream;

use crate::config::{ConfigError, TlsFiles};
use crate::url::Endpoint;

/// Cannot be constructed.
#[derive(Clone)]
pub(crate) enum NoTls {}

pub(crate) use NoTls as Tls;

impl NoTls {
    pub(crate) fn new(_: &TlsFiles) -> Result<Self, ConfigError> {
        Err(ConfigError {
            field: "url",
            problem: "it asks for TLS, which this build does not have".to_owned(),
            hint: "turn on the feature `redis-tls` of tidegate (`tls` of tidegate-store-redis), or use redis://",
        })
    }

    pub(crate) async fn wrap(&self, _: &Endpoint, _: TcpStream) -> Result<TcpStream, BoxError> {
        match *self {}
    }
}
