//! Warns of data-plane listeners that other machines reach and that take requests from anybody.

use std::net::SocketAddr;

use crate::settings::Settings;

/// Warns of each listener that is not on loopback and asks for neither a token, a password nor a certificate.
pub(super) fn warn(settings: &Settings, has_tokens: bool) {
    let (tls, resp) = (&settings.tls, &settings.resp_section);
    let has_users = resp.password.is_some() || resp.users.as_ref().is_some_and(|users| !users.is_empty());
    let listeners = [
        ("http", settings.http, has_tokens || tls.http.as_ref().is_some_and(|tls| tls.client_ca.is_some())),
        ("grpc", settings.grpc, has_tokens || tls.grpc.as_ref().is_some_and(|tls| tls.client_ca.is_some())),
        ("resp", settings.resp, has_users || tls.resp.as_ref().is_some_and(|tls| tls.client_ca.is_some())),
    ];
    for (listener, address) in open(listeners) {
        tracing::warn!(
            listener,
            %address,
            "everybody who reaches this listener may spend and give back quota: set access.tokens (resp.password for \
             RESP) or client_ca, or keep it behind a firewall"
        );
    }
}

/// The listeners that other machines may reach, of name, address and whether callers must identify themselves.
fn open(listeners: [(&'static str, Option<SocketAddr>, bool); 3]) -> Vec<(&'static str, SocketAddr)> {
    let reached = listeners.into_iter().filter_map(|(name, address, is_guarded)| {
        address.filter(|address| !is_guarded && !address.ip().is_loopback()).map(|address| (name, address))
    });
    reached.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_that_others_reach_and_anybody_may_use_are_open() {
        let at = |text: &str| Some(text.parse().unwrap());
        let listeners = [
            ("http", at("0.0.0.0:8080"), false),
            ("grpc", at("127.0.0.1:8081"), false),
            ("resp", at("[::]:6380"), true),
        ];
        assert_eq!(open(listeners), [("http", "0.0.0.0:8080".parse().unwrap())]);
        assert_eq!(
            open([("http", None, false), ("grpc", None, false), ("resp", at("192.0.2.1:1"), false)]).len(),
            1
        );
    }
}
