//! Counts during a replay, and makes its report.

use tidegate_core::{Hits, Timestamp};
use tidegate_decisions::{Histogram, confidence_percent};
use tidegate_rules::{Match, Mode, Rule, RuleSet};
use tidegate_store::MemoryStats;

use crate::callers::{Caller, Callers, LimitTrack, Side, printable, shown};
use crate::caveats::{Past, Unknown};
use crate::engine::Options;
use crate::leases::LeaseCounts;
use crate::parse::Recorded;
use crate::report::{
    CallerReport, Counts, LimitReport, Lines, Otherwise, Peak, Report, RuleChange, RuleReport, Suggestion,
};
use crate::timeline::Buckets;

/// The percentile of callers that a suggested limit lets pass, in thousandths.
const SUGGESTED: u64 = 999;
/// A log with times in whole seconds blurs windows shorter than this.
const BLURRED_US: u64 = 10_000_000;

/// All counts so far.
pub(crate) struct Tally {
    rules: Vec<RuleTally>,
    requests: u64,
    refused: [u64; 2],
    newly_refused: u64,
    newly_admitted: u64,
    refused_in_log: Option<u64>,
    /// Lines that stand for several requests: admissions and refusals; and the most that one stands for.
    sampled_lines: [u64; 2],
    most_for: u32,
    past: Past,
    /// How the ends of leases were determined.
    pub(crate) leases: LeaseCounts,
    timeline: Buckets,
}

/// One rule's counts.
pub(crate) struct RuleTally {
    domain: String,
    name: String,
    key: Vec<String>,
    shadow: bool,
    in_now: bool,
    in_before: bool,
    requests: u64,
    skipped: u64,
    refused: [u64; 2],
    callers: Callers,
    timeline: Buckets,
}

impl Tally {
    pub(crate) fn new(now: &RuleSet, before: Option<&RuleSet>, most_callers: usize) -> Self {
        let mut rules: Vec<RuleTally> = Vec::new();
        for (rules_of, side) in [(Some(now), Side::Now), (before, Side::Before)] {
            for rule in rules_of.into_iter().flat_map(RuleSet::rules) {
                let known = rules.iter().position(|known| known.is_of(rule));
                let known = known.unwrap_or_else(|| {
                    rules.push(RuleTally::new(rule, most_callers));
                    rules.len() - 1
                });
                match side {
                    Side::Now => rules[known].in_now = true,
                    Side::Before => rules[known].in_before = true,
                }
            }
        }
        Tally {
            rules,
            requests: 0,
            refused: [0; 2],
            newly_refused: 0,
            newly_admitted: 0,
            refused_in_log: None,
            sampled_lines: [0; 2],
            most_for: 1,
            past: Past::default(),
            leases: LeaseCounts::default(),
            timeline: Buckets::default(),
        }
    }

    /// The index of each rule of a set.
    pub(crate) fn places(&self, rules: &RuleSet) -> Box<[usize]> {
        let place = |rule: &Rule| self.rules.iter().position(|known| known.is_of(rule));
        rules.rules().map(|rule| place(rule).expect("a tally is made of the rules it counts")).collect()
    }

    pub(crate) fn rule(&mut self, place: usize) -> &mut RuleTally {
        &mut self.rules[place]
    }

    pub(crate) fn decided(&mut self, at: Timestamp, now: bool, before: bool, compared: bool) {
        self.requests += 1;
        self.refused[0] += u64::from(!now);
        self.refused[1] += u64::from(compared && !before);
        self.newly_refused += u64::from(!now && before);
        self.newly_admitted += u64::from(now && !before);
        self.timeline.add(at, [1, u64::from(!now), u64::from(!before)]);
    }

    pub(crate) fn recorded(&mut self, recorded: &Recorded<'_>) {
        if let Some(refused) = recorded.refused {
            *self.refused_in_log.get_or_insert(0) += u64::from(refused) * u64::from(recorded.weight);
        }
        let refused = usize::from(recorded.refused == Some(true));
        self.sampled_lines[refused] += u64::from(recorded.weight > 1);
        self.most_for = self.most_for.max(recorded.weight);
        self.past.note(recorded);
    }

