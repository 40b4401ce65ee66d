//! A server that says what it is told to, one connection after another or several at once.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Answers HTTP requests until the test ends.
pub(crate) struct Stub {
    pub(crate) address: String,
    answered: Arc<AtomicUsize>,
}

impl Stub {
    /// `answer` gets the number of the request, from zero, and its text, and returns the whole reply.
    pub(crate) fn start(answer: impl Fn(usize, &str) -> String + Send + Sync + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (answered, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
        let counter = answered.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (counter, answer) = (counter.clone(), answer.clone());
                thread::spawn(move || serve(stream.unwrap(), &counter, &*answer));
            }
        });
        Stub { address, answered }
    }

    /// How many requests it has answered.
    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, answered: &AtomicUsize, answer: &dyn Fn(usize, &str) -> String) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        // Our own client sends a request in one piece, and the next one only after the answer.
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(length) => buffer.extend_from_slice(&chunk[..length]),
        }
        let text = String::from_utf8_lossy(&buffer).into_owned();
        if !is_complete(&text) {
            continue;
        }
        buffer.clear();
        let reply = answer(answered.fetch_add(1, Ordering::SeqCst), &text);
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

fn is_complete(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// A reply with this status and body.
pub(crate) fn reply(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// An address where nobody listens.
pub(crate) fn closed_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}
