//! `POST /v1/check` over HTTP/1.1 with keep-alive, on a bare socket: one write per request, usually one read per reply.
//!
//! It reads only replies with a `content-length`, which is what our server sends.

use std::io;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::lane::{Assignment, Crew, Lane};
use super::tally::{Outcome, Trouble};

/// Head and body of a reply together; a decision takes a few hundred bytes.
const LONGEST_REPLY: usize = 64 * 1024;
const MOST_HEADERS: usize = 64;

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
    let mut buffer = BytesMut::with_capacity(4096);
    while let Some(Assignment { request, due }) = lane.next().await {
        let answer = exchange(&mut stream, &mut buffer, &request);
        let (outcome, usable) = match timeout(lane.crew().plan.timeout, answer).await {
            Ok(Ok(reply)) => {
                if let Outcome::Failed(trouble) = reply.outcome() {
                    let body = String::from_utf8_lossy(&buffer[reply.head..reply.total()]);
                    lane.crew().tally().complain(|| format!("{trouble}: {}", body.trim()));
                }
                buffer.advance(reply.total());
                (reply.outcome(), !reply.closes)
            }
            Ok(Err(error)) => {
                lane.crew().tally().complain(|| error.to_string());
                let bad = error.kind() == io::ErrorKind::InvalidData;
                (Outcome::Failed(if bad { Trouble::BadReply } else { Trouble::Lost }), false)
            }
            Err(_) => (Outcome::Failed(Trouble::TimedOut), false),
        };
        lane.book(due, outcome);
        if !usable {
            return;
        }
    }
}

/// Sends a request and reads until the whole reply is at the start of `buffer`.
async fn exchange(stream: &mut TcpStream, buffer: &mut BytesMut, request: &[u8]) -> io::Result<HttpReply> {
    stream.write_all(request).await?;
    loop {
        if let Some(reply) = HttpReply::parse(buffer)?
            && buffer.len() >= reply.total()
        {
            return Ok(reply);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The position of a reply's parts, and its meaning.
#[derive(Debug, PartialEq, Eq)]
struct HttpReply {
    status: u16,
    head: usize,
    body: usize,
    closes: bool,
}

impl HttpReply {
    /// `None` if the head is not complete yet.
    fn parse(bytes: &[u8]) -> io::Result<Option<HttpReply>> {
        let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let head = match response.parse(bytes).map_err(|error| bad(error.to_string()))? {
            httparse::Status::Complete(head) => head,
            httparse::Status::Partial if bytes.len() > LONGEST_REPLY => {
                return Err(bad("the reply's head is too long".to_owned()));
            }
            httparse::Status::Partial => return Ok(None),
        };
        let header =
            |name: &str| response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        let length = header("content-length").and_then(|header| std::str::from_utf8(header.value).ok());
        let body = length.and_then(|length| length.trim().parse().ok());
        let body: usize = body.ok_or_else(|| bad("the reply has no content-length".to_owned()))?;
        if head.saturating_add(body) > LONGEST_REPLY {
            return Err(bad("the reply is too long".to_owned()));
        }
        let closes = header("connection").is_some_and(|header| header.value.eq_ignore_ascii_case(b"close"));
        Ok(Some(HttpReply { status: response.code.unwrap_or_default(), head, body, closes }))
    }

    fn total(&self) -> usize {
        self.head + self.body
    }

    fn outcome(&self) -> Outcome {
        match self.status {
            200 => Outcome::Allowed,
            429 => Outcome::Refused,
            other => Outcome::Failed(Trouble::HttpStatus(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_in_any_pieces() {
        let whole = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}";
        let head = whole.len() - 2;
        for cut in 0..head {
            assert_eq!(HttpReply::parse(&whole[..cut]).unwrap(), None, "{cut}");
        }
        let reply = HttpReply::parse(whole).unwrap().unwrap();
        assert_eq!(reply, HttpReply { status: 429, head, body: 2, closes: false });
        assert_eq!((reply.outcome(), reply.total()), (Outcome::Refused, whole.len()));
    }

    #[test]
    fn a_reply_without_a_length_or_with_an_absurd_one_is_bad() {
        for bad in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "SSH-2.0\r\n\r\n",
        ] {
            assert!(HttpReply::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
