//! Requests that hold a slot of a concurrency limit, or of the workers behind, and whose client leaves.
//!
//! To close a connection does not stop the work of the server behind it. If a slot were free as soon as its client hangs up,
//! a client could have any number of requests worked on at once. So the exchange goes on without its client, and the slot is
//! free when the answer has ended: or when too much of it came or it took too long, after which the connection is closed. A
//! rule may say that its slots are free at once (`on_hangup: release`); then the connection is closed at once, too, unless
//! a worker behind is still to be counted.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::answer::InFlight;
use crate::body::ResponseBody;
use crate::exchange::{Answered, Outgoing, Upstream};
use tidegate_http::problem::{Kind, Problem};

/// The most that is read of an answer whose client has left. A server that is still sending then notices that the
/// connection is closed.
const MOST_BYTES: usize = 1 << 20;

/// The head of an answer, or a problem, and what its request holds.
type OutlivedAnswer = (Result<Answered, Problem>, InFlight);

/// Asks `upstream`, to the end if the request holds a slot. `idle` bounds the pauses of the answer.
pub(crate) async fn ask(
    upstream: &Arc<Upstream>,
    outgoing: Outgoing,
    in_flight: InFlight,
    idle: Duration,
) -> Result<OutlivedAnswer, Problem> {
    let Some(within) = in_flight.outlives_client() else {
        return Ok((timed(upstream, outgoing, &in_flight).await, in_flight));
    };
    let (mut client, answer) = oneshot::channel();
    let upstream = Arc::clone(upstream);
    tokio::spawn(async move {
        let too_long = async {
            client.closed().await;
            in_flight.client_left();
            tokio::time::sleep(within).await;
        };
        let asked = tokio::select! {
            asked = timed(&upstream, outgoing, &in_flight) => asked,
            () = too_long => return,
        };
        if let Err((Ok(answered), in_flight)) = client.send((asked, in_flight)) {
            let Answered { response, connection, target } = answered;
            let clock = Arc::clone(&upstream.clock);
            read_on(
                ResponseBody::new(response.into_body(), idle, connection, target, None, clock),
                in_flight,
            );
        }
    });
    answer.await.map_err(|_| Problem::new(Kind::BadGateway, "the request broke off"))
}

async fn timed(upstream: &Upstream, outgoing: Outgoing, in_flight: &InFlight) -> Result<Answered, Problem> {
    let sent_at = upstream.clock.now();
    let asked = upstream.ask(outgoing).await;
    if asked.as_ref().is_ok_and(|answered| !answered.response.status().is_server_error()) {
        in_flight.answered(upstream.clock.now().since(sent_at));
    }
    asked
}

/// Reads what is left of an answer that has no client any more, if its request holds a slot.
pub(crate) fn read_on(mut body: ResponseBody, in_flight: InFlight) {
    in_flight.client_left();
    let Some(within) = in_flight.outlives_client().filter(|_| !body.is_over()) else { return };
    let Ok(runtime) = Handle::try_current() else { return };
    body.forget_client();
    runtime.spawn(async move {
        let _ = tokio::time::timeout(within, discard(&mut body)).await;
        // First the connection is closed, if it has to be, then the slot is free.
        drop(body);
        drop(in_flight);
    });
}

async fn discard(body: &mut ResponseBody) {
    let mut left = MOST_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, |data| data.len());
        let Some(rest) = left.checked_sub(bytes) else { return };
        left = rest;
    }
}
