//! The metrics of everything but the counters: the store, its nodes, connections, upstreams.

use tidegate_limiter::{BreakerState, HomeStatus, NodeHealth, RemoteStats, ShareStats, ShedStats};
use tidegate_store::MemoryStats;

use crate::family::{Families, Text};
use crate::registry::Describe;

/// The size of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Its keys; for the memory store, its cells.
    pub keys: u64,
    /// The memory that it uses.
    pub bytes: u64,
    /// The most memory that it may use; 0 if unbounded or unknown.
    pub most_bytes: u64,
    /// Keys evicted for lack of memory.
    pub evicted: u64,
    /// How many canaries of this node were gone before their time, and how many it looked for; none where there are no canaries.
    pub canaries: Option<(u64, u64)>,
}

impl Describe for StoreUsage {
    fn describe(&self, families: &mut Families) {
        families.gauge("store_keys", "Keys in the store, on all its nodes.", self.keys);
        families.gauge("store_memory_bytes", "Memory used by the store, on all its nodes.", self.bytes);
        if self.most_bytes > 0 {
            let help = "Memory limit of the store (maxmemory), on all its nodes.";
            families.gauge("store_memory_max_bytes", help, self.most_bytes);
        }
        let help = "Keys that the store's servers evicted for lack of memory. Each one loses what its caller had spent. Must stay 0.";
        families.counter("store_evicted_keys", help, self.evicted);
        if let Some((lost, asked)) = self.canaries {
            let help =
                "Small items of this node that it left alone on Memcached for a minute, and then looked for.";
            families.counter("store_canaries", help, asked);
            let help = "Those of them that were gone: Memcached forgets callers who have spent. Must stay 0.";
            families.counter("store_canaries_lost", help, lost);
        }
    }
}

impl Describe for Option<ShareStats> {
    fn describe(&self, families: &mut Families) {
        let Some(shares) = self else { return };
        let help = "Counters of rules for all regions of which this node holds hits, or did lately.";
        families.gauge("share_purses", help, shares.purses);
        let help = "Hits that this node has taken from the home store and not yet spent.";
        families.gauge("share_hits", help, shares.hits);
        let help = "Hits that this node took from the home store.";
        families.counter("share_hits_taken", help, shares.taken);
        let help = "Hits that this node returned to the home store, unspent.";
        families.counter("share_hits_returned", help, shares.returned);
        let help = "Requests that waited for the home store, because this node held too few hits.";
        families.counter("share_waits", help, shares.waits);
    }
}

impl Describe for Vec<HomeStatus> {
    fn describe(&self, families: &mut Families) {
        if self.is_empty() {
            return;
        }
        let seconds = |span: tidegate_core::Micros| span.get() as f64 / 1e6;
        let each = |of: fn(&HomeStatus) -> Option<tidegate_core::Micros>| {
            self.iter().filter_map(move |home| Some((home.store.clone(), seconds(of(home)?))))
        };
        let help = "How long ago a home store last answered a heartbeat, of which there is one a second.";
        families.gauges_by("home", ("home_answered_seconds_ago", help), each(|home| home.answered_ago));
        let help = "How long that answer took: a round trip to the home store.";
        families.gauges_by("home", ("home_round_trip_seconds", help), each(|home| home.round_trip));
    }
}

/// The approximate number of the store's keys by kind; none if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyKinds(pub Vec<(&'static str, u64)>);

impl Describe for KeyKinds {
    fn describe(&self, families: &mut Families) {
        if !self.0.is_empty() {
            let help = "Keys in Redis by kind, estimated once a minute from 400 random keys of each server. Only the node that sends alerts has this.";
            families.gauges_by("kind", ("store_keys_by_kind", help), self.0.iter().copied());
        }
    }
}

/// The outcomes of requests to one upstream of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamCounts {
    /// Its name, from the configuration.
    pub upstream: String,
    /// Requests that one of its servers answered, with any status.
    pub answered: u64,
    /// Failed attempts, by reason.
    pub failures: Vec<(&'static str, u64)>,
    /// Its servers.
    pub servers: u64,
    /// How many of them are healthy.
    pub well: u64,
}

impl Describe for Vec<UpstreamCounts> {
    fn describe(&self, families: &mut Families) {
        let name = |one: &UpstreamCounts| Text::from(one.upstream.clone());
        let help = "Requests that an upstream server answered, with any status.";
        let answered = self.iter().map(|one| (name(one), one.answered));
        families.counters_by("upstream", ("upstream_answers", help), answered);
        let help = "Failed attempts on upstream servers, by reason. A request may be tried on several.";
        let family = families.counters("upstream_failures", help);
        for one in self {
            for (reason, count) in &one.failures {
                family.add([("upstream", name(one)), ("reason", (*reason).into())], *count);
            }
        }
        let family = families.gauges("upstream_servers", "Upstream servers, by health.");
        for one in self {
            for (state, count) in [("well", one.well), ("unwell", one.servers.saturating_sub(one.well))] {
                family.add([("upstream", name(one)), ("state", state.into())], count);
            }
        }
    }
}

