//! Answers pipelined commands in their order.
//!
//! If the store answers at once, commands are answered one by one. If it takes time, adjacent commands of a kind are decided
//! in one call, so that a pipeline of sixty-four waits once and not sixty-four times.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_access::PeerGroup;
use tidegate_limiter::Direct;
use tidegate_store::Request;

use super::RespWorker;
use super::catalogue::{self, Command, CommandEntry};
use super::check::{self, RespCheck, RespRefund};
use super::gather::Gathered;
use super::multi::Transaction;
use super::parse::{Bounds, Parsed, Words, parse};
use super::reply::{Replies, quoted};
use super::session::{Session, SessionContext, Standing, Then};
use super::throttle::{Buckets, Throttle};

/// Answers one connection's commands.
pub(crate) struct Answerer {
    worker: Arc<RespWorker>,
    session: Session,
    peer: PeerGroup,
    transaction: Transaction,
    buckets: Buckets,
    /// Scratch space for the key of the current command.
    key: Vec<u8>,
    /// Decisions since this was last read.
    decisions: u64,
}

/// How far answering got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// The bytes that were answered.
    pub(crate) used: usize,
    pub(crate) commands: u64,
    /// How many of them were decisions.
    pub(crate) decisions: u64,
    pub(crate) why: Pause,
}

/// Why answering paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// The rest is not a whole command.
    NeedsMore,
    /// There is more to answer, but other connections must have their turn, or replies must be sent first.
    TurnOver,
    /// A password was wrong: the reply is delayed.
    WrongPassword,
    /// The client quit, or sent malformed bytes.
    Close,
}

/// The most commands answered before other connections get their turn.
pub(crate) const COMMANDS_PER_TURN: u64 = 256;
/// The most bytes of replies before they are sent.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

impl Answerer {
    pub(crate) fn new(worker: Arc<RespWorker>, number: u64, peer: PeerGroup) -> Self {
        let session = Session::new(number, &worker.logins);
        Answerer {
            worker,
            session,
            peer,
            transaction: Transaction::default(),
            buckets: Buckets::default(),
            key: Vec::new(),
            decisions: 0,
        }
    }

    /// Answers the commands at the front of `input`.
    pub(crate) async fn answer(&mut self, input: &[u8], to: &mut Replies) -> Progress {
        let (mut used, mut commands, mut why) = (0, 0, Pause::TurnOver);
        let mut gathered = Gathered::Nothing;
        let mut words = Words::new();
        while commands < COMMANDS_PER_TURN && to.len() < MAX_OUTPUT_BYTES {
            let then = match parse(&input[used..], self.bounds(), &mut words) {
                Parsed::Command { length } => {
                    used += length;
                    match self.throttle_at_once(&words) {
                        Some(throttle) => self.decide_alone(&throttle, to).await,
                        None => self.command(&words, &mut gathered, to).await,
                    }
                }
                Parsed::Line { words, length } => {
                    used += length;
                    gathered.decide(&self.worker.service.limiter, to).await;
                    // These words are not part of `input`, so nothing that borrows them may be deferred.
                    let words: Words<'_> = words.iter().map(Vec::as_slice).collect();
                    let mut alone = Gathered::Nothing;
                    let then = self.command(&words, &mut alone, to).await;
                    alone.decide(&self.worker.service.limiter, to).await;
                    then
                }
                Parsed::Incomplete { .. } => {
                    why = Pause::NeedsMore;
                    break;
                }
                Parsed::Malformed(what) => {
                    gathered.decide(&self.worker.service.limiter, to).await;
                    to.error(&format!("ERR Protocol error: {what}"));
                    Then::Close
                }
            };
            commands += 1;
            match then {
                Then::GoOn => {}
                Then::GoOnLater => {
                    why = Pause::WrongPassword;
                    break;
                }
                Then::Close => {
                    why = Pause::Close;
                    break;
                }
            }
        }
        gathered.decide(&self.worker.service.limiter, to).await;
        Progress { used, commands, decisions: std::mem::take(&mut self.decisions), why }
    }

