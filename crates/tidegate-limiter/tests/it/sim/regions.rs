//! Three regions, each with its own store, and one far away that counts for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tidegate_core::Micros;
use tidegate_limiter::{HomeConfig, Limiter, LimiterConfig, RemoteConfig, Source};

use super::executor::{Executor, Handle};
use super::store::{Link, Truth, Weather};
use super::{Checked, Ears, Heard, Node, Skewed};
use crate::world::compile;

/// One way to home, in microseconds.
const FAR: (u64, u64) = (38_000, 42_000);
pub(super) const WINDOW_US: u64 = 10_000_000;
pub(super) const LIMIT: u64 = 1_500;

/// How regions differ from the usual three.
pub(super) struct Apart {
    pub(super) rules: String,
    pub(super) seed: u64,
    pub(super) change: fn(&mut RemoteConfig),
    /// One way to home, in microseconds, at least and at most.
    pub(super) far: (u64, u64),
    /// How far each node's clock is ahead of the one before.
    pub(super) ahead: Micros,
    /// Whether home counts only the domain `api`, and another store all others.
    pub(super) by_domain: bool,
}

impl Apart {
    pub(super) fn new(rules: &str, seed: u64) -> Self {
        let rules = rules.to_owned();
        Apart { rules, seed, change: |_| {}, far: FAR, ahead: Micros::ZERO, by_domain: false }
    }
}

pub(super) struct Regions {
    pub(super) executor: Executor,
    apart: Apart,
    home: Arc<Truth>,
    /// Two nodes of each region, one after another.
    pub(super) nodes: Vec<Node>,
    to_home: Vec<Arc<Link>>,
    /// The home of no domain that is asked for.
    pub(super) to_other_home: Vec<Arc<Link>>,
    /// Each with the time at which it was asked.
    under_way: Vec<(u64, Handle<Checked>)>,
    /// How many were admitted in each window of home's clock.
    pub(super) admitted_in: BTreeMap<u64, u64>,
}

pub(super) fn rule(limits: &str, more: &str) -> String {
    format!("- {{ name: a, key: [user], scope: global, limits: [{limits}]{more} }}")
}

pub(super) fn fixed_window() -> String {
    fixed_window_of(LIMIT)
}

pub(super) fn fixed_window_of(limit: u64) -> String {
    format!("{{ algorithm: fixed_window, limit: {limit}, window: 10s }}")
}

impl Regions {
    pub(super) fn new(rules: &str, seed: u64) -> Self {
        Regions::with(Apart::new(rules, seed))
    }

    pub(super) fn with(apart: Apart) -> Self {
        let executor = Executor::new(apart.seed);
        let home = Truth::new(&executor);
        let mut regions = Regions {
            executor,
            apart,
            home,
            nodes: Vec::new(),
            to_home: Vec::new(),
            to_other_home: Vec::new(),
            under_way: Vec::new(),
            admitted_in: BTreeMap::new(),
        };
        (0..3).for_each(|_| regions.add_region());
        regions.executor.run_for(Micros::from_millis(2_500));
        regions
    }

    /// One more, with a store of its own and two nodes.
    pub(super) fn add_region(&mut self) {
        let own = Truth::new(&self.executor);
        (0..2).for_each(|_| self.add_node(&own));
    }

    fn add_node(&mut self, own: &Arc<Truth>) {
        let (executor, apart) = (self.executor.clone(), &self.apart);
        let number = self.nodes.len() as u64;
        let link = Link::new(own, &executor, (100, 400));
        let to_home = Link::new(&self.home, &executor, apart.far);
        let heard = Arc::new(Heard::default());
        let mut remote = RemoteConfig::new(Arc::new(executor.clone()));
        remote.secret = [apart.seed, number];
        (apart.change)(&mut remote);
        let mut config =
            LimiterConfig::new(compile(&apart.rules), link.clone(), Arc::new(Ears(heard.clone())));
        let mut domains = Vec::new();
        if apart.by_domain {
            let to_other = Link::new(&Truth::new(&executor), &executor, apart.far);
            config.homes.push(HomeConfig::new(to_other.clone(), Vec::new()));
            self.to_other_home.push(to_other);
            domains.push("api".to_owned());
        }
        config.homes.push(HomeConfig::new(to_home.clone(), domains));
        let ahead = Micros::new(apart.ahead.get() * number);
        let clock = Arc::new(Skewed { clock: executor.clock(), ahead, set_back: AtomicU64::new(0) });
        config.clock = clock.clone();
        let limiter = Arc::new(Limiter::new(config.over_a_network(remote)));
        executor.start(limiter.maintain());
        self.nodes.push(Node { limiter, link, heard, clock, executor });
        self.to_home.push(to_home);
    }

