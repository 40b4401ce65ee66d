//! A limiter on the memory store, observed by real metrics, with short helpers.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate_core::Timestamp;
use tidegate_limiter::{CheckRequest, Decision, DescriptorAsk, Limiter, LimiterConfig};
use tidegate_metrics::{Format, Metrics, Registry};
use tidegate_rules::{RuleSet, Source};
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore, Store};

use crate::scrape::Scrape;

pub(crate) struct World {
    pub(crate) limiter: Limiter,
    pub(crate) metrics: Arc<Metrics>,
    registry: Registry,
}

impl World {
    /// A limiter with these rule files on a memory store whose time stands still.
    pub(crate) fn new(files: &[&str]) -> World {
        let config = MemoryConfig::new().max_cells(100_000).max_log_bytes(1 << 20);
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        World::on(Arc::new(MemoryStore::with_clock(config, clock)), files)
    }

    pub(crate) fn on(store: Arc<dyn Store>, files: &[&str]) -> World {
        let metrics = Arc::new(Metrics::new());
        let limiter = Limiter::new(LimiterConfig::new(compile(files), store, metrics.clone()));
        World { limiter, registry: Registry::new(metrics.clone()), metrics }
    }

    pub(crate) fn replace_rules(&self, files: &[&str]) {
        self.limiter.use_rules(compile(files));
    }

    /// Decides one request of one hit in the domain `api`.
    pub(crate) fn check(&self, attributes: &[(&str, &str)]) -> Decision {
        self.check_in("api", attributes)
    }

    pub(crate) fn check_in(&self, domain: &str, attributes: &[(&str, &str)]) -> Decision {
        let entries: Vec<(&str, &[u8])> =
            attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let descriptors = [DescriptorAsk::one(&entries)];
        at_once(self.limiter.check(&CheckRequest::new(domain, &descriptors))).unwrap()
    }

    pub(crate) fn text(&self) -> String {
        self.registry.read().text(Format::OpenMetrics)
    }

    #[track_caller]
    pub(crate) fn scrape(&self) -> Scrape {
        Scrape::parse(&self.text(), Format::OpenMetrics)
    }

    /// How often a rule of the domain `api` decided `result`, by the store.
    #[track_caller]
    pub(crate) fn decisions(&self, rule: &str, result: &str) -> Option<f64> {
        let labels = [("domain", "api"), ("rule", rule), ("result", result), ("source", "store")];
        self.scrape().get("tidegate_decisions_total", &labels)
    }
}

/// Compiles rule files in whichever format each is.
pub(crate) fn compile(files: &[&str]) -> RuleSet {
    let sources: Vec<Source> =
        files.iter().enumerate().map(|(n, text)| Source::new(format!("{n}.yaml"), *text)).collect();
    let groups: Vec<_> = sources
        .iter()
        .map(|source| (std::slice::from_ref(source), tidegate_rules::Format::of(source)))
        .collect();
    RuleSet::compile_all(&groups).unwrap_or_else(|error| panic!("{error}"))
}

/// Rules of the domain `api`, each called `prefix` and its number, that all requests match which say `n: NUMBER`.
pub(crate) fn many_rules(prefix: &str, count: usize) -> String {
    let rule =
        |n: usize| format!("- {{ name: {prefix}-{n}, match: {{ n: \"{n}\" }}, limits: [1000/hour] }}\n");
    format!("domain: api\nrules:\n{}", (0..count).map(rule).collect::<String>())
}

/// The memory store answers at once: a runtime would have nothing to do.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("somebody had to wait"),
    }
}
