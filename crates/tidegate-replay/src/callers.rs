//! The callers of one rule: the requests of each, and its refusals.
//!
//! Callers choose their keys, so the table's hash is keyed at random; nothing in the report depends on its order. Almost
//! every line of a log looks up a caller that is no longer in the CPU cache. So a caller is two cache lines, and requests
//! are counted in small batches: their callers are fetched from memory concurrently instead of one after another. A full
//! table drops every second caller, by another hash that is the same in every run, and again when it is full again: the rest
//! is a sample of callers, each of them with complete counts.

use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use tidegate_core::{Hits, Limit, Timestamp, take_part};
use tidegate_decisions::Histogram;
use tidegate_rules::{LimitsFrom, Match, MatchedLimits, RuleLimit};

use crate::demand::Demand;

/// Callers of one rule.
pub(crate) struct Callers {
    /// In order of arrival.
    all: Vec<Entry>,
    /// The index of each caller, by the hash of its key.
    places: HashTable<u32>,
    hasher: RandomState,
    /// Requests not yet counted, in order.
    noted: Vec<Noted>,
    pub(crate) limits: Vec<LimitTrack>,
    /// Requests of callers with limits of their own: their demand says nothing about what the rule's limits should be.
    pub(crate) left_out: u64,
    most: usize,
    /// The sampling: one in 2^`halvings` callers is kept.
    halvings: u32,
}

/// Requests counted in one batch; twice as many gained nothing.
const TOGETHER: usize = 16;

/// A request not yet counted.
struct Noted {
    key: Key,
    hash: u64,
    side: Side,
    refused: bool,
    now: Timestamp,
    hits: Hits,
    /// The limits that apply: the index of the track, and of the limit within it.
    limits: SmallVec<[(u32, u32); 2]>,
}

/// A caller and its key, on cache lines of their own.
#[repr(align(64))]
struct Entry {
    key: Key,
    caller: Caller,
}

/// Two cache lines, both of which [`Callers::fetch`] reads.
const _: () = assert!(size_of::<Entry>() == 128);

/// A caller's key under the rule. Most are short and stored inline, so that a lookup touches no other memory.
type Key = SmallVec<[u8; 24]>;

/// One caller's requests and refusals.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    pub(crate) requests: u64,
    /// Boxed, because most callers are never refused.
    refusals: Option<Box<Refusals>>,
    pub(crate) demands: SmallVec<[(u32, Demand); 1]>,
}

/// A caller's refusals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    /// Under the new rules, and under those compared with.
    pub(crate) counts: [u64; 2],
    /// The first one under the new rules.
    pub(crate) first: Option<Timestamp>,
}

impl Caller {
    pub(crate) fn refusals(&self) -> Refusals {
        self.refusals.as_deref().copied().unwrap_or_default()
    }
}

/// One limit of the rule, and the runs of all callers under it.
pub(crate) struct LimitTrack {
    digest: [u64; 2],
    /// Empty if the rule has no tiers.
    tier: String,
    pub(crate) name: String,
    /// The largest of its limits.
    pub(crate) limit: Limit,
    /// All of its limits.
    limits: Vec<Limit>,
    pub(crate) runs: Histogram,
}

/// The new rules, or those compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Now,
    Before,
}

impl Callers {
    pub(crate) fn new(most: usize) -> Self {
        Callers {
            all: Vec::new(),
            places: HashTable::new(),
            hasher: RandomState::default(),
            noted: Vec::with_capacity(TOGETHER),
            limits: Vec::new(),
            left_out: 0,
            // An index has 32 bits.
            most: most.clamp(1, 1 << 31),
            halvings: 0,
        }
    }

