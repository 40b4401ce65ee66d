//! Rate-limits wrong passwords by address, with a token bucket.
//!
//! Only wrong passwords count. An address that has used up its bucket is refused without a comparison until the bucket has
//! refilled a little: otherwise guessing could continue, and only its failures would look different.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use tidegate_core::Micros;

use crate::buckets::Buckets;

/// The burst of wrong passwords, and the refill interval.
const BURST: u64 = 10;
const ONE_MORE_EVERY: Micros = Micros::from_secs(6);

/// Addresses that cost an attacker as little as one: a single IPv4 address, or the /64 of an IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerGroup(IpAddr);

impl PeerGroup {
    /// The group of `address`.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                PeerGroup(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            address => PeerGroup(address),
        }
    }
}

impl fmt::Display for PeerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

/// Counts wrong passwords by address: one of these for each set of secrets, whichever way they are given.
#[derive(Debug)]
pub struct Guesses(Buckets<PeerGroup>);

impl Default for Guesses {
    fn default() -> Self {
        Guesses(Buckets::new(BURST, ONE_MORE_EVERY))
    }
}

impl Guesses {
    /// How long `peer` must wait before another password is checked; `None` if it need not.
    #[must_use]
    pub fn wait(&self, peer: PeerGroup) -> Option<Micros> {
        self.0.wait(&peer)
    }

    /// Records a wrong password; returns whether it used up the bucket of `peer`.
    pub fn wrong(&self, peer: PeerGroup) -> bool {
        self.0.take(peer);
        self.wait(peer).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn peer(text: &str) -> PeerGroup {
        PeerGroup::of(text.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn ten_wrong_passwords_use_up_what_an_address_has_and_time_gives_it_back() {
        let guesses = Guesses::default();
        let used_up: Vec<bool> = (0..10).map(|_| guesses.wrong(peer("10.0.0.1"))).collect();
        assert_eq!(used_up, [[false; 9].as_slice(), &[true]].concat());
        assert_eq!(guesses.wait(peer("10.0.0.1")), Some(ONE_MORE_EVERY));
        assert_eq!(guesses.wait(peer("10.0.0.2")), None);
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(guesses.wait(peer("10.0.0.1")), None);
    }

    #[test]
    fn addresses_that_one_attacker_has_anyway_share_a_bucket() {
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
    }
}
