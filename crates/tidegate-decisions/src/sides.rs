//! How many callers are on each side of an experiment: a HyperLogLog sketch for each side and hour, of every decision, not
//! of the sampled ones. Sketches of several nodes are merged, and a caller that asked on all of them counts once.
//!
//! Nothing here waits: registers are atomic, and an hour that begins empties its own. What is noted while it does so may be
//! lost, until its caller asks again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tidegate_rules::Variant;

/// Registers of a sketch. Two times in three an estimate is within 1.04/√2048 = 2.3 % of the truth.
const REGISTERS: usize = 2_048;
/// A hash has 64 bits, of which 11 choose the register.
const HIGHEST_RANK: usize = 54;
/// Two standard errors: 19 times in 20 an estimate is closer.
const ERROR_PERCENT: f64 = 4.6;
const HOUR_US: u64 = 3_600_000_000;
const HOURS: u64 = SideCallers::HOURS;
/// The most rules with an experiment that are counted, 96 KiB each. One that was idle for so many hours makes room.
const MOST_RULES: usize = 32;
const VARIANTS: [Variant; 2] = [Variant::Control, Variant::Experiment];

/// The callers of one side of an experiment, as a sketch that can be merged with those of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideCallers {
    /// The side.
    pub variant: String,
    registers: Vec<u8>,
}

impl SideCallers {
    /// The callers are those of so many hours, the one that has begun included.
    pub const HOURS: u64 = 24;

    /// Adds the callers that another node saw on this side.
    pub fn merge(&mut self, other: &SideCallers) {
        self.registers.resize(REGISTERS, 0);
        self.registers.iter_mut().zip(&other.registers).for_each(|(own, other)| *own = (*own).max(*other));
    }

    /// About how many callers there are; see [`SideCallers::error_percent`].
    ///
    /// The improved estimator of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017): as good for
    /// few callers as for many.
    #[must_use]
    pub fn count(&self) -> u64 {
        let mut of_rank = [0.0; HIGHEST_RANK + 1];
        // Another node told these numbers: they may be anything.
        let told = self.registers.iter().take(REGISTERS).map(|rank| usize::from(*rank).min(HIGHEST_RANK));
        told.for_each(|rank| of_rank[rank] += 1.0);
        let all = REGISTERS as f64;
        of_rank[0] += all - of_rank.iter().sum::<f64>();
        if of_rank[0] >= all {
            return 0;
        }
        let highest = all * tau(1.0 - of_rank[HIGHEST_RANK] / all);
        let ranks = of_rank[1..HIGHEST_RANK].iter().rev();
        let sum = ranks.fold(highest, |sum, registers| 0.5 * (sum + registers));
        let sum = sum + all * sigma(of_rank[0] / all);
        (all * all / (2.0 * std::f64::consts::LN_2 * sum)).round() as u64
    }

    /// How far a count is from the truth at most, 19 times in 20.
    #[must_use]
    pub fn error_percent() -> f64 {
        ERROR_PERCENT
    }
}

/// What the empty registers say.
fn sigma(mut part: f64) -> f64 {
    let (mut sum, mut weight) = (part, 1.0);
    loop {
        part *= part;
        let before = sum;
        sum += part * weight;
        weight += weight;
        if sum <= before {
            return sum;
        }
    }
}

/// What the full registers say.
fn tau(mut part: f64) -> f64 {
    if part <= 0.0 || part >= 1.0 {
        return 0.0;
    }
    let (mut sum, mut weight) = (1.0 - part, 1.0);
    loop {
        part = part.sqrt();
        let before = sum;
        weight *= 0.5;
        sum -= (1.0 - part).powi(2) * weight;
        if sum >= before {
            return sum / 3.0;
        }
    }
}

/// The callers on the sides of every experiment, in bounded memory.
#[derive(Default)]
pub(crate) struct Experiments(RwLock<HashMap<String, HashMap<String, Arc<Sides>>>>);

/// By variant, then by hour.
struct Sides([[CallerSketch; HOURS as usize]; VARIANTS.len()]);

struct CallerSketch {
    /// Of which hour since 1970.
    hour: AtomicU64,
    registers: Box<[AtomicU8]>,
}

impl Experiments {
    /// Notes that the caller with this hash is on this side.
    pub(crate) fn note(&self, [domain, rule]: [&str; 2], variant: Variant, caller: u64, now_us: u64) {
        let hour = now_us / HOUR_US;
        let known = self.0.read().get(domain).and_then(|rules| rules.get(rule)).cloned();
        if let Some(sides) = known.or_else(|| self.begin([domain, rule], hour)) {
            sides.0[variant as usize][(hour % HOURS) as usize].note(hour, caller);
        }
    }

    #[cold]
    fn begin(&self, [domain, rule]: [&str; 2], hour: u64) -> Option<Arc<Sides>> {
        let mut all = self.0.write();
        if all.values().map(HashMap::len).sum::<usize>() >= MOST_RULES {
            all.values_mut().for_each(|rules| rules.retain(|_, sides| sides.is_used(hour)));
            all.retain(|_, rules| !rules.is_empty());
        }
        if all.values().map(HashMap::len).sum::<usize>() >= MOST_RULES {
            return None;
        }
        Some(all.entry(domain.to_owned()).or_default().entry(rule.to_owned()).or_default().clone())
    }

