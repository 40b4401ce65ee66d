//! Synthetic traffic with known incidents, to measure the precision and recall of alerts. Deterministic by seed.
//!
//! Two weeks of twenty rules: day and night, weekdays and weekends, each with noise, some quiet, some spiky by nature; and
//! of four more with bursts, nothing in between and no incidents. The first week is for learning, and not judged. In the
//! second week there are incidents of several kinds, plain ones and ones just above what is worth an alert, and between them
//! non-incidents, such as surges of less than a factor of two. An alert of an incident's kind on its rule, while it lasts or
//! within five minutes after, is right, and so is what follows from it; any other is wrong; an incident without an alert was
//! missed.

use std::collections::BTreeMap;

use super::detect::{Detector, Thresholds};
use super::found::OthersHeard;
use super::kinds::{Kind, RuleName};
use super::minutes::{Minutes, RuleCounts};
use super::signals::{RuleCallers, Signals};

const RULES: u64 = 20;
/// Rules with bursts: each has longer ones than the one before.
const BURSTY: u64 = 4;
const MINUTES_A_DAY: u64 = 1_440;
const DAYS: u64 = 14;
const LOOKS_A_MINUTE: u64 = 4;
/// Minutes that are not judged.
const LEARNING: u64 = 7 * MINUTES_A_DAY;
/// How long after an incident an alert still belongs to it.
const GRACE_MIN: u64 = 5;

/// An injected incident.
#[derive(Clone, Debug)]
struct Incident {
    kind: Kind,
    size: Size,
    rule: u64,
    from: u64,
    minutes: u64,
    by: f64,
}

/// The size of an incident, relative to what is worth an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Size {
    Plain,
    JustAbove,
    /// Not an incident: an alert on it is wrong.
    Below,
}

/// A size, and its range.
pub type Range = (Size, f64, f64);

/// The injected kinds, and their ranges when plain, just above and below what is worth an alert: factors or fractions of the
/// usual traffic, fractions more refused, a caller's share, the fraction that a shadow rule would refuse.
pub const SIZES: [(Kind, [Range; 3]); 6] = [
    (Kind::TrafficSpike, [(Size::Plain, 3.0, 12.0), (Size::JustAbove, 2.3, 2.8), (Size::Below, 1.5, 1.9)]),
    (Kind::TrafficDrop, [(Size::Plain, 0.0, 0.15), (Size::JustAbove, 0.18, 0.25), (Size::Below, 0.45, 0.7)]),
    (Kind::RefusalSpike, [(Size::Plain, 0.2, 0.7), (Size::JustAbove, 0.08, 0.12), (Size::Below, 0.01, 0.03)]),
    (Kind::NewTopCaller, [(Size::Plain, 0.55, 0.9), (Size::JustAbove, 0.51, 0.55), (Size::Below, 0.3, 0.48)]),
    (Kind::SpreadCaller, [(Size::Plain, 4.0, 10.0), (Size::JustAbove, 2.3, 2.8), (Size::Below, 1.5, 1.9)]),
    (
        Kind::ShadowWouldRefuse,
        [(Size::Plain, 0.1, 0.5), (Size::JustAbove, 0.06, 0.08), (Size::Below, 0.01, 0.04)],
    ),
];

/// The results of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// By kind and size of the incident.
    pub scores: BTreeMap<(Kind, Size), Score>,
    /// Alerts without an incident, by kind.
    pub wrong: BTreeMap<Kind, u32>,
}

/// The results for one kind and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Incidents with an alert.
    pub found: u32,
    /// Incidents without one.
    pub missed: u32,
    /// Minutes until the alert, summed over the found ones.
    pub minutes: u64,
}

impl Evaluation {
    /// Adds the results of another evaluation.
    pub fn add(&mut self, other: &Evaluation) {
        for (key, score) in &other.scores {
            let sum = self.scores.entry(*key).or_default();
            sum.found += score.found;
            sum.missed += score.missed;
            sum.minutes += score.minutes;
        }
        for (kind, wrong) in &other.wrong {
            *self.wrong.entry(*kind).or_default() += wrong;
        }
    }

    /// The results for one kind and size.
    #[must_use]
    pub fn score(&self, kind: Kind, size: Size) -> Score {
        self.scores.get(&(kind, size)).copied().unwrap_or_default()
    }

    /// The fraction of a kind's alerts that were right.
    #[must_use]
    pub fn precision(&self, kind: Kind) -> f64 {
        let right = self.score(kind, Size::Plain).found + self.score(kind, Size::JustAbove).found;
        ratio(right, right + self.wrong.get(&kind).copied().unwrap_or_default())
    }
}

