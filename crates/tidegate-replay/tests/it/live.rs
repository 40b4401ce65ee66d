//! A limiter with checks, refunds, charges and leases, beside a replay of its log: both must decide every request alike.
//!
//! The test sets the clock, so that windows and buckets refill while it runs, and leases expire.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_decisions::{Clear, DecisionLog, DecisionLogConfig, Entry};
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, LeaseToken, LimitOverride, Limiter, LimiterConfig, Patience,
    SpentAt,
};
use tidegate_replay::{Format, Options, Parser, Replay, Report, Tells};
use tidegate_rules::{Descriptor, Format as RuleFormat, RuleSet, Source};
use tidegate_store::{Clock as _, ManualClock, MemoryConfig, MemoryStore};

const START: u64 = 1_800_057_600_000_000;

/// Every algorithm and feature. Everything refills within seconds.
const RULES: &str = "
  - { name: bucket, match: { kind: bucket }, key: [user], overdraft: 5, limits: [{ algorithm: token_bucket, rate: 1/second, burst: 3 }] }
  - { name: window, match: { kind: window }, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 2s }] }
  - { name: sliding, match: { kind: sliding }, key: [user], overdraft: 2, limits: [{ algorithm: sliding_window, limit: 5, window: 2s }] }
  - { name: log, match: { kind: log }, key: [user], limits: [{ algorithm: sliding_log, limit: 5, window: 2s }] }
  - { name: counting, match: { kind: counting }, key: [user], limits: [{ algorithm: sliding_log, limit: 4, window: 700ms, count_refused: true }] }
  - { name: apart, match: { kind: apart }, key: [user], limits: [{ algorithm: sliding_log, limit: 50, window: 3s, min_interval: 300ms }] }
  - { name: leaky, match: { kind: leaky }, key: [user], limits: [{ algorithm: leaky_bucket, rate: 1/second, max_delay: 2s }] }
  - { name: slots, match: { kind: slots }, key: [user], limits: [{ algorithm: concurrency, limit: 3, ttl: 4s }] }
  - { name: costly, match: { kind: costly }, key: [user], limits: [{ algorithm: concurrency, limit: 3, ttl: 2s, count_refused: true }, { algorithm: fixed_window, limit: 5, window: 3s }] }
  - { name: two-slots, match: { kind: slots }, key: [org], limits: [{ algorithm: concurrency, limit: 4, ttl: 6s }] }
  - { name: tried, shadow: true, match: { kind: [slots, window] }, key: [user], limits: [{ algorithm: concurrency, limit: 1, ttl: 3s }] }
  - { name: plans, match: { kind: plans }, key: [user], tiers: { on: plan, default: free, free: [2/second], pro: [{ algorithm: token_bucket, rate: 4/second, burst: 6 }], internal: unlimited }, key_overrides: [{ when: { user: u3 }, limits: [{ algorithm: sliding_log, limit: 1, window: 1s }] }] }
  - { name: signed, match: { kind: signed }, key: [token], on_missing_key: refuse, limits: [3/second] }
  - { name: punished, match: { kind: punished }, key: [user], penalty: 2s, limits: [{ algorithm: sliding_log, limit: 3, window: 1s }] }
  - { name: tested, match: { kind: tested }, key: [user], limits: [2/second], experiment: { split: 50%, limits: [4/second] } }
  - { name: special, match: { kind: window, user: u1 }, key: [user], overrides: [window], limits: [{ algorithm: fixed_window, limit: 2, window: 2s }] }
  - { name: orgs, key: [org], limits: [{ algorithm: sliding_window, limit: 55, window: 5s }] }
";

const KINDS: [&str; 13] = [
    "bucket", "window", "sliding", "log", "counting", "apart", "leaky", "slots", "costly", "plans", "signed",
    "punished", "tested",
];

/// A limiter on the memory store whose log has this `config`.
pub(crate) struct Live {
    limiter: Limiter,
    log: Arc<DecisionLog>,
    clock: Arc<ManualClock>,
    random: u64,
}

