//! All commands: names, arguments, and their description in `COMMAND`.

use std::ops::RangeInclusive;

use super::reply::Replies;
use super::throttle::Dialect;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Throttle(Dialect),
    Check,
    Refund,
    Release,
    Renew,
    Ping,
    Echo,
    Hello,
    Auth,
    Reset,
    Quit,
    Select,
    Client,
    Info,
    Commands,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
}

/// A command's description for `COMMAND`.
#[derive(Debug)]
pub(crate) struct CommandEntry {
    pub(crate) command: Command,
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static str,
    /// The number of words, including its name.
    words: RangeInclusive<usize>,
    /// The position of its key, which a cluster client would route by.
    key: Option<i64>,
    flags: &'static [&'static str],
    summary: &'static str,
}

const WRITES: &[&str] = &["write", "denyoom", "fast"];
const PLAIN: &[&str] = &["fast", "loading", "stale"];
const BEFORE_AUTH: &[&str] = &["fast", "loading", "no_auth", "noscript", "stale"];
const MANY: usize = usize::MAX;

/// Most frequent first: they are searched in this order, and [`find`] has a fast path for the first.
static COMMANDS: [CommandEntry; 21] = [
    CommandEntry {
        command: Command::Throttle(Dialect::RedisCell),
        name: "cl.throttle",
        arguments: "key max_burst count period [quantity]",
        words: 5..=6,
        key: Some(1),
        flags: WRITES,
        summary: "Spends from a token bucket that the caller describes",
    },
    CommandEntry {
        command: Command::Throttle(Dialect::Throttlecrab),
        name: "throttle",
        arguments: "key max_burst count period [quantity]",
        words: 5..=6,
        key: Some(1),
        flags: WRITES,
        summary: "The same as throttlecrab counts and answers it: 1 is allowed",
    },
    CommandEntry {
        command: Command::Check,
        name: "tg.check",
        arguments: "domain [COST n] [HEADERS x-ratelimit|ietf|ietf-11|ietf-next|all] [SPENT] attribute value [attribute value ...]",
        words: 2..=MANY,
        key: None,
        flags: WRITES,
        summary: "Decides a request by the rules of a domain",
    },
    CommandEntry {
        command: Command::Refund,
        name: "tg.refund",
        arguments: "domain [AMOUNT n] [SPENT token] attribute value [attribute value ...]",
        words: 2..=MANY,
        key: None,
        flags: WRITES,
        summary: "Gives hits back that TG.CHECK spent",
    },
    CommandEntry {
        command: Command::Release,
        name: "tg.release",
        arguments: "lease",
        words: 2..=2,
        key: None,
        flags: WRITES,
        summary: "Ends a lease that TG.CHECK gave",
    },
    CommandEntry {
        command: Command::Renew,
        name: "tg.renew",
        arguments: "lease",
        words: 2..=2,
        key: None,
        flags: WRITES,
        summary: "Gives a lease another time to live",
    },
    CommandEntry {
        command: Command::Ping,
        name: "ping",
        arguments: "[message]",
        words: 1..=2,
        key: None,
        flags: PLAIN,
        summary: "Answers PONG, or the message",
    },
    CommandEntry {
        command: Command::Echo,
        name: "echo",
        arguments: "message",
        words: 2..=2,
        key: None,
        flags: PLAIN,
        summary: "Answers the message",
    },
    CommandEntry {
        command: Command::Hello,
        name: "hello",
        arguments: "[2|3 [AUTH username password] [SETNAME name]]",
        words: 1..=7,
        key: None,
        flags: BEFORE_AUTH,
        summary: "Chooses the version of the protocol, and tells of the server",
    },
    CommandEntry {
        command: Command::Auth,
        name: "auth",
        arguments: "[username] password",
        words: 2..=3,
        key: None,
        flags: BEFORE_AUTH,
        summary: "Says who the client is",
    },
    CommandEntry {
        command: Command::Reset,
        name: "reset",
        arguments: "",
        words: 1..=1,
        key: None,
        flags: BEFORE_AUTH,
        summary: "Makes the connection as good as new",
    },
    CommandEntry {
        command: Command::Quit,
        name: "quit",
        arguments: "",
        words: 1..=MANY,
        key: None,
        flags: BEFORE_AUTH,
        summary: "Closes the connection",
    },
    CommandEntry {
        command: Command::Select,
        name: "select",
        arguments: "index",
        words: 2..=2,
        key: None,
        flags: PLAIN,
        summary: "Chooses one of 16 databases, in which CL.THROTTLE counts apart",
    },
    CommandEntry {
        command: Command::Client,
        name: "client",
        arguments: "SETINFO|SETNAME|GETNAME|ID|INFO|NO-EVICT|NO-TOUCH [argument ...]",
        words: 2..=MANY,
        key: None,
        flags: PLAIN,
        summary: "Names the connection, and tells of it",
    },
    CommandEntry {
        command: Command::Info,
        name: "info",
        arguments: "[section ...]",
        words: 1..=MANY,
        key: None,
        flags: &["loading", "stale"],
        summary: "Tells of the server",
    },
    CommandEntry {
        command: Command::Commands,
        name: "command",
        arguments: "[COUNT|LIST|INFO|DOCS [name ...]]",
        words: 1..=MANY,
        key: None,
        flags: &["loading", "stale"],
        summary: "Tells of the commands",
    },
    CommandEntry {
        command: Command::Multi,
        name: "multi",
        arguments: "",
        words: 1..=1,
        key: None,
        flags: PLAIN,
        summary: "Begins a transaction: commands are queued until EXEC",
    },
    CommandEntry {
        command: Command::Exec,
        name: "exec",
        arguments: "",
        words: 1..=1,
        key: None,
        flags: PLAIN,
        summary: "Runs what was queued, in a row",
    },
    CommandEntry {
        command: Command::Discard,
        name: "discard",
        arguments: "",
        words: 1..=1,
        key: None,
        flags: PLAIN,
        summary: "Forgets what was queued",
    },
    CommandEntry {
        command: Command::Watch,
        name: "watch",
        arguments: "key [key ...]",
        words: 2..=MANY,
        key: None,
        flags: PLAIN,
        summary: "Refused: there is nothing to watch",
    },
    CommandEntry {
        command: Command::Unwatch,
        name: "unwatch",
        arguments: "",
        words: 1..=1,
        key: None,
        flags: PLAIN,
        summary: "Watches nothing, as before",
    },
];

