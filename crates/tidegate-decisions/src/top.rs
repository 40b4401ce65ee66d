//! The top callers of every rule, in bounded memory: the Space-Saving sketch, with the error beside every count.
//!
//! A sketch keeps a fixed number of callers. A new caller replaces the one with the lowest count and starts from that count.
//! So a count is never too low, and too high by at most its `error`, which is at most the total divided by the number of
//! entries: a caller with a larger share than that is certainly listed. Callers choose their keys, so entries are found by a
//! hash keyed with the fleet's secret. Results cover the last one to two hours.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::table::{Name, Parts, Table};

/// Callers kept per rule and ranking.
const PLACES: usize = 256;
/// The most rules ranked. Further ones wait until one of these has been idle for two generations.
const MOST_RULES: usize = 250;
/// How long a sketch is filled before a new one is started. The last two are reported.
const GENERATION_US: u64 = 3_600_000_000;

/// Ages are relative to when a node received the question; nodes receive it up to this long after each other.
const AGES_DIFFER_US: u64 = 5_000_000;

/// The ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankBy {
    /// By refused requests.
    Refused,
    /// By hits requested.
    Used,
    /// By what remains, lowest first, among those who request the most.
    Near,
}

/// A top caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopCaller {
    /// Its key: names and values, as logged.
    pub key: Vec<(String, String)>,
    /// An upper bound of its requests.
    pub count: u64,
    /// The true number is between `count - error` and `count`.
    pub error: u64,
    /// What remained when it was last seen, in thousandths of the limit; `None` if no limit was reported.
    pub left_permille: Option<u64>,
    /// How long ago that was. An age, not a time: nodes never compare clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ago_us: Option<u64>,
}

/// The top callers of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// The callers, busiest first.
    pub callers: Vec<TopCaller>,
    /// Requests of all callers.
    pub total: u64,
    /// The largest error of any count.
    pub most_error: u64,
}

/// The top callers of a rule, with the rule's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleTop {
    /// The domain.
    pub domain: String,
    /// The rule.
    pub rule: String,
    /// The callers.
    #[serde(flatten)]
    pub top: Top,
}

/// The top callers of every rule.
pub struct TopCallers {
    rules: Mutex<Table<Name, Ranked>>,
}

impl Default for TopCallers {
    fn default() -> Self {
        TopCallers { rules: Mutex::new(Table::new(MOST_RULES, 2 * GENERATION_US)) }
    }
}

struct Ranked {
    since_us: u64,
    current: Rankings,
    earlier: Option<Rankings>,
}

impl Ranked {
    fn note(&mut self, noted: &Noted<'_>) {
        if noted.now_us.saturating_sub(self.since_us) > GENERATION_US {
            self.earlier = Some(std::mem::take(&mut self.current));
            self.since_us = noted.now_us;
        }
        self.current.used.add(noted);
        if noted.refused {
            self.current.refused.add(noted);
        }
    }
}

#[derive(Default)]
struct Rankings {
    used: Sketch,
    refused: Sketch,
}

/// One request to count.
#[derive(Clone, Debug)]
pub(crate) struct Noted<'a> {
    pub(crate) domain: &'a str,
    pub(crate) rule: &'a str,
    /// The caller: a hash that all nodes agree on, and its key.
    pub(crate) caller: u64,
    pub(crate) key: &'a [(&'a str, String)],
    pub(crate) now_us: u64,
    pub(crate) n: u64,
    pub(crate) refused: bool,
    pub(crate) left_permille: Option<u64>,
}

impl TopCallers {
    pub(crate) fn note(&self, noted: &Noted<'_>) {
        let mut rules = self.rules.lock();
        let name = [noted.domain, noted.rule, ""];
        let begun = || Ranked { since_us: noted.now_us, current: Rankings::default(), earlier: None };
        let begun = || (Name::new(name), begun());
        rules.at(noted.now_us, &name as &dyn Parts, begun, |ranked| ranked.note(noted));
    }

    /// The `most` top callers of a rule at `now_us`. Ranked by nearness, callers with an unknown remainder come last; they
    /// are included because a merge with other nodes needs their counts.
    #[must_use]
    pub fn top(&self, (domain, rule): (&str, &str), by: RankBy, most: usize, now_us: u64) -> Top {
        let rules = self.rules.lock();
        let Some(ranked) = rules.get(&Name::new([domain, rule, ""])) else { return Top::default() };
        let of = |rankings: &Rankings| match by {
            RankBy::Refused => rankings.refused.top(now_us),
            RankBy::Used | RankBy::Near => rankings.used.top(now_us),
        };
        let tops: Vec<Top> =
            [Some(&ranked.current), ranked.earlier.as_ref()].into_iter().flatten().map(of).collect();
        let mut joined = join(&tops);
        joined.rank(by);
        joined.callers.truncate(most);
        joined
    }

