//! A connection's state, and the commands about it.
//!
//! Decides no requests and touches no socket.

use super::catalogue::{self, Command, CommandEntry};
use super::login::{Attempt, DEFAULT_USER, Logins};
use super::reply::{Replies, RespVersion, quoted};
use super::stats::Stats;
use super::throttle::read_number;
use tidegate_access::PeerGroup;

/// One connection's state.
#[derive(Debug)]
pub(crate) struct Session {
    id: u64,
    access: Standing,
    name: Vec<u8>,
    library: [Vec<u8>; 2],
    /// Wrong passwords so far.
    wrong: u32,
    /// The selected database.
    database: u8,
}

/// The databases of a Redis with default settings.
const DATABASES: u8 = 16;

/// Whether the peer is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Granted,
    /// It has not logged in yet.
    Stranger,
}

/// What happens to the connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    GoOn,
    /// The password was wrong: the reply is delayed, and nothing is answered before it.
    GoOnLater,
    Close,
}

/// The environment of a session.
#[derive(Clone, Copy)]
pub(crate) struct SessionContext<'w> {
    pub(crate) logins: &'w Logins,
    pub(crate) stats: &'w Stats,
    pub(crate) peer: PeerGroup,
}

/// The longest client or library name: they are kept.
const MAX_LABEL_BYTES: usize = 256;

/// Wrong passwords after which a connection is closed.
const MOST_WRONG: u32 = 3;

impl Session {
    pub(crate) fn new(id: u64, logins: &Logins) -> Self {
        let access = if logins.are_needed() { Standing::Stranger } else { Standing::Granted };
        Session { id, access, name: Vec::new(), library: Default::default(), wrong: 0, database: 0 }
    }

    pub(crate) fn access(&self) -> Standing {
        self.access
    }

    /// The database in which `CL.THROTTLE` counts.
    pub(crate) fn database(&self) -> u8 {
        self.database
    }

    /// Answers a command about the connection or the server.
    pub(crate) fn answer(
        &mut self,
        command: Command,
        words: &[&[u8]],
        context: SessionContext<'_>,
        to: &mut Replies,
    ) -> Then {
        let arguments = &words[1..];
        match command {
            Command::Ping => match arguments.first() {
                Some(message) => to.bulk(message),
                None => to.simple("PONG"),
            },
            Command::Echo => to.bulk(arguments[0]),
            Command::Hello => return self.hello(arguments, context, to),
            Command::Auth => return self.auth(arguments, context, to),
            Command::Reset => {
                *self = Session { wrong: self.wrong, ..Session::new(self.id, context.logins) };
                to.set_version(RespVersion::Resp2);
                to.simple("RESET");
            }
            Command::Quit => {
                to.simple("OK");
                return Then::Close;
            }
            Command::Select => match read_number("index", arguments[0]).map(u8::try_from) {
                Ok(Ok(database @ ..DATABASES)) => {
                    self.database = database;
                    to.simple("OK");
                }
                _ => to.error("ERR DB index is out of range, use 0 to 15"),
            },
            Command::Client => self.client(arguments, to),
            Command::Info => to.bulk(context.stats.report(arguments).as_bytes()),
            Command::Commands => tell_commands(arguments, to),
            Command::Throttle(_) | Command::Check | Command::Refund | Command::Release | Command::Renew => {
                unreachable!("decisions are the limiter's")
            }
            Command::Unwatch => to.simple("OK"),
            Command::Multi | Command::Exec | Command::Discard | Command::Watch => {
                unreachable!("transactions are the queue's")
            }
        }
        Then::GoOn
    }

