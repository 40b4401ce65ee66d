//! The history of the whole fleet: every node adds its counts to the shared store, and charts read the sums.
//!
//! A row is a rule, a domain's requests, or a histogram of answer times. Nodes add to it once a second, in a call that they make anyway. So
//! quantiles cover all requests of the fleet; they are not means of the nodes' quantiles.

use std::collections::{BTreeMap, HashMap};

use super::fleet::NodeStatus;
use super::history::{Latencies, Series, SeriesKey, Window};
use super::slots::{self, Slot, Together};
use serde::Serialize;
use tidegate_metrics::{ExperimentSide, Reading, Totals};
use tidegate_rules::Variant;

/// Slots of one chunk: a minute's seconds, or an hour's minutes.
pub(crate) const SLOTS: u64 = 60;
/// The most rules that a node reports each second, busiest first. The others are reported as one row.
const MOST_REPORTED: usize = 100;
/// The age from which slots are complete: some nodes may not have added to newer ones yet.
const SETTLED_AFTER_S: u64 = 3;

/// Counts that a node adds to the fleet's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRow {
    /// The row: a rule or a histogram.
    pub name: String,
    /// The increase of each count.
    pub counts: Vec<u32>,
}

/// The resolution of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// A chunk is a minute, its slots are seconds.
    Seconds,
    /// A chunk is an hour, its slots are minutes.
    Minutes,
}

/// The fleet's sums for a minute or an hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryChunk {
    /// Minutes or hours since 1970.
    pub number: u64,
    /// For each row, the counts of its sixty slots in sequence.
    pub rows: HashMap<String, Vec<u32>>,
}

/// The row that counts reporting nodes.
pub(super) const NODES: &str = "n";
/// The row of the nodes that the others miss, in thousandths: each that reports tells its share, so that the sum is of all.
const MISSED: &str = "m";
const THOUSANDTHS: u64 = 1_000;
const DECISION_TIMES: &str = "d";
const STORE_TIMES: &str = "s";
const RULE: char = 'r';
const REQUESTS: char = 'q';
const EXPERIMENT: char = 'e';
const BETWEEN: char = '\0';
/// The row of the rules that a node does not report by name, which is that of a rule called so of no domain.
const OTHERS: &str = "r\0others";

/// Whether this is the rules that share one series.
pub(crate) fn is_others((domain, rule): &SeriesKey) -> bool {
    domain.is_empty() && rule == "others"
}

/// The domain and name of the rule in row `name`.
pub(super) fn rule_of(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(RULE)?.split_once(BETWEEN)
}

/// The row of a rule, or of the requests of a domain.
fn row_name((domain, rule): &SeriesKey) -> String {
    match rule.is_empty() {
        true => format!("{REQUESTS}{domain}"),
        false => format!("{RULE}{domain}{BETWEEN}{rule}"),
    }
}

fn series_of(row: &str) -> Option<SeriesKey> {
    let requests = || Some((row.strip_prefix(REQUESTS)?.to_owned(), String::new()));
    let rule = |(domain, rule): (&str, &str)| (domain.to_owned(), rule.to_owned());
    rule_of(row).map(rule).or_else(requests)
}

/// A node's rows for the last second.
pub(crate) fn rows_of(
    series: &[(SeriesKey, Totals)],
    (decisions, store): (&Reading, &Reading),
    missed: Missed,
) -> Vec<HistoryRow> {
    let (requests, mut rules): (Vec<_>, Vec<_>) = series.iter().partition(|(name, _)| name.1.is_empty());
    rules.sort_by_key(|(_, totals)| {
        std::cmp::Reverse(totals.allowed + totals.refused + totals.shadow_refused)
    });
    let (first, rest) = rules.split_at(rules.len().min(MOST_REPORTED));
    let others = rest.iter().fold(Totals::default(), |sum, (_, totals)| sum.plus(*totals));
    let row = |name: &SeriesKey, totals: Totals| {
        let rule = [totals.allowed, totals.refused, totals.shadow_refused, totals.fallback];
        let shed = name.1.is_empty().then_some(totals.shed);
        HistoryRow { name: row_name(name), counts: rule.into_iter().chain(shed).map(small).collect() }
    };
    let named = requests.iter().chain(first);
    let mut rows: Vec<HistoryRow> = named.map(|(name, totals)| row(name, *totals)).collect();
    if others != Totals::default() {
        rows.push(row(&(String::new(), "others".to_owned()), others));
    }
    for (name, reading) in [(DECISION_TIMES, decisions), (STORE_TIMES, store)] {
        let counts: Vec<u32> = reading.counts().iter().map(|count| small(*count)).collect();
        if counts.iter().any(|count| *count > 0) {
            rows.push(HistoryRow { name: name.to_owned(), counts });
        }
    }
    rows.push(HistoryRow { name: NODES.to_owned(), counts: vec![1] });
    if missed.nodes > 0 {
        let share = missed.nodes * THOUSANDTHS / missed.by.max(1);
        rows.push(HistoryRow { name: MISSED.to_owned(), counts: vec![small(share)] });
    }
    rows
}

