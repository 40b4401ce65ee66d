//! The log itself: observes every decision and keeps some.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_limiter::{Decided, Observer, Report, RuleResult, Settled, Settlement};
use tidegate_rules::{LimitsFrom, Match, MatchedLimits};
use tidegate_store::Clock;

use crate::config::DecisionLogConfig;
use crate::demand::{Asked, Demand};
use crate::event::{Entry, Event};
use crate::record::{Digester, LONGEST_NAME, Record, When};
use crate::ring::{Found, Query, Ring, search};
use crate::sample::{Admissions, PerSecond};
use crate::sides::{Experiments, SideCallers};
use crate::sink::Sink;
use crate::top::{Noted, RankBy, Top, TopCallers};

/// The most attributes in the key of a ranked caller, and the most bytes before values are replaced by their hashes.
const MOST_PARTS: usize = 16;
const LONGEST_KEY: usize = 512;

/// A sampled log of decisions.
pub struct DecisionLog {
    admissions: Admissions,
    refusals: PerSecond,
    /// Refunds and charges, sampled like admissions, and the bound for renewals per second.
    settlements: Admissions,
    renewals: PerSecond,
    ring: Mutex<Ring>,
    sink: Option<Sink>,
    names: Digester,
    node: Arc<str>,
    clock: Arc<dyn Clock>,
    top: TopCallers,
    demand: Demand,
    experiments: Experiments,
    kept: AtomicU64,
    renewals_left_out: AtomicU64,
}

/// The size of the log, and what it dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Lines kept since the process started.
    pub kept: u64,
    /// Lines that could not be written to the file or stdout.
    pub dropped: u64,
    /// Lease renewals beyond the rate, which were not kept.
    pub renewals_left_out: u64,
    /// Lines in memory.
    pub records: usize,
    /// Bytes of the lines in memory.
    pub bytes: usize,
    /// Ranked callers.
    pub callers: usize,
}

