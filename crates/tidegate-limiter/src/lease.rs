//! A lease as a caller holds it: a text that says all there is to know, so that any node can end it.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_core::{Concurrency, LeaseId, Limit, Micros, RefusedHits, Scope, append_part};
use tidegate_store::{CellKey, LeaseRef, Spend};

/// The leases that one request took: one per concurrency limit that it passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseToken {
    id: LeaseId,
    /// Outside the token, for most decisions have none and all are moved about.
    cells: Box<[LeasedCell]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LeasedCell {
    scope: Scope,
    key: Box<[u8]>,
    tag: Box<[u8]>,
    limit: Limit,
}

/// A text that is not a lease of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTokenError;

impl fmt::Display for LeaseTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a lease: pass the `lease` of a check's answer as it is")
    }
}

impl std::error::Error for LeaseTokenError {}

/// The first byte, so that a later layout can be told from this one.
const LAYOUT: u8 = 1;
/// Longer texts are not ours: keys are bounded where they come in.
const LONGEST_TEXT: usize = 64 * 1024;
const MOST_CELLS: usize = 64;

impl LeaseToken {
    /// The leases that `spends` took; none if they took none.
    pub(crate) fn new<'s, 'p: 's>(id: LeaseId, spends: impl Iterator<Item = &'s Spend<'p>>) -> Option<Self> {
        let cells: Box<[LeasedCell]> = spends
            .map(|spend| LeasedCell {
                scope: spend.cell.scope.clone(),
                key: spend.cell.key.into(),
                tag: spend.cell.tag.into(),
                limit: spend.touch.limit.clone(),
            })
            .collect();
        (!cells.is_empty()).then_some(LeaseToken { id, cells })
    }

    /// Each lease, as a store is asked for it.
    pub(crate) fn leases(&self) -> impl Iterator<Item = LeaseRef<'_>> {
        self.cells.iter().map(|cell| LeaseRef {
            cell: CellKey { scope: &cell.scope, key: &cell.key, tag: &cell.tag },
            limit: &cell.limit,
            id: self.id,
        })
    }

    /// How long the shortest of its leases lives unless renewed: renew well before.
    #[must_use]
    pub fn ttl(&self) -> Micros {
        self.cells.iter().map(|cell| ttl_of(&cell.limit)).min().unwrap_or_default()
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![LAYOUT];
        bytes.extend(self.id.0.get().to_be_bytes());
        for cell in &self.cells {
            bytes.extend(ttl_of(&cell.limit).get().to_be_bytes());
            append_part(&mut bytes, cell.scope.as_bytes());
            append_part(&mut bytes, &cell.key);
            // Almost always the key itself, which need not be said twice.
            append_part(&mut bytes, if cell.tag == cell.key { &[] } else { &cell.tag });
        }
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for LeaseToken {
    type Err = LeaseTokenError;

    fn from_str(text: &str) -> Result<Self, LeaseTokenError> {
        if text.len() > LONGEST_TEXT {
            return Err(LeaseTokenError);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| LeaseTokenError)?;
        parse(&bytes).ok_or(LeaseTokenError)
    }
}

fn parse(bytes: &[u8]) -> Option<LeaseToken> {
    let rest = bytes.strip_prefix(&[LAYOUT])?;
    let (id, mut rest) = take_u64(rest)?;
    let mut cells = Vec::new();
    while !rest.is_empty() && cells.len() < MOST_CELLS {
        let (ttl, after) = take_u64(rest)?;
        let (scope, after) = take_part(after)?;
        let (key, after) = take_part(after)?;
        let (tag, after) = take_part(after)?;
        let limit = Concurrency::new(1, Micros::new(ttl), RefusedHits::Forget).ok()?;
        cells.push(LeasedCell {
            scope: Scope::from_bytes(scope),
            key: key.into(),
            tag: if tag.is_empty() { key } else { tag }.into(),
            limit: Limit::Concurrency(limit),
        });
        rest = after;
    }
    let id = LeaseId(NonZeroU64::new(id)?);
    (rest.is_empty() && !cells.is_empty()).then(|| LeaseToken { id, cells: cells.into() })
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

/// The counterpart of [`append_part`].
fn take_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0usize;
    for (place, byte) in bytes.iter().enumerate().take(4) {
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return bytes[place + 1..].split_at_checked(length);
        }
    }
    None
}

fn ttl_of(limit: &Limit) -> Micros {
    match limit {
        Limit::Concurrency(limit) => limit.ttl(),
        _ => Micros::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(key: &[u8], tag: &[u8], id: u64, ttl: u64) -> LeaseToken {
        let limit = Limit::Concurrency(Concurrency::new(1, Micros::new(ttl), RefusedHits::Forget).unwrap());
        let cell =
            LeasedCell { scope: Scope::new(&[b"api", b"uploads"]), key: key.into(), tag: tag.into(), limit };
        LeaseToken {
            id: LeaseId(NonZeroU64::new(id).unwrap()),
            cells: [cell.clone(), cell].into_iter().collect(),
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
            let token = token(&key, &tag, id, ttl);
            prop_assert_eq!(token.to_string().parse(), Ok(token));
        }

        #[test]
        fn no_text_makes_reading_a_lease_panic(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = text.parse::<LeaseToken>();
            let _ = URL_SAFE_NO_PAD.encode(&bytes).parse::<LeaseToken>();
            let _ = URL_SAFE_NO_PAD.encode([&[LAYOUT], &bytes[..]].concat()).parse::<LeaseToken>();
        }
    }
}
