//! Changes items, as `lib.rs` describes: read, decide, and store what nobody else has changed meanwhile.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate_core::{Micros, Timestamp};
use tidegate_store_items::{
    BEGINS_WITHIN, Changed, Deadline, Failure, Hold, Item, MOST_AHEAD, Name, Place, ServerClock, Work, pause,
};
use tokio::time::Instant;

use crate::config::TimeSource;
use crate::link::Links;
use crate::store::MOST_BYTES;
use crate::wire::{self, Only, Reply, refused};

/// For how long items are held at most: by a node that stopped in between, too.
const HELD: Micros = Micros::from_millis(500);
/// The pauses before a group starts again.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(4);
/// When the item ends whose remaining time is read, in seconds since 1970: the latest that Memcached can express. From then on
/// there are no readings, and the clocks of nodes decide.
const ENDS: u64 = 0x7fff_ffff;
/// How often a call reads again because its connection had died unnoticed.
const MOST_LOST_READS: usize = 2;
/// What expires later than this is given as seconds since 1970.
const RELATIVE_FOR: u64 = 30 * 86_400;
/// An item that holds nothing yet, and one whose time a test sets.
const HELD_FOR_S: u64 = 2;
const TESTED_FOR_S: u64 = 3_600;

/// What changes items needs.
pub(crate) struct Changer {
    pub(crate) links: Links,
    pub(crate) time: TimeSource,
    pub(crate) clock: ServerClock,
    /// The item that shows the first server's time.
    pub(crate) clock_name: Name,
}

/// An item as it was read.
struct Found {
    place: Place,
    item: Item,
    /// Its number; none if there is no such item.
    cas: Option<u64>,
}

impl Found {
    fn only(&self) -> Only {
        self.cas.map_or(Only::IfMissing, Only::IfSame)
    }
}

/// A group that is being decided.
struct Open {
    group: usize,
    found: Vec<Found>,
    /// What becomes of the items.
    items: Vec<Item>,
    now: Timestamp,
    /// The commands of this group, by their numbers in the round.
    sent: Vec<usize>,
}

/// What has become of the groups until now: whether anything was stored, when they were decided, and which are too large, and why.
type SoFar<'a> = (&'a mut bool, &'a mut Vec<Timestamp>, &'a mut Vec<(usize, String)>);

impl Changer {
    /// Decides all `groups`, whose items differ and ascend.
    pub(crate) async fn change(
        &self,
        groups: &[Vec<Place>],
        deadline: Deadline,
        work: Work<'_>,
    ) -> Result<Changed, Failure> {
        let (mut is_applied, mut left): (bool, Vec<usize>) = (false, (0..groups.len()).collect());
        let (mut moments, mut too_large): (Vec<Timestamp>, Vec<(usize, String)>) = Default::default();
        for turn in 0_u32.. {
            let so_far = (&mut is_applied, &mut moments, &mut too_large);
            let step = self.step(groups, left, deadline, work, so_far).await;
            left = step.map_err(|failure| if is_applied { failure.in_part() } else { failure })?;
            if left.is_empty() {
                break;
            }
            if Instant::now() >= deadline.at {
                let late = Failure::TooLate(deadline.span);
                return Err(if is_applied { late.in_part() } else { late });
            }
            tokio::time::sleep(pause(turn, FIRST_PAUSE, LONGEST_PAUSE)).await;
        }
        moments.dedup();
        let at = moments.first().copied().filter(|_| moments.len() == 1);
        Ok(Changed { at, too_large })
    }

    /// Decides these groups once; returns those that start again.
    async fn step(
        &self,
        groups: &[Vec<Place>],
        left: Vec<usize>,
        deadline: Deadline,
        work: Work<'_>,
        (is_applied, moments, too_large): SoFar<'_>,
    ) -> Result<Vec<usize>, Failure> {
        let mut again = Vec::new();
        let read = self.read(groups, left, deadline).await?;
        if Instant::now() > deadline.at + BEGINS_WITHIN {
            return Err(Failure::TooLate(deadline.span));
        }
        let clock = self.now();
        let mut round = Round::default();
        let mut open = Vec::new();
        for (group, found) in read {
            let now = self.time_of(&found, clock);
            if found.iter().any(|found| found.item.hold.token != 0 && now < found.item.hold.until) {
                again.push(group);
                continue;
            }
            let mut items: Vec<Item> = found.iter().map(|found| found.item.clone()).collect();
            work(group, &mut items, now);
            let mut one = Open { group, found, items, now, sent: Vec::new() };
            if one.is_unchanged() {
                moments.push(now);
                continue;
            }
            // Before anything of this round is stored.
            if let Err(why) = one.items.iter().try_for_each(|item| item.fits_in(MOST_BYTES)) {
                too_large.push((group, why));
                continue;
            }
            match one.found.len() {
                1 => one.sent = vec![self.store(&mut round, &one, 0, one.found[0].only())],
                _ => one.sent = self.hold(&mut round, &one),
            }
            open.push(one);
        }
        let first = round.run(&self.links, deadline).await;
        let mut last = Round::default();
        for one in &mut open {
            let cas: Vec<Option<u64>> = one.sent.iter().map(|number| first.done(*number)).collect();
            if one.found.len() == 1 {
                match cas[0] {
                    Some(_) => (*is_applied, one.sent) = (true, Vec::new()),
                    None => again.push(one.group),
                }
                if cas[0].is_some() {
                    moments.push(one.now);
                }
                continue;
            }
            one.sent = if let Some(held) = cas.iter().copied().collect::<Option<Vec<u64>>>() {
                moments.push(one.now);
                *is_applied = true;
                held.iter()
                    .enumerate()
                    .map(|(at, cas)| self.store(&mut last, one, at, Only::IfSame(*cas)))
                    .collect()
            } else {
                again.push(one.group);
                self.let_go(&mut last, one, &cas);
                Vec::new()
            };
        }
        let second = last.run(&self.links, deadline).await;
        first.failed()?;
        second.failed()?;
        let is_stored = |one: &Open| one.sent.iter().all(|number| second.is_done(*number));
        if !open.iter().filter(|one| one.found.len() > 1).all(is_stored) {
            return Err(Failure::Lost("items were held for too long, and others changed them".into()));
        }
        Ok(again)
    }

