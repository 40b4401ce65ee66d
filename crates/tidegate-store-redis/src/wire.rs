//! Script arguments and replies: the bytes that `lua/prelude.lua` and the drivers describe.

use redis::Cmd;
use smallvec::SmallVec;
use std::hash::BuildHasher;
use tidegate_core::{
    Ask, Charge, Fold, Group, Hits, Limit, Micros, Outcome, Over, Stance, Timestamp, Touch, Verdict,
};
use tidegate_store::{BatchOutcomes, CellKey, RefundId, Request, Spend};

use crate::key::KeyWriter;
use crate::limits::{self, ALWAYS, COUNTING_CONCURRENCY, Encoded, REFUSED_LETTER, number};
use crate::script::{Algorithms, Driver, Script, script};

/// A call under construction: its keys and items.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    driver: Driver,
    algorithms: Algorithms,
    valid: (f64, f64),
    /// The order in `KEYS`: cells read all at once, cells read in place, then reservations and refunds.
    keys: [Keys; 3],
    /// If others may hold some of these cells: the position of a key's letter, from which the script derives the keys of the
    /// holder lists.
    letter_at: u16,
    items: Vec<u8>,
    item_count: u16,
    /// The total spends of all requests; no request is empty.
    spends: u16,
    /// Whether every request is single, sent for the first time, and does not go over a limit.
    is_plain: bool,
    /// Positions in `items` of key numbers outside the first section, which are unknown until the end.
    unnumbered: SmallVec<[Unnumbered; 2]>,
    lease_names: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Unnumbered {
    at: usize,
    section: usize,
    place: u16,
    form: NumberForm,
}

/// The encoding of a key number.
#[derive(Clone, Copy, Debug)]
enum NumberForm {
    Short,
    Float,
}

const READABLE: usize = 0;
const IN_PLACE: usize = 1;
const RESERVATIONS: usize = 2;

const HEADER: usize = 30;
/// The size of a request header, and of each spend, in bytes.
const REQUEST_HEAD: usize = 17;
const SPEND: usize = 62;
const ENFORCED: u8 = 1;
const COUNTS_REFUSED: u8 = 2;
const ANY_OF: u8 = 4;
const DEBT: u8 = 8;
const CHARGE: u8 = 16;
const CAP: u8 = 32;
const PENALTY: u8 = 64;

/// The offset of the second key's number among a concurrency limit's numbers, in bytes.
const REFUSED_KEY: usize = 16;

/// The size of a spend's outcome, in bytes.
const OUTCOME: usize = 24;
/// Marks a request that was not decided.
const IN_DOUBT: f64 = -0.5;
/// The script's reply to a plan made for another time.
const OTHER_TIME: (usize, u8) = (9, b'T');

/// The kind of an item in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A whole request.
    Whole = 0,
    /// A part of a request whose other parts are decided elsewhere.
    Part = 1,
    /// A part of a request that is refused elsewhere.
    Refused = 2,
    /// A whole request that may be undone later.
    WholeForNow = 3,
    /// Undoes any of these.
    Undo = 4,
}

/// When a request found that others hold part of its quota, by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Doubt(f64);

impl Doubt {
    /// It is not in doubt, or was not sent.
    pub(crate) const NONE: Doubt = Doubt(0.0);
    /// It gets no further doubt, but is refused.
    pub(crate) const NO_MORE: Doubt = Doubt(f64::INFINITY);
}

/// Whether a refusal is recorded, where refused requests count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noting {
    Yes,
    No,
}

/// A request's spend on one cell; `append` writes its key.
pub(crate) struct PlannedSpend<'a, K> {
    pub(crate) append: K,
    pub(crate) limit: &'a Limit,
    pub(crate) ask: Ask,
    pub(crate) group: Group,
}

/// A change of one cell outside a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Refund { hits: Hits, age: Micros, id: Option<RefundId> },
    Charge(Charge),
    Renew { name: u64 },
    Release { name: u64 },
}

/// The key that stores what an item changes, next to the cells of `tag`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservationKey<'a> {
    pub(crate) tag: &'a [u8],
    pub(crate) id: u128,
}

/// The inputs of encoding: how keys are written, and this node's estimate of the store's time.
pub(crate) struct EncodeContext<'a> {
    pub(crate) keys: &'a KeyWriter,
    pub(crate) approx_now: &'a dyn Fn() -> Timestamp,
}