    /// Whether the peer is authenticated.
    pub(crate) fn access(&self) -> Standing {
        self.session.access()
    }

    fn bounds(&self) -> &Bounds {
        match self.session.access() {
            Standing::Granted => &self.worker.settings.bounds,
            Standing::Stranger => &self.worker.bounds_of_strangers,
        }
    }

    async fn command<'b>(
        &mut self,
        words: &[&'b [u8]],
        gathered: &mut Gathered<'b>,
        to: &mut Replies,
    ) -> Then {
        let [name, ..] = words else { return Then::GoOn };
        let admitted = self.admit(name, words.len());
        let of_transactions = match admitted {
            Ok(Command::Multi | Command::Exec | Command::Discard | Command::Watch | Command::Unwatch) => true,
            // These end a transaction, whatever is queued.
            Ok(Command::Reset | Command::Quit) => {
                self.transaction.forget();
                false
            }
            _ => self.transaction.is_open(),
        };
        if !of_transactions {
            return self.run(admitted, words, gathered, to).await;
        }
        gathered.decide(&self.worker.service.limiter, to).await;
        match admitted {
            Ok(Command::Multi) => self.transaction.begin(to),
            Ok(Command::Discard) => self.transaction.discard(to),
            Ok(Command::Exec) => self.execute(to).await,
            Ok(Command::Watch) if !self.transaction.is_open() => {
                to.error("ERR WATCH is not supported, every command is atomic");
            }
            Ok(Command::Unwatch) if !self.transaction.is_open() => to.simple("OK"),
            admitted => self.transaction.add(admitted, words, to),
        }
        Then::GoOn
    }

    /// Runs the queued commands, adjacent ones of a kind together, and replies with one array.
    async fn execute(&mut self, to: &mut Replies) {
        let Some(commands) = self.transaction.execute(to) else { return };
        to.array(commands.len());
        let mut gathered = Gathered::Nothing;
        for command in &commands {
            let words = command.words();
            let admitted = self.admit(words[0], words.len());
            self.run(admitted, &words, &mut gathered, to).await;
        }
        gathered.decide(&self.worker.service.limiter, to).await;
    }

    /// Answers a command, or defers it.
    async fn run<'b>(
        &mut self,
        admitted: Result<Command, String>,
        words: &[&'b [u8]],
        gathered: &mut Gathered<'b>,
        to: &mut Replies,
    ) -> Then {
        let arguments = &words[1..];
        let wrong = match admitted {
            Ok(Command::Throttle(dialect)) => match Throttle::read(dialect, arguments) {
                Ok(throttle) => {
                    let database = self.session.database();
                    self.throttle(Throttle { database, ..throttle }, gathered, to).await
                }
                Err(error) => Some(error),
            },
            Ok(Command::Check) => match RespCheck::read(arguments) {
                Ok(check) => {
                    let service = &self.worker.service;
                    let check = check.asked_at(&*service.clock, service.settings.headers.reset());
                    self.check(check, gathered, to).await;
                    None
                }
                Err(error) => Some(error),
            },
            Ok(command) => {
                gathered.decide(&self.worker.service.limiter, to).await;
                return self.other(command, words, to).await;
            }
            Err(error) => {
                gathered.decide(&self.worker.service.limiter, to).await;
                to.error(&error);
                None
            }
        };
        if let Some(error) = wrong {
            gathered.decide(&self.worker.service.limiter, to).await;
            to.error(&format!("ERR {error}"));
        }
        Then::GoOn
    }