    /// Reads the items of groups, and the clock.
    async fn read(
        &self,
        groups: &[Vec<Place>],
        left: Vec<usize>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, Vec<Found>)>, Failure> {
        let mut tries = 0;
        loop {
            let mut round = Round::default();
            for group in &left {
                for place in &groups[*group] {
                    round.push(place.server, |bytes| wire::get(bytes, place.name));
                }
            }
            let reads_clock = round.asks(0) && self.clock.wants_reading();
            let clock = reads_clock.then(|| round.push(0, |bytes| wire::left(bytes, self.clock_name)));
            let from = Instant::now();
            let mut told = round.run(&self.links, deadline).await;
            if let Some(Failure::Lost(_)) = told.failure
                && tries < MOST_LOST_READS
                && Instant::now() < deadline.at
            {
                tries += 1;
                continue;
            }
            if let Some(clock) = clock {
                self.read_clock(told.replies[clock].take(), from, deadline).await;
            }
            told.failed().map_err(Failure::of_a_read)?;
            let mut replies = told.replies.into_iter();
            let mut found = |place: &Place| match replies.next().flatten() {
                Some(Reply::Item { bytes, cas, .. }) => {
                    Ok(Found { place: *place, item: Item::read(&bytes), cas: Some(cas) })
                }
                Some(Reply::Refused(said)) => Err(refused(&said)),
                _ => Ok(Found { place: *place, item: Item::default(), cas: None }),
            };
            return left
                .into_iter()
                .map(|group| Ok((group, groups[group].iter().map(&mut found).collect::<Result<_, _>>()?)))
                .collect();
        }
    }