impl DecisionLog {
    /// A log with this configuration.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(config: DecisionLogConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Ok(DecisionLog {
            admissions: Admissions::new(config.admissions_one_in, config.admissions_per_second),
            refusals: PerSecond::new(config.refusals_per_second),
            settlements: Admissions::new(config.admissions_one_in, config.admissions_per_second),
            renewals: PerSecond::new(config.refusals_per_second),
            ring: Mutex::new(Ring::new(config.memory_bytes)),
            sink: Sink::open(config.file, config.stdout)?,
            names: Digester::new(config.secret.as_deref(), config.clear),
            node: config.node.into(),
            clock,
            top: TopCallers::default(),
            demand: Demand::default(),
            experiments: Experiments::default(),
            kept: AtomicU64::new(0),
            renewals_left_out: AtomicU64::new(0),
        })
    }

    /// Counts the caller on its side of every experiment that the request is in.
    #[cold]
    fn count_sides(&self, decided: &Decided<'_>, now_us: u64) {
        for (found, _, report) in decided.by_match() {
            if let Some(variant) = report.variant {
                let of = [decided.request.domain, found.rule.name()];
                self.experiments.note(of, variant, self.names.caller(&found.key), now_us);
            }
        }
    }

    #[cold]
    fn keep(&self, decided: &Decided<'_>, now_us: u64, n: u32) {
        let when = When::between(decided.decision.asked_at(), now_us, decided.decision.decided_at());
        let record = Arc::new(Record::new(decided, (when, n), self.node.clone(), &self.names));
        self.rank(decided, &record, now_us, n);
        self.write(Entry::Decision(record));
    }

    fn write(&self, entry: Entry) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        if let Some(sink) = &self.sink {
            sink.write(&entry);
        }
        self.ring.lock().push(entry);
    }

    /// Ranks the caller under every rule that it matched.
    fn rank(&self, decided: &Decided<'_>, record: &Record, now_us: u64, n: u32) {
        for (found, result, report) in decided.by_match() {
            let refused = match result {
                RuleResult::Refused | RuleResult::ShadowRefused => {
                    !decided.decision.source.is_without_the_store()
                }
                RuleResult::Allowed => false,
                // No caller was counted: the rule has no limits for it, or no key.
                _ => continue,
            };
            let key = self.key_of(decided, record, found);
            let caller = self.names.caller(&found.key);
            let limit = report.limit().filter(|limit| limit.quota > 0);
            self.top.note(&Noted {
                domain: decided.request.domain,
                rule: found.rule.name(),
                caller,
                key: &key,
                now_us,
                n: n.into(),
                refused,
                left_permille: limit.map(|limit| limit.outcome.remaining.saturating_mul(1_000) / limit.quota),
            });
            // A node that decides without its store enforces a share of the limit: its numbers do not describe the whole.
            if !decided.decision.source.is_without_the_store() {
                self.note_demand(decided, found, (caller as u32, &key), (now_us, n));
            }
        }
    }

    /// Records what the caller has used of each limit of a rule.
    fn note_demand(
        &self,
        decided: &Decided<'_>,
        found: &Match<'_>,
        (caller, key): (u32, &[(&str, String)]),
        (now_us, n): (u64, u32),
    ) {
        let MatchedLimits::Enforce(limits) = found.limits else { return };
        let tier = match found.limits_from() {
            LimitsFrom::Rule => None,
            LimitsFrom::Tier(tier) => Some(tier),
            // A caller with limits of its own says nothing about what the rule's should be.
            LimitsFrom::Others => {
                let (domain, rule) = (decided.request.domain, found.rule.name());
                limits.iter().for_each(|limit| self.demand.leave_out([domain, rule, &limit.name], n.into()));
                return;
            }
        };
        let own = |report: &&Report| {
            report.rule == Some(found.rule.index()) && report.descriptor == found.descriptor
        };
        let reports = decided.decision.reports().iter().filter(own).filter_map(Report::limit);
        // A decision reports the limits in the rule's order, then penalties.
        for (limit, told) in limits.iter().zip(reports) {
            let of_tier = tier.map(|tier| format!("{} of {tier}", limit.name));
            self.demand.note(&Asked {
                domain: decided.request.domain,
                rule: found.rule.name(),
                limit: of_tier.as_deref().unwrap_or(&limit.name),
                algorithm: limit.limit.algorithm().name(),
                quota: told.quota,
                window: told.window,
                remaining: told.outcome.remaining,
                refused: !told.outcome.is_admitted(),
                hits: decided.request.descriptors[found.descriptor].cost.get(),
                n: n.into(),
                now_us,
                caller,
                key,
            });
        }
    }

    /// The key of a caller under a rule, as logged, in bounded bytes.
    fn key_of<'d>(
        &self,
        decided: &Decided<'d>,
        record: &Record,
        found: &Match<'d>,
    ) -> Vec<(&'d str, String)> {
        let entries = decided.request.descriptors[found.descriptor].descriptor.entries;
        // An envoyproxy/ratelimit limit is keyed by the whole descriptor.
        let of_all = found.rule.key().is_empty() && !found.key.is_empty();
        let all = entries.iter().filter(|_| of_all).map(|(name, _)| *name);
        let names = all.chain(found.rule.key().iter().map(String::as_str));
        let is_only = decided.request.descriptors.len() == 1;
        let mut bytes = 0;
        let shown = |name: &'d str| {
            let own = entries.iter().find(|(known, _)| *known == name);
            // For a single descriptor, reuse the hash in the line.
            let written = record
                .attributes
                .iter()
                .find(|(known, _)| is_only && **known == *name && name.len() < LONGEST_NAME);
            let value = match written {
                Some((_, shown)) => shown.clone().into_string(),
                None => own.map(|(name, value)| self.names.shown(name, value)).unwrap_or_default(),
            };
            bytes += name.len() + value.len();
            let hash = |(name, value): &(&str, &[u8])| self.names.hash(name, value);
            (name, if bytes > LONGEST_KEY { own.map(hash).unwrap_or_default() } else { value })
        };
        names.take(MOST_PARTS).map(shown).collect()
    }

    /// Searches the lines in memory.
    #[must_use]
    pub fn search(&self, query: &Query) -> Found {
        // Copied, so that no decision waits for a search.
        let entries = self.ring.lock().all();
        search(&entries, query, &self.names)
    }

    /// All lines in memory, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Entry> {
        self.ring.lock().all()
    }

    /// The time since which memory holds all kept lines; `None` if since the process started.
    #[must_use]
    pub fn complete_since_us(&self) -> Option<u64> {
        self.ring.lock().complete_since_us()
    }

    /// Waits until the lines so far are written to the file and stdout, for at most `within`. False if some are not.
    pub fn flush(&self, within: Duration) -> bool {
        self.sink.as_ref().is_none_or(|sink| sink.flush(within))
    }

    /// The current `most` top callers of a rule.
    #[must_use]
    pub fn top_of(&self, domain: &str, rule: &str, by: RankBy, most: usize) -> Top {
        self.top.top((domain, rule), by, most, self.clock.now().as_micros())
    }

    /// The top callers.
    #[must_use]
    pub fn top(&self) -> &TopCallers {
        &self.top
    }

    /// The peak demand of callers.
    #[must_use]
    pub fn demand(&self) -> &Demand {
        &self.demand
    }

    /// The callers on each side of a rule's experiment in the last day.
    #[must_use]
    pub fn sides(&self, domain: &str, rule: &str) -> Vec<SideCallers> {
        self.experiments.of(domain, rule, self.clock.now().as_micros())
    }

    /// Hashes the names of callers.
    #[must_use]
    pub fn names(&self) -> &Digester {
        &self.names
    }

    /// The size of the log, and what it dropped.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let (records, bytes) = {
            let ring = self.ring.lock();
            (ring.len(), ring.bytes())
        };
        LogStats {
            kept: self.kept.load(Ordering::Relaxed),
            dropped: self.sink.as_ref().map_or(0, Sink::dropped),
            renewals_left_out: self.renewals_left_out.load(Ordering::Relaxed),
            records,
            bytes,
            callers: self.top.kept() + self.demand.callers(),
        }
    }
}

