//! When a request spent, as a short text that the caller keeps for a refund. Any node reads it, without stored state.
//!
//! It is not signed. A caller that may refund may also omit it, so forging gains nothing; the checksum catches typing errors.

use std::fmt;
use std::hash::Hasher as _;
use std::str;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip::SipHasher13;
use tidegate_core::{Hits, Micros, Timestamp};

/// When a decision spent, and until when its buckets were to refill: what a later refund needs.
///
/// As text it is 20 ASCII characters, or 28 if a limit was capped. [`Limiter::read_spent`](crate::Limiter::read_spent) reads it
/// on any node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentToken {
    /// When the check arrived, by the clock of the node that decided.
    at: Timestamp,
    /// Milliseconds until the first of its buckets was to be full again, rounded down; [`NO_BUCKET`] if it has none.
    refilled_after_ms: u64,
    /// How much of its cost a limit with `over: cap` did not spend, at most; 0 if all was spent.
    unspent: u64,
}

/// The text form of a [`SpentToken`].
#[derive(Clone, Copy, Debug)]
pub struct SpentText {
    bytes: [u8; LONG / 3 * 4],
    length: usize,
}

impl AsRef<[u8]> for SpentText {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Why a text is not a valid spent token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpentTokenError {
    /// Not a spent token.
    Malformed,
    /// From a time that this node's clock has not reached: the clocks of two nodes differ by too much.
    FromTheFuture,
}

impl fmt::Display for SpentTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpentTokenError::Malformed => "expected the `spent` of a check's answer as it is",
            SpentTokenError::FromTheFuture => {
                "was decided later than this node's clock shows; synchronise the clocks of the nodes"
            }
        })
    }
}

impl std::error::Error for SpentTokenError {}

/// The allowed clock skew between two nodes, and the most by which a refund may be slower than its check to reach the store.
///
/// A refund counts as this much older than it seems: too large an age refunds too little, too small an age may refund what a
/// later window has spent.
const CLOCK_SKEW: Micros = Micros::from_millis(50);

/// The first byte: the layout. The second one has what was not spent.
const LAYOUT: u8 = 1;
const CAPPED_LAYOUT: u8 = 2;
/// Layout, time, refill, checksum.
const SHORT: usize = 1 + TIME_BYTES + REFILL_BYTES + CHECK_BYTES;
const LONG: usize = SHORT + UNSPENT_BYTES;
const UNSPENT_BYTES: usize = 6;
const TIME_BYTES: usize = 7;
const REFILL_BYTES: usize = 5;
const CHECK_BYTES: usize = 2;
/// The most that is remembered of a cost that was not spent.
const MOST_UNSPENT: u64 = (1 << (8 * UNSPENT_BYTES)) - 1;
/// The field's largest value: 34 years.
const NO_BUCKET: u64 = (1 << (8 * REFILL_BYTES)) - 1;

impl SpentToken {
    /// For a check that arrived `at`, whose first bucket, if any, is full again after `refilled_after`, and of whose cost a
    /// limit did not spend `unspent`.
    pub(crate) fn new(at: Timestamp, refilled_after: Option<Micros>, unspent: Hits) -> Self {
        let refilled_after_ms =
            refilled_after.map_or(NO_BUCKET, |after| (after.get() / 1_000).min(NO_BUCKET));
        SpentToken { at, refilled_after_ms, unspent: unspent.get().min(MOST_UNSPENT) }
    }

    /// How much of its cost a limit with `over: cap` did not spend.
    pub(crate) fn unspent(&self) -> Hits {
        Hits::new(self.unspent)
    }

    /// Upper bound of its age.
    pub(crate) fn age(&self, now: Timestamp) -> Micros {
        now.since(self.at.back(CLOCK_SKEW))
    }

    /// Whether a bucket has refilled since.
    pub(crate) fn is_refilled(&self, age: Micros) -> bool {
        self.refilled_after_ms != NO_BUCKET && age >= Micros::from_millis(self.refilled_after_ms)
    }