    /// All nodes count by these rules from now on.
    pub(super) fn use_rules(&self, rules: &str) {
        for node in &self.nodes {
            node.limiter.use_rules(compile(rules));
        }
    }

    pub(super) fn set(&self, region: usize, weather: Weather) {
        self.to_home[2 * region..2 * region + 2].iter().for_each(|link| link.set(weather));
    }

    /// Its nodes reach nothing any more, and nobody asks them.
    pub(super) fn lose(&self, region: usize) {
        self.set(region, Weather::Hangs);
        self.nodes[2 * region..2 * region + 2].iter().for_each(|node| node.link.set(Weather::Hangs));
    }

    /// Its nodes end one after another, and return what they hold.
    pub(super) fn end(&self, region: usize) {
        for node in &self.nodes[2 * region..2 * region + 2] {
            let limiter = node.limiter.clone();
            drop(self.executor.start(async move { limiter.shutdown().await.is_ok() }));
        }
    }

    pub(super) fn now_us(&self) -> u64 {
        self.executor.now().as_micros()
    }

    /// Runs until a window begins.
    pub(super) fn until_next_window(&self) {
        self.executor.run_for(Micros::new(WINDOW_US - self.now_us() % WINDOW_US));
    }

    /// Asks so often in each region, every 10 ms for `millis`.
    pub(super) fn ask(&mut self, millis: u64, often: [u64; 3]) {
        self.ask_every(10, millis, &often);
    }

    pub(super) fn ask_every(&mut self, step_millis: u64, millis: u64, often: &[u64]) {
        for _ in 0..millis / step_millis {
            for (region, often) in often.iter().enumerate() {
                for _ in 0..*often {
                    let node = 2 * region + self.executor.below(2) as usize;
                    self.under_way.push((self.now_us(), self.nodes[node].start("one")));
                }
            }
            self.executor.run_for(Micros::from_millis(step_millis));
        }
    }

    /// What became of all that was asked. No window has more than its limit.
    pub(super) fn answers(&mut self) -> Vec<Checked> {
        let all: Vec<(u64, Handle<Checked>)> = std::mem::take(&mut self.under_way);
        let all: Vec<(u64, Checked)> =
            all.into_iter().map(|(asked, handle)| (asked, handle.wait())).collect();
        for (asked, checked) in all.iter().filter(|(_, checked)| checked.decision.allowed) {
            *self.admitted_in.entry((asked + checked.took.get()) / WINDOW_US).or_default() += 1;
        }
        all.into_iter().map(|(_, checked)| checked).collect()
    }

    pub(super) fn admitted(&mut self) -> u64 {
        self.answers().iter().filter(|checked| checked.decision.allowed).count() as u64
    }

    pub(super) fn assert_never_over(&self) {
        self.assert_never_over_of(LIMIT);
    }

    pub(super) fn assert_never_over_of(&self, limit: u64) {
        let over = self.admitted_in.iter().find(|(_, admitted)| **admitted > limit);
        assert_eq!(over, None, "of {limit}, seed {}: {:?}", self.apart.seed, self.admitted_in);
    }
}

#[test]
fn escrow_uses_nine_tenths_while_demand_moves_and_few_wait() {
    let mut regions = Regions::new(&rule(&fixed_window(), ""), 1);
    let (mut used, mut waited, mut all) = (0, 0, 0);
    regions.until_next_window();
    for window in 0..6 {
        let mut often = [1; 3];
        often[window / 2] = 3;
        regions.ask(WINDOW_US / 1_000, often);
        let answers = regions.answers();
        let admitted = answers.iter().filter(|one| one.decision.allowed).count() as u64;
        let slow = |one: &&Checked| one.took >= Micros::from_millis(10);
        waited += answers.iter().filter(slow).count();
        all += answers.len();
        used += admitted;
    }
    regions.assert_never_over();
    println!("escrow {used}, asked {all}, waited {waited}, of {}", 6 * LIMIT);
    assert!(used * 10 >= 6 * LIMIT * 9, "{used} of {}", 6 * LIMIT);
    // At the start of each window, and for its last hits.
    assert!(waited * 25 <= all, "{waited} of {all} waited for home");
}

/// What was admitted while one region after another wants all of the limit, each for two of six windows.
fn where_one_region_wants_all(more: &str) -> Regions {
    where_one_region_wants_all_of(&fixed_window(), more)
}

