//! Which keys a rollout or an experiment covers: a share of all, always the same ones.
//!
//! Chosen by a hash of the key that every node, release and restart computes alike, and that differs by rule, so that it is
//! not always the same callers who try everything first. It is not secret: a caller that chooses its key can choose its
//! side.

use std::fmt;

use crate::quantity::QuantityError;

/// A share of all keys, in hundredths of a per cent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u16);

/// All of them.
const WHOLE: u16 = 10_000;

impl Share {
    /// Parses a share: `10%`, `0.5%`.
    pub(crate) fn parse(text: &str) -> Result<Self, QuantityError> {
        let hint = || "write a percentage from 0% to 100%, such as 10% or 0.5%".to_owned();
        let Some(number) = text.trim().strip_suffix('%') else {
            return Err(QuantityError { problem: format!("`{text}` is not a percentage"), hint: hint() });
        };
        let (whole, fraction) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let parts = (digits(whole) && whole.len() <= 3 && fraction.len() <= 2)
            .then(|| format!("{whole}{fraction:0<2}"))
            .filter(|parts| digits(parts))
            .and_then(|parts| parts.parse::<u32>().ok());
        match parts.and_then(|parts| u16::try_from(parts).ok()) {
            Some(parts) if parts <= WHOLE => Ok(Share(parts)),
            _ => Err(QuantityError { problem: format!("`{text}` is not a percentage"), hint: hint() }),
        }
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// This share of a number, rounded down.
    #[must_use]
    pub fn of(self, number: u64) -> u64 {
        u64::try_from(u128::from(number) * u128::from(self.0) / u128::from(WHOLE)).unwrap_or(u64::MAX)
    }

    /// Whether it covers everybody.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.0 == WHOLE
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, parts) => write!(f, "{whole}.{}%", format!("{parts:02}").trim_end_matches('0')),
        }
    }
}

/// A share of a rule's keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) share: Share,
    seed: u64,
}

impl Split {
    /// A share of the keys identified by `names`: domain, rule, and the purpose of the split.
    pub(crate) fn new(share: Share, names: [&str; 3]) -> Self {
        let mut seed = 0;
        for name in names {
            seed = hash(seed, name.as_bytes());
        }
        Split { share, seed }
    }

    /// Whether it covers the caller with this key.
    pub(crate) fn takes(&self, key: &[u8]) -> bool {
        // Multiply and shift: maps the hash to 0..10,000.
        (u128::from(hash(self.seed, key)) * u128::from(WHOLE)) >> 64 < u128::from(self.share.0)
    }
}

/// FNV-1a over the bytes, from `seed`, then mixed so that its upper bits depend on all of them. Must not change: every
/// rollout would start with other callers.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = seed ^ 0xcbf2_9ce4_8422_2325;
    for byte in bytes {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    state = (state ^ (state >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    state = (state ^ (state >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    state ^ (state >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_reads_and_prints_as_people_write_it() {
        for (text, printed) in
            [("10%", "10%"), ("0.5%", "0.5%"), ("12.25 %", "12.25%"), ("100%", "100%"), ("0%", "0%")]
        {
            assert_eq!(Share::parse(text).unwrap().to_string(), printed);
        }
        for wrong in ["10", "101%", "-1%", "1.234%", "%", "a%", "1.%x"] {
            assert!(Share::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_split_takes_its_share_and_growing_it_drops_nobody() {
        let split = |share| Split::new(Share::parse(share).unwrap(), ["api", "per-user", "rollout"]);
        let taken = |share| {
            let split = split(share);
            (0..100_000u32).filter(|key| split.takes(&key.to_be_bytes())).collect::<Vec<_>>()
        };
        let (tenth, half) = (taken("10%"), taken("50%"));
        assert!((9_500..10_500).contains(&tenth.len()), "{}", tenth.len());
        assert!((49_000..51_000).contains(&half.len()), "{}", half.len());
        assert!(tenth.iter().all(|key| half.binary_search(key).is_ok()));
        assert_eq!((taken("0%").len(), taken("100%").len()), (0, 100_000));
    }

    #[test]
    fn two_rules_begin_with_different_callers() {
        let of = |rule| Split::new(Share::parse("10%").unwrap(), ["api", rule, "rollout"]);
        let (one, other) = (of("a"), of("b"));
        let both = (0..100_000u32)
            .filter(|key| one.takes(&key.to_be_bytes()) && other.takes(&key.to_be_bytes()))
            .count();
        assert!((800..1_200).contains(&both), "{both} of 10,000 in both");
    }

    #[test]
    fn the_same_callers_are_taken_by_every_release() {
        let split = Split::new(Share::parse("10%").unwrap(), ["api", "per-user", "rollout"]);
        let taken: Vec<u32> = (0..60).filter(|key: &u32| split.takes(key.to_string().as_bytes())).collect();
        assert_eq!(taken, EXPECTED);
    }

    /// Computed once, by this code; must not change.
    const EXPECTED: [u32; 8] = [10, 15, 17, 31, 32, 37, 51, 54];
}
