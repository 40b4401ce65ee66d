//! The client's address: the peer's, or as far behind it as trusted proxies vouch for.
//!
//! `X-Forwarded-For` grows to the right: each proxy appends the address of its client. So it is read from the right, and
//! everything left of the first address written by an untrusted peer may be forged.

use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;
use http::header::HeaderName;
use ipnet::IpNet;

use super::RequestHead;
use super::error::IdentityError;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The most proxies considered; entries further left are ignored.
const MOST_PROXIES: usize = 64;

/// How the client's address is found, and which addresses count as one client.
#[derive(Debug)]
pub(super) struct ClientIp {
    trust: Trust,
    ipv6_prefix: u8,
}

#[derive(Debug)]
enum Trust {
    /// Proxies at these addresses, and on this machine.
    Networks(Vec<IpNet>),
    /// This many proxies, whatever their addresses.
    Hops(usize),
}

impl ClientIp {
    pub(super) fn new(
        trusted: &[String],
        hops: Option<u8>,
        ipv6_prefix: Option<u8>,
    ) -> Result<Self, IdentityError> {
        let ipv6_prefix = ipv6_prefix.unwrap_or(64);
        if ipv6_prefix > 128 {
            let problem = format!("{ipv6_prefix} is longer than an address");
            return Err(IdentityError::new("ipv6_prefix", problem, "1 to 128 bits; 64 is one household"));
        }
        if ipv6_prefix == 0 {
            let problem = "0 would make every IPv6 client one";
            return Err(IdentityError::new("ipv6_prefix", problem, "1 to 128 bits; 64 is one household"));
        }
        let trust = match hops {
            Some(_) if !trusted.is_empty() => {
                let problem = "cannot be combined with trusted_proxies";
                return Err(IdentityError::new(
                    "hops",
                    problem,
                    "keep trusted_proxies: it cannot be bypassed",
                ));
            }
            Some(hops) => Trust::Hops(usize::from(hops)),
            None => {
                let networks = trusted.iter().enumerate().map(|(at, text)| network(at, text));
                Trust::Networks(networks.collect::<Result<_, _>>()?)
            }
        };
        Ok(ClientIp { trust, ipv6_prefix })
    }

    pub(super) fn trusts(&self, peer: Option<IpAddr>) -> bool {
        match &self.trust {
            Trust::Networks(networks) => peer.is_some_and(|peer| is_trusted(networks, peer.to_canonical())),
            Trust::Hops(hops) => *hops > 0,
        }
    }

    /// The client's address in its one form: IPv4 never as IPv6.
    pub(super) fn of(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        let mut client = head.peer?.to_canonical();
        let mut behind = forwarded_for(head.headers);
        match &self.trust {
            Trust::Networks(networks) => {
                // An unreadable entry ends the walk: the last readable address is held responsible.
                while is_trusted(networks, client)
                    && let Some(Some(next)) = behind.next()
                {
                    client = next;
                }
            }
            Trust::Hops(hops) => {
                for next in behind.take(*hops) {
                    let Some(next) = next else { break };
                    client = next;
                }
            }
        }
        Some(client)
    }

    /// The text that stands for every address of one client. A subscriber has at least a whole IPv6 network to choose
    /// addresses from.
    pub(super) fn group(&self, address: IpAddr) -> String {
        match address.to_canonical() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) if self.ipv6_prefix == 128 => address.to_string(),
            IpAddr::V6(address) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6_prefix));
                format!("{}/{}", Ipv6Addr::from_bits(address.to_bits() & mask), self.ipv6_prefix)
            }
        }
    }
}

fn is_trusted(networks: &[IpNet], address: IpAddr) -> bool {
    address.is_loopback() || networks.iter().any(|network| network.contains(&address))
}

fn network(at: usize, text: &str) -> Result<IpNet, IdentityError> {
    let parsed = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let network: IpNet = parsed.map_err(|_| {
        let field = format!("trusted_proxies[{at}]");
        IdentityError::new(
            field,
            format!("`{text}` is no network"),
            "such as 10.0.0.0/8, fd00::/8 or 192.0.2.1",
        )
    })?;
    // An IPv4 network written as IPv6 would never match: addresses are unified first.
    Ok(match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.addr().to_ipv4_mapped() {
            Some(v4) => IpNet::new(IpAddr::V4(v4), v6.prefix_len() - 96).unwrap_or(network),
            None => network,
        },
        other => other,
    })
}

/// The addresses in `X-Forwarded-For` from the right; `None` for an invalid one.
fn forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).into_iter().rev();
    let entries = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    entries.map(|entry| address(entry.trim_ascii())).take(MOST_PROXIES)
}

/// An address with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    let address: IpAddr = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, _)) => inside.parse().ok()?,
        None => match text.parse() {
            Ok(address) => address,
            Err(_) => text.rsplit_once(':')?.0.parse::<std::net::Ipv4Addr>().ok()?.into(),
        },
    };
    Some(address.to_canonical())
}