    async fn read_clock(&self, reply: Option<Reply>, from: Instant, deadline: Deadline) {
        match reply {
            Some(Reply::Item { kept: Some(kept), .. }) if kept < ENDS => {
                self.clock.read(ENDS - kept, from, Instant::now());
            }
            // The first node to find none makes it.
            Some(Reply::Missing) => {
                let mut round = Round::default();
                round.push(0, |bytes| wire::set(bytes, self.clock_name, b"", Only::IfMissing, ENDS));
                round.run(&self.links, deadline).await;
            }
            _ => {}
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        match &self.time {
            TimeSource::Memcached => self.clock.now(),
            TimeSource::Given(clock) => clock.now(),
        }
    }

    /// No counter sees time go back, whichever node changed it last.
    fn time_of(&self, found: &[Found], now: Timestamp) -> Timestamp {
        let latest = found.iter().map(|found| found.item.latest).max().unwrap_or_default();
        match self.time {
            TimeSource::Memcached if latest <= now + MOST_AHEAD => now.max(latest),
            _ => now,
        }
    }

    /// Stores what becomes of an item, or deletes it if that is nothing.
    fn store(&self, round: &mut Round, one: &Open, at: usize, only: Only) -> usize {
        let (place, mut item) = (one.found[at].place, one.items[at].clone());
        // A test's clock may step back, and what has ended is then needed again.
        if matches!(self.time, TimeSource::Memcached) {
            item.forget_ended(one.now);
        }
        item.latest = one.found[at].item.latest.max(one.now);
        item.hold = Hold::default();
        match only {
            Only::IfSame(cas) if item.is_empty() => {
                round.push(place.server, |bytes| wire::delete(bytes, place.name, cas))
            }
            _ => {
                let expires = self.expires(item.ends(), one.now);
                round.push(place.server, |bytes| wire::set(bytes, place.name, &item.bytes(), only, expires))
            }
        }
    }

    /// Marks all items of a group as held, as they were read.
    fn hold(&self, round: &mut Round, one: &Open) -> Vec<usize> {
        let hold = Hold { token: random() | 1, until: one.now + HELD };
        let mark = |found: &Found| {
            let item = found.item.held(hold);
            let expires = self.expires(item.ends(), one.now).max(HELD_FOR_S);
            round.push(found.place.server, |bytes| {
                wire::set(bytes, found.place.name, &item.bytes(), found.only(), expires);
            })
        };
        one.found.iter().map(mark).collect()
    }

    /// Puts back those that could be held, as they were.
    fn let_go(&self, round: &mut Round, one: &Open, held: &[Option<u64>]) {
        for (found, cas) in one.found.iter().zip(held) {
            let Some(cas) = *cas else { continue };
            if found.cas.is_none() {
                round.push(found.place.server, |bytes| wire::delete(bytes, found.place.name, cas));
                continue;
            }
            let item = found.item.held(Hold::default());
            let expires = self.expires(item.ends(), one.now);
            round.push(found.place.server, |bytes| {
                wire::set(bytes, found.place.name, &item.bytes(), Only::IfSame(cas), expires);
            });
        }
    }

    /// When the server may forget an item that says nothing any more after `ends`.
    fn expires(&self, ends: Timestamp, now: Timestamp) -> u64 {
        let after = ends.since(now).get() / 1_000_000 + 2;
        match self.time {
            TimeSource::Given(_) => after.clamp(TESTED_FOR_S, RELATIVE_FOR),
            TimeSource::Memcached if after <= RELATIVE_FOR => after,
            TimeSource::Memcached => (ends.as_micros() / 1_000_000 + 2).min(ENDS),
        }
    }
}

impl Open {
    fn is_unchanged(&self) -> bool {
        self.items.iter().zip(&self.found).all(|(item, found)| item.says_what(&found.item))
    }
}

/// Commands to several servers that go out at once, and which was which.
#[derive(Default)]
struct Round {
    servers: Vec<(usize, Vec<u8>, Vec<usize>)>,
    count: usize,
}

/// The reply to each command; none where there is none.
struct Told {
    replies: Vec<Option<Reply>>,
    /// Why replies are missing.
    failure: Option<Failure>,
}

impl Round {
    fn push(&mut self, server: usize, append: impl FnOnce(&mut Vec<u8>)) -> usize {
        let at = self.servers.iter().position(|(known, ..)| *known == server).unwrap_or_else(|| {
            self.servers.push((server, Vec::with_capacity(256), Vec::new()));
            self.servers.len() - 1
        });
        let (_, bytes, numbers) = &mut self.servers[at];
        append(bytes);
        numbers.push(self.count);
        self.count += 1;
        self.count - 1
    }

    fn asks(&self, server: usize) -> bool {
        self.servers.iter().any(|(known, ..)| *known == server)
    }

    async fn run(self, links: &Links, deadline: Deadline) -> Told {
        let mut told = Told { replies: (0..self.count).map(|_| None).collect(), failure: None };
        let calls = self
            .servers
            .iter()
            .map(|(server, bytes, numbers)| links.call(*server, bytes, numbers.len(), deadline));
        let answers = match self.servers.len() {
            0 => Vec::new(),
            _ => join_all(calls).await,
        };
        for ((_, _, numbers), answer) in self.servers.iter().zip(answers) {
            match answer {
                Ok(replies) => {
                    numbers
                        .iter()
                        .zip(replies)
                        .for_each(|(number, reply)| told.replies[*number] = Some(reply));
                }
                Err(failure) => told.failure = Some(failure),
            }
        }
        told
    }
}

impl Told {
    /// An item's new number, if it was stored.
    fn done(&self, number: usize) -> Option<u64> {
        match self.replies[number] {
            Some(Reply::Done { cas }) => Some(cas),
            _ => None,
        }
    }

    fn is_done(&self, number: usize) -> bool {
        self.done(number).is_some()
    }

    /// The failure of a server, or what one refused.
    fn failed(&self) -> Result<(), Failure> {
        let said = self.replies.iter().flatten().find_map(|reply| match reply {
            Reply::Refused(said) => Some(refused(said)),
            _ => None,
        });
        let copy = |failure: &Failure| match failure {
            Failure::NotApplied(reason, why) => Failure::NotApplied(reason, why.to_string().into()),
            Failure::TooLate(waited) => Failure::TooLate(*waited),
            Failure::Busy(waited) => Failure::Busy(*waited),
            Failure::TooLarge(why) => Failure::TooLarge(why.to_string().into()),
            Failure::Lost(why) => Failure::Lost(why.to_string().into()),
            Failure::TimedOut(waited) => Failure::TimedOut(*waited),
        };
        self.failure.as_ref().map(copy).or(said).map_or(Ok(()), Err)
    }
}

fn random() -> u64 {
    getrandom::u64().expect("the system has random bytes")
}
