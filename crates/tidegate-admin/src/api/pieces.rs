//! Answers of many megabytes: sent, and freed, piece by piece. To free fifty megabytes at once takes ten milliseconds.

use std::convert::Infallible;
use std::io::{self, Write};

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;

use super::problem::Problem;
use crate::jobs::Job;

const PIECE: usize = 256 << 10;

/// An answer in JSON. To write it takes long, too: call this in a job, whose caller may leave meanwhile.
pub(crate) fn in_pieces(value: &impl Serialize, job: &Job) -> Response {
    let mut pieces = Pieces { whole: Vec::new(), last: Vec::new(), job };
    if let Err(error) = serde_json::to_writer(&mut pieces, value) {
        return Problem::unavailable(error.to_string()).into_response();
    }
    pieces.end();
    let length: usize = pieces.whole.iter().map(Bytes::len).sum();
    let headers = [(CONTENT_TYPE, "application/json".to_owned()), (CONTENT_LENGTH, length.to_string())];
    let body = Body::from_stream(stream::iter(pieces.whole.into_iter().map(Ok::<_, Infallible>)));
    (headers, body).into_response()
}

struct Pieces<'j> {
    whole: Vec<Bytes>,
    last: Vec<u8>,
    job: &'j Job,
}

impl Pieces<'_> {
    fn end(&mut self) {
        self.whole.push(std::mem::take(&mut self.last).into());
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, some: &[u8]) -> io::Result<usize> {
        if self.last.len() >= PIECE {
            self.job.go_on().map_err(|_| io::Error::other("nobody waits for the answer"))?;
            self.end();
        }
        let taken = &some[..some.len().min(PIECE)];
        self.last.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn pieces_are_the_whole_and_each_is_small() {
        let value = vec!["x".repeat(3 * PIECE + 1), "y".repeat(9)];
        let job = Job::default();
        let answer = in_pieces(&value, &job);
        let length: usize = answer.headers()[CONTENT_LENGTH].to_str().unwrap().parse().unwrap();
        let whole = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        assert_eq!((whole.len(), &whole[..]), (length, serde_json::to_string(&value).unwrap().as_bytes()));
        let mut pieces = Pieces { whole: Vec::new(), last: Vec::new(), job: &job };
        serde_json::to_writer(&mut pieces, &value).unwrap();
        pieces.end();
        assert!(pieces.whole.len() >= 3 && pieces.whole.iter().all(|piece| piece.len() < 2 * PIECE));
    }

    #[test]
    fn an_answer_that_nobody_waits_for_is_not_written_to_its_end() {
        let value = vec!["x"; 10 * PIECE];
        let job = Job::left();
        let mut pieces = Pieces { whole: Vec::new(), last: Vec::new(), job: &job };
        serde_json::to_writer(&mut pieces, &value).unwrap_err();
        assert!(pieces.whole.is_empty());
        assert_eq!(in_pieces(&value, &job).status(), 503);
    }
}
