//! Replays requests through the real limiter, with the clock set to the time of each line.

mod leap;

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate_core::Timestamp;
use tidegate_limiter::{
    CheckRequest, Decided, Limiter, LimiterConfig, NoObserver, Observer, RuleResult, RuleWatcher,
};
use tidegate_rules::{Rule, RuleSet};
use tidegate_store::{Clock as _, ManualClock, MemoryConfig, MemoryStore};

use self::leap::Leap;
use crate::asked::{Spending, with_request};
use crate::callers::Side;
use crate::caveats::HashedValues;
use crate::leases::{Holds, Leases};
use crate::merge::{MergeByTime, MergedLine};
use crate::parse::{BadLine, Format, Parser, Recorded, Tells};
use crate::race_order::{LONGEST, More, RaceOrder};
use crate::reader::{Line, Reader};
use crate::reorder::{Order, Reorder};
use crate::report::{BadLineExample, Lines, Report};
use crate::side::{Ruled, at_once};
use crate::summary::{RuleTally, Tally, printable_start};

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// The domain of requests without one.
    pub domain: String,
    /// The most callers told apart per rule; beyond that they are sampled. About 200 bytes each.
    pub most_callers: usize,
    /// Bounds of the memory store.
    pub memory: MemoryConfig,
    /// The number of callers named in each list.
    pub named: usize,
    /// What is known about values that the log hashes.
    pub hashed: HashedValues,
    /// The order in which lines of an access log are replayed.
    pub order: Order,
}

impl Options {
    /// The defaults, with `domain` for requests without one.
    #[must_use]
    pub fn new(domain: impl Into<String>) -> Self {
        let memory = MemoryConfig::new().max_cells(20_000_000).max_log_bytes(2 << 30);
        Options {
            domain: domain.into(),
            most_callers: 1_000_000,
            memory,
            named: 5,
            hashed: HashedValues::Opaque,
            order: Order::default(),
        }
    }
}

/// A sweep for idle cells runs after this many requests, over one of [`SWEEP_PARTS`] parts of the store.
const SWEEP_EVERY: u64 = 1 << 16;
const SWEEP_PARTS: usize = 8;
/// The most unreadable lines shown.
const MOST_EXAMPLES: usize = 5;

/// A replay in progress.
pub struct Replay {
    options: Options,
    /// The domain of requests without one; taken out while such a request is replayed.
    domain: String,
    clock: Arc<ManualClock>,
    /// The rules, until the first request.
    waiting: Option<(RuleSet, Option<RuleSet>)>,
    compared: bool,
    now: Option<Ruled>,
    before: Option<Ruled>,
    tally: Arc<Mutex<Tally>>,
    lines: Lines,
    /// The number of the current line.
    number: u64,
    requests: u64,
    format: Option<Format>,
    latest: Option<Timestamp>,
    earliest: Timestamp,
    /// The previous line, if its time is far ahead.
    leap: Option<Box<Leap>>,
    /// The first two lines, if the second is far earlier, until the third shows which of them is right.
    beginning: Option<Box<[Leap; 2]>>,
    /// Lines of an access log that wait for earlier ones; taken out while one of them is replayed.
    reorder: Option<Box<Reorder>>,
    leases: Leases,
    /// Lines that were in flight together; taken out while one of them is chosen.
    racing: Option<Box<RaceOrder>>,
    /// Whether the current check only reads, and is not counted.
    looks: Arc<AtomicBool>,
}

/// Whether a request is admitted under the new rules, and under those compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdicts {
    /// Under the new rules.
    pub now: bool,
    /// Under those compared with; true if there are none.
    pub before: bool,
}

