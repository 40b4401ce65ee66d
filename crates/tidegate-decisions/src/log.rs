//! The log itself: hears every decision, keeps some.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_limiter::{Decided, RuleResult};
use tidegate_store::Clock;

use crate::config::DecisionLogConfig;
use crate::record::{Digester, Record};
use crate::ring::{Found, Query, Ring, search};
use crate::sample::{OneIn, PerSecond};
use crate::sink::Sink;
use crate::top::{Noted, TopCallers};

/// A sampled log of decisions.
pub struct DecisionLog {
    admissions: OneIn,
    refusals: PerSecond,
    ring: Mutex<Ring>,
    sink: Option<Sink>,
    names: Digester,
    node: Arc<str>,
    clock: Arc<dyn Clock>,
    top: TopCallers,
    kept: AtomicU64,
}

/// What the log holds, and what it had to drop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Lines kept since the process began.
    pub kept: u64,
    /// Lines that could not be written to the file or stdout.
    pub dropped: u64,
    /// Lines in memory.
    pub records: usize,
    /// Bytes they take.
    pub bytes: usize,
    /// Callers that are ranked.
    pub callers: usize,
}

impl DecisionLog {
    /// A log that keeps what `config` says.
    ///
    /// # Errors
    /// When its file cannot be opened.
    pub fn open(config: DecisionLogConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Ok(DecisionLog {
            admissions: OneIn::new(config.admissions_one_in),
            refusals: PerSecond::new(config.refusals_per_second),
            ring: Mutex::new(Ring::new(config.memory_bytes)),
            sink: Sink::open(config.file, config.stdout)?,
            names: Digester::new(config.secret.as_deref(), config.clear),
            node: config.node.into(),
            clock,
            top: TopCallers::default(),
            kept: AtomicU64::new(0),
        })
    }

    /// Hears a decision, and keeps it or not. Only what is kept costs more than a count.
    #[inline]
    pub fn hear(&self, decided: &Decided<'_>) {
        if decided.decision.allowed {
            if let Some(n) = self.admissions.take() {
                self.keep(decided, self.clock.now().as_micros(), n);
            }
        } else {
            let now_us = self.clock.now().as_micros();
            if let Some(n) = self.refusals.take(now_us / 1_000_000) {
                self.keep(decided, now_us, n);
            }
        }
    }

    #[cold]
    fn keep(&self, decided: &Decided<'_>, now_us: u64, n: u32) {
        self.rank(decided, n);
        let record = Arc::new(Record::new(decided, (now_us, n), self.node.clone(), &self.names));
        self.kept.fetch_add(1, Ordering::Relaxed);
        if let Some(sink) = &self.sink {
            sink.write(&record);
        }
        self.ring.lock().push(record);
    }

    /// Counts the caller under every rule that it matched.
    fn rank(&self, decided: &Decided<'_>, n: u32) {
        for (found, result, report) in decided.by_match() {
            let refused = match result {
                RuleResult::Refused | RuleResult::ShadowRefused => true,
                RuleResult::Allowed => false,
                RuleResult::Unlimited | RuleResult::KeyMissingSkipped | RuleResult::KeyMissingRefused => {
                    continue;
                }
            };
            let entries = decided.request.descriptors[found.descriptor].descriptor.entries;
            let value = |name: &str| {
                let own = entries.iter().find(|(known, _)| *known == name);
                own.map(|(name, value)| self.names.shown(name, value)).unwrap_or_default()
            };
            // An envoyproxy/ratelimit limit is keyed by the whole descriptor.
            let key: Vec<(&str, String)> = if found.rule.key().is_empty() && !found.key.is_empty() {
                entries.iter().map(|(name, value)| (*name, self.names.shown(name, value))).collect()
            } else {
                found.rule.key().iter().map(|name| (name.as_str(), value(name))).collect()
            };
            let key: Vec<(&str, &str)> = key.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let limit = report.limit().filter(|limit| limit.quota > 0);
            self.top.note(&Noted {
                domain: decided.request.domain,
                rule: found.rule.name(),
                key: &key,
                n: n.into(),
                refused,
                left_permille: limit.map(|limit| limit.outcome.remaining.saturating_mul(1_000) / limit.quota),
            });
        }
    }

    /// Searches what is kept in memory.
    #[must_use]
    pub fn search(&self, query: &Query) -> Found {
        // Copied out, so that no decision waits for a search.
        let records = self.ring.lock().all();
        search(&records, query, &self.names)
    }

    /// Everything that is kept in memory, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Arc<Record>> {
        self.ring.lock().all()
    }

    /// The busiest callers.
    #[must_use]
    pub fn top(&self) -> &TopCallers {
        &self.top
    }

    /// How callers are named.
    #[must_use]
    pub fn names(&self) -> &Digester {
        &self.names
    }

    /// What it holds.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let (records, bytes) = {
            let ring = self.ring.lock();
            (ring.len(), ring.bytes())
        };
        LogStats {
            kept: self.kept.load(Ordering::Relaxed),
            dropped: self.sink.as_ref().map_or(0, Sink::dropped),
            records,
            bytes,
            callers: self.top.kept(),
        }
    }
}

impl std::fmt::Debug for DecisionLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecisionLog").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