fn where_one_region_wants_all_of(limit: &str, more: &str) -> Regions {
    let mut regions = Regions::new(&rule(limit, more), 2);
    regions.until_next_window();
    for window in 0..6 {
        let mut often = [0; 3];
        often[window / 2] = 3;
        regions.ask(WINDOW_US / 1_000, often);
        regions.answers();
    }
    regions
}

#[test]
fn escrow_uses_nine_tenths_of_a_limit_that_one_region_wants() {
    let escrow = where_one_region_wants_all("");
    escrow.assert_never_over();
    let synced = where_one_region_wants_all(", consistency: eventual, sync_every: 500ms");
    let [escrow, synced] =
        [escrow, synced].map(|regions| regions.admitted_in.into_values().collect::<Vec<_>>());
    println!(
        "of {LIMIT} in each window: escrow {escrow:?}, periodic sync {synced:?}, static thirds {}",
        LIMIT / 3
    );
    let used: u64 = escrow.iter().sum();
    assert!(used * 10 >= 6 * LIMIT * 9, "{used} of {}", 6 * LIMIT);
}

#[test]
fn escrow_uses_nine_tenths_of_a_bucket_that_one_region_wants_as_far_as_splitting_allows() {
    let bucket = "{ algorithm: token_bucket, rate: 150/s, burst: 1500 }";
    let regions = where_one_region_wants_all_of(bucket, "");
    let used: u64 = regions.admitted_in.values().sum();
    let possible = 1_500 + 6 * 1_500;
    // Home counts a burst that is smaller by what refills while hits are held: a sixteenth of the time that a burst takes.
    let floor = possible - 1_500 / 16;
    println!(
        "bucket: escrow {used}, of {possible}, splitting leaves {floor}, static thirds {}",
        possible / 3
    );
    assert!(used <= possible, "{used} of {possible}");
    assert!(used * 10 >= floor * 9, "{used} of {floor}");
}

#[test]
fn ninety_nine_decisions_of_a_hundred_are_as_quick_as_in_one_region() {
    let near =
        "- { name: near, key: [user], limits: [{ algorithm: fixed_window, limit: 100000, window: 1h }] }";
    let far = rule("{ algorithm: fixed_window, limit: 100000, window: 1h }", "");
    let p99 = |rules: &str| {
        let mut regions = Regions::new(rules, 9);
        // Demand that moves, of a limit that is not used up: no request comes for its last hits.
        for busy in 0..3 {
            let mut often = [1; 3];
            often[busy] = 3;
            regions.ask(10_000, often);
        }
        let mut took: Vec<Micros> = regions.answers().iter().map(|one| one.took).collect();
        took.sort_unstable();
        took[took.len() * 99 / 100]
    };
    let (one_region, three) = (p99(near), p99(&far));
    println!("p99 of a rule of one region {one_region}, of a rule for all {three}");
    assert!(three.get() * 10 <= one_region.get() * 12, "{three} and {one_region}");
}

#[test]
fn escrow_is_never_over_on_links_that_lose_and_while_a_region_is_cut_off() {
    for seed in 0..8 {
        let mut regions = Regions::new(&rule(&fixed_window(), ""), seed);
        regions.until_next_window();
        for window in 0..4 {
            match window {
                0 => {
                    (0..3).for_each(|region| regions.set(region, Weather::Changing { fine: 80 }));
                    // The links within a region lose, too: its nodes do not know how many they are.
                    regions.nodes.iter().for_each(|node| node.link.set(Weather::Changing { fine: 60 }));
                }
                1 => regions.set(1, Weather::Hangs),
                2 => regions.set(1, Weather::LosesReplies),
                _ => (0..3).for_each(|region| regions.set(region, Weather::Fine)),
            }
            regions.ask(WINDOW_US / 1_000, [2, 2, 2]);
            regions.answers();
        }
        regions.assert_never_over();
    }
}

#[test]
fn a_region_that_is_cut_off_spends_what_it_holds_and_then_refuses() {
    let mut regions = Regions::new(&rule(&fixed_window(), ""), 3);
    regions.until_next_window();
    regions.ask(1_000, [0, 2, 0]);
    assert_eq!(regions.admitted(), 200);
    let held: u64 = regions.nodes[2..4].iter().map(|node| node.limiter.shares().unwrap().hits).sum();
    assert!(held > 0);
    regions.set(1, Weather::Hangs);
    regions.ask(3_000, [0, 2, 0]);
    let answers = regions.answers();
    let by = |allowed, source| {
        let is_so = |one: &&Checked| one.decision.allowed == allowed && one.decision.source == source;
        answers.iter().filter(is_so).count() as u64
    };
    // A take that was under way when the link broke has charged home, and its hits may have come.
    assert!(by(true, Source::Store) <= held + 60, "{} of {held}", by(true, Source::Store));
    assert_eq!(by(true, Source::FallbackLocal) + by(true, Source::OverloadLocal), 0);
    assert!(by(false, Source::FallbackLocal) > 0, "home is known to be unavailable");
    regions.set(1, Weather::Fine);
    regions.executor.run_for(Micros::from_secs(2));
    regions.ask(1_000, [0, 2, 0]);
    assert!(regions.admitted() > 150, "it is back");
}

