//! The section `rls`: what Envoy is asked to add to its answers, and the server that may send the limits.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::HeaderName;
use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_server::xds::{self, XdsServer};

use super::config::Rls;
use super::values::Switch;
use crate::failure::Failure;

/// Names of the three headers that envoyproxy/ratelimit asks Envoy to add
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderNames {
    /// Of the limit, such as RateLimit-Limit
    pub(crate) limit: ResponseHeader,
    /// Of what is left, such as RateLimit-Remaining
    pub(crate) remaining: ResponseHeader,
    /// Of the seconds until it resets, such as RateLimit-Reset
    pub(crate) reset: ResponseHeader,
}

/// A header's name.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub(crate) struct ResponseHeader(pub(crate) HeaderName);

impl TryFrom<String> for ResponseHeader {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        HeaderName::from_str(&name)
            .map(ResponseHeader)
            .map_err(|_| format!("`{name}` is no name of a header"))
    }
}

/// A management server that sends the limits over xDS (envoyproxy/ratelimit's GRPC_XDS_SOTW), such as Envoy Gateway
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Xds {
    /// The server, as host:port: envoy-gateway.envoy-gateway-system.svc:18001
    pub(crate) address: String,
    /// The id of the node for which the server has limits: `default` by default
    pub(crate) node_id: Option<String>,
    /// TLS towards the server
    pub(crate) tls: Option<XdsTls>,
    /// Whether plaintext may leave the machine: false by default
    pub(crate) plaintext: Option<Switch>,
}

/// PEM files, relative to the configuration file
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct XdsTls {
    /// The authorities to trust: the machine's by default
    pub(crate) ca: Option<PathBuf>,
    /// The certificate to show
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key
    pub(crate) key: Option<PathBuf>,
    /// The name that the server's certificate must have: the host of `address` by default
    pub(crate) server_name: Option<String>,
}

pub(crate) fn check(rls: &Rls) -> Result<(), Failure> {
    rls.xds.as_ref().map_or(Ok(()), |xds| xds.host().map(drop))
}

impl Xds {
    pub(super) fn resolve_against(&mut self, directory: &Path) {
        let Some(tls) = &mut self.tls else { return };
        for path in [&mut tls.ca, &mut tls.certificate, &mut tls.key].into_iter().flatten() {
            *path = directory.join(&*path);
        }
    }

    /// The host of the address.
    fn host(&self) -> Result<&str, Failure> {
        let bad = |why: &str| Failure::new(format!("rls.xds.address: {why}")).hint("write it as host:port");
        let (host, port) = self.address.rsplit_once(':').ok_or_else(|| bad("it has no port"))?;
        if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(bad("it is no address"));
        }
        let host = host.trim_matches(['[', ']']);
        let is_here =
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if self.tls.is_none() && !is_here && self.plaintext != Some(Switch(true)) {
            return Err(Failure::new(
                "rls.xds: the limits would cross the network in the clear, and unsigned",
            )
            .hint("add `tls: {}`, or say `plaintext: true` where somebody else encrypts"));
        }
        Ok(host)
    }

    /// The server, with its certificates read.
    pub(crate) fn server(&self) -> Result<XdsServer, Failure> {
        let host = self.host()?;
        let tls = self.tls.as_ref().map(|tls| tls.read(host)).transpose()?;
        let node_id = self.node_id.clone().unwrap_or_else(|| "default".to_owned());
        Ok(XdsServer { address: self.address.clone(), node_id, tls })
    }
}

impl XdsTls {
    fn read(&self, host: &str) -> Result<xds::XdsTls, Failure> {
        let bad = |why: String| Failure::new(format!("rls.xds.tls: {why}"));
        let own = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
            _ => return Err(bad("a certificate needs its `key`, and a key its `certificate`".to_owned())),
        };
        let name = self.server_name.as_deref().unwrap_or(host);
        xds::XdsTls::new(self.ca.as_deref(), own, name).map_err(|error| {
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
            bad(format!("{error}{cause}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> String {
        let rls: Rls = serde_saphyr::from_str(text).unwrap();
        check(&rls).map(|()| String::new()).unwrap_or_else(|failure| format!("{failure:?}"))
    }

    #[test]
    fn address_that_cannot_be_used_is_named() {
        for bad in ["host", ":18000", "host:0", "host:99999"] {
            let told = failure(&format!("xds: {{ address: '{bad}', tls: {{}} }}"));
            assert!(told.contains("rls.xds.address"), "{bad}: {told}");
        }
        assert!(failure("xds: { address: 'gateway:18001' }").contains("plaintext: true"));
        assert_eq!(failure("xds: { address: 'gateway:18001', tls: {} }"), "");
        assert_eq!(failure("xds: { address: 'localhost:18000' }"), "");
    }
}
