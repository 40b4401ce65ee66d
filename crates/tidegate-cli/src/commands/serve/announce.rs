//! The stdout of `serve`: one line per listener for programs, and for a newcomer what to try.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Writes `listening NAME ADDRESS` for each.
pub(super) fn listeners(out: &mut impl Write, listeners: &[(&'static str, SocketAddr)]) -> io::Result<()> {
    for (name, address) in listeners {
        writeln!(out, "listening {name} {address}")?;
    }
    out.flush()
}

/// Says that the starter rules apply, and how to try them.
pub(super) fn starter(out: &mut impl Write, http: Option<SocketAddr>) -> io::Result<()> {
    writeln!(
        out,
        "\nNo rules were given, so the starter rules apply: 100 requests a minute for each user, and more."
    )?;
    if let Some(http) = http {
        let address = reachable(http);
        writeln!(
            out,
            "Try one:\n\n  curl -s http://{address}/v1/check -H 'content-type: application/json' \
             -d '{{\"domain\":\"api\",\"attributes\":{{\"user\":\"42\"}}}}'\n"
        )?;
    }
    writeln!(out, "Your own rules: in the dashboard, or tidegate serve --rules FILE")?;
    out.flush()
}

/// An address at which a local client reaches a listener that may be bound to all networks.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_networks_is_reached_on_this_machine() {
        let reachable = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(reachable("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reachable("[::]:80"), "[::1]:80");
        assert_eq!(reachable("192.0.2.1:80"), "192.0.2.1:80");
    }
}