#[test]
fn failure_policies_decide_once_a_region_that_is_cut_off_has_nothing_left() {
    for (policy, allowed, source) in
        [("open", true, Source::FallbackOpen), ("closed", false, Source::FallbackClosed)]
    {
        let more = format!(", on_store_failure: {policy}");
        let mut regions = Regions::new(&rule(&fixed_window(), &more), 4);
        regions.set(0, Weather::Hangs);
        regions.executor.run_for(Micros::from_secs(4));
        regions.ask(100, [1, 0, 0]);
        for checked in regions.answers() {
            assert_eq!((checked.decision.allowed, checked.decision.source), (allowed, source));
        }
    }
}

#[test]
fn keys_beyond_the_most_purses_are_decided_by_their_failure_policy() {
    const MOST: usize = 8;
    let rules = rule(&fixed_window(), ", on_store_failure: closed");
    let regions =
        Regions::with(Apart { change: |remote| remote.booked_cells = MOST, ..Apart::new(&rules, 8) });
    regions.until_next_window();
    let node = &regions.nodes[0];
    let sources = |users: std::ops::Range<usize>| -> Vec<Source> {
        users.map(|user| node.check(&format!("user {user}")).source).collect()
    };
    assert_eq!(sources(0..MOST), [Source::Store; MOST]);
    assert_eq!(sources(MOST..MOST + 4), [Source::OverloadClosed; 4]);
    assert_eq!(node.limiter.shares().unwrap().purses, MOST as u64);
    // They are forgotten once nobody has used them for a while.
    regions.executor.run_for(Micros::from_secs(20));
    assert_eq!(node.limiter.shares().unwrap().purses, 0);
    assert_eq!(sources(MOST..2 * MOST), [Source::Store; MOST]);
}

#[test]
fn home_refuses_with_its_own_time_to_wait() {
    let log = "{ algorithm: sliding_log, limit: 5, window: 60s }";
    let regions = Regions::new(&rule(log, ""), 5);
    assert!(regions.nodes[0].check_cost("one", 5).allowed);
    let refused = regions.nodes[4].check("one");
    assert_eq!((refused.allowed, refused.source), (false, Source::Store));
    let limit = refused.governing().unwrap().limit().unwrap().outcome;
    let retry_after = limit.retry_after().unwrap();
    assert!((Micros::from_secs(55)..Micros::from_secs(62)).contains(&retry_after), "{retry_after}");
    // Nobody else is in its way.
    assert!(regions.nodes[4].check("two").allowed);
}

#[test]
fn a_refund_and_a_reset_reach_home() {
    let regions = Regions::new(&rule(&fixed_window(), ""), 6);
    regions.until_next_window();
    assert!(regions.nodes[0].check_cost("one", LIMIT).allowed);
    assert!(!regions.nodes[2].check("one").allowed);
    regions.nodes[0].refund("one", 10);
    regions.executor.run_for(Micros::from_millis(1_500));
    assert!(regions.nodes[2].check_cost("one", 10).allowed);
    regions.nodes[4].reset("one");
    regions.executor.run_for(Micros::from_millis(1_500));
    assert!(regions.nodes[2].check_cost("one", 100).allowed);
}

#[test]
fn eventual_rules_wait_for_nobody_and_hear_of_each_other() {
    let rules = rule(&fixed_window(), ", consistency: eventual, sync_every: 500ms");
    let mut regions = Regions::new(&rules, 7);
    regions.until_next_window();
    for _ in 0..3 {
        regions.ask(WINDOW_US / 1_000, [2, 2, 2]);
        let answers = regions.answers();
        assert!(answers.iter().all(|one| one.took < Micros::from_millis(10)));
        let admitted = answers.iter().filter(|one| one.decision.allowed).count() as u64;
        // 600 a second are asked for; each node may not yet know of what the others admit within an interval and a round trip.
        let bound = LIMIT + 600 * 700 / 1_000;
        println!("eventual: {admitted} of {LIMIT}, bound {bound}");
        assert!((LIMIT..=bound).contains(&admitted), "{admitted} of {LIMIT}");
    }
}