    /// Compares the decision now with the recorded one.
    pub(crate) fn decided_before(&mut self, recorded: &Recorded<'_>, now: bool, before: Option<bool>) {
        self.past.compare(recorded, now, before);
    }

    pub(crate) fn report(
        &mut self,
        options: &Options,
        (rules, before): (&RuleSet, Option<&RuleSet>),
        lines: Lines,
        (format, (from, to)): (&'static str, (Timestamp, Timestamp)),
        stats: MemoryStats,
    ) -> Report {
        self.rules.iter_mut().for_each(|rule| rule.callers.finish());
        let compared = before.is_some();
        let unknown = self.past.unknown([Some(rules), before], &options.domain, options.hashed);
        let mut notes = self.notes(rules, &lines, format, stats);
        notes.extend(self.past.notes(rules, &options.domain, &unknown));
        let mut reports: Vec<RuleReport> =
            self.rules.iter().map(|rule| rule.report(compared, options.named, &unknown)).collect();
        reports
            .sort_by(|a, b| (&a.domain, &a.rule, a.change as u8).cmp(&(&b.domain, &b.rule, b.change as u8)));
        let lines_played = lines.played;
        Report {
            format,
            lines,
            from_s: from.as_micros() / 1_000_000,
            to_s: to.as_micros() / 1_000_000,
            requests: self.requests,
            refused: counts(self.refused, compared),
            refused_in_log: self.refused_in_log,
            decided_otherwise: self.past.otherwise.map(otherwise),
            before_otherwise: self.past.before_otherwise.map(otherwise),
            estimate: self.estimate(lines_played),
            unknown: unknown.sentence(),
            newly_refused: compared.then_some(self.newly_refused),
            newly_admitted: compared.then_some(self.newly_admitted),
            timeline: self.timeline.report(),
            rules: reports,
            notes,
        }
    }

    /// Why the numbers are an estimate, if lines stand for several requests.
    ///
    /// Such a line is replayed as that many requests of its caller at its time. That invents a burst if the caller made only
    /// a few of them. But replayed once, or as other callers, it would lose the usage of busy callers and of rules that
    /// count for everybody, so limits that refuse would seem not to. The replay errs towards refusing too much, and the
    /// report says so.
    fn estimate(&self, lines_played: u64) -> Option<String> {
        let [admissions, refusals] = self.sampled_lines;
        let sampled = admissions + refusals;
        if sampled == 0 {
            return None;
        }
        let settings = [
            (admissions, "`decision_log: { admissions_one_in: 1 }` keeps every admission"),
            (refusals, "a larger `decision_log.refusals_per_second` keeps every refusal"),
        ];
        let settings: Vec<&str> =
            settings.into_iter().filter(|(lines, _)| *lines > 0).map(|(_, setting)| setting).collect();
        Some(format!(
            "an estimate: {sampled} of {lines_played} lines stand for up to {} requests each, and are played as if one caller made \
             them at once, so callers who made few of them may be refused here and were not. Exact is what is kept whole: {}",
            self.most_for,
            settings.join("; ")
        ))
    }

    fn notes(&self, rules: &RuleSet, lines: &Lines, format: &str, stats: MemoryStats) -> Vec<String> {
        let mut notes = Vec::new();
        let limits = || rules.rules().flat_map(Rule::limits);
        let short = |window: Option<u64>| window.is_some_and(|window| window < BLURRED_US);
        if format == "combined" && limits().any(|limit| short(limit.limit.quota_window().map(|w| w.get()))) {
            notes.push(
                "the log tells whole seconds: requests of one second count as made at once, so limits over less than \
                 10 s refuse more here than they would have"
                    .to_owned(),
            );
        }
        let LeaseCounts { untimed, supposed, expired, one_in } = self.leases;
        if untimed > 0 {
            notes.push(format!(
                "{untimed} requests do not say how long they took: for concurrency limits they count as done at once"
            ));
        }
        if supposed > 0 {
            notes.push(format!(
                "{supposed} requests pass here of which the log tells no end: for concurrency limits they count as held for \
                 as long as others were on average so far"
            ));
        }
        if expired > 0 {
            notes.push(format!(
                "{expired} leases were not released in the log: they end by their time to live"
            ));
        }
        if one_in > 0 {
            notes.push(format!(
                "the log keeps one lease in {one_in}: it says little about concurrency limits, for of the leases that a line \
                 stands for one is held here, and the others count as done at once"
            ));
        }
        /// More than the writers of one log differ: then whole logs are out of order.
        const HOUR_US: u64 = 3_600_000_000;
        if lines.reordered > lines.out_of_order {
            notes.push(format!(
                "{} lines are earlier than one before them, by up to {:.3} s: they are replayed in the order of their times",
                lines.reordered - lines.out_of_order,
                lines.most_reordered_us as f64 / 1e6,
            ));
        }
        if lines.out_of_order > 0 {
            let way_out = match lines.most_out_of_order_us {
                HOUR_US.. => "; give logs in the order of time, the oldest first, or use --sort",
                _ if lines.reordered > 0 => "; --sort puts the whole log in order",
                _ => "",
            };
            notes.push(format!(
                "{} lines are earlier than the one before them, by up to {:.3} s: they count as made at that one's time{way_out}",
                lines.out_of_order,
                lines.most_out_of_order_us as f64 / 1e6,
            ));
        }
        if stats.evicted_in_use + stats.evicted_spent > 0 {
            let evicted = stats.evicted_in_use + stats.evicted_spent;
            notes.push(format!(
                "{evicted} counters were dropped at the bound of memory: too little is refused here"
            ));
        }
        for rule in self.rules.iter().filter(|rule| rule.callers.left_out > 0) {
            notes.push(format!(
                "rule {}: what callers ask for, and what is suggested, is without {} requests of callers that have limits of their \
                 own",
                rule.name, rule.callers.left_out
            ));
        }
        for rule in self.rules.iter().filter(|rule| rule.callers.each_stands_for() > 1) {
            notes.push(format!(
                "rule {} has more callers than are counted one by one: its numbers of callers are estimated from one in {}",
                rule.name,
                rule.callers.each_stands_for()
            ));
        }
        notes
    }
}

impl RuleTally {
    fn new(rule: &Rule, most_callers: usize) -> Self {
        RuleTally {
            domain: rule.domain().to_owned(),
            name: rule.name().to_owned(),
            key: rule.key().to_vec(),
            shadow: rule.mode() == Mode::Shadow,
            in_now: false,
            in_before: false,
            requests: 0,
            skipped: 0,
            refused: [0; 2],
            callers: Callers::new(most_callers),
            timeline: Buckets::default(),
        }
    }