/// Attributes of one descriptor.
type Attributes = Vec<(&'static str, String)>;

impl Live {
    pub(crate) fn new(rules: &str, config: DecisionLogConfig) -> Live {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(START)));
        let log = Arc::new(DecisionLog::open(config, clock.clone()).unwrap());
        let store = MemoryStore::with_clock(MemoryConfig::default(), clock.clone());
        let mut config = LimiterConfig::new(compiled(rules), Arc::new(store), log.clone());
        config.clock = clock.clone();
        Live { limiter: Limiter::new(config), log, clock, random: 0x1111_f491_4f6c_dd1d }
    }

    fn pick(&mut self, of: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % of
    }

    pub(crate) fn pass(&self, time: Micros) {
        self.clock.set(self.clock.now() + time);
    }

    fn attributes(&mut self) -> Attributes {
        let kind = KINDS[self.pick(KINDS.len() as u64) as usize];
        let user = format!("u{}", self.pick(4));
        let mut all = vec![("kind", kind.to_owned()), ("org", format!("o{}", self.pick(2))), ("user", user)];
        if self.pick(3) > 0 {
            all.push(("plan", ["free", "pro", "internal", "unknown"][self.pick(4) as usize].to_owned()));
        }
        if self.pick(5) > 0 {
            all.push(("token", "t".to_owned()));
        }
        all
    }

    /// Checks these descriptors; the first has this cost, the others one.
    fn ask(&mut self, all: &[Attributes], cost: u64) -> Decision {
        let own = LimitOverride::new("web", 3, Micros::from_secs(1)).unwrap();
        let entries: Vec<Vec<(&str, &[u8])>> = all
            .iter()
            .map(|one| one.iter().map(|(name, value)| (*name, value.as_bytes())).collect())
            .collect();
        let mut asks: Vec<DescriptorAsk<'_>> =
            entries.iter().map(|entries| DescriptorAsk::of(Descriptor { entries })).collect();
        asks[0] = asks[0].cost(Hits::new(cost));
        if self.pick(20) == 0 {
            let last = asks.len() - 1;
            asks[last] = asks[last].limit(&own);
        }
        let mut request = CheckRequest::new("web", &asks);
        if self.pick(4) == 0 {
            request = request.patience(Patience::MustGoNow);
        }
        match all.len() > 1 && self.pick(2) == 0 {
            true => at_once(self.limiter.check(&request.readings())).unwrap(),
            false => at_once(self.limiter.check(&request)).unwrap(),
        }
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// A check without a user.
    fn ask_plainly(&self) -> Decision {
        let asks = [DescriptorAsk::one(&[])];
        at_once(self.limiter.check(&CheckRequest::new("web", &asks))).unwrap()
    }

    /// Takes a lease for a user.
    pub(crate) fn take_as(&self, user: &str) -> LeaseToken {
        let entries = [("user", user.as_bytes())];
        let asks = [DescriptorAsk::one(&entries)];
        at_once(self.limiter.check(&CheckRequest::new("web", &asks))).unwrap().lease.unwrap()
    }

    /// Takes a lease.
    pub(crate) fn take(&self) -> LeaseToken {
        self.ask_plainly().lease.unwrap()
    }

    pub(crate) fn passes(&self) -> bool {
        self.ask_plainly().allowed
    }

    /// Logs the end of a lease that another limiter granted.
    pub(crate) fn hear_released(&self, token: &LeaseToken) {
        self.limiter.release_soon(token);
    }

    /// What the log has kept.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.log.recent().iter().map(Entry::line).collect()
    }
}

fn compiled(rules: &str) -> RuleSet {
    let text = format!("domain: web\nrules:{rules}");
    RuleSet::compile(&[Source::new("rules.yaml", text)], RuleFormat::Native)
        .unwrap_or_else(|bad| panic!("{bad}"))
}

pub(crate) fn everything() -> DecisionLogConfig {
    DecisionLogConfig {
        admissions_one_in: Some(1),
        refusals_per_second: u32::MAX,
        memory_bytes: 1 << 30,
        clear: Clear::All,
        ..DecisionLogConfig::default()
    }
}

pub(crate) fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("memory answers at once"),
    }
}

/// Replays lines one by one; for each request returns whether it is admitted now and whether it was refused at the time.
pub(crate) fn play(lines: &[String], rules: &str) -> (Vec<(usize, bool, bool)>, Report) {
    let mut replay = Replay::new(compiled(rules), None, Options::new("web"));
    let mut parser = Parser::new(Format::Tidegate).unwrap();
    let mut decided = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let recorded = parser.parse(line.as_bytes()).unwrap_or_else(|bad| panic!("{bad}: {line}"));
        let (is_request, refused) = (recorded.tells == Tells::Request, recorded.refused);
        let now = replay.play(&recorded);
        if is_request {
            decided.push((number, now.unwrap().now, refused.unwrap()));
        }
    }
    (decided, replay.finish())
}