    /// As a caller keeps it: ASCII, with nothing that JSON or a shell would escape.
    #[must_use]
    pub fn to_ascii(&self) -> SpentText {
        let (layout, length) = if self.unspent == 0 { (LAYOUT, SHORT) } else { (CAPPED_LAYOUT, LONG) };
        let mut bytes = [0; LONG];
        let (said, check) = bytes[..length].split_at_mut(length - CHECK_BYTES);
        let (times, unspent) = said.split_at_mut(1 + TIME_BYTES + REFILL_BYTES);
        times[0] = layout;
        times[1..=TIME_BYTES].copy_from_slice(&self.at.as_micros().to_be_bytes()[8 - TIME_BYTES..]);
        times[1 + TIME_BYTES..].copy_from_slice(&self.refilled_after_ms.to_be_bytes()[8 - REFILL_BYTES..]);
        unspent.copy_from_slice(&self.unspent.to_be_bytes()[8 - unspent.len()..]);
        check.copy_from_slice(&checksum(said));
        let mut text = SpentText { bytes: [0; LONG / 3 * 4], length: length / 3 * 4 };
        URL_SAFE_NO_PAD.encode_slice(&bytes[..length], &mut text.bytes).expect("3 bytes are 4 characters");
        text
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONG];
        let length =
            (text.len() <= LONG / 3 * 4).then(|| URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok())??;
        let (said, check) = bytes[..length].split_at(length.checked_sub(CHECK_BYTES)?);
        let expected = if said.first() == Some(&CAPPED_LAYOUT) { LONG } else { SHORT };
        if length != expected || !matches!(said[0], LAYOUT | CAPPED_LAYOUT) || check != checksum(said) {
            return None;
        }
        let (times, unspent) = said.split_at(1 + TIME_BYTES + REFILL_BYTES);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let (at, refilled_after_ms) = (number(&times[1..=TIME_BYTES]), number(&times[1 + TIME_BYTES..]));
        let at = (at <= Timestamp::MAX.as_micros()).then(|| Timestamp::from_micros(at))?;
        Some(SpentToken { at, refilled_after_ms, unspent: number(unspent) })
    }
}

impl fmt::Display for SpentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(self.to_ascii().as_ref()).expect("base64 is ASCII"))
    }
}

impl SpentToken {
    /// Reads its text form at `now`.
    pub(crate) fn read(text: &[u8], now: Timestamp) -> Result<Self, SpentTokenError> {
        let token = SpentToken::parse(text).ok_or(SpentTokenError::Malformed)?;
        match token.at.back(CLOCK_SKEW) > now {
            true => Err(SpentTokenError::FromTheFuture),
            false => Ok(token),
        }
    }
}

fn checksum(said: &[u8]) -> [u8; CHECK_BYTES] {
    // Fixed keys, so that every node computes the same checksum.
    let mut hasher = SipHasher13::new_with_keys(0x7469_6465_6761_7465, 0x7370_656e_7420_6174);
    hasher.write(said);
    let [first, second, ..] = hasher.finish().to_be_bytes();
    [first, second]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_token_survives_being_written_and_read(
            at in 0..=Timestamp::MAX.as_micros(),
            refill in any::<Option<u64>>(),
            unspent in prop_oneof![Just(0), any::<u64>()],
        ) {
            let token = SpentToken::new(Timestamp::from_micros(at), refill.map(Micros::new), Hits::new(unspent));
            prop_assert_eq!(token.to_string().len(), if unspent == 0 { 20 } else { 28 });
            prop_assert_eq!(SpentToken::parse(token.to_string().as_bytes()), Some(token));
        }

        #[test]
        fn no_text_makes_reading_a_token_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = SpentToken::parse(&text);
        }
    }

    #[test]
    fn one_wrong_character_is_noticed() {
        for unspent in [0, 19] {
            let at = Timestamp::from_micros(1_800_057_600_123_456);
            let text = SpentToken::new(at, None, Hits::new(unspent)).to_ascii().as_ref().to_vec();
            for place in 0..text.len() {
                for other in (0..=u8::MAX).filter(|other| *other != text[place]) {
                    let mut wrong = text.clone();
                    wrong[place] = other;
                    assert_eq!(SpentToken::parse(&wrong), None, "{}", wrong.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn a_bucket_counts_as_refilled_no_later_than_it_was_said_to_be() {
        let token = SpentToken::new(Timestamp::from_micros(0), Some(Micros::new(1_500_999)), Hits::ZERO);
        assert!(!token.is_refilled(Micros::new(1_499_999)) && token.is_refilled(Micros::new(1_500_000)));
        let none = SpentToken::new(Timestamp::from_micros(0), None, Hits::ZERO);
        assert!(!none.is_refilled(Micros::new(u64::MAX)));
    }
}
