//! The peer's address, as the server put it into the request.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The peer's address, for a server that has no type of its own for it: put it into the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// The peer's address, from any known server.
#[must_use]
pub fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let ours = extensions.get::<PeerAddr>().map(|peer| peer.0);
    #[cfg(feature = "axum")]
    let ours = ours.or_else(|| {
        let axums = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
        axums.map(|peer| peer.0)
    });
    #[cfg(feature = "tonic")]
    let ours = ours.or_else(|| extensions.get::<tonic::transport::server::TcpConnectInfo>()?.remote_addr());
    ours.map(|address| address.ip())
}
