//! The callers of one rule: what each asked for, and what it was told.
//!
//! Keys are chosen by callers, so the table's hash is keyed at random; nothing that is reported depends on its order. A
//! table that is full keeps every second caller, by another hash that is the same in every run, and so on: what is counted
//! then is a sample of callers, each of them whole.

use std::collections::HashMap;

use foldhash::quality::RandomState;
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use tidegate_core::{Hits, Limit, Timestamp, take_part};
use tidegate_decisions::Histogram;
use tidegate_rules::{Match, MatchedLimits, RuleLimit};

use crate::demand::Demand;

/// Callers of one rule.
pub(crate) struct Callers {
    pub(crate) map: HashMap<Key, Caller, RandomState>,
    pub(crate) limits: Vec<LimitTrack>,
    most: usize,
    /// One in two to the power of this is kept.
    halvings: u32,
}

/// A caller's key under the rule. Most are short: those lie in the table, so that a look-up goes nowhere else.
type Key = SmallVec<[u8; 24]>;

/// What one caller asked for, and what it was told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    pub(crate) requests: u64,
    /// Now, and before.
    pub(crate) refused: [u64; 2],
    pub(crate) first_refused: Option<Timestamp>,
    pub(crate) demands: SmallVec<[(u32, Demand); 1]>,
}

/// One limit of the rule, and the runs of all callers under it.
pub(crate) struct LimitTrack {
    digest: [u64; 2],
    pub(crate) name: String,
    pub(crate) limit: Limit,
    pub(crate) runs: Histogram,
}

/// Which rules are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Now,
    Before,
}

impl Callers {
    pub(crate) fn new(most: usize) -> Self {
        Callers { map: HashMap::default(), limits: Vec::new(), most: most.max(1), halvings: 0 }
    }

    /// How many callers each of those in the table stands for.
    pub(crate) fn each_stands_for(&self) -> u64 {
        1 << self.halvings
    }

    pub(crate) fn note(&mut self, side: Side, found: &Match<'_>, refused: bool, now: Timestamp, hits: Hits) {
        if !self.keeps(&found.key) {
            return;
        }
        let is_full = self.map.len() >= self.most;
        let caller = match self.map.get_mut(&*found.key) {
            Some(caller) => caller,
            None => {
                if is_full {
                    self.halve();
                    return self.note(side, found, refused, now, hits);
                }
                self.map.entry(Key::from_slice(&found.key)).or_default()
            }
        };
        let counted = u64::from(refused);
        if side == Side::Before {
            caller.refused[1] += counted;
            return;
        }
        caller.requests += 1;
        caller.refused[0] += counted;
        if refused && caller.first_refused.is_none() {
            caller.first_refused = Some(now);
        }
        if let MatchedLimits::Enforce(limits) = found.limits {
            for limit in limits {
                let track = track_of(&mut self.limits, limit);
                let place = caller.demands.iter().position(|(of, _)| *of as usize == track);
                let place = place.unwrap_or_else(|| {
                    caller
                        .demands
                        .push((u32::try_from(track).expect("few limits"), Demand::new(&limit.limit)));
                    caller.demands.len() - 1
                });
                caller.demands[place].1.note(&limit.limit, now, hits.get(), &mut self.limits[track].runs);
            }
        }
    }

    /// Ends the runs that are under way.
    pub(crate) fn finish(&mut self) {
        for (track, demand) in self.map.values_mut().flat_map(|caller| &mut caller.demands) {
            demand.finish(&mut self.limits[*track as usize].runs);
        }
    }

    fn keeps(&self, key: &[u8]) -> bool {
        self.halvings == 0 || sampled(key, self.halvings)
    }

    /// Keeps every second caller.
    fn halve(&mut self) {
        self.halvings += 1;
        self.map.retain(|key, _| sampled(key, self.halvings));
    }
}

fn sampled(key: &[u8], halvings: u32) -> bool {
    SipHasher13::new_with_keys(0x7469_6465, 0x6761_7465).hash(key).trailing_zeros() >= halvings
}

fn track_of(tracks: &mut Vec<LimitTrack>, limit: &RuleLimit) -> usize {
    let digest = limit.scope.digest();
    if let Some(known) = tracks.iter().position(|track| track.digest == digest) {
        // Tiers share their cells' name where algorithm and window agree: the largest number stands for them.
        if tracks[known].limit.quota() < limit.limit.quota() {
            tracks[known].limit = limit.limit.clone();
        }
        return known;
    }
    let (name, limit) = (limit.name.clone(), limit.limit.clone());
    tracks.push(LimitTrack { digest, name, limit, runs: Histogram::default() });
    tracks.len() - 1
}

/// The longest name of a caller that is shown.
const MOST_SHOWN: usize = 120;

/// A caller's key as a person reads it: names and values, nothing in it that a terminal would act on.
pub(crate) fn shown(key: &[u8], names: &[String]) -> String {
    let (mut rest, mut parts) = (key, Vec::new());
    while let Some((part, after)) = take_part(rest) {
        let value = String::from_utf8_lossy(part);
        let value: String = value.chars().flat_map(printable).collect();
        parts.push(match names.get(parts.len()) {
            Some(name) => format!("{name}={value}"),
            None => value,
        });
        rest = after;
    }
    if parts.is_empty() {
        return "(everybody)".to_owned();
    }
    let whole = parts.join(", ");
    match whole.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &whole[..end]),
        None => whole,
    }
}

/// A character, or its escape where it is one that a terminal or a reader would stumble over.
pub(crate) fn printable(character: char) -> impl Iterator<Item = char> {
    let hidden = character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let (plain, escaped) =
        if hidden { (None, Some(character.escape_unicode())) } else { (Some(character), None) };
    plain.into_iter().chain(escaped.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use tidegate_core::append_part;

    use super::*;

    #[test]
    fn a_caller_is_shown_by_names_and_without_what_a_terminal_acts_on() {
        let mut key = Vec::new();
        append_part(&mut key, b"42");
        append_part(&mut key, b"\x1b[2J\xe2\x80\xae");
        assert_eq!(shown(&key, &["user".to_owned(), "ip".to_owned()]), r"user=42, ip=\u{1b}[2J\u{202e}");
        assert_eq!(shown(&[], &[]), "(everybody)");
    }

    #[test]
    fn a_halving_keeps_about_half_and_always_the_same() {
        let keys: Vec<Vec<u8>> = (0..10_000u32).map(|n| n.to_le_bytes().to_vec()).collect();
        let kept = |halvings| keys.iter().filter(|key| sampled(key, halvings)).count();
        assert!((4_700..5_300).contains(&kept(1)), "{}", kept(1));
        assert!((1_050..1_450).contains(&kept(3)), "{}", kept(3));
        assert!(
            keys.iter().all(|key| !sampled(key, 3) || sampled(key, 2)),
            "a later sample is part of the earlier one"
        );
    }
}
