//! `CL.THROTTLE` over the Redis protocol, pipelined: all due requests go out in one write, and all are answered before more
//! are sent, like `redis-benchmark -P`.
//!
//! It reads only the replies of our server and redis-cell to that command: five integers, or an error.

use std::io;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::lane::{Assignment, Crew, Lane};
use super::tally::{Outcome, Trouble};

/// A reply takes a few dozen bytes; an error somewhat more.
const LONGEST_LINE: usize = 4 * 1024;

/// Runs one connection until the run is over, reconnecting whenever it ends.
pub(super) async fn drive(crew: Arc<Crew>, mut lane: Lane) {
    while !crew.is_over() {
        if let Some(stream) = crew.connect().await {
            run(&mut lane, stream).await;
        }
    }
}

/// Returns when the run is over or the connection is no longer usable.
async fn run(lane: &mut Lane, mut stream: TcpStream) {
    let (mut requests, mut replies) = (BytesMut::new(), BytesMut::with_capacity(4096));
    let most = lane.crew().plan.in_flight as usize;
    let mut due = Vec::with_capacity(most);
    while let Some(first) = lane.next().await {
        requests.clear();
        due.clear();
        let more = std::iter::from_fn(|| lane.next_if_due()).take(most - 1);
        for Assignment { request, due: when } in std::iter::once(first).chain(more) {
            requests.extend_from_slice(&request);
            due.push(when);
        }
        let mut answered = 0;
        let exchange = async {
            stream.write_all(&requests).await?;
            while answered < due.len() {
                let outcome = read(&mut stream, &mut replies, lane).await?;
                lane.book(due[answered], outcome);
                answered += 1;
            }
            io::Result::Ok(())
        };
        let trouble = match timeout(lane.crew().plan.timeout, exchange).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => {
                lane.crew().tally().complain(|| error.to_string());
                if error.kind() == io::ErrorKind::InvalidData { Trouble::BadReply } else { Trouble::Lost }
            }
            Err(_) => Trouble::TimedOut,
        };
        due[answered..].iter().for_each(|due| lane.book(*due, Outcome::Failed(trouble)));
        return;
    }
}

/// Takes the next reply out of `replies`.
async fn read(stream: &mut TcpStream, replies: &mut BytesMut, lane: &Lane) -> io::Result<Outcome> {
    loop {
        if let Some(reply) = RespReply::parse(replies)? {
            if let Outcome::Failed(trouble) = reply.outcome {
                let text = String::from_utf8_lossy(&replies[..reply.length]);
                lane.crew().tally().complain(|| format!("{trouble}: {}", text.trim()));
            }
            replies.advance(reply.length);
            return Ok(reply.outcome);
        }
        if stream.read_buf(replies).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The meaning and the length of a reply.
#[derive(Debug, PartialEq, Eq)]
struct RespReply {
    outcome: Outcome,
    length: usize,
}

impl RespReply {
    /// `None` if the reply is not complete yet.
    fn parse(bytes: &[u8]) -> io::Result<Option<RespReply>> {
        let Some((first, mut length)) = line(bytes, 0)? else { return Ok(None) };
        if first.starts_with(b"-") {
            return Ok(Some(RespReply { outcome: Outcome::Failed(Trouble::ErrorReply), length }));
        }
        if first != b"*5" {
            return Err(bad("the reply is not that of CL.THROTTLE"));
        }
        let mut limited = None;
        for _ in 0..5 {
            let Some((number, end)) = line(bytes, length)? else { return Ok(None) };
            if !number.starts_with(b":") {
                return Err(bad("the reply holds something other than integers"));
            }
            limited.get_or_insert(number != b":0");
            length = end;
        }
        let outcome = if limited == Some(true) { Outcome::Refused } else { Outcome::Allowed };
        Ok(Some(RespReply { outcome, length }))
    }
}

/// The line at `from`, and the start of the next one.
fn line(bytes: &[u8], from: usize) -> io::Result<Option<(&[u8], usize)>> {
    let rest = &bytes[from..];
    match rest.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => Ok(Some((&rest[..end], from + end + 2))),
        None if rest.len() > LONGEST_LINE => Err(bad("a line of the reply is too long")),
        None => Ok(None),
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_in_any_pieces() {
        let whole = b"*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:32\r\n*5\r\n:0\r\n";
        let length = whole.len() - 8;
        for cut in 0..length {
            assert_eq!(RespReply::parse(&whole[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(RespReply::parse(whole).unwrap(), Some(RespReply { outcome: Outcome::Refused, length }));
        let allowed = RespReply::parse(b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n").unwrap().unwrap();
        assert_eq!(allowed.outcome, Outcome::Allowed);
    }

    #[test]
    fn an_error_is_no_decision_and_anything_else_no_reply() {
        let error = RespReply::parse(b"-ERR no\r\n+OK\r\n").unwrap().unwrap();
        assert_eq!(error, RespReply { outcome: Outcome::Failed(Trouble::ErrorReply), length: 9 });
        for bytes in [&b"+PONG\r\n"[..], b"*4\r\n", b"*5\r\n$1\r\n", &[b'x'; 5_000]] {
            assert!(RespReply::parse(bytes).is_err());
        }
    }
}