    /// The command, if the client may use it.
    #[inline]
    fn admit(&self, name: &[u8], words: usize) -> Result<Command, String> {
        match catalogue::find(name) {
            Some(entry) if self.session.access() == Standing::Stranger && !entry.is_open_to_strangers() => {
                Err("NOAUTH Authentication required.".to_owned())
            }
            Some(entry) if entry.takes(words) => Ok(entry.command),
            Some(entry) => Err(wrong_number(entry)),
            None => Err(format!("ERR unknown command {}, COMMAND LIST names the known ones", quoted(name))),
        }
    }

    /// Parses a well-formed `CL.THROTTLE` or `THROTTLE` of an authenticated client, if the store answers at once, so that nothing is
    /// deferred. Its bucket becomes the latest.
    #[inline]
    fn throttle_at_once<'b>(&mut self, words: &[&'b [u8]]) -> Option<Throttle<'b>> {
        if self.worker.store_takes_time.load(Ordering::Relaxed) || self.transaction.is_open() {
            return None;
        }
        let [name, arguments @ ..] = words else { return None };
        let Ok(Command::Throttle(dialect)) = self.admit(name, words.len()) else { return None };
        let throttle = Throttle::read(dialect, arguments).ok()?;
        self.buckets.get(throttle.quota).ok()?;
        Some(Throttle { database: self.session.database(), ..throttle })
    }

    #[inline]
    async fn decide_alone(&mut self, throttle: &Throttle<'_>, to: &mut Replies) -> Then {
        let Some(bucket) = self.buckets.latest() else { return Then::GoOn };
        self.decisions += 1;
        self.key.clear();
        throttle.write_key(&mut self.key);
        let spends = [bucket.spend(&self.key, throttle.hits)];
        let batch = [Request::once(&spends)];
        let decided = self.worker.service.limiter.decide_direct(&batch);
        match decided {
            // By reference: outcomes are large to move.
            Direct::Now(ref outcomes, _) => bucket.write_reply(throttle.hits, &outcomes[0], to),
            Direct::Later(answer) => {
                self.worker.store_takes_time.store(true, Ordering::Relaxed);
                let (outcomes, _) = answer.await;
                bucket.write_reply(throttle.hits, &outcomes[0], to);
            }
        }
        Then::GoOn
    }

    /// Defers a throttle; returns what is wrong with its numbers, if anything.
    async fn throttle<'b>(
        &mut self,
        throttle: Throttle<'b>,
        gathered: &mut Gathered<'b>,
        to: &mut Replies,
    ) -> Option<String> {
        let bucket = match self.buckets.get(throttle.quota) {
            Ok(bucket) => Arc::clone(bucket),
            Err(error) => return Some(error),
        };
        self.decisions += 1;
        if !gathered.takes_a_throttle() {
            gathered.decide(&self.worker.service.limiter, to).await;
        }
        gathered.add_throttle(throttle, bucket);
        None
    }

    async fn check<'b>(&mut self, check: RespCheck<'b>, gathered: &mut Gathered<'b>, to: &mut Replies) {
        self.decisions += 1;
        if self.worker.store_takes_time.load(Ordering::Relaxed) {
            if !gathered.takes_a_check() {
                gathered.decide(&self.worker.service.limiter, to).await;
            }
            return gathered.add_check(check);
        }
        let limiter = &self.worker.service.limiter;
        gathered.decide(limiter, to).await;
        let ask = check.ask();
        let request = check.request(&ask);
        let decision = self.noting_waits(limiter.check(&request)).await;
        check::write(limiter, check.shows(), &decision, to);
    }

    /// Answers a command other than the hot ones.
    async fn other(&mut self, command: Command, words: &[&[u8]], to: &mut Replies) -> Then {
        let limiter = &self.worker.service.limiter;
        match command {
            Command::Release | Command::Renew => match check::read_lease(limiter, words[1]) {
                Ok(lease) if command == Command::Release => {
                    check::write_lease(self.noting_waits(limiter.release(&lease)).await, to);
                }
                Ok(lease) => check::write_lease(self.noting_waits(limiter.renew(&lease)).await, to),
                Err(error) => to.error(&format!("ERR {error}")),
            },
            Command::Refund => match RespRefund::read(&words[1..]) {
                Ok(refund) => self.noting_waits(refund.run(limiter, to)).await,
                Err(error) => to.error(&format!("ERR {error}")),
            },
            _ => {
                let RespWorker { logins, stats, .. } = &*self.worker;
                let context = SessionContext { logins, stats, peer: self.peer };
                return self.session.answer(command, words, context, to);
            }
        }
        Then::GoOn
    }

    /// Awaits `answer`, and records if that took a wait.
    async fn noting_waits<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        poll_fn(|context| {
            let poll = answer.as_mut().poll(context);
            if poll.is_pending() {
                self.worker.store_takes_time.store(true, Ordering::Relaxed);
            }
            poll
        })
        .await
    }
}

