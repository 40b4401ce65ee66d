//! Maps tags to independent servers, for stores that are spread over several.
//!
//! Rendezvous hashing: each server gets a score for the tag, and the highest score wins. Removing one of N moves only its
//! own tags; adding one moves about 1/N of all tags, all to it. The order of the list does not matter, the names do.

use siphasher::sip::SipHasher13;

/// Independent servers, each with its part of all tags.
#[derive(Debug)]
pub struct Servers(Box<[u64]>);

impl Servers {
    /// Servers by their names, which all nodes must write alike.
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        // A fixed hash key: all limiters must agree, across versions.
        Servers(names.map(|name| hash(name.as_bytes())).collect())
    }

    /// The list index of the server that holds `tag`.
    #[must_use]
    pub fn of(&self, tag: &[u8]) -> usize {
        let tag = hash(tag);
        let draws = self.0.iter().map(|server| mixed(tag ^ server));
        let highest = draws.enumerate().max_by_key(|(_, draw)| *draw);
        highest.map_or(0, |(place, _)| place)
    }
}

fn hash(bytes: &[u8]) -> u64 {
    SipHasher13::new_with_keys(0, 0).hash(bytes)
}

/// Mixes every bit into all others (the SplitMix64 finaliser).
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: u32 = 100_000;

    fn names(ports: std::ops::Range<u16>) -> Vec<String> {
        ports.map(|port| format!("127.0.0.1:{port}")).collect()
    }

    fn servers(names: &[String]) -> Servers {
        Servers::new(names.iter().map(String::as_str))
    }

    fn tags() -> impl Iterator<Item = [u8; 4]> {
        (0..TAGS).map(u32::to_be_bytes)
    }

    #[test]
    fn tags_are_spread_evenly() {
        let shards = servers(&names(7000..7005));
        let mut counts = [0_u32; 5];
        tags().for_each(|tag| counts[shards.of(&tag)] += 1);
        for count in counts {
            assert!(count.abs_diff(TAGS / 5) < TAGS / 100, "{counts:?}");
        }
    }

    #[test]
    fn a_server_that_is_added_takes_its_share_and_moves_nothing_else() {
        let (five, six) = (servers(&names(7000..7005)), servers(&names(7000..7006)));
        let mut moved = 0;
        for tag in tags() {
            let (before, after) = (five.of(&tag), six.of(&tag));
            assert!(after == before || after == 5);
            moved += u32::from(after != before);
        }
        assert!(moved.abs_diff(TAGS / 6) < TAGS / 100, "{moved} of {TAGS}");
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let mut list = names(7000..7005);
        let before = servers(&list);
        let unturned = list.clone();
        list.rotate_left(2);
        let after = servers(&list);
        for tag in tags() {
            assert_eq!(unturned[before.of(&tag)], list[after.of(&tag)]);
        }
    }

    #[test]
    fn a_tag_lives_where_it_lived_in_earlier_versions() {
        let shards = servers(&names(7000..7005));
        let places: Vec<usize> = tags().take(8).map(|tag| shards.of(&tag)).collect();
        // A different hash would move every cell of a fleet during an upgrade.
        assert_eq!(places, [3, 0, 1, 1, 0, 4, 3, 4]);
    }
}