/// The command of this name, in any case.
#[inline]
pub(crate) fn find(name: &[u8]) -> Option<&'static CommandEntry> {
    match name {
        // A fast path for millions of calls per second.
        b"CL.THROTTLE" | b"cl.throttle" => Some(&COMMANDS[0]),
        _ => COMMANDS.iter().find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name)),
    }
}

pub(crate) fn all() -> &'static [CommandEntry] {
    &COMMANDS
}

impl CommandEntry {
    /// Whether a command may have this many words.
    #[inline]
    pub(crate) fn takes(&self, words: usize) -> bool {
        self.words.contains(&words)
    }

    /// Whether a client may use it before it is authenticated.
    pub(crate) fn is_open_to_strangers(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    /// Its row in the reply to `COMMAND` and `COMMAND INFO`.
    pub(crate) fn write_info(&self, to: &mut Replies) {
        to.array(10);
        to.bulk(self.name.as_bytes());
        to.integer(self.arity());
        to.array(self.flags.len());
        self.flags.iter().for_each(|flag| to.simple(flag));
        // First key, last key, step.
        let key = self.key.unwrap_or(0);
        [key, key, self.key.map_or(0, |_| 1)].into_iter().for_each(|number| to.integer(number));
        // Access categories, tips, key specifications, subcommands: there are none.
        (0..4).for_each(|_| to.array(0));
    }

    /// Its entry in the reply to `COMMAND DOCS`: name, then a map.
    pub(crate) fn write_docs(&self, to: &mut Replies) {
        to.bulk(self.name.as_bytes());
        let facts = [
            ("summary", self.summary),
            ("since", env!("CARGO_PKG_VERSION")),
            ("group", self.group()),
            ("complexity", "O(1)"),
        ];
        let has_arguments = !self.arguments.is_empty();
        to.map(facts.len() + usize::from(has_arguments));
        for (name, text) in facts {
            to.bulk(name.as_bytes());
            to.bulk(text.as_bytes());
        }
        if has_arguments {
            // One for all of them: redis-cli prints its name as it is.
            to.bulk(b"arguments");
            to.array(1);
            to.map(2);
            for text in ["name", self.arguments, "type", "string"] {
                to.bulk(text.as_bytes());
            }
        }
    }

    /// The number of words if fixed; otherwise the least, negated.
    fn arity(&self) -> i64 {
        let least = i64::try_from(*self.words.start()).unwrap_or(i64::MAX);
        if self.words.start() == self.words.end() { least } else { -least }
    }

    fn group(&self) -> &'static str {
        match self.command {
            Command::Throttle(_) | Command::Check | Command::Refund | Command::Release | Command::Renew => {
                "module"
            }
            Command::Info | Command::Commands => "server",
            _ => "connection",
        }
    }
}
