//! Just enough HTTP/1.1 to ask a server something and to see exactly what it answered.
//!
//! One request per connection; no redirects, no pooling, no TLS.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Far longer than any answer takes on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
const MAX_LINE: u64 = 64 << 10;
const MAX_HEADERS: usize = 256;
const MAX_BODY: u64 = 64 << 20;

/// A response, as it came.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header names in lower case, and values, in order.
    pub headers: Vec<(String, String)>,
    /// The body, decoded from chunks.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header called `name`, whatever its case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }
}

/// `GET path` from `addr`.
///
/// # Panics
/// When nobody answers.
#[must_use]
#[track_caller]
pub fn get(addr: SocketAddr, path: &str) -> Response {
    request(addr, "GET", path, &[], b"").unwrap_or_else(|error| panic!("GET {path} from {addr}: {error}"))
}

/// `POST path` to `addr` with a JSON body.
///
/// # Panics
/// When nobody answers.
#[must_use]
#[track_caller]
pub fn post_json(addr: SocketAddr, path: &str, body: &str) -> Response {
    request(addr, "POST", path, &[("content-type", "application/json")], body.as_bytes())
        .unwrap_or_else(|error| panic!("POST {path} to {addr}: {error}"))
}

/// Sends one request and reads the response.
///
/// # Errors
/// When the connection breaks, nothing comes in time, or what comes is no response.
pub fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if header_of(headers, "host").is_none() {
        head += &format!("host: {addr}\r\n");
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    head += "\r\n";
    match stream.write_all(&[head.as_bytes(), body].concat()) {
        // A server that refuses a body may answer and close before it has read all of it: its answer is still to be read.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
        written => written?,
    }
    let mut stream = BufReader::new(stream);
    let Head { first, headers } = read_head(&mut stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status: u16 = status.ok_or_else(|| not_http(&first))?;
    let has_body = method != "HEAD" && status != 204 && status != 304;
    let body = if has_body { read_body(&mut stream, &headers, Unframed::UntilTheEnd)? } else { Vec::new() };
    Ok(Response { status, headers, body })
}

/// The first line and the headers of a message.
pub(crate) struct Head {
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
}

/// What a body without a length is.
#[derive(Clone, Copy)]
pub(crate) enum Unframed {
    /// Nothing: so it is for requests.
    Empty,
    /// All that comes: so it is for responses.
    UntilTheEnd,
}

/// The next message's head, or nothing at the end of the connection.
pub(crate) fn read_head(stream: &mut impl BufRead) -> io::Result<Option<Head>> {
    let first = read_line(stream)?;
    if first.is_empty() {
        return Ok(None);
    }
    let mut headers = Vec::new();
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            return Ok(Some(Head { first, headers }));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| not_http(&line))?;
        if headers.len() == MAX_HEADERS {
            return Err(not_http("too many headers"));
        }
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
}

/// The body that `headers` announce.
pub(crate) fn read_body(
    stream: &mut impl BufRead,
    headers: &[(String, String)],
    unframed: Unframed,
) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if header(headers, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        while let size @ 1.. = read_chunk_size(stream)? {
            take(stream, size, &mut body)?;
            read_line(stream)?;
        }
        while !read_line(stream)?.is_empty() {}
    } else if let Some(length) = header(headers, "content-length") {
        take(stream, length.parse().map_err(|_| not_http(length))?, &mut body)?;
    } else if let Unframed::UntilTheEnd = unframed {
        stream.take(MAX_BODY).read_to_end(&mut body)?;
    }
    Ok(body)
}

fn read_chunk_size(stream: &mut impl BufRead) -> io::Result<u64> {
    let line = read_line(stream)?;
    let digits = line.split(';').next().unwrap_or_default().trim();
    u64::from_str_radix(digits, 16).map_err(|_| not_http(&line))
}

fn take(stream: &mut impl BufRead, length: u64, body: &mut Vec<u8>) -> io::Result<()> {
    if length > MAX_BODY - body.len() as u64 {
        return Err(not_http("a body that is too long"));
    }
    let read = stream.take(length).read_to_end(body)?;
    if read as u64 == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    stream.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.len() as u64 == MAX_LINE {
        return Err(not_http("a line that is too long"));
    }
    let text = String::from_utf8(line).map_err(|_| not_http("a line that is not text"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut named = headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    named.next().map(|(_, value)| value.as_str())
}

fn header_of<'a>(headers: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

fn not_http(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP/1.1: {what:?}"))
}