impl Score {
    /// The fraction of incidents with an alert.
    #[must_use]
    pub fn recall(self) -> f64 {
        ratio(self.found, self.found + self.missed)
    }
}

fn ratio(part: u32, whole: u32) -> f64 {
    if whole == 0 { 1.0 } else { f64::from(part) / f64::from(whole) }
}

/// Evaluates alerts on the traffic of `seed`.
#[must_use]
pub fn evaluate(seed: u64) -> Evaluation {
    let mut random = Random(seed);
    let incidents = incidents(&mut random);
    let mut detector = Detector::new(Thresholds::default());
    let (mut world, mut minutes) = (World::new(&mut random), Minutes::default());
    let mut bursty = Bursty::new(seed);
    let mut evaluation = Evaluation::default();
    let mut told: Vec<Option<u64>> = vec![None; incidents.len()];
    let mut alerted: BTreeMap<(Kind, String), u64> = BTreeMap::new();
    for look in 0..DAYS * MINUTES_A_DAY * LOOKS_A_MINUTE {
        let minute = look / LOOKS_A_MINUTE;
        let now_s = look * 60 / LOOKS_A_MINUTE;
        let signals = world.step(minute, &incidents, &mut random);
        bursty.step(minute);
        if let Some(whole) = minutes.add(now_s, [world.counts.as_slice(), &bursty.counts].concat()) {
            detector.judge(&whole);
        }
        for finding in detector.look(now_s, &[signals], OthersHeard::Yes).findings {
            let (kind, subject) = (finding.kind, finding.subject.as_str());
            let key = (kind, subject.to_owned());
            let goes_on = alerted.insert(key, look).is_some_and(|last| look - last <= 2 * LOOKS_A_MINUTE);
            let about =
                |one: &Incident| one.kind == kind && subject == name(one.rule) && one.is_in_time(minute);
            if let Some(place) = incidents.iter().position(about) {
                told[place].get_or_insert(minute);
            }
            let is_right = incidents.iter().any(|one| one.explains(kind, subject, minute));
            if !is_right && !goes_on && minute >= LEARNING {
                *evaluation.wrong.entry(kind).or_default() += 1;
            }
        }
    }
    for (incident, told) in incidents.iter().zip(told) {
        let score = evaluation.scores.entry((incident.kind, incident.size)).or_default();
        match told {
            Some(minute) => {
                score.found += 1;
                score.minutes += minute.saturating_sub(incident.from);
            }
            None => score.missed += 1,
        }
    }
    evaluation
}

/// Eight of each kind and size in the second week, on one rule after the other.
fn incidents(random: &mut Random) -> Vec<Incident> {
    let all = (0..8).flat_map(|_| SIZES).flat_map(|(kind, sizes)| sizes.map(|size| (kind, size)));
    let mut incidents = Vec::new();
    for (number, (kind, (size, least, most))) in all.enumerate() {
        let number = number as u64;
        let from = LEARNING + 60 + number * 67 + random.below(12);
        let by = least + (most - least) * random.part();
        // Quiet rules cannot be judged, so they get no incidents: see `World::level`. A stride of seven over the sixteen
        // others gives each of them all kinds.
        let rule = 4 + number * 7 % (RULES - 4);
        incidents.push(Incident { kind, size, rule, from, minutes: 10 + random.below(40), by });
    }
    incidents
}

impl Incident {
    fn goes_on(&self, minute: u64) -> bool {
        (self.from..self.from + self.minutes).contains(&minute)
    }

    fn is_in_time(&self, minute: u64) -> bool {
        (self.from..self.from + self.minutes + GRACE_MIN).contains(&minute)
    }

    /// Whether this incident makes an alert of `kind` on `subject` right. One caller under many keys means more traffic and
    /// more keys; any other incident explains only its own kind.
    fn explains(&self, kind: Kind, subject: &str, minute: u64) -> bool {
        let follows = match (self.kind, kind) {
            (Kind::SpreadCaller, Kind::TrafficSpike) => subject == name(self.rule),
            (Kind::SpreadCaller, Kind::KeyCardinality) => true,
            (own, kind) => own == kind && subject == name(self.rule),
        };
        self.size != Size::Below && self.is_in_time(minute) && follows
    }
}

fn name(rule: u64) -> String {
    format!("api/rule-{rule}")
}