/// Nodes that were lost and did not leave, and how many others say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missed {
    pub(crate) nodes: u64,
    pub(crate) by: u64,
}

impl Missed {
    /// By what is known of all nodes. One that has started since took the place of one that was lost before.
    pub(crate) fn of(notes: &[NodeStatus], now_us: u64) -> Self {
        let (lost, alive): (Vec<&NodeStatus>, Vec<&NodeStatus>) = notes.iter().partition(|note| note.lost);
        let lost_since = |note: &NodeStatus| now_us.saturating_sub(note.last_seen_ms * 1_000);
        let first_us = lost.iter().map(|note| lost_since(note)).min().unwrap_or(now_us);
        let started = alive.iter().filter(|note| note.started_us > first_us).count();
        Missed { nodes: lost.len().saturating_sub(started) as u64, by: alive.len() as u64 }
    }
}

/// A node's rows of experiments for the last second.
pub(crate) fn experiment_rows(
    now: &BTreeMap<ExperimentSide, [u64; 3]>,
    before: &BTreeMap<ExperimentSide, [u64; 3]>,
) -> Vec<HistoryRow> {
    let added = now.iter().map(|(side, counts)| {
        let old = before.get(side).copied().unwrap_or_default();
        // A rule that was removed and added again counts from zero.
        let counts: Vec<u32> =
            counts.iter().zip(old).map(|(count, old)| small(count.saturating_sub(old))).collect();
        HistoryRow { name: experiment_row_name(&side.0, &side.1, side.2), counts }
    });
    added.filter(|row| row.counts.iter().any(|count| *count > 0)).take(MOST_REPORTED).collect()
}

/// The decisions of one side of a rule's experiment in `chunks`: admitted, refused, and refused in shadow.
pub(crate) fn experiment_in(chunks: &[HistoryChunk], domain: &str, rule: &str, variant: &str) -> [u64; 3] {
    let row = experiment_row_name(domain, rule, variant);
    let mut sums = [0; 3];
    for counts in chunks.iter().filter_map(|chunk| chunk.rows.get(&row)) {
        let slots = counts.chunks_exact(sums.len());
        slots.for_each(|slot| sums.iter_mut().zip(slot).for_each(|(sum, count)| *sum += u64::from(*count)));
    }
    sums
}

pub(super) fn experiment_row_name(domain: &str, rule: &str, variant: &str) -> String {
    format!("{EXPERIMENT}{domain}{BETWEEN}{rule}{BETWEEN}{variant}")
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Window {
    /// The resolution for this window, and the chunks that it touches.
    pub(crate) fn chunks(self) -> (Resolution, std::ops::RangeInclusive<u64>) {
        let (resolution, unit_s) = match self.fine() {
            true => (Resolution::Seconds, SLOTS),
            false => (Resolution::Minutes, SLOTS * SLOTS),
        };
        (resolution, self.from_s / unit_s..=self.to_s.saturating_sub(1) / unit_s)
    }
}

/// What a chart shows for a window.
pub(crate) type Shown = (Vec<Series>, Vec<Latencies>);

/// What is not known of each step.
pub(crate) struct Unknown {
    /// Whether it covers only this node.
    pub(crate) of_one_node: Vec<bool>,
    /// Whether a node of the fleet was not heard, so that it covers the others.
    pub(crate) incomplete: Vec<bool>,
}

/// The fleet's history over a window, and what is not known of it. Where nothing was told, this node's `own` history fills in,
/// unless the fleet has others: then there is a gap.
pub(crate) fn merged(
    window: Window,
    now_s: u64,
    chunks: &[HistoryChunk],
    own: Shown,
    wanted: impl Fn(&SeriesKey) -> bool,
) -> (Shown, Unknown) {
    let fleet = Merged::of(window, now_s, chunks);
    let (own_series, own_latencies) = own;
    let mut of_node: BTreeMap<SeriesKey, Series> =
        own_series.into_iter().map(|series| ((series.domain.clone(), series.rule.clone()), series)).collect();
    for name in fleet.names() {
        let empty = || Series::empty(&name, window);
        of_node.entry(name.clone()).or_insert_with(empty);
    }
    let steps = fleet.steps(window);
    let series = of_node
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, own)| fleet.series(&steps, &row_name(&name), own));
    let latencies = steps.iter().zip(own_latencies).map(|(step, own)| fleet.latencies(step, own));
    let unknown = Unknown {
        of_one_node: steps.iter().map(|step| matches!(step, Step::Own)).collect(),
        incomplete: steps.iter().map(|step| matches!(step, Step::Told { incomplete: true, .. })).collect(),
    };
    ((series.collect(), latencies.collect()), unknown)
}

