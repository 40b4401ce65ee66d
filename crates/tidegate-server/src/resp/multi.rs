//! `MULTI` … `EXEC`, which client libraries put around a pipeline: commands are queued, and run in a row at `EXEC`.
//!
//! As in Redis, nothing runs if a command was rejected while it was queued, and replies come together and in order. Unlike
//! Redis, decisions of other clients may come in between. Each decision is atomic, a bucket never admits more than it may,
//! and there is nothing to `WATCH`.

use super::catalogue::Command;
use super::parse::Words;
use super::reply::Replies;

/// The most commands of a transaction.
const MOST_COMMANDS: usize = 1024;
/// The most bytes of their words: they are kept until `EXEC`.
const MOST_BYTES: usize = 256 * 1024;

/// The commands queued since `MULTI`.
#[derive(Debug, Default)]
pub(crate) struct Transaction(Option<Queued>);

#[derive(Debug, Default)]
struct Queued {
    commands: Vec<Kept>,
    bytes: usize,
    /// Whether a command was rejected, so that none may run.
    broken: bool,
}

/// One command, copied from the input.
#[derive(Debug)]
pub(crate) struct Kept(Vec<Vec<u8>>);

impl Kept {
    pub(crate) fn words(&self) -> Words<'_> {
        self.0.iter().map(Vec::as_slice).collect()
    }
}

impl Transaction {
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// `MULTI`.
    pub(crate) fn begin(&mut self, to: &mut Replies) {
        if self.is_open() {
            return to.error("ERR MULTI calls can not be nested");
        }
        self.0 = Some(Queued::default());
        to.simple("OK");
    }

    /// `DISCARD`.
    pub(crate) fn discard(&mut self, to: &mut Replies) {
        match self.0.take() {
            Some(_) => to.simple("OK"),
            None => to.error("ERR DISCARD without MULTI"),
        }
    }

    /// Discards the queue without a reply.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    /// Queues a command, if it may be queued.
    pub(crate) fn add(&mut self, admitted: Result<Command, String>, words: &[&[u8]], to: &mut Replies) {
        let Some(queued) = &mut self.0 else { return };
        match admitted {
            Err(error) => queued.refuse(&error, to),
            Ok(Command::Hello | Command::Auth | Command::Watch) => {
                queued.refuse("ERR Command not allowed inside a transaction", to);
            }
            Ok(_) => {
                let bytes = words.iter().map(|word| word.len()).sum::<usize>();
                if queued.commands.len() >= MOST_COMMANDS || queued.bytes + bytes > MOST_BYTES {
                    return queued.refuse("ERR the transaction is too large, send it in parts", to);
                }
                queued.bytes += bytes;
                queued.commands.push(Kept(words.iter().map(|word| word.to_vec()).collect()));
                to.simple("QUEUED");
            }
        }
    }

    /// The commands that `EXEC` must run; `None` if there are none and the reply is already written.
    pub(crate) fn execute(&mut self, to: &mut Replies) -> Option<Vec<Kept>> {
        match self.0.take() {
            None => to.error("ERR EXEC without MULTI"),
            Some(Queued { broken: true, .. }) => {
                to.error("EXECABORT Transaction discarded because of previous errors.");
            }
            Some(Queued { commands, .. }) => return Some(commands),
        }
        None
    }
}

impl Queued {
    fn refuse(&mut self, error: &str, to: &mut Replies) {
        to.error(error);
        *self = Queued { broken: true, ..Queued::default() };
    }
}
