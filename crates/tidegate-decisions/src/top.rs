//! The busiest callers of every rule, in bounded memory: the Space-Saving sketch, with its error beside every number.
//!
//! A sketch keeps so many callers. One that is not among them takes the place of the least, and begins with that one's
//! count: a caller's count is never too low, and too high by at most its `error`, which is at most the whole count divided by
//! the number of places. So whoever makes more than that share is certainly among them. Callers choose their keys; where
//! they stand is found by a hash that is keyed at random.

use std::collections::HashMap;
use std::hash::RandomState;

use parking_lot::Mutex;
use serde::Serialize;

/// Callers kept per rule and ranking.
const PLACES: usize = 256;
/// Rules that are told apart; those beyond are not ranked.
const MOST_RULES: usize = 1_000;
/// The longest key that is kept.
const LONGEST_KEY: usize = 512;

/// By what callers are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// How many of their requests were refused.
    Refused,
    /// How much they asked for.
    Used,
    /// How little they had left, of those who asked for most.
    Near,
}

/// A caller among the busiest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopCaller {
    /// Its key: names and values, as the log shows them.
    pub key: Vec<(String, String)>,
    /// At most this many requests.
    pub count: u64,
    /// At least this many fewer would be certain: the true number lies between `count - error` and `count`.
    pub error: u64,
    /// What was left when it was last seen, in thousandths of the limit; none where no limit was told.
    pub left_permille: Option<u64>,
}

/// The busiest callers of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Top {
    /// The callers, busiest first.
    pub callers: Vec<TopCaller>,
    /// Requests of all callers.
    pub total: u64,
    /// No count is too high by more than this.
    pub most_error: u64,
}

/// The busiest callers of every rule.
#[derive(Default)]
pub struct TopCallers {
    rules: Mutex<HashMap<RuleName, Rankings, RandomState>>,
}

/// Domain and name.
type RuleName = (Box<str>, Box<str>);

#[derive(Default)]
struct Rankings {
    used: Sketch,
    refused: Sketch,
}

/// What is noted of one request.
#[derive(Clone, Debug)]
pub(crate) struct Noted<'a> {
    pub(crate) domain: &'a str,
    pub(crate) rule: &'a str,
    pub(crate) key: &'a [(&'a str, &'a str)],
    pub(crate) n: u64,
    pub(crate) refused: bool,
    pub(crate) left_permille: Option<u64>,
}

impl TopCallers {
    pub(crate) fn note(&self, noted: &Noted<'_>) {
        let mut key = String::new();
        for (name, value) in noted.key {
            // Neither can be taken for the other: names and hashes hold no separators, and lengths stand before values.
            key.push_str(&format!("{name}={}:{value};", value.len()));
        }
        key.truncate(key.floor_char_boundary(LONGEST_KEY));
        let mut rules = self.rules.lock();
        let name = (Box::from(noted.domain), Box::from(noted.rule));
        if rules.len() >= MOST_RULES && !rules.contains_key(&name) {
            return;
        }
        let ranked = rules.entry(name).or_default();
        ranked.used.add(&key, noted.key, noted.n, noted.left_permille);
        if noted.refused {
            ranked.refused.add(&key, noted.key, noted.n, noted.left_permille);
        }
    }

    /// The `most` busiest callers of a rule.
    #[must_use]
    pub fn top(&self, domain: &str, rule: &str, by: By, most: usize) -> Top {
        let rules = self.rules.lock();
        let Some(ranked) = rules.get(&(Box::from(domain), Box::from(rule))) else { return Top::default() };
        let sketch = if by == By::Refused { &ranked.refused } else { &ranked.used };
        let mut top = sketch.top();
        if by == By::Near {
            top.callers.retain(|caller| caller.left_permille.is_some());
            top.callers.sort_by_key(|caller| (caller.left_permille, u64::MAX - caller.count));
        }
        top.callers.truncate(most);
        top
    }

    /// How many callers are kept, of all rules.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.rules.lock().values().map(|ranked| ranked.used.places.len() + ranked.refused.places.len()).sum()
    }

    /// The rules that have callers: domain and name, in order.
    #[must_use]
    pub fn rules(&self) -> Vec<(String, String)> {
        let mut names: Vec<(String, String)> =
            self.rules.lock().keys().map(|(domain, rule)| (domain.to_string(), rule.to_string())).collect();
        names.sort_unstable();
        names
    }
}

/// Joins what several nodes say of one rule. Counts add up. A node that does not list a caller may have seen it up to as
/// often as its `most_error`, which is added to the error and to the count.
#[must_use]
pub fn merge(tops: &[Top], most: usize) -> Top {
    let mut callers: HashMap<&[(String, String)], TopCaller> = HashMap::new();
    for caller in tops.iter().flat_map(|top| &top.callers) {
        let own = callers.entry(&caller.key).or_insert_with(|| {
            let absent = tops.iter().filter(|top| !top.callers.iter().any(|other| other.key == caller.key));
            let unseen = absent.map(|top| top.most_error).sum();
            TopCaller { count: unseen, error: unseen, left_permille: None, key: caller.key.clone() }
        });
        own.count += caller.count;
        own.error += caller.error;
        own.left_permille = [own.left_permille, caller.left_permille].into_iter().flatten().min();
    }
    let mut merged = Top {
        callers: callers.into_values().collect(),
        total: tops.iter().map(|top| top.total).sum(),
        most_error: tops.iter().map(|top| top.most_error).sum(),
    };
    merged.callers.sort_by(|a, b| (b.count, &a.key).cmp(&(a.count, &b.key)));
    merged.callers.truncate(most);
    merged
}