    /// The number of callers kept, over all rules.
    #[must_use]
    pub fn kept(&self) -> usize {
        let kept = |rankings: &Rankings| rankings.used.places.len() + rankings.refused.places.len();
        let both = |ranked: &Ranked| kept(&ranked.current) + ranked.earlier.as_ref().map_or(0, kept);
        self.rules.lock().iter().map(|(_, ranked)| both(ranked)).sum()
    }

    /// The rules with callers: domain and name, in order.
    #[must_use]
    pub fn rules(&self) -> Vec<(String, String)> {
        let mut names: Vec<(String, String)> = self
            .rules
            .lock()
            .iter()
            .map(|(Name([domain, rule, _]), _)| (domain.to_string(), rule.to_string()))
            .collect();
        names.sort_unstable();
        names
    }
}

impl Top {
    /// Drops callers until the rest takes at most `most_bytes` as JSON. The error grows to the largest count dropped, which
    /// is not the first one's if they are ranked by what remains.
    pub fn cut(&mut self, most_bytes: usize) {
        let mut bytes = 64;
        let mut fits = |caller: &TopCaller| {
            bytes +=
                96 + caller.key.iter().map(|(name, value)| name.len() + 2 * value.len() + 8).sum::<usize>();
            bytes <= most_bytes
        };
        let fit = self.callers.iter().take_while(|caller| fits(caller)).count();
        let left_out = self.callers.drain(fit..).map(|caller| caller.count).max();
        self.most_error = self.most_error.max(left_out.unwrap_or(0));
    }

    fn rank(&mut self, by: RankBy) {
        self.callers.sort_by(|a, b| match by {
            RankBy::Refused | RankBy::Used => (b.count, &a.key).cmp(&(a.count, &b.key)),
            RankBy::Near => {
                let near = |one: &TopCaller| one.left_permille.unwrap_or(u64::MAX);
                (near(a), b.count, &a.key).cmp(&(near(b), a.count, &b.key))
            }
        });
    }
}

/// Merges one rule's top callers from several nodes; each part has all the callers of its node, or those that [`Top::cut`]
/// left. Counts add up. A node that does not list a caller may have seen it up to `most_error` times, which is added to both
/// the error and the count. What remains is taken from the node that saw the caller last: the smallest number could be an
/// hour old and long refilled, as all nodes share the cell. Among nodes that saw it at about the same time the order is
/// unknown, so the smallest number counts and a caller at its limit is not hidden.
#[must_use]
pub fn merge(tops: &[Top], by: RankBy, most: usize) -> Top {
    let mut merged = join(tops);
    if by == RankBy::Near {
        merged.callers.retain(|caller| caller.left_permille.is_some());
    }
    merged.rank(by);
    merged.callers.truncate(most);
    merged
}

fn join(tops: &[Top]) -> Top {
    // Another node told these numbers: they may be anything.
    let most_error = tops.iter().fold(0_u64, |sum, top| sum.saturating_add(top.most_error));
    let mut callers: HashMap<&[(String, String)], TopCaller> = HashMap::new();
    let mut lately: HashMap<&[(String, String)], u64> = HashMap::new();
    for (top, caller) in tops.iter().flat_map(|top| top.callers.iter().map(move |caller| (top, caller))) {
        // Assume that no node lists it, until one is found that does.
        let unseen = || TopCaller {
            count: most_error,
            error: most_error,
            left_permille: None,
            left_ago_us: None,
            key: caller.key.clone(),
        };
        let own = callers.entry(&caller.key).or_insert_with(unseen);
        own.count = own.count.saturating_sub(top.most_error).saturating_add(caller.count);
        own.error = own.error.saturating_sub(top.most_error).saturating_add(caller.error);
        let seen = lately.entry(&caller.key).or_insert(u64::MAX);
        *seen = (*seen).min(caller.left_ago_us.unwrap_or(u64::MAX));
    }
    for caller in tops.iter().flat_map(|top| &top.callers) {
        // A part without ages, from an earlier release, counts as the oldest.
        let is_late =
            caller.left_ago_us.unwrap_or(u64::MAX) <= lately[&*caller.key].saturating_add(AGES_DIFFER_US);
        let Some(own) = callers.get_mut(&*caller.key).filter(|_| is_late) else { continue };
        let least = |one: &TopCaller| (one.left_permille.unwrap_or(u64::MAX), one.left_ago_us);
        if least(caller) < least(own) {
            (own.left_permille, own.left_ago_us) = (caller.left_permille, caller.left_ago_us);
        }
    }
    Top {
        callers: callers.into_values().collect(),
        total: tops.iter().fold(0, |sum: u64, top| sum.saturating_add(top.total)),
        most_error,
    }
}

