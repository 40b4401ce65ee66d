//! A lease as a caller holds it: a self-contained text, so that any node can release it, and signed, so that only a node of
//! the fleet can have written it.

use std::fmt;
use std::hash::Hasher as _;
use std::num::NonZeroU64;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use tidegate_core::{Concurrency, LeaseId, Limit, Micros, RefusedHits, Scope, append_part, take_part};
use tidegate_store::{CellKey, Spend};

use super::keys::{LeaseKeys, Signature};
use crate::cell::{KeptCell, KeptLease};
use crate::cell_hash::CellHasher;

/// The leases that one request took: one per concurrency limit that it passed.
#[derive(Clone)]
pub struct LeaseToken {
    id: LeaseId,
    /// Sign its text form.
    keys: Arc<LeaseKeys>,
    /// Boxed: most decisions have no lease, and all of them are moved.
    cells: Box<[KeptCell]>,
    /// Not part of its text: only who was granted it sees its client leave.
    ends_with_client: bool,
}

/// Why a text is not a lease of this fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseTokenError {
    /// Not a lease token.
    Malformed,
    /// No node of this fleet has signed it.
    NotSigned,
}

impl fmt::Display for LeaseTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LeaseTokenError::Malformed => "not a lease: pass the `lease` of a check's answer as it is",
            LeaseTokenError::NotSigned => {
                "not a lease of this fleet: its signature is wrong; pass the `lease` of a check's answer as it is"
            }
        })
    }
}

impl std::error::Error for LeaseTokenError {}

/// The first byte, to distinguish later layouts.
const LAYOUT: u8 = 2;
/// Longer texts are not ours: keys are bounded on input.
const LONGEST_TEXT: usize = 64 * 1024;
const MOST_CELLS: usize = 64;

impl LeaseToken {
    /// The leases that `spends` took; `None` if they took none.
    pub(crate) fn new<'s, 'p: 's>(
        id: LeaseId,
        spends: impl Iterator<Item = &'s Spend<'p>>,
        ends_with_client: bool,
        keys: &Arc<LeaseKeys>,
        hasher: &CellHasher,
    ) -> Option<Self> {
        let kept =
            |spend: &Spend<'_>| KeptCell::new(hasher.cell(&spend.cell), &spend.cell, spend.touch.limit);
        let cells: Box<[KeptCell]> = spends.map(kept).collect();
        (!cells.is_empty()).then(|| LeaseToken { id, cells, ends_with_client, keys: keys.clone() })
    }

    /// Each lease.
    pub(crate) fn leases(&self) -> impl Iterator<Item = KeptLease> {
        self.cells.iter().map(|cell| KeptLease { cell: cell.clone(), id: self.id })
    }

    /// A number that identifies the lease on every node. It is derived from the random lease ID alone: reading it in a log
    /// reveals neither the lease nor a way to sign one.
    #[must_use]
    pub fn mark(&self) -> u64 {
        // Fixed keys, so that every node computes the same.
        let mut hasher = SipHasher24::new_with_keys(0x7469_6465_6761_7465, 0x6c65_6173_6520_6964);
        hasher.write_u64(self.id.0.get());
        hasher.finish128().h1
    }

    /// A number that identifies the limit under which the first of its leases was taken.
    #[must_use]
    pub fn limit_mark(&self) -> u64 {
        self.cells.first().map_or(0, |cell| cell.key().scope.digest()[0])
    }

    /// The domain of its limits: the first part of a cell's scope. All cells of a request share one.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        let (domain, _) = take_part(self.cells.first()?.key().scope.as_bytes())?;
        std::str::from_utf8(domain).ok()
    }

    /// Its leases one by one, each as its own token; empty if it has only one.
    pub(crate) fn parts(&self) -> impl Iterator<Item = LeaseToken> {
        let several = if self.cells.len() > 1 { &self.cells[..] } else { &[] };
        several.iter().map(|cell| LeaseToken {
            id: self.id,
            keys: self.keys.clone(),
            cells: [cell.clone()].into(),
            ends_with_client: self.ends_with_client,
        })
    }

    /// Its lease under the limit with this mark; `None` if it has only one lease, or none under that limit.
    #[must_use]
    pub fn part(&self, limit_mark: u64) -> Option<LeaseToken> {
        self.parts().find(|part| part.limit_mark() == limit_mark)
    }

    /// Whether it is to be released when the client it was granted for hangs up, even if its work goes on.
    #[must_use]
    pub fn ends_with_client(&self) -> bool {
        self.ends_with_client
    }

    /// The longest time to live of its leases unless renewed.
    #[must_use]
    pub fn longest_ttl(&self) -> Micros {
        self.cells.iter().filter_map(|cell| cell.limit().lease_ttl()).max().unwrap_or_default()
    }

    /// The shortest time to live of its leases unless renewed: renew well before.
    #[must_use]
    pub fn ttl(&self) -> Micros {
        self.cells.iter().filter_map(|cell| cell.limit().lease_ttl()).min().unwrap_or_default()
    }
}

