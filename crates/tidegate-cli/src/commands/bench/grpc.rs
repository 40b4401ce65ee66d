//! Envoy's rate limit service on bare HTTP/2: no generated client, no per-request encoding, as little work as possible.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use h2::client::{Builder, SendRequest};
use http::{HeaderMap, Request};
use tokio::time::timeout;

use super::lane::{Assignment, Crew, Lane};
use super::tally::{Outcome, Trouble};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// A reply has a status per descriptor and a few headers; more than this is not a reply.
const LONGEST_REPLY: usize = 64 * 1024;
/// The receive window: large enough that a reply never waits for it.
const WINDOW: u32 = 1 << 20;

/// Runs one connection's lanes until the run is over, reconnecting whenever the connection ends.
pub(super) async fn drive(crew: Arc<Crew>, mut lanes: Vec<Lane>) {
    let request = Arc::new(request(&crew));
    while !crew.is_over() {
        let Some(stream) = crew.connect().await else { continue };
        let handshake = timeout(crew.plan.timeout, settings().handshake(stream)).await;
        let Ok(Ok((sender, connection))) = handshake else {
            crew.connect_failed(|| "it does not speak HTTP/2".to_owned()).await;
            continue;
        };
        let connection = tokio::spawn(connection);
        let running: Vec<_> =
            lanes.drain(..).map(|lane| tokio::spawn(run(lane, sender.clone(), request.clone()))).collect();
        for lane in running {
            lanes.push(lane.await.expect("a lane does not panic"));
        }
        connection.abort();
    }
}

fn settings() -> Builder {
    let mut builder = Builder::new();
    builder.enable_push(false).initial_window_size(WINDOW).initial_connection_window_size(4 * WINDOW);
    builder
}

/// The head of every request: only the body differs.
fn request(crew: &Crew) -> Request<()> {
    Request::post(format!("http://{}{METHOD}", crew.plan.endpoint.authority()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("an endpoint's authority fits into a URI")
}

/// Returns the lane when the run is over or the connection has ended.
async fn run(mut lane: Lane, mut sender: SendRequest<Bytes>, head: Arc<Request<()>>) -> Lane {
    while let Some(Assignment { request, due }) = lane.next().await {
        let answer = exchange(&lane, &mut sender, Request::clone(&head), request);
        let outcome = match timeout(lane.crew().plan.timeout, answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => {
                lane.crew().tally().complain(|| error.to_string());
                Outcome::Failed(Trouble::Lost)
            }
            Err(_) => Outcome::Failed(Trouble::TimedOut),
        };
        lane.book(due, outcome);
        if outcome == Outcome::Failed(Trouble::Lost) {
            break;
        }
    }
    lane
}

async fn exchange(
    lane: &Lane,
    sender: &mut SendRequest<Bytes>,
    head: Request<()>,
    body: Bytes,
) -> Result<Outcome, h2::Error> {
    poll_fn(|context| sender.poll_ready(context)).await?;
    let (response, mut sending) = sender.send_request(head, false)?;
    sending.send_data(body, true)?;
    let (head, mut receiving) = response.await?.into_parts();
    let mut message = Bytes::new();
    while let Some(chunk) = receiving.data().await {
        let chunk = chunk?;
        receiving.flow_control().release_capacity(chunk.len())?;
        if message.len() + chunk.len() > LONGEST_REPLY {
            return Ok(Outcome::Failed(Trouble::BadReply));
        }
        message = if message.is_empty() { chunk } else { [message, chunk].concat().into() };
    }
    // A call that fails at once has its status in the headers, any other one in the trailers.
    let trailers = receiving.trailers().await?.unwrap_or_default();
    let outcome = match grpc_status(&trailers).or_else(|| grpc_status(&head.headers)) {
        Some(0) => decision(&message),
        Some(status) => Outcome::Failed(Trouble::GrpcStatus(status)),
        None => Outcome::Failed(Trouble::HttpStatus(head.status.as_u16())),
    };
    if let Outcome::Failed(trouble) = outcome {
        lane.crew().tally().complain(|| {
            match grpc_message(&trailers).or_else(|| grpc_message(&head.headers)) {
                Some(text) => format!("{trouble}: {text}"),
                None => trouble.to_string(),
            }
        });
    }
    Ok(outcome)
}

fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn grpc_message(headers: &HeaderMap) -> Option<&str> {
    headers.get("grpc-message")?.to_str().ok()
}

/// Reads `overall_code`, field 1, out of a framed `RateLimitResponse`.
fn decision(frame: &[u8]) -> Outcome {
    match frame.get(5..).and_then(overall_code) {
        Some(1) => Outcome::Allowed,
        Some(2) => Outcome::Refused,
        _ => Outcome::Failed(Trouble::BadReply),
    }
}

/// The value of varint field 1; `None` if absent or malformed.
fn overall_code(mut message: &[u8]) -> Option<u64> {
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let skip = match tag & 7 {
            0 => {
                let value = varint(&mut message)?;
                if tag >> 3 == 1 {
                    return Some(value);
                }
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)?).ok()?,
            5 => 4,
            _ => return None,
        };
        message = message.get(skip..)?;
    }
    None
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.first()?;
        bytes.advance(1);
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(message: &[u8]) -> Vec<u8> {
        [&[0, 0, 0, 0, message.len() as u8], message].concat()
    }

    #[test]
    fn the_overall_code_is_found_wherever_it_stands() {
        assert_eq!(decision(&frame(&[0x08, 1])), Outcome::Allowed);
        assert_eq!(decision(&frame(&[0x08, 2, 0x12, 2, 0x08, 1])), Outcome::Refused);
        // statuses (field 2) first: allowed by field order, not by protobuf's rules
        assert_eq!(decision(&frame(&[0x12, 2, 0x08, 2, 0x08, 1])), Outcome::Allowed);
    }

    #[test]
    fn what_is_no_reply_is_a_bad_reply() {
        for bad in [&[][..], &[0x08], &[0x12, 200], &[0x08, 0], &[0x0f], &[0xff; 20]] {
            assert_eq!(decision(&frame(bad)), Outcome::Failed(Trouble::BadReply), "{bad:?}");
        }
        assert_eq!(decision(&[0, 0]), Outcome::Failed(Trouble::BadReply));
    }
}
