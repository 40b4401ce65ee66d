//! A blocking Redis client of a few lines, so that tests of Redis need no Redis library.
//!
//! It speaks RESP2, one connection, no retries: what the server answers is what the test sees.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply that takes longer is an error: no test waits for a blocked server by accident.
const PATIENCE: Duration = Duration::from_secs(5);
/// Replies beyond these are refused, so that garbage cannot make a test allocate without end.
const MAX_BULK: usize = 64 << 20;
const MAX_ITEMS: usize = 1 << 20;
const MAX_DEPTH: u32 = 16;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `+OK`
    Simple(String),
    /// `-ERR …`, without the dash.
    Error(String),
    /// `:1`
    Int(i64),
    /// A binary-safe string.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// Replies in order.
    Array(Vec<Self>),
}

impl Value {
    /// The text of a string reply, or of an error.
    ///
    /// # Panics
    /// On any other reply.
    #[must_use]
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("a string reply was expected, not {other:?}"),
        }
    }

    /// The number of an integer reply.
    ///
    /// # Panics
    /// On any other reply.
    #[must_use]
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("an integer reply was expected, not {other:?}"),
        }
    }

    /// The items of an array reply.
    ///
    /// # Panics
    /// On any other reply.
    #[must_use]
    #[track_caller]
    pub fn array(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            other => panic!("an array reply was expected, not {other:?}"),
        }
    }

    /// Whether the server refused the command.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects to `addr`.
    ///
    /// # Panics
    /// When nobody listens there.
    #[must_use]
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Self {
        Self::try_connect(addr).unwrap_or_else(|error| panic!("cannot connect to {addr}: {error}"))
    }

    /// Connects to `addr`.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn try_connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let client = Self { stream: BufReader::new(stream) };
        client.set_patience(PATIENCE)?;
        Ok(client)
    }

    /// How long to wait for a reply; five seconds unless told otherwise.
    ///
    /// # Errors
    /// When `patience` is zero.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(patience))
    }

    /// Sends one command and returns its reply, which may be [`Value::Error`].
    ///
    /// # Panics
    /// When the connection breaks or nothing comes in time.
    #[track_caller]
    pub fn cmd<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Value {
        self.try_cmd(words).unwrap_or_else(|error| panic!("no reply to {}: {error}", shown(words)))
    }

    /// Sends one command and returns its reply.
    ///
    /// # Errors
    /// When the connection breaks, nothing comes in time, or what comes is no reply.
    pub fn try_cmd<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Value> {
        let mut bytes = Vec::new();
        encode(words, &mut bytes);
        self.stream.get_mut().write_all(&bytes)?;
        self.read_value(0)
    }

    /// Sends all commands at once, then reads as many replies.
    ///
    /// # Panics
    /// When the connection breaks or nothing comes in time.
    #[track_caller]
    pub fn pipeline<W: AsRef<[u8]>>(&mut self, commands: &[Vec<W>]) -> Vec<Value> {
        self.send(commands).expect("the server reads a pipeline");
        let read = |_| self.receive().unwrap_or_else(|error| panic!("no reply in a pipeline: {error}"));
        (0..commands.len()).map(read).collect()
    }

    /// Sends all commands at once and reads nothing: [`Client::receive`] reads one reply at a time.
    ///
    /// # Errors
    /// When the connection breaks, or the server does not read.
    pub fn send<W: AsRef<[u8]>>(&mut self, commands: &[Vec<W>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|words| encode(words, &mut bytes));
        self.stream.get_mut().write_all(&bytes)
    }

    /// The next reply to what was sent.
    ///
    /// # Errors
    /// When the connection breaks, nothing comes in time, or what comes is no reply.
    pub fn receive(&mut self) -> io::Result<Value> {
        self.read_value(0)
    }

    fn read_value(&mut self, depth: u32) -> io::Result<Value> {
        if depth > MAX_DEPTH {
            return Err(not_resp("arrays nested too deeply"));
        }
        let line = self.read_line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| not_resp("an empty line"))?;
        match kind {
            "+" => Ok(Value::Simple(rest.to_owned())),
            "-" => Ok(Value::Error(rest.to_owned())),
            ":" => rest.parse().map(Value::Int).map_err(|_| not_resp(&line)),
            "$" => length(rest, MAX_BULK)?.map_or(Ok(Value::Nil), |length| self.read_bulk(length)),
            "*" => length(rest, MAX_ITEMS)?.map_or(Ok(Value::Nil), |count| {
                (0..count).map(|_| self.read_value(depth + 1)).collect::<io::Result<_>>().map(Value::Array)
            }),
            _ => Err(not_resp(&line)),
        }
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.by_ref().take(64 << 10).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.strip_suffix(b"\r\n").ok_or_else(|| not_resp("a line without an end"))?;
        String::from_utf8(line.to_vec()).map_err(|_| not_resp("a line that is not text"))
    }

    fn read_bulk(&mut self, length: usize) -> io::Result<Value> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Value::Bulk(bytes))
    }
}

/// A length in a header; nothing for -1, which means no value.
fn length(text: &str, most: usize) -> io::Result<Option<usize>> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(length) => match usize::try_from(length) {
            Ok(length) if length <= most => Ok(Some(length)),
            _ => Err(not_resp(text)),
        },
        Err(_) => Err(not_resp(text)),
    }
}

fn encode<W: AsRef<[u8]>>(words: &[W], to: &mut Vec<u8>) {
    to.extend(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        let word = word.as_ref();
        to.extend(format!("${}\r\n", word.len()).as_bytes());
        to.extend(word);
        to.extend(b"\r\n");
    }
}

fn shown<W: AsRef<[u8]>>(words: &[W]) -> String {
    let words: Vec<_> = words.iter().take(6).map(|word| String::from_utf8_lossy(word.as_ref())).collect();
    words.join(" ")
}

fn not_resp(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a Redis reply: {what:?}"))
}