/// The Space-Saving sketch.
#[derive(Default)]
struct Sketch {
    places: Vec<Place>,
    by_key: HashMap<Box<str>, usize, RandomState>,
    total: u64,
    /// No count is below this; places before the cursor are above it.
    floor: u64,
    cursor: usize,
}

struct Place {
    id: Box<str>,
    key: Vec<(String, String)>,
    count: u64,
    error: u64,
    left_permille: Option<u64>,
}

impl Sketch {
    fn add(&mut self, id: &str, key: &[(&str, &str)], n: u64, left_permille: Option<u64>) {
        self.total += n;
        if let Some(place) = self.by_key.get(id) {
            let place = &mut self.places[*place];
            place.count += n;
            place.left_permille = left_permille.or(place.left_permille);
            return;
        }
        let key = key.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut new = Place { id: id.into(), key, count: n, error: 0, left_permille };
        if self.places.len() < PLACES {
            self.by_key.insert(id.into(), self.places.len());
            self.places.push(new);
            return;
        }
        let least = self.least();
        let old = &mut self.places[least];
        (new.error, new.count) = (old.count, old.count + n);
        self.by_key.remove(&old.id);
        self.by_key.insert(id.into(), least);
        *old = new;
    }

    /// The place with the smallest count. Counts only grow, so most calls go on where the last one ended.
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

    fn top(&self) -> Top {
        let mut callers: Vec<TopCaller> = self
            .places
            .iter()
            .map(|place| TopCaller {
                key: place.key.clone(),
                count: place.count,
                error: place.error,
                left_permille: place.left_permille,
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

    fn note(top: &TopCallers, caller: usize) {
        let value = caller.to_string();
        let key = [("user", value.as_str())];
        let noted = Noted { domain: "api", rule: "r", key: &key, n: 1, refused: false, left_permille: None };
        top.note(&noted);
    }

    fn number(caller: &TopCaller) -> usize {
        caller.key[0].1.parse().unwrap()
    }

    #[test]
    fn counts_of_a_zipf_load_are_exact_within_the_stated_error() {
        let top = TopCallers::default();
        let exact = zipf(20_000, 200_000, 0x9e37_79b9, |caller| note(&top, caller));
        let found = top.top("api", "r", By::Used, PLACES);
        assert_eq!(found.total, 200_000);
        assert!(found.most_error <= 200_000 / PLACES as u64, "{}", found.most_error);
        for caller in &found.callers {
            let truth = exact[number(caller)];
            assert!(caller.count >= truth && caller.count - caller.error <= truth, "{caller:?}: {truth}");
            assert!(caller.error <= found.most_error);
        }
        // Whoever made more than the error is listed, and the first ten are the first ten.
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
        let tops = nodes.each_ref().map(|node| node.top("api", "r", By::Used, PLACES));
        let merged = merge(&tops, 20);
        assert_eq!((merged.total, merged.callers.len()), (90_000, 20));
        for caller in &merged.callers {
            let truth = exact[number(caller)];
            assert!(caller.count >= truth && caller.count - caller.error <= truth, "{caller:?}: {truth}");
        }
        assert_eq!(number(&merged.callers[0]), 0);
    }

    #[test]
    fn a_million_keys_leave_memory_as_it_is() {
        let mut sketch = Sketch::default();
        for caller in 0..1_000_000u64 {
            // Most are new: the dearest case. A hundred of each thousand are one caller, who must not get lost.
            let own = if caller % 10 == 0 { u64::MAX } else { caller };
            let mut text = [0; 20];
            let text = digits(own, &mut text);
            sketch.add(text, &[], 1, None);
        }
        assert_eq!((sketch.places.len(), sketch.by_key.len()), (PLACES, PLACES));
        assert!(sketch.places.capacity() <= 2 * PLACES && sketch.by_key.capacity() <= 4 * PLACES);
        let busiest = sketch.places.iter().max_by_key(|place| place.count).unwrap();
        assert_eq!(&*busiest.id, u64::MAX.to_string());
        assert!(busiest.count >= 100_000 && busiest.count - busiest.error <= 100_000);
    }

    fn digits(mut number: u64, buffer: &mut [u8; 20]) -> &str {
        let mut at = buffer.len();
        loop {
            at -= 1;
            buffer[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return std::str::from_utf8(&buffer[at..]).unwrap();
            }
        }
    }

    #[test]
    fn callers_are_ranked_by_what_is_asked_for() {
        let top = TopCallers::default();
        let one = |user: &str, n: u64, refused: bool, left: u64| {
            let key = [("user", user)];
            let noted = Noted { domain: "api", rule: "r", key: &key, n, refused, left_permille: Some(left) };
            top.note(&noted);
        };
        one("calm", 100, false, 900);
        one("near", 10, false, 20);
        one("refused", 30, true, 500);
        let first = |by: By| top.top("api", "r", by, 1).callers[0].key[0].1.clone();
        assert_eq!([first(By::Used), first(By::Near), first(By::Refused)], ["calm", "near", "refused"]);
        assert_eq!(top.top("api", "other", By::Used, 5), Top::default());
    }
}