    /// The callers on each side of a rule's experiment in the last day.
    pub(crate) fn of(&self, domain: &str, rule: &str, now_us: u64) -> Vec<SideCallers> {
        let all = self.0.read();
        let Some(sides) = all.get(domain).and_then(|rules| rules.get(rule)) else { return Vec::new() };
        let hour = now_us / HOUR_US;
        let side = |variant: Variant| {
            let mut callers =
                SideCallers { variant: variant.name().to_owned(), registers: vec![0; REGISTERS] };
            for sketch in sides.0[variant as usize].iter().filter(|sketch| sketch.is_of(hour)) {
                let now = sketch.registers.iter().map(|register| register.load(Ordering::Relaxed));
                callers.registers.iter_mut().zip(now).for_each(|(most, rank)| *most = (*most).max(rank));
            }
            callers
        };
        VARIANTS.map(side).into()
    }
}

impl Default for Sides {
    fn default() -> Self {
        Sides(std::array::from_fn(|_| std::array::from_fn(|_| CallerSketch::default())))
    }
}

impl Default for CallerSketch {
    fn default() -> Self {
        // No hour: the first that is noted empties it.
        CallerSketch {
            hour: AtomicU64::new(u64::MAX),
            registers: (0..REGISTERS).map(|_| AtomicU8::new(0)).collect(),
        }
    }
}

impl Sides {
    fn is_used(&self, hour: u64) -> bool {
        self.0.iter().flatten().any(|sketch| sketch.is_of(hour))
    }
}

impl CallerSketch {
    fn note(&self, hour: u64, caller: u64) {
        if self.hour.load(Ordering::Relaxed) != hour && self.hour.swap(hour, Ordering::Relaxed) != hour {
            self.registers.iter().for_each(|register| register.store(0, Ordering::Relaxed));
        }
        let place = (caller % REGISTERS as u64) as usize;
        let rank = ((caller / REGISTERS as u64) | 1 << (HIGHEST_RANK - 1)).trailing_zeros() as u8 + 1;
        // Nearly always it is there already, and reading it costs other cores nothing.
        if self.registers[place].load(Ordering::Relaxed) < rank {
            self.registers[place].fetch_max(rank, Ordering::Relaxed);
        }
    }

    /// Whether it is of the last day.
    fn is_of(&self, hour: u64) -> bool {
        let own = self.hour.load(Ordering::Relaxed);
        own != u64::MAX && hour.saturating_sub(own) < HOURS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: [&str; 2] = ["api", "search"];

    /// SplitMix64: a hash as good as the keyed one of callers.
    fn hash(caller: u64) -> u64 {
        let mut number = caller.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    fn note(node: &Experiments, callers: impl IntoIterator<Item = u64>, hour: u64) {
        callers
            .into_iter()
            .for_each(|caller| node.note(RULE, Variant::Control, hash(caller), hour * HOUR_US));
    }

    fn counts(node: &Experiments, hour: u64) -> Vec<u64> {
        node.of("api", "search", hour * HOUR_US).iter().map(SideCallers::count).collect()
    }

    #[track_caller]
    fn is_about(counted: u64, truth: u64) {
        let off = 100.0 * counted.abs_diff(truth) as f64 / truth as f64;
        // Three standard errors; how often it is within two is another test.
        assert!(off <= 1.5 * SideCallers::error_percent(), "{counted} where {truth} are: {off:.1} % off");
    }

    #[test]
    fn callers_are_counted_once_each_within_the_stated_error() {
        for callers in [1, 10, 300, 2_000, 5_000, 20_000, 500_000] {
            let node = Experiments::default();
            note(&node, (0..callers).chain(0..callers), 500_000);
            let counted = counts(&node, 500_000);
            is_about(counted[0], callers);
            assert_eq!(counted[1], 0, "nobody is on the other side");
        }
    }

    #[test]
    fn the_error_is_within_the_stated_one_nineteen_times_in_twenty() {
        let is_close = |turn: &u64| {
            let node = Experiments::default();
            note(&node, turn * 1_000_000..turn * 1_000_000 + 12_000, 1);
            (counts(&node, 1)[0].abs_diff(12_000) as f64) <= 12_000.0 * SideCallers::error_percent() / 100.0
        };
        assert!((0..200).filter(is_close).count() >= 185);
    }

    #[test]
    fn who_asked_on_two_nodes_is_one_caller() {
        let nodes = [Experiments::default(), Experiments::default()];
        note(&nodes[0], 0..6_000, 7);
        note(&nodes[1], 3_000..9_000, 7);
        let [one, other] = nodes.map(|node| node.of("api", "search", 7 * HOUR_US));
        let mut both = one[0].clone();
        both.merge(&other[0]);
        is_about(both.count(), 9_000);
        let mut strange = SideCallers::default();
        strange.merge(&SideCallers { registers: vec![255; 5_000], ..SideCallers::default() });
        assert!(strange.count() > 0, "what another node tells may be anything");
    }

    #[test]
    fn a_day_later_callers_are_forgotten_hour_by_hour() {
        let node = Experiments::default();
        note(&node, 0..1_000, 100);
        note(&node, 500..2_000, 110);
        is_about(counts(&node, 123)[0], 2_000);
        is_about(counts(&node, 124)[0], 1_500);
        note(&node, 0..10, 124);
        is_about(counts(&node, 133)[0], 1_510);
        assert_eq!(counts(&node, 134)[0], 10);
    }

    #[test]
    fn rules_beyond_the_bound_wait_until_one_was_idle_for_a_day() {
        let node = Experiments::default();
        let note =
            |rule: usize, hour| node.note(["api", &rule.to_string()], Variant::Experiment, 1, hour * HOUR_US);
        let known = |rule: usize| !node.of("api", &rule.to_string(), 30 * HOUR_US).is_empty();
        (0..=MOST_RULES).for_each(|rule| note(rule, 5));
        assert!(known(0) && !known(MOST_RULES));
        note(0, 30);
        note(MOST_RULES, 30);
        assert!(known(0) && !known(1) && known(MOST_RULES));
    }
}