impl Observer for DecisionLog {
    /// Observes a decision, and keeps it or not. A decision that is not kept costs only a count, and a hash of its key
    /// under each rule with an experiment.
    #[inline]
    fn decided(&self, decided: &Decided<'_>) {
        // A check with cost 0, as the dashboard makes all the time, is not a decision.
        if decided.is_look() {
            return;
        }
        // Uses the request's timestamp: reading the clock for every decision would cost more than the rest.
        let asked_us = decided.decision.asked_at().as_micros();
        if decided.decision.reports().iter().any(|report| report.variant.is_some()) {
            self.count_sides(decided, asked_us);
        }
        let second = asked_us / 1_000_000;
        let kept = match (decided.decision.allowed, &decided.decision.lease) {
            (false, _) => self.refusals.take(second),
            (true, None) => self.admissions.take(second),
            (true, Some(lease)) => self.admissions.take_lease(second, || lease.mark()),
        };
        if let Some(n) = kept {
            self.keep(decided, self.clock.now().as_micros(), n);
        }
    }

    /// Observes a change of limits other than a decision. The end of a lease is kept if its admission is, on any node.
    fn settled(&self, settled: &Settled<'_>) {
        let now_us = self.clock.now().as_micros();
        let second = now_us / 1_000_000;
        let kept = match settled.how {
            Settlement::Released(lease) | Settlement::ReleasedPart(lease) => {
                self.admissions.take_end(second, || lease.mark())
            }
            // A holder may renew its lease as often as it likes, so this is bounded.
            Settlement::Renewed(lease) => {
                let kept = self.admissions.take_end(second, || lease.mark());
                let fits = |_: &u32| self.renewals.take(second).is_some();
                let taken = kept.filter(fits);
                let left_out = kept.is_some() && taken.is_none();
                self.renewals_left_out.fetch_add(left_out.into(), Ordering::Relaxed);
                taken
            }
            Settlement::Reset(_) => Some(1),
            _ => self.settlements.take(second),
        };
        let Some(n) = kept else { return };
        let when = When::between(settled.asked_at, now_us, settled.done_at);
        if let Some(event) = Event::new(settled, (when, n), self.node.clone(), &self.names) {
            self.write(Entry::Event(Arc::new(event)));
        }
    }
}

impl std::fmt::Debug for DecisionLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecisionLog").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