impl Replay {
    /// A replay under `rules`, compared with `against`.
    #[must_use]
    pub fn new(rules: RuleSet, against: Option<RuleSet>, options: Options) -> Self {
        let tally = Tally::new(&rules, against.as_ref(), options.most_callers);
        let limits = [Some(&rules), against.as_ref()].into_iter().flatten().flat_map(RuleSet::rules);
        let takes_leases = limits.flat_map(Rule::limits).any(|limit| limit.limit.takes_lease());
        Replay {
            domain: options.domain.clone(),
            reorder: Reorder::of(options.order).map(Box::new),
            options,
            compared: against.is_some(),
            clock: Arc::new(ManualClock::at(Timestamp::from_micros(0))),
            waiting: Some((rules, against)),
            now: None,
            before: None,
            tally: Arc::new(Mutex::new(tally)),
            lines: Lines::default(),
            number: 0,
            requests: 0,
            format: None,
            latest: None,
            earliest: Timestamp::from_micros(0),
            leap: None,
            beginning: None,
            leases: Leases::default(),
            racing: takes_leases.then(Box::default),
            looks: Arc::default(),
        }
    }

    /// Creates the limiters at the time of the first request: a store measures the age of cells from its own start.
    fn begin(&mut self) {
        let Some((rules, against)) = self.waiting.take() else { return };
        let ruled = |rules: RuleSet, side: Side| {
            let places = self.tally.lock().places(&rules);
            let (tally, clock, looks) = (self.tally.clone(), self.clock.clone(), self.looks.clone());
            let heard = Heard { tally, clock, side, places, looks };
            // Derived from the log, so that evictions at a bound are the same in every run, and callers cannot predict the
            // hash.
            let hash_keys = [self.clock.now().as_micros(), 0];
            let store = MemoryStore::with_clock(self.options.memory, self.clock.clone());
            let store = Arc::new(store.with_hash_keys(hash_keys));
            let mut config = LimiterConfig::new(rules, store.clone(), Arc::new(heard));
            config.clock = self.clock.clone();
            Ruled { limiter: Limiter::new(config), store }
        };
        (self.now, self.before) =
            (Some(ruled(rules, Side::Now)), against.map(|rules| ruled(rules, Side::Before)));
    }