    /// The callers with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &Caller)> {
        self.all.iter().map(|entry| (&*entry.key, &entry.caller))
    }

    /// The number of callers that each one in the table stands for.
    pub(crate) fn each_stands_for(&self) -> u64 {
        1 << self.halvings
    }

    pub(crate) fn note(&mut self, side: Side, found: &Match<'_>, refused: bool, now: Timestamp, hits: Hits) {
        let (hash, key) = (self.hasher.hash_one(&*found.key), Key::from_slice(&found.key));
        let mut limits = SmallVec::new();
        if let (Side::Now, MatchedLimits::Enforce(enforced)) = (side, found.limits) {
            let tier = match found.limits_from() {
                LimitsFrom::Rule => Some(""),
                LimitsFrom::Tier(tier) => Some(tier),
                LimitsFrom::Others => None,
            };
            match tier {
                Some(tier) => {
                    limits.extend(enforced.iter().map(|limit| track_of(&mut self.limits, limit, tier)));
                }
                None => self.left_out += 1,
            }
        }
        self.noted.push(Noted { key, hash, side, refused, now, hits, limits });
        if self.noted.len() == TOGETHER {
            self.count_noted();
        }
    }

    /// Counts the batch.
    fn count_noted(&mut self) {
        let mut noted = std::mem::take(&mut self.noted);
        self.fetch(&noted);
        noted.drain(..).for_each(|noted| self.count(&noted));
        self.noted = noted;
    }

    /// Reads from every caller in the batch. No read depends on another, so that all cache misses overlap.
    fn fetch(&self, noted: &[Noted]) {
        let read = |noted: &Noted| {
            // Usually the right entry, although only seven bits of the hash are compared. Reads both of its cache lines.
            let entry = &self.all[*self.places.find(noted.hash, |_| true)? as usize];
            Some(entry.key.len() + entry.caller.demands.len())
        };
        std::hint::black_box(noted.iter().filter_map(read).fold(0, usize::wrapping_add));
    }

    fn count(&mut self, noted: &Noted) {
        if !self.keeps(&noted.key) {
            return;
        }
        let Some(place) = self.place_of(noted) else {
            self.halve();
            return self.count(noted);
        };
        let caller = &mut self.all[place].caller;
        if noted.refused {
            let refusals = caller.refusals.get_or_insert_default();
            match noted.side {
                Side::Now => {
                    refusals.counts[0] += 1;
                    refusals.first.get_or_insert(noted.now);
                }
                Side::Before => refusals.counts[1] += 1,
            }
        }
        if noted.side == Side::Before {
            return;
        }
        caller.requests += 1;
        for (track, limit) in &noted.limits {
            let LimitTrack { limits, runs, .. } = &mut self.limits[*track as usize];
            let limit = &limits[*limit as usize];
            let place = caller.demands.iter().position(|(of, _)| of == track);
            let place = place.unwrap_or_else(|| {
                caller.demands.push((*track, Demand::new(limit)));
                caller.demands.len() - 1
            });
            caller.demands[place].1.note(limit, noted.now, noted.hits.get(), runs);
        }
    }

    /// The index of the caller with this key, added if new; `None` if the table is full.
    #[inline]
    fn place_of(&mut self, Noted { key, hash, .. }: &Noted) -> Option<usize> {
        let is_it = |place: &u32| self.all[*place as usize].key == *key;
        if let Some(place) = self.places.find(*hash, is_it) {
            return Some(*place as usize);
        }
        let place = self.all.len();
        if place >= self.most {
            return None;
        }
        let entry = u32::try_from(place).expect("a place is 32 bits");
        self.places.insert_unique(*hash, entry, |other| hash_of(&self.hasher, &self.all, *other));
        self.all.push(Entry { key: key.clone(), caller: Caller::default() });
        Some(place)
    }

    /// Counts the rest, and ends the open runs.
    pub(crate) fn finish(&mut self) {
        self.count_noted();
        for (track, demand) in self.all.iter_mut().flat_map(|entry| &mut entry.caller.demands) {
            demand.finish(&mut self.limits[*track as usize].runs);
        }
    }

    fn keeps(&self, key: &[u8]) -> bool {
        self.halvings == 0 || sampled(key, self.halvings)
    }

    /// Drops every second caller.
    fn halve(&mut self) {
        self.halvings += 1;
        self.all.retain(|entry| sampled(&entry.key, self.halvings));
        self.places.clear();
        for (place, entry) in (0..).zip(&self.all) {
            let hash = self.hasher.hash_one(&*entry.key);
            self.places.insert_unique(hash, place, |other| hash_of(&self.hasher, &self.all, *other));
        }
    }
}

fn hash_of(hasher: &RandomState, all: &[Entry], place: u32) -> u64 {
    hasher.hash_one(&*all[place as usize].key)
}

fn sampled(key: &[u8], halvings: u32) -> bool {
    SipHasher13::new_with_keys(0x7469_6465, 0x6761_7465).hash(key).trailing_zeros() >= halvings
}

/// The track of a limit, and the limit's index within it.
fn track_of(tracks: &mut Vec<LimitTrack>, limit: &RuleLimit, tier: &str) -> (u32, u32) {
    let digest = limit.scope.digest();
    let is_it = |track: &LimitTrack| track.digest == digest && track.tier == tier;
    let place = tracks.iter().position(is_it).unwrap_or_else(|| {
        let of_tier = || format!("{} of {tier}", limit.name);
        let name = if tier.is_empty() { limit.name.clone() } else { of_tier() };
        let largest = limit.limit.clone();
        tracks.push(LimitTrack {
            digest,
            tier: tier.to_owned(),
            name,
            limit: largest,
            limits: Vec::new(),
            runs: Histogram::default(),
        });
        tracks.len() - 1
    });
    let track = &mut tracks[place];
    let which = track.limits.iter().position(|known| *known == limit.limit).unwrap_or_else(|| {
        if track.limit.quota() < limit.limit.quota() {
            track.limit = limit.limit.clone();
        }
        track.limits.push(limit.limit.clone());
        track.limits.len() - 1
    });
    (u32::try_from(place).expect("few limits"), u32::try_from(which).expect("few limits"))
}

/// The longest caller name shown.
const MOST_SHOWN: usize = 120;

/// A caller's key for display: names and values, without characters that a terminal would act on.
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

/// A character, or its escape if it could confuse a terminal or a reader.
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