impl Plan {
    pub(crate) fn new(driver: Driver) -> Self {
        let mut items = Vec::with_capacity(HEADER + 128);
        items.resize(HEADER, 0);
        Plan {
            driver,
            algorithms: Algorithms::default(),
            valid: ALWAYS,
            keys: Default::default(),
            letter_at: 0,
            items,
            item_count: 0,
            spends: 0,
            is_plain: true,
            unnumbered: SmallVec::new(),
            lease_names: Vec::new(),
        }
    }

    /// Marks it as using cells that others may hold.
    pub(crate) fn that_may_be_held(mut self, keys: &KeyWriter) -> Self {
        self.letter_at = keys.letter_at();
        self
    }

    /// Adds `algorithms` to its script.
    pub(crate) fn with(mut self, algorithms: Algorithms) -> Self {
        self.algorithms.add_all(algorithms);
        self
    }

    /// Begins a request for `equal` equal ones, or a part of it. This many `spends` must follow.
    pub(crate) fn request(
        &mut self,
        spends: usize,
        equal: u32,
        mode: Mode,
        doubt: Doubt,
        reservation: Option<ReservationKey<'_>>,
        context: &EncodeContext<'_>,
    ) {
        self.item_count += 1;
        let count = u16::try_from(spends).expect("the size of a batch is bounded");
        self.spends += count;
        self.is_plain &= equal == 1 && doubt == Doubt::NONE;
        self.items.extend_from_slice(&count.to_le_bytes());
        self.items.push(mode as u8);
        match reservation {
            None => self.items.extend_from_slice(&[0, 0]),
            Some(ReservationKey { tag, id }) => {
                let place =
                    self.keys[RESERVATIONS].place_of(|out| context.keys.append_reservation(out, tag, id));
                self.push_key(RESERVATIONS, place);
            }
        }
        self.items.extend_from_slice(&equal.to_le_bytes());
        self.push_numbers(&[doubt.0]);
    }

    /// Appends a whole request.
    pub(crate) fn whole_request(&mut self, request: &Request<'_>, doubt: Doubt, context: &EncodeContext<'_>) {
        self.request(request.spends.len(), request.count.get(), Mode::Whole, doubt, None, context);
        let alone = request.spends.len() == 1;
        for Spend { cell, touch } in request.spends {
            let append = |out: &mut Vec<u8>, letter| context.keys.append(out, letter, cell);
            // The only one of those that any may pass must.
            let group = match touch.group.stance {
                Stance::AnyOf if alone => Group { stance: Stance::Enforced, ..touch.group },
                _ => touch.group,
            };
            let planned = PlannedSpend { append, limit: touch.limit, ask: touch.ask, group };
            self.spend(planned, Noting::Yes, context);
        }
    }

    pub(crate) fn spend(
        &mut self,
        spend: PlannedSpend<'_, impl Fn(&mut Vec<u8>, u8)>,
        noting: Noting,
        context: &EncodeContext<'_>,
    ) {
        let PlannedSpend { append, limit, ask, group } = spend;
        let mut encoded = limits::encode(limit, context.approx_now);
        self.push_cell(&append, &encoded);
        let mut flags = match group.stance {
            Stance::Enforced => ENFORCED,
            Stance::AnyOf => ANY_OF,
            Stance::Shadow => 0,
        };
        if limit.counts_refused() && ask.hits > Hits::ZERO && noting == Noting::Yes {
            flags |= COUNTS_REFUSED;
        }
        if group.is_penalty {
            // What a refusal starts is put back only with a request that is asked again.
            flags |= if noting == Noting::Yes { PENALTY } else { PENALTY | COUNTS_REFUSED };
            self.is_plain = false;
        }
        let over = match (Touch { limit, ask, group }).over() {
            Over::Refuse => 0,
            Over::Debt => DEBT,
            Over::Charge => CHARGE,
            Over::Cap => CAP,
        };
        if over != 0 {
            flags |= over;
            self.algorithms.add_over();
            self.is_plain = false;
        }
        if let Some(lease) = ask.lease.filter(|_| limit.takes_lease()) {
            encoded.numbers[5] = self.name_of_lease(lease.0.get());
        }
        self.items.push(flags);
        self.push_numbers(&[number(ask.hits.get())]);
        if encoded.letter == COUNTING_CONCURRENCY {
            let place = self.keys[IN_PLACE].place_of(|out| append(out, REFUSED_LETTER));
            let at = self.items.len() + REFUSED_KEY;
            self.unnumbered.push(Unnumbered { at, section: IN_PLACE, place, form: NumberForm::Float });
        }
        self.push_numbers(&encoded.numbers);
        self.items.extend_from_slice(&group.number.to_le_bytes());
    }