/// When a certificate expires.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateEnd {
    /// The listener that presents it.
    pub listener: &'static str,
    /// In seconds since 1970.
    pub not_after_seconds: f64,
}

impl Describe for Vec<CertificateEnd> {
    fn describe(&self, families: &mut Families) {
        let help = "Expiry of the listener's certificate, in seconds since 1970.";
        let ends = self.iter().map(|end| (end.listener, end.not_after_seconds));
        families.gauges_by("listener", ("certificate_not_after_seconds", help), ends);
    }
}

/// The management server that sends the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdsCounts {
    /// Whether the stream is open.
    pub connected: bool,
    /// Its answers that were taken into use.
    pub accepted: u64,
    /// Its answers that were refused, with the reasons.
    pub refused: u64,
}

impl Describe for XdsCounts {
    fn describe(&self, families: &mut Families) {
        let help = "1 while the stream to the xDS server is open, else 0: the limits that it sent last are in force.";
        families.gauge("xds_up", help, u64::from(self.connected));
        let help = "Sets of limits from the xDS server: taken into use, or refused for a mistake.";
        let results = [("accepted", self.accepted), ("refused", self.refused)];
        families.counters_by("result", ("xds_updates", help), results);
    }
}

/// The quotas that this node lends to Envoys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LentQuotas {
    /// Whether this node lends, of all nodes of the fleet.
    pub lends: bool,
    /// Open streams.
    pub streams: u64,
    /// Buckets of open streams.
    pub buckets: u64,
    /// Limits of which something is lent.
    pub limits: u64,
    /// The rates lent of all limits.
    pub lent_per_second: f64,
    /// What was refused because there was too much of it.
    pub refused: Vec<(&'static str, u64)>,
    /// Buckets abandoned.
    pub abandoned: u64,
    /// Requests that Envoys reported: domain, allowed, denied.
    pub requests: Vec<(String, u64, u64)>,
}

impl Describe for LentQuotas {
    fn describe(&self, families: &mut Families) {
        let help = "1 while this node lends quotas to Envoys (RLQS), else 0. One node of a fleet does.";
        families.gauge("rlqs_lends", help, u64::from(self.lends));
        families.gauge("rlqs_streams", "Open streams of Envoys that get quotas.", self.streams);
        families.gauge("rlqs_buckets", "Buckets that Envoys report on open streams.", self.buckets);
        families.gauge(
            "rlqs_limits",
            "Limits, each for one key, of which something is lent to Envoys.",
            self.limits,
        );
        let help = "Requests per second lent to Envoys, over all limits.";
        families.gauge("rlqs_lent_requests_per_second", help, self.lent_per_second);
        let help =
            "Streams refused, and reports of buckets left without an assignment: too many, or malformed.";
        families.counters_by("what", ("rlqs_refused", help), self.refused.iter().copied());
        let help = "Buckets without requests for a minute that Envoys were told to forget.";
        families.counter("rlqs_abandoned", help, self.abandoned);
        let help =
            "Requests that Envoys decided by their quotas and reported. They are not part of requests_total.";
        let family = families.counters("rlqs_requests", help);
        for (domain, allowed, denied) in &self.requests {
            for (result, count) in [("allowed", *allowed), ("refused", *denied)] {
                family.add([("domain", Text::from(domain.clone())), ("result", result.into())], count);
            }
        }
    }
}

/// The feature flags that rules follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowedFlags {
    /// Those that the source knows, by name, and whether they are on.
    pub known: Vec<(String, bool)>,
    /// Whether the source answered when it was last asked.
    pub answers: bool,
}

impl Describe for FollowedFlags {
    fn describe(&self, families: &mut Families) {
        let help = "1 while the source of feature flags answers, else 0: rules follow what it last said.";
        families.gauge("flag_source_up", help, u64::from(self.answers));
        let help = "1 while the feature flag is on, else 0. A flag that the source does not know is absent.";
        let states = self.known.iter().map(|(name, is_on)| (Text::from(name.clone()), u64::from(*is_on)));
        families.gauges_by("flag", ("flag_on", help), states);
    }
}

/// What exports lost, by destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostExports(pub Vec<(&'static str, u64)>);

impl Describe for LostExports {
    fn describe(&self, families: &mut Families) {
        let help = "Data that could not be exported: StatsD lines or packets, OTLP metric exports, OTLP trace spans.";
        families.counters_by("to", ("telemetry_lost", help), self.0.iter().copied());
    }
}

/// Log lines withheld as repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithheldLines(pub u64);

impl Describe for WithheldLines {
    fn describe(&self, families: &mut Families) {
        let help = "Log lines that were not written because the same line had been written often enough.";
        families.counter("log_lines_withheld", help, self.0);
    }
}

/// Callers refused for a missing or wrong password or token, by listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedLogins(pub Vec<(&'static str, u64)>);

impl Describe for RefusedLogins {
    fn describe(&self, families: &mut Families) {
        let help = "Callers refused because of a wrong or missing password or token.";
        families.counters_by("listener", ("refused_logins", help), self.0.iter().copied());
    }
}

/// The part of their time that the data plane's workers are busy, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusyRatio(pub f64);