struct Merged<'c> {
    chunks: BTreeMap<u64, &'c HashMap<String, Vec<u32>>>,
    unit_s: u64,
    now_s: u64,
}

/// What is known of one step.
enum Step {
    Told {
        /// The slots that nodes told of it, each with its weight in a rate per second.
        weights: Vec<(u64, f64)>,
        /// Whether a node told nothing of some of them.
        incomplete: bool,
        /// Whether a node had more rules than it reports by name: what is not told of a rule is unknown then, not zero.
        others: bool,
    },
    NotYet,
    /// Nobody of a fleet was heard.
    Gap,
    Own,
}

/// What is known of the slots of a window, from the number `first` on.
struct MergedSlots {
    first: u64,
    known: Vec<Slot>,
}

/// What one side of an experiment did, as rates per second. What it would have refused in shadow counts as refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Side {
    variant: &'static str,
    allowed: Vec<Option<f64>>,
    refused: Vec<Option<f64>>,
}

/// What the sides of a rule's experiment did over a window; none where the fleet counted neither.
pub(crate) fn sides(
    window: Window,
    now_s: u64,
    chunks: &[HistoryChunk],
    (domain, rule): (&str, &str),
) -> Vec<Side> {
    let fleet = Merged::of(window, now_s, chunks);
    let steps = fleet.steps(window);
    let rows = [Variant::Control, Variant::Experiment]
        .map(|variant| (variant.name(), experiment_row_name(domain, rule, variant.name())));
    if !rows.iter().any(|(_, row)| chunks.iter().any(|chunk| chunk.rows.contains_key(row))) {
        return Vec::new();
    }
    let side = |(variant, row): &(&'static str, String)| {
        let rates = |step: &Step| match step {
            Step::Told { weights, .. } => Some(fleet.rates(row, weights)),
            Step::NotYet | Step::Gap | Step::Own => None,
        };
        let rates: Vec<Option<Vec<f64>>> = steps.iter().map(rates).collect();
        let column = |places: std::ops::Range<usize>| {
            let sum = |rates: &Vec<f64>| places.clone().filter_map(|place| rates.get(place)).sum();
            rates.iter().map(|rates| rates.as_ref().map(sum)).collect()
        };
        Side { variant, allowed: column(0..1), refused: column(1..3) }
    };
    rows.iter().map(side).collect()
}

impl<'c> Merged<'c> {
    fn of(window: Window, now_s: u64, chunks: &'c [HistoryChunk]) -> Self {
        Merged {
            chunks: chunks.iter().map(|chunk| (chunk.number, &chunk.rows)).collect(),
            unit_s: if window.fine() { 1 } else { SLOTS },
            now_s,
        }
    }

    fn steps(&self, window: Window) -> Vec<Step> {
        let slots = self.slots(window);
        window.steps().map(|start| self.step(&slots, window, start)).collect()
    }