    /// Appends a change of one cell.
    pub(crate) fn change(
        &mut self,
        cell: &CellKey<'_>,
        limit: &Limit,
        change: Change,
        context: &EncodeContext<'_>,
    ) {
        self.item_count += 1;
        let mut limit = limits::encode(limit, context.approx_now);
        self.push_cell(|out, letter| context.keys.append(out, letter, cell), &limit);
        let mut refund = None;
        let (what, hits, age, overdraft) = match change {
            Change::Refund { hits, age, id } => {
                refund = id;
                (1, number(hits.get()), number(age.get()), 0.0)
            }
            Change::Charge(Charge { hits, age, overdraft }) => {
                (2, number(hits.get()), number(age.get()), number(overdraft.get()))
            }
            Change::Renew { name } => {
                limit.numbers[5] = self.name_of_lease(name);
                (3, 0.0, 0.0, 0.0)
            }
            Change::Release { name } => {
                limit.numbers[5] = self.name_of_lease(name);
                (4, 0.0, 0.0, 0.0)
            }
        };
        self.items.push(what);
        match refund {
            None => self.items.extend_from_slice(&[0, 0]),
            Some(id) => {
                let place = self.keys[RESERVATIONS].place_of(|out| context.keys.append_refund(out, cell, id));
                self.push_key(RESERVATIONS, place);
            }
        }
        self.push_numbers(&[hits, age, overdraft]);
        self.push_numbers(&limit.numbers);
    }

    /// A server that reaches it after `until` does nothing.
    pub(crate) fn begins_before(&mut self, until: Timestamp) {
        self.valid.1 = self.valid.1.min(number(until.as_micros()));
    }

    /// The number of items in it.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.item_count)
    }

    fn final_driver(&self) -> Driver {
        match self.driver {
            Driver::Decide if self.spends == self.item_count && self.is_plain => Driver::DecideAlone,
            driver => driver,
        }
    }

    pub(crate) fn script(&self) -> &'static Script {
        script(self.final_driver(), self.algorithms)
    }

    /// Writes the header; nothing can be added after that. `now` is for tests; otherwise Redis's clock decides.
    pub(crate) fn seal(&mut self, now: Option<Timestamp>) {
        let readable = self.keys[READABLE].len();
        let offsets = [0, readable, readable + self.keys[IN_PLACE].len()];
        for Unnumbered { at, section, place, form } in std::mem::take(&mut self.unnumbered) {
            let number = offsets[section] + place;
            match form {
                NumberForm::Short => self.items[at..at + 2].copy_from_slice(&number.to_le_bytes()),
                NumberForm::Float => self.items[at..at + 8].copy_from_slice(&f64::from(number).to_le_bytes()),
            }
        }
        if self.final_driver() == Driver::DecideAlone {
            self.items = runs_of_one_limit(&self.items);
        }
        let now = now.map_or(-1.0, |now| number(now.as_micros()));
        for (place, value) in [now, self.valid.0, self.valid.1].into_iter().enumerate() {
            self.items[8 * place..8 * place + 8].copy_from_slice(&value.to_le_bytes());
        }
        self.items[24..26].copy_from_slice(&readable.to_le_bytes());
        self.items[26..28].copy_from_slice(&self.item_count.to_le_bytes());
        self.items[28..30].copy_from_slice(&self.letter_at.to_le_bytes());
    }

    /// The command that runs a sealed plan: `EVALSHA` with the script's name, or `EVAL` with its source.
    pub(crate) fn command(&self, eval: &str, script: &str) -> Cmd {
        let keys = self.keys.iter().map(Keys::len).sum::<u16>();
        let bytes: usize = self.keys.iter().map(|keys| keys.bytes.len()).sum();
        let mut command =
            Cmd::with_capacity(5 + usize::from(keys), script.len() + bytes + self.items.len() + 64);
        command.arg(eval).arg(script).arg(keys);
        for key in self.keys.iter().flat_map(Keys::iter) {
            command.arg(key);
        }
        command.arg(&self.items[..]);
        if !self.lease_names.is_empty() {
            command.arg(&self.lease_names[..]);
        }
        command
    }

    /// Makes it larger by so many bytes, where lease names would be: it takes no lease, and nothing reads them.
    pub(crate) fn pad(&mut self, bytes: usize) {
        self.lease_names.resize(bytes, b' ');
    }

    fn push_cell(&mut self, append: impl FnOnce(&mut Vec<u8>, u8), limit: &Encoded) {
        self.algorithms.add(limit.letter);
        self.valid = (self.valid.0.max(limit.valid.0), self.valid.1.min(limit.valid.1));
        let section = if limit.readable { READABLE } else { IN_PLACE };
        let place = self.keys[section].place_of(|out| append(out, limit.key_letter));
        self.push_key(section, place);
        self.items.push(limit.letter);
    }

    fn push_key(&mut self, section: usize, place: u16) {
        if section != READABLE {
            let at = self.items.len();
            self.unnumbered.push(Unnumbered { at, section, place, form: NumberForm::Short });
        }
        self.items.extend_from_slice(&place.to_le_bytes());
    }

    fn push_numbers(&mut self, numbers: &[f64]) {
        for value in numbers {
            self.items.extend_from_slice(&value.to_le_bytes());
        }
    }

    fn name_of_lease(&mut self, name: u64) -> f64 {
        self.lease_names.extend_from_slice(&name.to_le_bytes());
        number(self.lease_names.len() as u64 / 8)
    }
}

