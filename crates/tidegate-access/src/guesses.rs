//! Rate-limits wrong passwords by address, with a token bucket.
//!
//! Only wrong passwords count. An address that has used up its bucket is refused without a comparison until the bucket has
//! refilled a little: otherwise guessing could continue, and only its failures would look different.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::Mutex;
use tidegate_core::{Ask, Cell, Limit, Micros, Rate, Timestamp, TokenBucket};

/// The burst of wrong passwords, and the refill interval.
const BURST: u64 = 10;
const ONE_MORE_EVERY: Micros = Micros::from_secs(6);

/// The most addresses remembered. Beyond that, addresses with guesses left are forgotten.
const MOST_PEERS: usize = 16_384;

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

/// Counts wrong passwords by address.
#[derive(Debug)]
pub struct Guesses {
    limit: Limit,
    cells: Mutex<HashMap<PeerGroup, Cell>>,
}

impl Default for Guesses {
    fn default() -> Self {
        let rate = Rate::new(1, ONE_MORE_EVERY).expect("one in six seconds is a rate");
        let bucket = TokenBucket::new(rate, BURST).expect("ten fit a bucket");
        Guesses { limit: Limit::TokenBucket(bucket), cells: Mutex::default() }
    }
}

impl Guesses {
    /// How long `peer` must wait before another password is checked; `None` if it need not.
    #[must_use]
    pub fn wait(&self, peer: PeerGroup, now: Timestamp) -> Option<Micros> {
        let cells = self.cells.lock();
        let cell = cells.get(&peer)?;
        self.limit.look(cell, now, Ask::hits(1)).retry_after()
    }

    /// Records a wrong password; returns whether it used up the bucket of `peer`.
    pub fn wrong(&self, peer: PeerGroup, now: Timestamp) -> bool {
        let mut cells = self.cells.lock();
        if cells.len() >= MOST_PEERS && !cells.contains_key(&peer) {
            self.make_room(&mut cells, now);
        }
        let cell = cells.entry(peer).or_insert(Cell::Vacant);
        self.limit.decide(cell, now, Ask::hits(1));
        !self.limit.look(cell, now, Ask::hits(1)).is_admitted()
    }

    /// Forgets addresses with guesses left, and all of them if that is not enough: half must be free, or the next address
    /// would cause another full scan.
    fn make_room(&self, cells: &mut HashMap<PeerGroup, Cell>, now: Timestamp) {
        cells.retain(|_, cell| !self.limit.look(cell, now, Ask::hits(1)).is_admitted());
        if cells.len() > MOST_PEERS / 2 {
            cells.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn peer(text: &str) -> PeerGroup {
        PeerGroup::of(text.parse().unwrap())
    }

    #[test]
    fn ten_wrong_passwords_use_up_what_an_address_has_and_time_gives_it_back() {
        let guesses = Guesses::default();
        let used_up: Vec<bool> = (0..10).map(|_| guesses.wrong(peer("10.0.0.1"), NOW)).collect();
        assert_eq!(used_up, [[false; 9].as_slice(), &[true]].concat());
        assert_eq!(guesses.wait(peer("10.0.0.1"), NOW), Some(ONE_MORE_EVERY));
        assert_eq!(guesses.wait(peer("10.0.0.2"), NOW), None);
        assert_eq!(guesses.wait(peer("10.0.0.1"), NOW + ONE_MORE_EVERY), None);
    }

    #[test]
    fn addresses_that_one_attacker_has_anyway_share_a_bucket() {
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
    }

    #[test]
    fn many_addresses_take_bounded_memory() {
        let guesses = Guesses::default();
        for number in 0..40_000_u32 {
            guesses.wrong(PeerGroup::of(IpAddr::from(number.to_be_bytes())), NOW);
        }
        assert!(guesses.cells.lock().len() <= MOST_PEERS);
    }
}