/// The Space-Saving sketch.
#[derive(Default)]
struct Sketch {
    places: Vec<Place>,
    by_caller: HashMap<u64, usize, BuildHasherDefault<AlreadyHashed>>,
    total: u64,
    /// No count is below this; entries before the cursor are above it.
    floor: u64,
    cursor: usize,
}

/// A caller's number is already a hash keyed with the fleet's secret: nobody chooses it, and it need not be hashed again.
#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

struct Place {
    caller: u64,
    key: Vec<(String, String)>,
    count: u64,
    error: u64,
    /// What remained, in thousandths of the limit, and when.
    left: Option<(u64, u64)>,
}

impl Sketch {
    fn add(&mut self, noted: &Noted<'_>) {
        let Noted { caller, n, .. } = *noted;
        let left = noted.left_permille.map(|left| (left, noted.now_us));
        self.total += n;
        if let Some(place) = self.by_caller.get(&caller) {
            let place = &mut self.places[*place];
            place.count += n;
            place.left = left.or(place.left);
            return;
        }
        if self.places.len() < PLACES {
            self.by_caller.insert(caller, self.places.len());
            let key = noted.key.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            self.places.push(Place { caller, key, count: n, error: 0, left });
            return;
        }
        let least = self.least();
        let old = &mut self.places[least];
        self.by_caller.remove(&old.caller);
        self.by_caller.insert(caller, least);
        (old.caller, old.left) = (caller, left);
        (old.error, old.count) = (old.count, old.count + n);
        // Reuses the allocation of the old key, which is about as long.
        old.key.resize_with(noted.key.len(), Default::default);
        for ((name, value), (new_name, new_value)) in old.key.iter_mut().zip(noted.key) {
            name.clear();
            name.push_str(new_name);
            value.clone_from(new_value);
        }
    }

    /// The entry with the lowest count. Counts only grow, so most calls continue where the last one ended.
    fn least(&mut self) -> usize {
        let is_least = |place: &Place| place.count <= self.floor;
        if let Some(ahead) = self.places[self.cursor..].iter().position(is_least) {
            self.cursor += ahead;
            return self.cursor;
        }
        self.floor = self.places.iter().map(|place| place.count).min().unwrap_or(0);
        self.cursor = self.places.iter().position(|place| place.count <= self.floor).unwrap_or(0);
        self.cursor
    }