/// Encodes requests with one spend each for `alone.lua`: consecutive requests with the same limit share one copy of it.
fn runs_of_one_limit(items: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(items.len());
    out.extend_from_slice(&items[..HEADER]);
    let (mut length_at, mut last) = (0, None);
    for item in items[HEADER..].chunks_exact(REQUEST_HEAD + SPEND) {
        let (key, rest) = item[REQUEST_HEAD..].split_at(2);
        let (letter_and_flags, rest) = rest.split_at(2);
        let (hits, rest) = rest.split_at(8);
        let (numbers, _rule) = rest.split_at(48);
        let limit = Some((letter_and_flags, numbers));
        if limit != last {
            (length_at, last) = (out.len(), limit);
            for part in [&[0, 0], letter_and_flags, numbers] {
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(key);
        out.extend_from_slice(hits);
        let length = u16::from_le_bytes([out[length_at], out[length_at + 1]]) + 1;
        out[length_at..length_at + 2].copy_from_slice(&length.to_le_bytes());
    }
    out
}

/// Distinct keys, numbered from 1 in order of first use.
#[derive(Clone, Debug, Default)]
struct Keys {
    bytes: Vec<u8>,
    /// The end of each key and its hash, so that thousands of keys are compared fast.
    ends: SmallVec<[(u32, u64); 4]>,
}

impl Keys {
    fn len(&self) -> u16 {
        u16::try_from(self.ends.len()).expect("the size of a batch is bounded")
    }

    fn place_of(&mut self, append: impl FnOnce(&mut Vec<u8>)) -> u16 {
        let start = self.bytes.len();
        append(&mut self.bytes);
        let hash = foldhash::fast::FixedState::with_seed(0).hash_one(&self.bytes[start..]);
        let same = |(place, (_, other)): (usize, &(u32, u64))| {
            *other == hash && self.get(place) == &self.bytes[start..]
        };
        let place = self.ends.iter().enumerate().position(same);
        match place {
            Some(_) => self.bytes.truncate(start),
            None => {
                let end = u32::try_from(self.bytes.len()).expect("the size of a batch is bounded");
                self.ends.push((end, hash));
            }
        }
        place.map_or(self.len(), |place| u16::try_from(place + 1).expect("one of the keys"))
    }

    fn get(&self, place: usize) -> &[u8] {
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before].0 as usize);
        &self.bytes[start..self.ends[place].0 as usize]
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|place| self.get(place))
    }
}

/// A script's reply.
#[derive(Debug, PartialEq)]
pub(crate) enum ScriptAnswer {
    /// The driver's reply.
    Done(Answer),
    /// Nothing was done: the plan's calendar windows do not match the store's time, which is this, or the call came after its
    /// latest start.
    OtherTime(Timestamp),
}

/// A driver's reply, and the store's time when it ran.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) at: Timestamp,
}