pub(crate) fn read_lease(
    text: &str,
    keys: &Arc<LeaseKeys>,
    hasher: &CellHasher,
) -> Result<LeaseToken, LeaseTokenError> {
    if text.len() > LONGEST_TEXT {
        return Err(LeaseTokenError::Malformed);
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| LeaseTokenError::Malformed)?;
    let rest = bytes.strip_prefix(&[LAYOUT]).ok_or(LeaseTokenError::Malformed)?;
    let (signature, signed) =
        rest.split_first_chunk::<{ size_of::<Signature>() }>().ok_or(LeaseTokenError::Malformed)?;
    if !keys.knows(signed, signature) {
        return Err(LeaseTokenError::NotSigned);
    }
    let (id, cells) = parse(signed, hasher).ok_or(LeaseTokenError::Malformed)?;
    Ok(LeaseToken { id, cells, ends_with_client: false, keys: keys.clone() })
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut signed = self.id.0.get().to_be_bytes().to_vec();
        for cell in &self.cells {
            signed.extend(cell.limit().lease_ttl().unwrap_or_default().get().to_be_bytes());
            let CellKey { scope, key, tag } = cell.key();
            append_part(&mut signed, scope.as_bytes());
            append_part(&mut signed, key);
            // Almost always equal to the key, and then omitted.
            append_part(&mut signed, if tag == key { &[] } else { tag });
        }
        let bytes = [&[LAYOUT], &self.keys.sign(&signed)[..], &signed].concat();
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl PartialEq for LeaseToken {
    fn eq(&self, other: &Self) -> bool {
        let same = |(one, other): (&KeptCell, &KeptCell)| {
            let (key, others) = (one.key(), other.key());
            (key.scope, key.key, key.tag, one.limit())
                == (others.scope, others.key, others.tag, other.limit())
        };
        self.id == other.id
            && self.cells.len() == other.cells.len()
            && self.cells.iter().zip(&other.cells).all(same)
    }
}

impl Eq for LeaseToken {}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseToken").field("id", &self.id).field("cells", &self.cells).finish_non_exhaustive()
    }
}

fn parse(signed: &[u8], hasher: &CellHasher) -> Option<(LeaseId, Box<[KeptCell]>)> {
    let (id, mut rest) = take_u64(signed)?;
    let mut cells = Vec::new();
    while !rest.is_empty() && cells.len() < MOST_CELLS {
        let (ttl, after) = take_u64(rest)?;
        let (scope, after) = take_part(after)?;
        let (key, after) = take_part(after)?;
        let (tag, after) = take_part(after)?;
        let limit = Concurrency::new(1, Micros::new(ttl), RefusedHits::Forget).ok()?;
        let (scope, tag) = (Scope::from_bytes(scope), if tag.is_empty() { key } else { tag });
        let cell = CellKey { scope: &scope, key, tag };
        cells.push(KeptCell::new(hasher.cell(&cell), &cell, &Limit::Concurrency(limit)));
        rest = after;
    }
    let id = LeaseId(NonZeroU64::new(id)?);
    (rest.is_empty() && !cells.is_empty()).then(|| (id, cells.into()))
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hasher() -> CellHasher {
        CellHasher::new([1, 2])
    }

    fn token(key: &[u8], tag: &[u8], id: u64, ttl: u64, keys: &Arc<LeaseKeys>) -> LeaseToken {
        let limit = Limit::Concurrency(Concurrency::new(1, Micros::new(ttl), RefusedHits::Forget).unwrap());
        let scope = Scope::new(&[b"api", b"uploads"]);
        let cell = CellKey { scope: &scope, key, tag };
        let cell = KeptCell::new(hasher().cell(&cell), &cell, &limit);
        LeaseToken {
            ends_with_client: false,
            id: LeaseId(NonZeroU64::new(id).unwrap()),
            cells: [cell.clone(), cell].into_iter().collect(),
            keys: keys.clone(),
        }
    }

    proptest! {
        #[test]
        fn a_lease_survives_being_written_and_read(
            key in proptest::collection::vec(any::<u8>(), 1..300),
            tag in proptest::collection::vec(any::<u8>(), 1..20),
            id in 1..u64::MAX,
            ttl in 1..1_000_000_000u64,
        ) {
            let keys = Arc::new(LeaseKeys::new(None));
            let token = token(&key, &tag, id, ttl, &keys);
            prop_assert_eq!(read_lease(&token.to_string(), &keys, &hasher()), Ok(token));
        }

        #[test]
        fn no_text_makes_reading_a_lease_panic(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let keys = Arc::new(LeaseKeys::new(None));
            prop_assert!(read_lease(&text, &keys, &hasher()).is_err());
            prop_assert!(read_lease(&URL_SAFE_NO_PAD.encode(&bytes), &keys, &hasher()).is_err());
            prop_assert!(read_lease(&URL_SAFE_NO_PAD.encode([&[LAYOUT], &bytes[..]].concat()), &keys, &hasher()).is_err());
            let signed = [&[LAYOUT], &keys.sign(&bytes)[..], &bytes].concat();
            let _ = read_lease(&URL_SAFE_NO_PAD.encode(signed), &keys, &hasher());
        }

        #[test]
        fn a_lease_of_which_one_bit_was_changed_is_refused(place in 0..400usize, bit in 0..8u8) {
            let keys = Arc::new(LeaseKeys::new(None));
            let text = token(b"key", b"tag", 7, 1_000_000, &keys).to_string();
            let mut bytes = URL_SAFE_NO_PAD.decode(text).unwrap();
            let place = place % bytes.len();
            bytes[place] ^= 1 << bit;
            prop_assert!(read_lease(&URL_SAFE_NO_PAD.encode(bytes), &keys, &hasher()).is_err());
        }
    }

    #[test]
    fn a_lease_of_another_fleet_is_refused_with_words_that_say_so() {
        let (ours, theirs) = (Arc::new(LeaseKeys::new(None)), Arc::new(LeaseKeys::new(None)));
        let text = token(b"key", b"key", 7, 1_000_000, &theirs).to_string();
        assert_eq!(read_lease(&text, &ours, &hasher()), Err(LeaseTokenError::NotSigned));
    }
}