    fn hello(&mut self, arguments: &[&[u8]], context: SessionContext<'_>, to: &mut Replies) -> Then {
        let wanted = match Hello::read(arguments, to.version()) {
            Ok(wanted) => wanted,
            Err(error) => {
                to.error(&error);
                return Then::GoOn;
            }
        };
        if let Some((user, given)) = wanted.credentials
            && let Err(then) = self.log_in(user, given, context, to)
        {
            return then;
        }
        if self.access == Standing::Stranger {
            to.error("NOAUTH authentication is required, with AUTH or with HELLO 3 AUTH default password");
            return Then::GoOn;
        }
        if let Some(name) = wanted.name {
            self.name = name.to_vec();
        }
        to.set_version(wanted.version);
        let proto = match wanted.version {
            RespVersion::Resp2 => 2,
            RespVersion::Resp3 => 3,
        };
        to.map(7);
        tell(to, "server", "tidegate");
        tell(to, "version", env!("CARGO_PKG_VERSION"));
        to.bulk(b"proto");
        to.integer(proto);
        to.bulk(b"id");
        to.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        tell(to, "mode", "standalone");
        tell(to, "role", "master");
        to.bulk(b"modules");
        to.array(0);
        Then::GoOn
    }

    fn auth(&mut self, arguments: &[&[u8]], context: SessionContext<'_>, to: &mut Replies) -> Then {
        let (user, given) = match arguments {
            [user, given, ..] => (*user, *given),
            [given] => (DEFAULT_USER, *given),
            [] => return Then::GoOn,
        };
        match self.log_in(user, given, context, to) {
            Ok(()) => {
                to.simple("OK");
                Then::GoOn
            }
            Err(then) => then,
        }
    }

    /// Logs the peer in, or replies why not; returns what happens to the connection.
    fn log_in(
        &mut self,
        user: &[u8],
        given: &[u8],
        context: SessionContext<'_>,
        to: &mut Replies,
    ) -> Result<(), Then> {
        if !context.logins.are_needed() {
            // Client libraries recognize an optional password by these words.
            to.error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            );
            return Err(Then::GoOn);
        }
        match context.logins.attempt(context.peer, user, given) {
            Attempt::Right => {
                self.access = Standing::Granted;
                return Ok(());
            }
            Attempt::Wrong => to.error("WRONGPASS invalid username-password pair or user is disabled."),
            Attempt::Later(wait) => {
                let seconds = wait.get().div_ceil(1_000_000);
                to.error(&format!(
                    "WRONGPASS too many wrong passwords from this address, try again in {seconds} s"
                ));
                return Err(Then::Close);
            }
        }
        self.wrong += 1;
        Err(if self.wrong >= MOST_WRONG { Then::Close } else { Then::GoOnLater })
    }

    fn client(&mut self, arguments: &[&[u8]], to: &mut Replies) {
        let subcommand = arguments[0].to_ascii_uppercase();
        match (&subcommand[..], &arguments[1..]) {
            (b"ID", []) => to.integer(i64::try_from(self.id).unwrap_or(i64::MAX)),
            (b"GETNAME", []) if self.name.is_empty() => to.nil(),
            (b"GETNAME", []) => to.bulk(&self.name),
            (b"SETNAME", [name]) => match check_label(name) {
                Ok(()) => {
                    self.name = name.to_vec();
                    to.simple("OK");
                }
                Err(error) => to.error(error),
            },
            (b"SETINFO", [what, value]) => self.set_library(what, value, to),
            (b"INFO", []) => to.bulk(&self.described(to.version())),
            (b"NO-EVICT" | b"NO-TOUCH", [on]) if is_on_or_off(on) => to.simple("OK"),
            _ => to.error(&format!(
                "ERR unknown subcommand or wrong number of arguments for CLIENT {}, known are ID, INFO, GETNAME, \
                 SETNAME name, SETINFO LIB-NAME|LIB-VER value, NO-EVICT ON|OFF and NO-TOUCH ON|OFF",
                quoted(arguments[0])
            )),
        }
    }

    fn set_library(&mut self, what: &[u8], value: &[u8], to: &mut Replies) {
        let place = match &what.to_ascii_uppercase()[..] {
            b"LIB-NAME" => 0,
            b"LIB-VER" => 1,
            _ => return to.error(&format!("ERR unrecognized option {}", quoted(what))),
        };
        match check_label(value) {
            Ok(()) => {
                self.library[place] = value.to_vec();
                to.simple("OK");
            }
            Err(error) => to.error(error),
        }
    }

    fn described(&self, version: RespVersion) -> Vec<u8> {
        let resp = if version == RespVersion::Resp3 { 3 } else { 2 };
        let shown = |label: &[u8]| label.escape_ascii().to_string();
        let [library, library_version] = &self.library;
        format!(
            "id={} name={} db={} user=default lib-name={} lib-ver={} resp={resp}\n",
            self.id,
            shown(&self.name),
            self.database,
            shown(library),
            shown(library_version)
        )
        .into_bytes()
    }
}