impl Describe for BusyRatio {
    fn describe(&self, families: &mut Families) {
        let help = "Share of their time that worker threads are busy, from 0 to 1.";
        families.gauge("worker_busy_ratio", help, self.0);
    }
}

/// The connections of one listener of the data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerConnections {
    /// Its name: `http`, `grpc`.
    pub listener: &'static str,
    /// Open now.
    pub open: u64,
    /// Accepted since the process started.
    pub accepted: u64,
    /// Closed at once because the listener was full.
    pub refused: u64,
    /// Idle ones closed to make room for new ones.
    pub evicted: u64,
}

impl Describe for Vec<ListenerConnections> {
    fn describe(&self, families: &mut Families) {
        let open = self.iter().map(|one| (one.listener, one.open));
        families.gauges_by("listener", ("connections", "Open connections."), open);
        let mut counters = |name, help, count: fn(&ListenerConnections) -> u64| {
            let counts = self.iter().map(|one| (one.listener, count(one)));
            families.counters_by("listener", (name, help), counts);
        };
        counters("connections_accepted", "Connections accepted.", |one| one.accepted);
        let help = "Connections closed at once because the listener was full.";
        counters("connections_refused", help, |one| one.refused);
        counters("connections_evicted", "Idle connections closed to make room for others.", |one| {
            one.evicted
        });
    }
}

impl Describe for MemoryStats {
    fn describe(&self, families: &mut Families) {
        families.gauge("cells", "Cells in memory.", self.cells as u64);
        let help = "Cells dropped from memory. Idle ones had nothing to lose; in_use and spent ones lost their count because memory was full.";
        let reasons =
            [("idle", self.dropped_idle), ("in_use", self.evicted_in_use), ("spent", self.evicted_spent)];
        families.counters_by("reason", ("cell_evictions", help), reasons);
        let help = "Answers to requests with a request_id, in memory.";
        families.gauge("store_records", help, self.records as u64);
        let help = "Requests with a request_id refused because memory for their answers was full.";
        families.counter("store_records_refused", help, self.refused_records);
    }
}

impl Describe for Vec<NodeHealth> {
    fn describe(&self, families: &mut Families) {
        let node = |one: &NodeHealth| Text::from(one.endpoint.clone());
        let up = self.iter().map(|one| (node(one), u64::from(one.breaker == BreakerState::Closed)));
        families.gauges_by("node", ("store_up", "1 while the store node answers, else 0."), up);
        let help = "Circuit breaker of the store node: 0 closed, 1 half open, 2 open.";
        let states = self.iter().map(|one| (node(one), state(one.breaker)));
        families.gauges_by("node", ("breaker_state", help), states);
    }
}

fn state(breaker: BreakerState) -> u64 {
    match breaker {
        BreakerState::Closed => 0,
        BreakerState::HalfOpen => 1,
        BreakerState::Open => 2,
    }
}

impl Describe for RemoteStats {
    fn describe(&self, families: &mut Families) {
        families.gauge(
            "queue_depth",
            "Requests waiting for the next call to the store.",
            self.waiting as u64,
        );
        families.gauge("store_calls_in_flight", "Calls to the store in flight.", self.calls as u64);
        let help = "Calls to the store in flight whose requests were already answered without them.";
        families.gauge("late_store_calls_in_flight", help, self.late_calls as u64);
        families.gauge("fleet_size", "Nodes that share the store, including this one.", self.fleet);
        let help = "Cells with hits that this node spent and has not yet charged to the store.";
        families.gauge("store_debts", help, self.debts as u64);
        let help = "Leases without a holder that have not been released yet.";
        families.gauge("orphaned_leases", help, self.orphans as u64);
        let help =
            "Leases that this node issued while the store was unavailable and has not yet written to it.";
        families.gauge("lent_leases", help, self.lent_leases as u64);
        let help = "Request ids whose state the store has not confirmed yet, because it did not answer.";
        families.gauge("unwritten_request_names", help, self.unwritten_names as u64);
        let help = "Requests with a request_id that this node is deciding.";
        families.gauge("request_names_in_flight", help, self.names_in_flight as u64);
        let help = "Entries evicted from full tables, by kind: refusals to repeat, hits to charge, leases to release, request ids to free.";
        let kinds = [
            ("refusals", self.refusals_evicted),
            ("hits", self.hits_forgiven),
            ("leases", self.leases_lost),
            ("names", self.names_lost),
        ];
        families.counters_by("what", ("forgotten", help), kinds);
    }
}

impl Describe for ShedStats {
    fn describe(&self, families: &mut Families) {
        let help = "Requests that the service behind is working on or has queued.";
        families.gauge("workers_in_use", help, self.in_use as u64);
        if let Some(workers) = self.workers {
            let help = "Requests that the service behind can work on at once, configured or estimated.";
            families.gauge("workers", help, workers as u64);
        }
        let help = "Share of the service's workers that are busy; above 1 while requests queue.";
        families.gauge("worker_utilization", help, self.utilization.ratio());
        let help = "How much is shed because workers are busy: 0 nothing, 1 everything but P0.";
        families.gauge("shed_level", help, self.level);
    }
}