/// Random checks and changes for a while.
fn live_on(live: &mut Live, steps: usize) {
    let mut held: Vec<LeaseToken> = Vec::new();
    let mut spent: Vec<(Attributes, Decision)> = Vec::new();
    for _ in 0..steps {
        let pause = live.pick(60_000);
        live.pass(Micros::new(pause));
        match live.pick(100) {
            0..70 => {
                let mut all = vec![live.attributes()];
                while live.pick(12) == 0 {
                    all.push(live.attributes());
                }
                let cost = 1 + live.pick(3) / 2;
                let decision = live.ask(&all, cost);
                held.extend(decision.lease.clone());
                if all.len() == 1 {
                    spent.push((all.remove(0), decision));
                }
            }
            // In random order, and some of them after they have ended.
            70..84 if !held.is_empty() => {
                let place = live.pick(held.len() as u64) as usize;
                let _ = at_once(live.limiter.release(&held.swap_remove(place)));
            }
            84..88 if !held.is_empty() => {
                let place = live.pick(held.len() as u64) as usize;
                let _ = at_once(live.limiter.renew(&held[place]));
            }
            // Left to expire.
            88..90 if !held.is_empty() => {
                let place = live.pick(held.len() as u64) as usize;
                held.swap_remove(place);
            }
            90..99 if !spent.is_empty() => {
                let place = spent.len() - 1 - live.pick(spent.len().min(200) as u64) as usize;
                let (attributes, decision) = &spent[place];
                let entries: Vec<(&str, &[u8])> =
                    attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
                let asks = [DescriptorAsk::one(&entries)];
                let request = CheckRequest::new("web", &asks);
                let ago = live.clock.now().since(decision.asked_at());
                let (limiter, one) = (live.limiter.clone(), Hits::ONE);
                match live.pick(4) {
                    0 => at_once(limiter.refund(&request, one, SpentAt::Unknown)).unwrap(),
                    1 => at_once(limiter.refund(&request, one, SpentAt::Ago(ago))).unwrap(),
                    2 => at_once(limiter.refund(&request, one, SpentAt::By(decision))).unwrap(),
                    _ => at_once(limiter.charge(&request, one, SpentAt::Ago(ago))).unwrap(),
                }
            }
            99 if live.pick(4) == 0 => {
                let attributes = live.attributes();
                let entries: Vec<(&str, &[u8])> =
                    attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
                let asks = [DescriptorAsk::one(&entries)];
                at_once(live.limiter.reset(&CheckRequest::new("web", &asks))).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn a_replay_decides_every_request_as_the_limiter_did_whatever_comes_back_meanwhile() {
    let mut live = Live::new(RULES, everything());
    live_on(&mut live, 20_000);
    let lines = live.lines();
    let (decided, report) = play(&lines, RULES);
    let told: Vec<serde_json::Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (number, now, refused) in &decided {
        assert_eq!(*now, !*refused, "line {number}: {}", lines[*number]);
    }
    // The traffic is meaningful: every rule refused, and every kind of event happened.
    let refusing: BTreeSet<&str> = told
        .iter()
        .filter(|line| line["verdict"] == "refused")
        .filter_map(|line| line["rule"].as_str())
        .collect();
    let expected = compiled(RULES);
    let expected: BTreeSet<&str> =
        expected.rules().map(|rule| rule.name()).filter(|name| *name != "tried").collect();
    assert_eq!(refusing, expected);
    let mut events: BTreeMap<&str, usize> = BTreeMap::new();
    told.iter()
        .filter_map(|line| line["event"].as_str())
        .for_each(|event| *events.entry(event).or_default() += 1);
    assert_eq!(
        events.keys().copied().collect::<Vec<_>>(),
        ["charged", "refunded", "released", "renewed", "reset"]
    );
    assert!(
        told.iter().any(|line| line["also"].is_array()) && told.iter().any(|line| line["readings"] == true)
    );
    // And the report says so.
    let otherwise = report.decided_otherwise.unwrap();
    assert_eq!((otherwise.admitted_now, otherwise.refused_now), (0, 0));
    assert_eq!(report.lines.events as usize, events.values().sum::<usize>());
    assert_eq!(report.refused_in_log, Some(report.refused.now));
    let says = |part: &str| report.notes.iter().any(|note| note.contains(part));
    assert!(says("end by their time to live") && !says("done at once"), "{:?}", report.notes);
}