    fn top(&self, now_us: u64) -> Top {
        let mut callers: Vec<TopCaller> = self
            .places
            .iter()
            .map(|place| TopCaller {
                key: place.key.clone(),
                count: place.count,
                error: place.error,
                left_permille: place.left.map(|(left, _)| left),
                left_ago_us: place.left.map(|(_, seen_us)| now_us.saturating_sub(seen_us)),
            })
            .collect();
        callers.sort_by(|a, b| (b.count, &a.key).cmp(&(a.count, &b.key)));
        let full = self.places.len() >= PLACES;
        let least = self.places.iter().map(|place| place.count).min().unwrap_or(0);
        Top { callers, total: self.total, most_error: if full { least } else { 0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers numbered from 0, drawn by Zipf's law with exponent 1, and how often each was drawn.
    fn zipf(callers: usize, draws: usize, seed: u64, mut each: impl FnMut(usize)) -> Vec<u64> {
        let mut cumulated = Vec::with_capacity(callers);
        let mut sum = 0.0;
        for rank in 1..=callers {
            sum += 1.0 / rank as f64;
            cumulated.push(sum);
        }
        let (mut exact, mut random) = (vec![0; callers], seed);
        for _ in 0..draws {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let point = (random >> 11) as f64 / (1u64 << 53) as f64 * sum;
            let caller = cumulated.partition_point(|edge| *edge < point).min(callers - 1);
            exact[caller] += 1;
            each(caller);
        }
        exact
    }

    fn noted<'a>(caller: u64, key: &'a [(&'a str, String)]) -> Noted<'a> {
        Noted { domain: "api", rule: "r", caller, key, now_us: 0, n: 1, refused: false, left_permille: None }
    }

    fn note(top: &TopCallers, caller: usize) {
        let value = caller.to_string();
        top.note(&noted(caller as u64, &[("user", value)]));
    }

    fn number(caller: &TopCaller) -> usize {
        caller.key[0].1.parse().unwrap()
    }

    #[test]
    fn rules_that_are_no_longer_asked_about_make_room_for_others() {
        let top = TopCallers::default();
        let note = |rule: &str, now_us| {
            let key = [("user", "u".to_owned())];
            top.note(&Noted { rule, now_us, ..noted(1, &key) });
        };
        (0..MOST_RULES + 1).for_each(|rule| note(&format!("old-{rule}"), 0));
        assert_eq!(top.rules().len(), MOST_RULES);
        note("old-0", 3 * GENERATION_US);
        note("new", 3 * GENERATION_US);
        assert_eq!(
            top.rules(),
            [("api".to_owned(), "new".to_owned()), ("api".to_owned(), "old-0".to_owned())]
        );
    }

    #[test]
    fn counts_of_a_zipf_load_are_exact_within_the_stated_error() {
        let top = TopCallers::default();
        let exact = zipf(20_000, 200_000, 0x9e37_79b9, |caller| note(&top, caller));
        let found = top.top(("api", "r"), RankBy::Used, PLACES, 0);
        assert_eq!(found.total, 200_000);
        assert!(found.most_error <= 200_000 / PLACES as u64, "{}", found.most_error);
        for caller in &found.callers {
            let truth = exact[number(caller)];
            assert!(caller.count >= truth && caller.count - caller.error <= truth, "{caller:?}: {truth}");
            assert!(caller.error <= found.most_error);
        }
        // A caller with more requests than the error is listed, and the first ten are the true first ten.
        for (caller, count) in exact.iter().enumerate().filter(|(_, count)| **count > found.most_error) {
            assert!(found.callers.iter().any(|listed| number(listed) == caller), "{caller} made {count}");
        }
        let mut ranked: Vec<usize> = (0..exact.len()).collect();
        ranked.sort_by_key(|caller| u64::MAX - exact[*caller]);
        let first: Vec<usize> = found.callers[..5].iter().map(number).collect();
        assert_eq!(first, ranked[..5]);
    }

    #[test]
    fn nodes_are_merged_within_the_stated_error() {
        let nodes = [TopCallers::default(), TopCallers::default(), TopCallers::default()];
        let mut turn = 0;
        let exact = zipf(5_000, 90_000, 77, |caller| {
            turn += 1;
            note(&nodes[turn % 3], caller);
        });
        let tops = nodes.each_ref().map(|node| node.top(("api", "r"), RankBy::Used, PLACES, 0));
        let merged = merge(&tops, RankBy::Used, 20);
        assert_eq!((merged.total, merged.callers.len()), (90_000, 20));
        for caller in &merged.callers {
            let truth = exact[number(caller)];
            assert!(caller.count >= truth && caller.count - caller.error <= truth, "{caller:?}: {truth}");
        }
        assert_eq!(number(&merged.callers[0]), 0);
    }

    #[test]
    fn ten_million_keys_leave_memory_as_it_is() {
        const KEYS: u64 = 10_000_000;
        let mut sketch = Sketch::default();
        for caller in 0..KEYS {
            // Most callers are new, the most expensive case. A tenth of the requests are from one caller, which must not get
            // lost.
            sketch.add(&noted(if caller % 10 == 0 { u64::MAX } else { caller }, &[]));
        }
        assert_eq!((sketch.places.len(), sketch.by_caller.len()), (PLACES, PLACES));
        assert!(sketch.places.capacity() <= 2 * PLACES && sketch.by_caller.capacity() <= 4 * PLACES);
        let busiest = sketch.places.iter().max_by_key(|place| place.count).unwrap();
        assert_eq!(busiest.caller, u64::MAX);
        let truth = KEYS / 10;
        assert!(busiest.count >= truth && busiest.count - busiest.error <= truth);
    }

    #[test]
    fn callers_are_ranked_by_what_is_asked_for() {
        let top = TopCallers::default();
        let one = |user: &str, n: u64, refused: bool, left: u64| {
            let key = [("user", user.to_owned())];
            top.note(&Noted {
                n,
                refused,
                left_permille: Some(left),
                ..noted(user.as_bytes()[0].into(), &key)
            });
        };
        one("calm", 100, false, 900);
        one("near", 10, false, 20);
        one("refused", 30, true, 500);
        let first = |by: RankBy| top.top(("api", "r"), by, 1, 0).callers[0].key[0].1.clone();
        assert_eq!(
            [first(RankBy::Used), first(RankBy::Near), first(RankBy::Refused)],
            ["calm", "near", "refused"]
        );
        assert_eq!(top.top(("api", "other"), RankBy::Used, 5, 0), Top::default());
    }

    #[test]
    fn a_list_that_was_cut_for_its_bytes_still_bounds_its_error() {
        let nodes = [TopCallers::default(), TopCallers::default()];
        let mut turn = 0;
        let exact = zipf(5_000, 60_000, 5, |caller| {
            turn += 1;
            note(&nodes[turn % 2], caller);
        });
        let tops = nodes.each_ref().map(|node| {
            let mut top = node.top(("api", "r"), RankBy::Used, PLACES, 0);
            top.cut(3_000);
            assert!((5..60).contains(&top.callers.len()), "{}", top.callers.len());
            top
        });
        for caller in &merge(&tops, RankBy::Used, PLACES).callers {
            let truth = exact[number(caller)];
            assert!(caller.count >= truth && caller.count - caller.error <= truth, "{caller:?}: {truth}");
        }
    }

    #[test]
    fn what_a_caller_has_left_is_what_the_node_says_that_saw_it_last_however_nodes_are_ordered() {
        let saw = |moments: &[(u64, u64)]| {
            let node = TopCallers::default();
            for (now_us, left) in moments {
                let key = [("user", "alice".to_owned())];
                node.note(&Noted { now_us: *now_us, left_permille: Some(*left), ..noted(1, &key) });
            }
            node
        };
        let merged = |nodes: [(&TopCallers, u64); 2]| {
            let tops = nodes.map(|(node, now_us)| node.top(("api", "r"), RankBy::Near, 9, now_us));
            let mut turned = tops.clone();
            turned.reverse();
            let found = merge(&tops, RankBy::Near, 1);
            assert_eq!(found, merge(&turned, RankBy::Near, 1));
            (found.callers[0].left_permille, found.callers[0].left_ago_us, found.callers[0].count)
        };
        // Clocks differ by an hour: only ages are reported.
        let (hour, second) = (GENERATION_US, 1_000_000);
        let (early, late) = (saw(&[(hour + second, 0)]), saw(&[(10 * second, 500), (40 * second, 990)]));
        let at = [(&early, hour + 60 * second), (&late, 60 * second)];
        assert_eq!(merged(at), (Some(990), Some(20 * second), 3), "it has refilled since");
        // A node that received the question a second later reports a larger age: the smaller number counts.
        let (one, other) = (saw(&[(9 * second, 975)]), saw(&[(10 * second, 0)]));
        assert_eq!(merged([(&one, 10 * second), (&other, 12 * second)]), (Some(0), Some(2 * second), 2));
    }

    #[test]
    fn a_list_by_nearness_that_was_cut_still_bounds_its_error() {
        let note = |node: &TopCallers, user: &str, n: u64, left_permille: Option<u64>| {
            let key = [("user", user.to_owned())];
            node.note(&Noted { n, left_permille, ..noted(user.bytes().map(u64::from).sum(), &key) });
        };
        let nodes = [TopCallers::default(), TopCallers::default()];
        note(&nodes[0], "near", 3, Some(10));
        note(&nodes[0], "next", 5, Some(20));
        note(&nodes[0], "calm", 20, Some(500));
        note(&nodes[0], "busy", 1_000, Some(900));
        note(&nodes[0], "banned", 70, None);
        ["near", "next", "calm", "busy", "banned"].iter().for_each(|user| note(&nodes[1], user, 1, Some(0)));
        let mut tops = nodes.each_ref().map(|node| node.top(("api", "r"), RankBy::Near, PLACES, 0));
        tops[0].cut(300);
        assert_eq!(tops[0].callers.len(), 2, "the first that is cut is not the busiest: {:?}", tops[0]);
        let merged = merge(&tops, RankBy::Near, PLACES);
        for (user, truth) in [("near", 4), ("next", 6), ("calm", 21), ("busy", 1_001), ("banned", 71)] {
            let one = merged.callers.iter().find(|one| one.key[0].1 == user).unwrap();
            assert!(one.count >= truth && one.count - one.error <= truth, "{one:?}: {truth}");
        }
    }

    #[test]
    fn what_was_busy_two_hours_ago_is_busy_no_more() {
        let top = TopCallers::default();
        let hour = GENERATION_US;
        let key = [("user", "a".to_owned())];
        let at = |now_us: u64, caller: u64| top.note(&Noted { now_us, ..noted(caller, &key) });
        at(1, 1);
        at(2, 1);
        at(hour + 3, 2);
        assert_eq!(top.top(("api", "r"), RankBy::Used, 5, 0).total, 3);
        at(2 * hour + 5, 2);
        assert_eq!(top.top(("api", "r"), RankBy::Used, 5, 0).total, 2);
    }
}