    /// Whether this tally is for `rule`: the same name and the same key.
    fn is_of(&self, rule: &Rule) -> bool {
        self.name == rule.name() && self.domain == rule.domain() && self.key == rule.key()
    }

    pub(crate) fn skip(&mut self, side: Side) {
        self.skipped += u64::from(side == Side::Now);
    }

    pub(crate) fn note(&mut self, side: Side, found: &Match<'_>, refused: bool, now: Timestamp, hits: Hits) {
        let counted = u64::from(refused);
        match side {
            Side::Now => {
                self.requests += 1;
                self.refused[0] += counted;
                self.timeline.add(now, [1, counted, 0]);
            }
            Side::Before => {
                self.refused[1] += counted;
                self.timeline.add(now, [0, 0, counted]);
            }
        }
        self.callers.note(side, found, refused, now, hits);
    }

    fn report(&self, compared: bool, named: usize, unknown: &Unknown) -> RuleReport {
        let scale = self.callers.each_stands_for();
        let count = |holds: &dyn Fn(&Caller) -> bool| {
            self.callers.iter().filter(|(_, caller)| holds(caller)).count() as u64 * scale
        };
        let refused = |side: usize| move |caller: &Caller| caller.refusals().counts[side] > 0;
        let newly = count(&|caller| matches!(caller.refusals().counts, [now, 0] if now > 0));
        let no_longer = count(&|caller| matches!(caller.refusals().counts, [0, before] if before > 0));
        RuleReport {
            domain: self.domain.clone(),
            rule: self.name.clone(),
            change: match (compared, self.in_now, self.in_before) {
                (false, ..) => RuleChange::Only,
                (true, true, true) => RuleChange::Both,
                (true, true, false) => RuleChange::Added,
                (true, false, _) => RuleChange::Removed,
            },
            shadow: self.shadow,
            unknown: unknown.has(&self.domain, &self.name),
            key: self.key.clone(),
            requests: self.requests,
            skipped: self.skipped,
            refused: counts(self.refused, compared),
            callers: count(&|_| true),
            callers_refused: counts([count(&refused(0)), count(&refused(1))], compared),
            callers_newly_refused: compared.then_some(newly),
            callers_no_longer_refused: compared.then_some(no_longer),
            sampled_one_in: scale,
            hit_first: self.callers_by(
                |caller| Some((caller.refusals().first?.as_micros(), 0)),
                compared,
                named,
            ),
            hit_most: self.callers_by(
                |caller| {
                    let [refused, _] = caller.refusals().counts;
                    (refused > 0).then_some((u64::MAX - refused, caller.requests))
                },
                compared,
                named,
            ),
            timeline: self.timeline.report(),
            limits: (0..)
                .zip(&self.callers.limits)
                .map(|(place, track)| self.limit(place, track, named))
                .collect(),
        }
    }