    /// Replays every line of a log. Calls `progress` now and then with the bytes read so far.
    ///
    /// # Errors
    /// The log cannot be read. A malformed line is counted, not an error.
    pub fn play_log<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        parser: &mut Parser,
        mut progress: impl FnMut(u64),
    ) -> io::Result<()> {
        self.format = Some(parser.format());
        loop {
            if self.lines.read.is_multiple_of(SWEEP_EVERY) {
                progress(reader.bytes());
            }
            let Some(line) = reader.next_line()? else { return Ok(()) };
            self.play_line(line, parser);
        }
    }

    /// Replays every line of decision logs, merged in time order.
    ///
    /// # Errors
    /// A log cannot be read. A malformed line is counted, not an error.
    pub fn play_merged<R: Read>(
        &mut self,
        logs: &mut MergeByTime<R>,
        mut progress: impl FnMut(u64),
    ) -> io::Result<()> {
        let mut parser = Parser::new(Format::Tidegate).expect("our own format needs no columns");
        loop {
            if self.lines.read.is_multiple_of(SWEEP_EVERY) {
                progress(logs.bytes());
            }
            let Some(line) = logs.next_line()? else { return Ok(()) };
            self.play_merged_line(line, &mut parser);
        }
    }

    /// Replays one line.
    pub fn play_line(&mut self, line: Line<'_>, parser: &mut Parser) {
        // The header of a CSV file is a line too, and was read before.
        let header = u64::from(parser.format() == Format::Csv);
        let number = self.lines.read + 1 + header;
        self.play_merged_line(MergedLine { number, line, ahead_us: 0 }, parser);
    }

    /// Replays one line of several logs.
    pub fn play_merged_line(&mut self, line: MergedLine<'_>, parser: &mut Parser) {
        self.format.get_or_insert(parser.format());
        self.lines.read += 1;
        self.number = line.number;
        match line.line {
            Line::TooLong => self.bad_line(BadLine("it is longer than 64 KiB"), b""),
            Line::Text(text) => {
                let mut recorded = Recorded::default();
                let read = parser.read(text, &mut recorded);
                recorded.at = line.by_the_store(recorded.at);
                match read {
                    Ok(()) => self.play_unless_leap(&recorded, text),
                    Err(bad) => self.bad_line(bad, text),
                }
            }
        }
    }

    /// Queues a line. If requests take leases, and the log says how long answers took, requests that were in flight together
    /// may be replayed in another order than the log's.
    pub fn put(&mut self, recorded: &Recorded<'_>) {
        let is_access_log = self.format.is_some_and(|format| format != Format::Tidegate);
        match self.reorder.take_if(|_| is_access_log) {
            Some(mut reorder) => {
                reorder.put(Box::new(recorded.clone().into_owned()));
                while let Some(next) = reorder.next() {
                    self.put_next(&next);
                }
                self.reorder = Some(reorder);
            }
            None => self.put_next(recorded),
        }
    }

    fn put_next(&mut self, recorded: &Recorded<'_>) {
        // A line that stands for several requests gives the time of one of them, and says nothing about the others.
        match &mut self.racing {
            Some(racing) if recorded.own.answered_in.is_some() && recorded.weight == 1 => {
                racing.put(recorded.clone().into_owned());
                self.play_waiting(More::MayCome);
            }
            _ => {
                self.play_waiting(More::None);
                self.play(recorded);
            }
        }
    }

    /// Replays the queued lines that are known to be next; all of them if no more follow.
    fn play_waiting(&mut self, more: More) {
        while let Some(mut racing) = self.racing.take() {
            let next = racing.next(more, |recorded, at| self.would_pass(recorded, at));
            self.racing = Some(racing);
            let Some(mut next) = next else { return };
            // Lines in flight together may come in any order. Only a line further behind is out of order.
            if let Some(latest) = self.latest.filter(|latest| next.when() + LONGEST >= *latest) {
                let at = next.when().max(latest);
                next.own.decided_at = next.own.decided_at.map(|_| at);
                next.at = at;
            }
            self.play(&next);
        }
    }

    /// Whether a request would be admitted at `at`, under the rules closest to those at the time.
    fn would_pass(&mut self, recorded: &Recorded<'_>, at: Timestamp) -> bool {
        if self.now.is_none() {
            return true;
        }
        let at = at.max(self.latest.unwrap_or(at));
        self.end_leases(at);
        self.clock.set(at);
        let Some(ruled) = self.before.as_ref().or(self.now.as_ref()) else { return true };
        let domain = recorded.domain.as_deref().unwrap_or(&self.domain);
        self.looks.store(true, Ordering::Relaxed);
        let passes =
            with_request(recorded, Spending::Nothing, domain, |request| ruled.has_room(recorded, request));
        self.looks.store(false, Ordering::Relaxed);
        passes
    }

    fn bad_line(&mut self, why: BadLine, text: &[u8]) {
        let example = self.example(why, text);
        self.bad(example);
    }

    fn example(&self, why: BadLine, text: &[u8]) -> BadLineExample {
        BadLineExample { line: self.number, why: why.to_string(), text: printable_start(text) }
    }

    fn bad(&mut self, example: BadLineExample) {
        self.lines.bad += 1;
        if self.lines.examples.len() < MOST_EXAMPLES {
            self.lines.examples.push(example);
        }
    }

    /// Decides one request; `None` if the rules do not have its domain, or the line is an event. For a line that stands for
    /// several requests, returns the last decision.
    pub fn play(&mut self, recorded: &Recorded<'_>) -> Option<Verdicts> {
        let at = self.in_order(recorded.when());
        self.end_leases(at);
        self.clock.set(at);
        self.begin();
        match recorded.domain.as_deref() {
            Some(domain) => self.play_in(domain, recorded, at),
            None => {
                let domain = std::mem::take(&mut self.domain);
                let verdicts = self.play_in(&domain, recorded, at);
                self.domain = domain;
                verdicts
            }
        }
    }

    fn play_in(&mut self, domain: &str, recorded: &Recorded<'_>, at: Timestamp) -> Option<Verdicts> {
        if recorded.tells != Tells::Request {
            self.settle(recorded, domain, at);
            return None;
        }
        let verdicts = with_request(recorded, Spending::AsRecorded, domain, |request| {
            self.decide(recorded, request, at)
        })?;
        self.lines.played += 1;
        self.requests += u64::from(recorded.weight);
        if self.lines.played.is_multiple_of(SWEEP_EVERY) {
            self.now.iter().chain(&self.before).for_each(|ruled| ruled.store.sweep(SWEEP_PARTS));
        }
        Some(verdicts)
    }

    fn decide(
        &mut self,
        recorded: &Recorded<'_>,
        request: &CheckRequest<'_>,
        at: Timestamp,
    ) -> Option<Verdicts> {
        let mut verdicts = None;
        for turn in 0..recorded.weight {
            // For a line that stands for several requests, the log has the end of one lease: the last one's.
            let holds = if turn + 1 == recorded.weight { Holds::AsRecorded } else { Holds::Nothing };
            let mut check = |side: Side, ruled: &Option<Ruled>| {
                let ruled = ruled.as_ref()?;
                ruled.check(request, recorded, (at, side, holds), &mut self.leases)
            };
            let Some(now) = check(Side::Now, &self.now) else {
                self.lines.unknown_domain += 1;
                return None;
            };
            // Rules without the domain would not have been consulted.
            let before = check(Side::Before, &self.before).unwrap_or(true);
            let mut tally = self.tally.lock();
            tally.decided(at, now, before, self.compared);
            tally.decided_before(recorded, now, self.compared.then_some(before));
            if turn == 0 {
                tally.recorded(recorded);
            }
            drop(tally);
            verdicts = Some(Verdicts { now, before });
        }
        verdicts
    }

    /// Applies a recorded change of limits other than a decision.
    fn settle(&mut self, recorded: &Recorded<'_>, domain: &str, at: Timestamp) {
        let mark = recorded.own.lease.unwrap_or_default();
        match recorded.tells {
            // A penalty begins with the refusal. Older logs have a line for it.
            Tells::Request | Tells::Penalized => {}
            Tells::Released => match recorded.own.under {
                None => {
                    let open = self.leases.released(mark, at);
                    for (side, token) in open.iter().flat_map(|open| &open.tokens) {
                        self.ruled(*side).map(|ruled| at_once(ruled.limiter.release(token)));
                    }
                }
                Some(under) => {
                    let tokens = self.leases.held_by(mark).iter();
                    for (side, part) in tokens.filter_map(|(side, token)| Some((side, token.part(under)?))) {
                        self.ruled(*side).map(|ruled| at_once(ruled.limiter.release(&part)));
                    }
                }
            },
            Tells::Renewed => {
                let open = self.leases.renewed(mark, at);
                for (side, token) in open.into_iter().flat_map(|open| &open.tokens) {
                    let ruled = if *side == Side::Now { &self.now } else { &self.before };
                    // An expired lease stays expired.
                    ruled.as_ref().map(|ruled| at_once(ruled.limiter.renew(token)));
                }
            }
            Tells::Refunded(..) | Tells::Charged(..) | Tells::Reset => {
                let [unknown, _] = with_request(recorded, Spending::AsRecorded, domain, |request| {
                    [&self.now, &self.before].map(|ruled| {
                        ruled.as_ref().is_some_and(|ruled| ruled.settle(recorded, request).is_err())
                    })
                });
                if unknown {
                    self.lines.unknown_domain += 1;
                    return;
                }
            }
        }
        self.lines.events += 1;
    }

    /// The number of requests decided or queued so far; a line may stand for many.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let racing = self.racing.as_ref().map_or(0, |racing| racing.len() as u64);
        let beginning = self.beginning.iter().flat_map(|both| both.iter());
        let waiting = beginning.chain(self.leap.as_deref()).map(|leap| u64::from(leap.recorded.weight));
        let held = self.reorder.as_ref().map_or(0, |reorder| reorder.len() as u64);
        self.requests + racing + held + waiting.sum::<u64>()
    }

    fn ruled(&self, side: Side) -> Option<&Ruled> {
        match side {
            Side::Now => self.now.as_ref(),
            Side::Before => self.before.as_ref(),
        }
    }

    /// The latest time of all lines so far, replayed or held.
    fn seen(&self) -> Option<Timestamp> {
        self.latest.max(self.reorder.as_ref().and_then(|reorder| reorder.latest()))
    }

    /// Time never goes back: a line earlier than its predecessor is decided at the predecessor's time.
    fn in_order(&mut self, at: Timestamp) -> Timestamp {
        let Some(latest) = self.latest else {
            (self.latest, self.earliest) = (Some(at), at);
            return at;
        };
        if at < latest {
            self.lines.out_of_order += 1;
            let behind = latest.since(at).get();
            self.lines.most_out_of_order_us = self.lines.most_out_of_order_us.max(behind);
            return latest;
        }
        self.latest = Some(at);
        at
    }

    /// Releases the leases that end by `at`.
    fn end_leases(&mut self, at: Timestamp) {
        while let Some(held) = self.leases.pop_until(at) {
            self.clock.set(held.until);
            if let Some(ruled) = self.ruled(held.side) {
                // If it has outlived its time to live, it is already gone.
                drop(at_once(ruled.limiter.release(&held.token)));
            }
        }
        self.leases.expire_until(at);
    }

    /// The report.
    #[must_use]
    pub fn finish(mut self) -> Report {
        let beginning = self.beginning.take().into_iter().flat_map(|both| *both);
        for leap in beginning.chain(self.leap.take().map(|leap| *leap)).collect::<Vec<_>>() {
            self.put(&leap.recorded);
        }
        if let Some(mut reorder) = self.reorder.take() {
            reorder.rest().iter().for_each(|line| self.put_next(line));
            (self.lines.reordered, self.lines.most_reordered_us) = (reorder.moved, reorder.most_moved.get());
        }
        self.play_waiting(More::None);
        self.begin();
        let now = self.now.expect("a replay that has begun has rules");
        let (snapshot, stats) = (now.limiter.snapshot(), now.store.stats());
        let span = (self.earliest, self.latest.unwrap_or(self.earliest));
        let format = self.format.map_or("none", Format::name);
        let mut tally = self.tally.lock();
        tally.leases = self.leases.counts;
        let before = self.before.as_ref().map(|before| before.limiter.snapshot());
        let rules = (snapshot.rules(), before.as_ref().map(|before| before.rules()));
        tally.report(&self.options, rules, self.lines, (format, span), stats)
    }
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("lines", &self.lines).finish_non_exhaustive()
    }
}

/// Observes a limiter's decisions, by rule and caller.
struct Heard {
    tally: Arc<Mutex<Tally>>,
    clock: Arc<ManualClock>,
    side: Side,
    /// The index of each rule in the tally.
    places: Box<[usize]>,
    looks: Arc<AtomicBool>,
}

impl Observer for Heard {
    fn watch_rule(&self, _rule: &Rule) -> Arc<dyn RuleWatcher> {
        Arc::new(NoObserver)
    }

    fn decided(&self, decided: &Decided<'_>) {
        if self.looks.load(Ordering::Relaxed) {
            return;
        }
        let (mut tally, now) = (self.tally.lock(), self.clock.now());
        for (found, result, _) in decided.by_match() {
            let rule: &mut RuleTally = tally.rule(self.places[found.rule.index()]);
            let hits = decided.request.descriptors[found.descriptor].cost;
            match result {
                RuleResult::KeyMissingSkipped => rule.skip(self.side),
                RuleResult::Refused | RuleResult::ShadowRefused | RuleResult::KeyMissingRefused => {
                    rule.note(self.side, found, true, now, hits);
                }
                _ => rule.note(self.side, found, false, now, hits),
            }
        }
    }
}