/// The arguments of `HELLO`.
struct Hello<'w> {
    version: RespVersion,
    credentials: Option<(&'w [u8], &'w [u8])>,
    name: Option<&'w [u8]>,
}

impl<'w> Hello<'w> {
    fn read(arguments: &[&'w [u8]], current: RespVersion) -> Result<Self, String> {
        let (version, mut options) = match arguments {
            [] => (current, arguments),
            [b"2", options @ ..] => (RespVersion::Resp2, options),
            [b"3", options @ ..] => (RespVersion::Resp3, options),
            _ => return Err("NOPROTO unsupported protocol version, use 2 or 3".to_owned()),
        };
        let mut hello = Hello { version, credentials: None, name: None };
        while let [option, rest @ ..] = options {
            options = match (&option.to_ascii_uppercase()[..], rest) {
                (b"AUTH", [user, given, rest @ ..]) => {
                    hello.credentials = Some((user, given));
                    rest
                }
                (b"SETNAME", [name, rest @ ..]) => {
                    check_label(name)?;
                    hello.name = Some(name);
                    rest
                }
                _ => return Err(format!("ERR syntax error in HELLO option {}", quoted(option))),
            };
        }
        Ok(hello)
    }
}

fn check_label(label: &[u8]) -> Result<(), &'static str> {
    if label.len() > MAX_LABEL_BYTES {
        return Err("ERR names are at most 256 bytes long");
    }
    if !label.iter().all(u8::is_ascii_graphic) {
        return Err("ERR names cannot hold spaces, newlines or special characters");
    }
    Ok(())
}

fn is_on_or_off(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"on") || word.eq_ignore_ascii_case(b"off")
}

fn tell(to: &mut Replies, name: &str, value: &str) {
    to.bulk(name.as_bytes());
    to.bulk(value.as_bytes());
}

fn tell_commands(arguments: &[&[u8]], to: &mut Replies) {
    let subcommand = arguments.first().map(|word| word.to_ascii_uppercase());
    let names = arguments.get(1..).unwrap_or_default();
    match subcommand.as_deref() {
        None => write_all(to, CommandEntry::write_info),
        Some(b"COUNT") => to.integer(i64::try_from(catalogue::all().len()).unwrap_or(i64::MAX)),
        Some(b"LIST") => write_all(to, |entry, to| to.bulk(entry.name.as_bytes())),
        Some(b"INFO") if names.is_empty() => write_all(to, CommandEntry::write_info),
        Some(b"INFO") => {
            to.array(names.len());
            for name in names {
                match catalogue::find(name) {
                    Some(entry) => entry.write_info(to),
                    None => to.nil(),
                }
            }
        }
        Some(b"DOCS") => {
            let wanted = |entry: &&CommandEntry| {
                names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(entry.name.as_bytes()))
            };
            let entries: Vec<&CommandEntry> = catalogue::all().iter().filter(wanted).collect();
            to.map(entries.len());
            entries.iter().for_each(|entry| entry.write_docs(to));
        }
        Some(other) => to.error(&format!(
            "ERR unknown subcommand {} of COMMAND, known are COUNT, LIST, INFO and DOCS",
            quoted(other)
        )),
    }
}

fn write_all(to: &mut Replies, write: impl Fn(&CommandEntry, &mut Replies)) {
    to.array(catalogue::all().len());
    catalogue::all().iter().for_each(|entry| write(entry, to));
}