    /// The callers with the smallest `rank`; ties by their keys.
    fn callers_by(
        &self,
        rank: impl Fn(&Caller) -> Option<(u64, u64)>,
        compared: bool,
        named: usize,
    ) -> Vec<CallerReport> {
        let ranked = self.callers.iter().filter_map(|(key, caller)| Some((rank(caller)?, key, caller)));
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_unstable_by_key(|(rank, key, _)| (*rank, *key));
        ranked.truncate(named);
        let report = |(_, key, caller): ((u64, u64), &[u8], &Caller)| CallerReport {
            caller: shown(key, &self.key),
            requests: caller.requests,
            refused: counts(caller.refusals().counts, compared),
            first_refused_us: caller.refusals().first.map(Timestamp::as_micros),
        };
        ranked.into_iter().map(report).collect()
    }

    fn limit(&self, place: u32, track: &LimitTrack, named: usize) -> LimitReport {
        let mut peaks = Histogram::default();
        let mut busiest: Vec<(u64, &[u8])> = Vec::new();
        for (key, caller) in self.callers.iter() {
            for (_, demand) in caller.demands.iter().filter(|(of, demand)| *of == place && demand.peak > 0) {
                peaks.add(demand.peak, self.callers.each_stands_for());
                busiest.push((demand.peak, key));
            }
        }
        // Not the number that the sample stands for: scaling a sample adds no information.
        let sampled = busiest.len() as u64;
        let suggestion = peaks.at_most(SUGGESTED).map(|limit| {
            busiest.retain(|(peak, _)| *peak > limit);
            busiest.sort_unstable_by(|(a, key_a), (b, key_b)| (b, key_a).cmp(&(a, key_b)));
            let named = busiest.iter().take(named).map(|(peak, key)| (shown(key, &self.key), *peak));
            Suggestion {
                limit,
                callers: peaks.total(),
                confidence_percent: confidence_percent(sampled),
                above: busiest.len() as u64 * self.callers.each_stands_for(),
                busiest: named.collect(),
            }
        });
        let list =
            |histogram: &Histogram| histogram.iter().map(|(value, count)| Peak { value, count }).collect();
        LimitReport {
            limit: track.name.clone(),
            algorithm: track.limit.algorithm().name(),
            quota: track.limit.quota(),
            window_us: track.limit.quota_window().map(|window| window.get()),
            peaks: list(&peaks),
            runs: list(&track.runs),
            suggestion,
        }
    }
}

fn otherwise([admitted_now, refused_now]: [u64; 2]) -> Otherwise {
    Otherwise { admitted_now, refused_now }
}

fn counts([now, before]: [u64; 2], compared: bool) -> Counts {
    Counts { now, before: compared.then_some(before) }
}

/// The beginning of a line, for display.
pub(crate) fn printable_start(text: &[u8]) -> String {
    let start = &text[..text.len().min(120)];
    let shown: String = String::from_utf8_lossy(start).chars().flat_map(printable).collect();
    if start.len() < text.len() { format!("{shown}…") } else { shown }
}