fn wrong_number(entry: &CommandEntry) -> String {
    let CommandEntry { name, arguments, .. } = entry;
    let usage = format!("{} {arguments}", name.to_ascii_uppercase());
    format!("ERR wrong number of arguments for '{name}' command, expected {}", usage.trim_end())
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
    use tidegate_rules::{Format, RuleSet, Source};
    use tidegate_store::{ManualClock, MemoryConfig, MemoryStore};

    use super::super::{Logins, RespSettings, Stats, Users};
    use super::*;
    use crate::service::{Service, ServiceSettings};

    /// Answers once, on the memory store, which never waits.
    fn answer_once(input: &[u8]) -> (Progress, usize) {
        let clock = Arc::new(ManualClock::default());
        let rules = Source::new("rules", "{ domain: api, rules: [] }");
        let rules = RuleSet::compile(&[rules], Format::Native).unwrap();
        let store = MemoryStore::new(MemoryConfig::new().max_cells(100).max_log_bytes(0));
        let limiter = Limiter::new(LimiterConfig::new(rules, Arc::new(store), Arc::new(NoObserver)));
        let service = Service {
            limiter: Arc::new(limiter),
            observer: Arc::new(NoObserver),
            clock: clock.clone(),
            settings: ServiceSettings::default(),
        };
        let stats = Arc::new(Stats::new(clock));
        let logins = Arc::new(Logins::new(Users::default()));
        let worker = RespWorker::new(Arc::new(service), RespSettings::default(), logins, stats);
        let peer = PeerGroup::of([127, 0, 0, 1].into());
        let mut answerer = Answerer::new(Arc::new(worker), 1, peer);
        let mut replies = Replies::default();
        let answered =
            pin!(answerer.answer(input, &mut replies)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(progress) = answered else { panic!("somebody had to wait") };
        (progress, replies.len())
    }

    #[test]
    fn a_long_pipeline_is_answered_in_turns() {
        let pings = b"*1\r\n$4\r\nPING\r\n".repeat(1_000);
        let (progress, _) = answer_once(&pings);
        assert_eq!((progress.commands, progress.used), (COMMANDS_PER_TURN, 256 * 14));
        assert_eq!(progress.why, Pause::TurnOver);
    }

    #[test]
    fn no_more_is_answered_than_may_wait_to_be_sent() {
        let echo = format!("*2\r\n$4\r\nECHO\r\n$30000\r\n{}\r\n", "x".repeat(30_000));
        let (progress, written) = answer_once(echo.repeat(10).as_bytes());
        assert_eq!((progress.commands, progress.why), (3, Pause::TurnOver));
        assert!(written < MAX_OUTPUT_BYTES + 30_100);
    }

    #[test]
    fn decisions_are_told_from_other_commands() {
        let (progress, _) = answer_once(b"PING\r\nTHROTTLE k 1 1 1\r\nTG.CHECK api\r\n*1\r\n$4\r\nPI");
        assert_eq!((progress.commands, progress.decisions, progress.why), (3, 2, Pause::NeedsMore));
    }
}