/// A server that counts requests.
struct World {
    counts: Vec<RuleCounts>,
    /// The fraction that each rule refuses, and that each shadow rule would.
    refuses: Vec<f64>,
    keys: f64,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let counts = (0..RULES).map(|rule| RuleCounts {
            rule: RuleName::new("api", &format!("rule-{rule}")),
            ..RuleCounts::default()
        });
        let refuses = (0..RULES).map(|_| 0.1 * random.part()).collect();
        World { counts: counts.collect(), refuses, keys: 50_000.0 }
    }

    /// Requests of a rule in one look: small and large rules, a daily curve, quieter weekends, each rule in its own phase.
    fn level(rule: u64, minute: u64) -> f64 {
        let base = match rule {
            0..=3 => 10.0 + 8.0 * rule as f64,
            _ => 120.0 * 1.6_f64.powi((rule - 4) as i32 % 9),
        };
        let phase = rule as f64 * 0.7;
        let day = (minute % MINUTES_A_DAY) as f64 / MINUTES_A_DAY as f64 * std::f64::consts::TAU;
        let weekend = if minute / MINUTES_A_DAY % 7 >= 5 { 0.6 } else { 1.0 };
        // A job at the same hour of every day.
        let job = if rule % 5 == 4 && minute % MINUTES_A_DAY / 60 == rule % 24 { 3.0 } else { 1.0 };
        base * (1.0 + 0.5 * (day + phase).sin()) * weekend * job / LOOKS_A_MINUTE as f64
    }

    fn step(&mut self, minute: u64, incidents: &[Incident], random: &mut Random) -> Signals {
        let mut callers = Vec::new();
        let mut keys = 50_000.0 * (1.0 + 0.02 * random.normal());
        for rule in 0..RULES {
            let place = rule as usize;
            let (mut traffic, mut refuses, mut shadow) =
                (World::level(rule, minute), self.refuses[place], 0.0);
            let mut top = (format!("usual-{rule}-{}", random.below(8)), 0.1 + 0.1 * random.part());
            for incident in incidents.iter().filter(|one| one.rule == rule && one.goes_on(minute)) {
                match incident.kind {
                    Kind::TrafficSpike | Kind::TrafficDrop => traffic *= incident.by,
                    Kind::RefusalSpike => refuses = (refuses + incident.by).min(0.95),
                    Kind::NewTopCaller => top = (format!("new-{}", incident.from), incident.by),
                    Kind::SpreadCaller => {
                        traffic *= incident.by;
                        // A surge brings some new callers, too.
                        keys *=
                            if incident.size == Size::Below { 0.7 * incident.by } else { 1.0 + incident.by };
                    }
                    _ => shadow = incident.by,
                }
            }
            // Some rules are steadier than others; all have noise.
            let noisy = (traffic * (1.0 + 0.08 * random.normal()) + traffic.sqrt() * random.normal())
                .max(0.0)
                .round();
            let refused = (noisy * (refuses + 0.01 * random.normal())).clamp(0.0, noisy).round();
            let counts = &mut self.counts[place];
            counts.total += noisy as u64;
            counts.refused += refused as u64;
            counts.shadow_refused += (noisy * shadow).round() as u64;
            let (caller, share) = top;
            let rule = RuleName::new("api", &format!("rule-{rule}"));
            callers.push(RuleCallers { rule, asked: 1_000, most: vec![(caller, (share * 1_000.0) as u64)] });
        }
        self.keys += 0.3 * (keys - self.keys);
        Signals {
            node: "a".to_owned(),
            release: "1".to_owned(),
            store_keys: self.keys as u64,
            callers,
            ..Signals::default()
        }
    }
}

/// Rules with bursts. Their random numbers are separate, so that they change nothing about the others.
struct Bursty {
    random: Random,
    counts: Vec<RuleCounts>,
    /// The start and end of each one's burst, in minutes, and its requests in one look.
    bursts: Vec<(u64, u64, u64)>,
}

impl Bursty {
    fn new(seed: u64) -> Self {
        let counts = (0..BURSTY).map(|number| RuleCounts {
            rule: RuleName::new("api", &format!("bursty-{number}")),
            ..RuleCounts::default()
        });
        Bursty { random: Random(!seed), counts: counts.collect(), bursts: vec![(0, 0, 0); BURSTY as usize] }
    }

    /// Bursts of one to several minutes, of similar size, with pauses three to thirty times as long.
    fn step(&mut self, minute: u64) {
        let random = &mut self.random;
        for (longest, (counts, burst)) in (1..).zip(self.counts.iter_mut().zip(&mut self.bursts)) {
            if minute >= burst.1 {
                let minutes = 1 + random.below(longest);
                let from = minute + minutes * (3 + random.below(28));
                *burst = (from, from + minutes, 1_000 + random.below(1_000));
            }
            if minute >= burst.0 {
                counts.total += burst.2;
            }
        }
    }
}

/// SplitMix64, and distributions made of it.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// From 0 to 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Approximately normal: the sum of twelve uniform numbers.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.part()).sum::<f64>() - 6.0
    }
}