/// Parses a reply; none if it does not end with a time.
pub(crate) fn read(mut reply: Vec<u8>) -> Option<ScriptAnswer> {
    let (rest, at) = reply.split_last_chunk::<8>()?;
    let (rest, at) = (rest.len(), time(at));
    // A change of one cell has the same length, but begins with a digit.
    if (reply.len(), reply[0]) == OTHER_TIME {
        return Some(ScriptAnswer::OtherTime(at));
    }
    reply.truncate(rest);
    Some(ScriptAnswer::Done(Answer { bytes: reply, at }))
}

/// A time as encoded by the scripts.
pub(crate) fn time(bytes: &[u8; 8]) -> Timestamp {
    Timestamp::from_micros(whole(f64::from_le_bytes(*bytes)))
}

/// Reads the outcomes of a decision, spend by spend.
pub(crate) struct OutcomeReader<'a>(&'a [u8]);

impl<'a> OutcomeReader<'a> {
    pub(crate) fn new(answer: &'a [u8]) -> Self {
        OutcomeReader(answer)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the next request was left undecided because others hold part of its quota, and how many of it would pass. Its
    /// outcome if it cannot wait follows.
    pub(crate) fn next_doubt(&mut self) -> Option<(Doubt, u64)> {
        let (bytes, later) = self.0.split_at_checked(OUTCOME)?;
        let is_one = float(&bytes[..8]) == IN_DOUBT;
        is_one.then(|| {
            self.0 = later;
            (Doubt(float(&bytes[8..16])), whole(float(&bytes[16..])))
        })
    }

    /// The outcome of the next spend; none if the reply ends early.
    pub(crate) fn next_outcome(&mut self) -> Option<Outcome> {
        let (bytes, later) = self.0.split_at_checked(OUTCOME)?;
        self.0 = later;
        Some(outcome(bytes))
    }

    /// The outcome of the next spend of a folded request; none if the reply ends early.
    pub(crate) fn next_fold(&mut self, touch: &Touch<'_>) -> Option<Fold> {
        let last = self.next_outcome()?;
        let (admitted, last_admitted) = self.next_counted()?;
        let may_go_over = touch.over() != Over::Refuse || touch.group.is_penalty;
        let (over, last_over) = if may_go_over { self.next_counted()? } else { (0, last) };
        Some(Fold { admitted, last_admitted, over, last_over, last })
    }

    /// How many of equal requests fared alike, and the outcome of the last of them.
    fn next_counted(&mut self) -> Option<(u32, Outcome)> {
        let (count, later) = self.0.split_at_checked(8)?;
        self.0 = later;
        Some((u32::try_from(whole(float(count))).ok()?, self.next_outcome()?))
    }

    /// The outcomes of the next request's spends; none if the reply does not match it.
    pub(crate) fn next_request(&mut self, request: &Request<'_>, told: &mut BatchOutcomes) -> Option<()> {
        for spend in request.spends {
            if request.is_fold() {
                let fold = self.next_fold(&spend.touch)?;
                told.outcomes.push(fold.last);
                told.folds.push(fold);
            } else {
                told.outcomes.push(self.next_outcome()?);
            }
        }
        Some(())
    }

    /// The outcomes of the spends of `requests`; none if the reply does not match them.
    pub(crate) fn of<'r>(
        mut self,
        mut requests: impl Iterator<Item = &'r Request<'r>>,
    ) -> Option<BatchOutcomes> {
        let mut told = BatchOutcomes::default();
        requests.try_for_each(|request| self.next_request(request, &mut told))?;
        self.is_empty().then_some(told)
    }
}

fn outcome(bytes: &[u8]) -> Outcome {
    let (wait, left) = (float(&bytes[..8]), float(&bytes[8..16]));
    let retry_after = (wait != -1.0).then(|| Micros::new(whole(-2.0 - wait)));
    // What went over says so by a number below zero (over.lua).
    let (verdict, remaining) = match (wait >= 0.0, left < 0.0) {
        (true, false) => (Verdict::Admitted { delay: Micros::new(whole(wait)) }, left),
        (true, true) => {
            let (delay, hits) = (Micros::new(whole(wait)), Hits::new(whole(-left)));
            (Verdict::Capped { delay, hits }, 0.0)
        }
        (false, false) => (Verdict::Refused { retry_after }, left),
        (false, true) => (Verdict::Overdrawn { retry_after }, -1.0 - left),
    };
    Outcome { verdict, remaining: whole(remaining), reset_after: Micros::new(whole(float(&bytes[16..]))) }
}

fn float(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "scripts answer whole numbers up to 2^53"
)]
fn whole(value: f64) -> u64 {
    value as u64
}