    fn names(&self) -> Vec<SeriesKey> {
        let rows = self.chunks.values().flat_map(|rows| rows.keys());
        let mut names: Vec<SeriesKey> = rows.filter_map(|row| series_of(row)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The chunks around the window are looked at as well: they tell how many nodes there were.
    fn slots(&self, window: Window) -> MergedSlots {
        let chunks = window.chunks().1;
        let (first, end) = (chunks.start() * SLOTS, (chunks.end() + 1) * SLOTS);
        let sum_of = |row: &str| -> Vec<u64> {
            let sum = |number| self.counts(row, number).map_or(0, |counts| u64::from(counts[0]));
            (first..end).map(sum).collect()
        };
        let told = sum_of(NODES);
        let missed: Vec<u64> = sum_of(MISSED).into_iter().map(|sum| sum.div_ceil(THOUSANDTHS)).collect();
        let open = (self.now_s.saturating_sub(SETTLED_AFTER_S) / self.unit_s).clamp(first, end) - first;
        MergedSlots { first, known: slots::slots(&told, &missed, self.unit_s, open as usize) }
    }

    fn step(&self, slots: &MergedSlots, window: Window, start: u64) -> Step {
        let end = (start + window.step_s).min(window.to_s);
        let unsettled = end + SETTLED_AFTER_S > self.now_s;
        let (from, to) = (start / self.unit_s - slots.first, end.div_ceil(self.unit_s) - slots.first);
        let known = &slots.known[from as usize..to as usize];
        let whole: Vec<Together> = known.iter().filter_map(Slot::together).collect();
        match (whole.is_empty(), unsettled) {
            (_, true) if self.unit_s == 1 => Step::NotYet,
            (true, true) => Step::NotYet,
            (true, false) if known.contains(&Slot::Gap) => Step::Gap,
            (true, false) => Step::Own,
            (false, _) => {
                let weights = weights(slots.first, &whole);
                let others = self.sums(OTHERS, &weights).iter().any(|count| *count > 0);
                Step::Told { weights, incomplete: whole.iter().any(|of| of.incomplete), others }
            }
        }
    }

    fn counts(&self, row: &str, number: u64) -> Option<&[u32]> {
        let counts = self.chunks.get(&(number / SLOTS))?.get(row)?;
        let width = counts.len() / SLOTS as usize;
        let from = (number % SLOTS) as usize * width;
        counts.get(from..from + width).filter(|counts| !counts.is_empty())
    }

    /// The rates of a row per second.
    fn rates(&self, row: &str, weights: &[(u64, f64)]) -> Vec<f64> {
        let mut rates = Vec::new();
        for (counts, weight) in
            weights.iter().filter_map(|(number, of)| Some((self.counts(row, *number)?, of)))
        {
            rates.resize(rates.len().max(counts.len()), 0.0);
            rates.iter_mut().zip(counts).for_each(|(rate, count)| *rate += f64::from(*count) * weight);
        }
        rates
    }

    /// The sums of a row over these slots.
    fn sums(&self, row: &str, weights: &[(u64, f64)]) -> Vec<u64> {
        let mut sums = Vec::new();
        for counts in weights.iter().filter_map(|(number, _)| self.counts(row, *number)) {
            sums.resize(sums.len().max(counts.len()), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        sums
    }

    fn series(&self, steps: &[Step], row: &str, own: Series) -> Series {
        let mut series = own;
        // Requests, and the sum of the others, are always told.
        let series_is_whole = series.is_of_requests() || row == OTHERS;
        let mut columns = [
            &mut series.allowed,
            &mut series.refused,
            &mut series.shadow_refused,
            &mut series.fallback,
            &mut series.shed,
        ];
        for (step, at) in steps.iter().zip(0..) {
            let rates = match step {
                Step::Told { weights, others, .. } => {
                    let rates = self.rates(row, weights);
                    let is_told = rates.iter().any(|rate| *rate > 0.0);
                    (is_told || !others || series_is_whole).then_some(rates)
                }
                Step::NotYet | Step::Gap => None,
                Step::Own => continue,
            };
            for (place, column) in columns.iter_mut().enumerate() {
                let Some(value) = column.get_mut::<usize>(at) else { continue };
                *value = rates.as_ref().map(|rates| rates.get(place).copied().unwrap_or_default());
            }
        }
        series
    }

    fn latencies(&self, step: &Step, own: Latencies) -> Latencies {
        match step {
            Step::Told { weights, .. } => {
                let [decisions, store] =
                    [DECISION_TIMES, STORE_TIMES].map(|row| Reading::of_counts(&self.sums(row, weights)));
                Latencies::of(&decisions, &store)
            }
            Step::NotYet | Step::Gap => Latencies::default(),
            Step::Own => own,
        }
    }
}

/// The weight of each slot in the rate of a step that is made of these slots, numbered from `first`.
fn weights(first: u64, whole: &[Together]) -> Vec<(u64, f64)> {
    let weight = |of: &Together| 1.0 / (of.seconds * whole.len() as f64);
    let groups = whole.chunk_by(|one, next| one == next);
    let of_group = |group: &[Together]| {
        let (of, weight) = (group[0], weight(&group[0]) * group.len() as f64);
        (of.from..of.to).map(move |slot| (first + slot as u64, weight))
    };
    groups.flat_map(of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few minutes after 1970, so that seconds are easy to count.
    const MINUTE: u64 = 10;
    const START: u64 = MINUTE * 60;

    fn rule() -> SeriesKey {
        ("api".into(), "per-user".into())
    }

    /// The rows that nodes reported, each for the second `START + at`.
    fn chunk(told_of: &[(u64, &[HistoryRow])]) -> HistoryChunk {
        let mut chunk = HistoryChunk { number: MINUTE, ..HistoryChunk::default() };
        for (at, rows) in told_of {
            for row in *rows {
                let width = row.counts.len();
                let sums = chunk.rows.entry(row.name.clone()).or_insert_with(|| vec![0; 60 * width]);
                let slot = &mut sums[*at as usize * width..][..width];
                slot.iter_mut().zip(&row.counts).for_each(|(sum, count)| *sum += count);
            }
        }
        chunk
    }

    fn rows(allowed: u64, times: &[u64]) -> Vec<HistoryRow> {
        let reading = Reading::of_counts(times);
        let added = [(rule(), Totals { allowed, ..Totals::default() })];
        rows_of(&added, (&reading, &Reading::default()), Missed::default())
    }

    fn window() -> Window {
        Window { from_s: START, to_s: START + 4, step_s: 1 }
    }

    #[test]
    fn where_the_only_node_told_nothing_its_own_history_stands() {
        let one = rows(10, &[]);
        let chunk = chunk(&[(0, &one), (2, &one)]);
        let mut own = Series::empty(&rule(), window());
        own.allowed = vec![Some(1.0), Some(2.0), Some(3.0), None];
        let own = (vec![own], vec![Latencies::default(); 4]);
        let ((series, _), unknown) = merged(window(), START + 100, &[chunk], own, |_| true);
        assert_eq!(series[0].allowed, [Some(10.0), Some(2.0), Some(10.0), None]);
        assert_eq!(unknown.of_one_node, [false, true, false, true], "and it is said where");
    }

    #[test]
    fn where_neither_of_two_nodes_was_heard_is_a_gap() {
        let (one, other) = (rows(10, &[]), rows(5, &[]));
        let chunk = chunk(&[(0, &one), (0, &other), (3, &one), (3, &other)]);
        let mut own = Series::empty(&rule(), window());
        own.allowed = vec![Some(10.0); 4];
        let own = (vec![own], vec![Latencies::default(); 4]);
        let ((series, _), unknown) = merged(window(), START + 100, &[chunk], own, |_| true);
        assert_eq!(series[0].allowed, [Some(15.0), None, None, Some(15.0)]);
        assert_eq!(unknown.of_one_node, [false; 4]);
    }

    #[test]
    fn a_rule_that_only_others_know_is_shown_and_quantiles_are_of_all_requests() {
        // A node with 99 fast answers and one with a single slow one.
        let (fast, slow) = (rows(99, &[99]), rows(1, &[0, 0, 0, 0, 0, 0, 0, 0, 1]));
        let chunk = chunk(&[(0, &fast), (0, &slow)]);
        let own = (Vec::new(), vec![Latencies::default(); 4]);
        let ((series, latencies), _) = merged(window(), START + 100, &[chunk], own, |_| true);
        assert_eq!((series[0].rule.as_str(), series[0].allowed[0]), ("per-user", Some(100.0)));
        assert!(latencies[0].decision_p99_us.unwrap() <= 5.0, "{latencies:?}");
    }

    #[test]
    fn seconds_that_nodes_may_still_add_to_are_not_shown() {
        let told = rows(10, &[]);
        let chunk = chunk(&[(0, &told), (3, &told)]);
        let own = (Vec::new(), vec![Latencies::default(); 4]);
        let ((series, _), _) = merged(window(), START + 4, &[chunk], own, |_| true);
        assert_eq!(series[0].allowed, [Some(10.0), None, None, None]);
    }

    #[test]
    fn rules_beyond_the_bound_are_told_as_one() {
        let many: Vec<(SeriesKey, Totals)> = (0..MOST_REPORTED + 5)
            .map(|number| (("api".into(), format!("{number}")), Totals { allowed: 1, ..Totals::default() }))
            .collect();
        let none = Reading::default();
        let rows = rows_of(&many, (&none, &none), Missed::default());
        assert_eq!(rows.len(), MOST_REPORTED + 2, "the others, and that a node told");
        let others = rows.iter().find(|row| row.name == OTHERS).unwrap();
        assert_eq!(others.counts, [5, 0, 0, 0]);
    }

    #[test]
    fn what_a_node_with_too_many_rules_does_not_tell_of_one_is_unknown_and_not_zero() {
        let none = Reading::default();
        let busy = |allowed| (rule(), Totals { allowed, ..Totals::default() });
        let others: Vec<(SeriesKey, Totals)> = (0..MOST_REPORTED)
            .map(|number| (("api".into(), format!("{number}")), Totals { allowed: 5, ..Totals::default() }))
            .collect();
        let rows = |own: Option<(SeriesKey, Totals)>, others: &[(SeriesKey, Totals)]| {
            let series: Vec<_> = own.into_iter().chain(others.iter().cloned()).collect();
            rows_of(&series, (&none, &none), Missed::default())
        };
        // Among the busiest, then not, then in a second in which all were told.
        let told = [rows(Some(busy(9)), &others), rows(Some(busy(1)), &others), rows(None, &others[..3])];
        let chunk = chunk(&[(0, &told[0]), (1, &told[1]), (2, &told[2])]);
        let own = (Vec::new(), vec![Latencies::default(); 4]);
        let ((series, _), _) = merged(window(), START + 100, &[chunk], own, |name| *name == rule());
        assert_eq!(series[0].allowed[..3], [Some(9.0), None, Some(0.0)]);
    }

    #[test]
    fn the_sides_of_an_experiment_are_on_the_steps_of_the_range() {
        let side = |counts: &[u32]| HistoryRow {
            name: experiment_row_name("api", "per-user", "experiment"),
            counts: counts.to_vec(),
        };
        let all = rows(10, &[]);
        let (first, third) =
            ([all.clone(), vec![side(&[4, 2, 1])]].concat(), [all, vec![side(&[1, 0, 0])]].concat());
        let chunk = chunk(&[(0, &first), (2, &third)]);
        let of = |rule| sides(window(), START + 100, std::slice::from_ref(&chunk), ("api", rule));
        let [control, tried] = &of("per-user")[..] else { panic!("two sides") };
        assert_eq!((tried.allowed[0], tried.refused[0], tried.allowed[1]), (Some(4.0), Some(3.0), None));
        assert_eq!((control.allowed[2], tried.allowed[2]), (Some(0.0), Some(1.0)));
        assert_eq!(of("another"), []);
    }

    #[test]
    fn nodes_that_were_lost_are_missed_until_others_take_their_place() {
        let note = |lost, started_us, last_seen_ms| NodeStatus {
            lost,
            started_us,
            last_seen_ms,
            ..NodeStatus::default()
        };
        let now_us = 1_000_000_000;
        let two = [note(false, 1, 0), note(false, 2, 0)];
        assert_eq!(Missed::of(&two, now_us), Missed { nodes: 0, by: 2 });
        let lost = note(true, 3, 20_000);
        let with = |more: &[NodeStatus]| Missed::of(&[&two[..], more].concat(), now_us).nodes;
        assert_eq!(with(std::slice::from_ref(&lost)), 1);
        assert_eq!(with(&[lost.clone(), note(false, now_us - 5_000_000, 0)]), 0, "one has started since");
        assert_eq!(with(&[lost, note(false, now_us - 60_000_000, 0)]), 1, "one was there before");
    }

    #[test]
    fn a_node_that_the_others_miss_is_in_the_history_as_one() {
        let none = Reading::default();
        for (nodes, by) in [(1, 1), (1, 2), (1, 3), (2, 7)] {
            let rows = rows_of(&[], (&none, &none), Missed { nodes, by });
            let row = rows.iter().find(|row| row.name == MISSED).unwrap();
            assert_eq!((u64::from(row.counts[0]) * by).div_ceil(THOUSANDTHS), nodes, "{nodes} by {by}");
        }
        let told = rows_of(&[], (&none, &none), Missed { nodes: 1, by: 2 });
        let all = rows(10, &[]);
        let chunk = chunk(&[
            (0, &all),
            (0, &all),
            (0, &all),
            (1, &told),
            (1, &told),
            (2, &told),
            (2, &told),
            (3, &told),
            (3, &told),
        ]);
        let own = (Vec::new(), vec![Latencies::default(); 4]);
        let (_, unknown) = merged(window(), START + 100, &[chunk], own, |_| true);
        assert_eq!(unknown.incomplete, [false, true, true, true], "it did not come back, and did not leave");
    }
}
