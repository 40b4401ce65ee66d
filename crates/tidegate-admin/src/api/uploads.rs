//! The memory of large bodies: each takes its place before a byte of it is read, and keeps it until it is answered.
//!
//! A rule set or a log may have tens of megabytes, and a client may begin many and finish none. One caller gets half of the
//! memory, so that another can always publish.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::MOST_BODY_BYTES;
use super::body::BODY_TIMEOUT;
use super::caller::Caller;
use super::problem::{Answer, Problem};

/// The memory of all large bodies, and of one caller's.
const MOST_BYTES: usize = 64 << 20;
const MOST_BYTES_OF_ONE: usize = MOST_BYTES / 2;

/// What large bodies hold now, by caller; only callers that hold something are in it.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<HashMap<String, usize>>);

impl Uploads {
    fn take(self: &Arc<Self>, caller: &str, bytes: usize) -> Answer<UploadPermit> {
        let mut held = self.0.lock();
        let (own, all) = (held.get(caller).copied().unwrap_or(0), held.values().sum::<usize>());
        if own + bytes > MOST_BYTES_OF_ONE {
            let detail = format!("your other uploads hold {} MiB of {}", own >> 20, MOST_BYTES_OF_ONE >> 20);
            return Err(Problem::too_many_uploads(detail));
        }
        if all + bytes > MOST_BYTES {
            let detail = format!("other uploads hold {} MiB of {}", all >> 20, MOST_BYTES >> 20);
            return Err(Problem::too_many_uploads(detail));
        }
        held.insert(caller.to_owned(), own + bytes);
        Ok(UploadPermit { uploads: Arc::clone(self), caller: caller.to_owned(), bytes })
    }
}

/// Memory for one body; dropping it gives it back.
#[derive(Debug)]
struct UploadPermit {
    uploads: Arc<Uploads>,
    caller: String,
    bytes: usize,
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        let mut held = self.uploads.0.lock();
        if let Some(own) = held.get_mut(&self.caller) {
            *own -= self.bytes;
            if *own == 0 {
                held.remove(&self.caller);
            }
        }
    }
}

/// The uploads of all routes, and the largest body of one.
#[derive(Clone, Debug)]
pub(crate) struct Large {
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) most_bytes: usize,
}

/// Passes a request on once there is memory for its body.
pub(crate) async fn with_place(State(large): State<Large>, request: Request, next: Next) -> Response {
    // A body that does not say its length may have any.
    let bytes = length(request.headers()).unwrap_or(large.most_bytes);
    let caller = request.extensions().get::<Caller>().map_or("", |caller| &caller.lane);
    let place = match bytes {
        0..=MOST_BODY_BYTES => Ok(None),
        bytes if bytes > large.most_bytes => Err(Problem::too_large()),
        bytes => large.uploads.take(caller, bytes).map(Some),
    };
    match place {
        Ok(place) => {
            let response = next.run(request).await;
            drop(place);
            response
        }
        Err(problem) => {
            // The answer does not wait for a body that may never end.
            tokio::spawn(timeout(BODY_TIMEOUT, discard(request.into_body())));
            problem.into_response()
        }
    }
}

/// Reads a refused body to its end, keeping nothing: a client that is still sending when the connection closes may never see
/// why. Who sends more than is ever taken is not waited for.
async fn discard(body: Body) {
    let mut read = 0;
    let mut data = body.into_data_stream();
    while let Some(Ok(some)) = data.next().await {
        read += some.len();
        if read > MOST_BYTES {
            return;
        }
    }
}

/// The length that a request states for its body; `None` if it states none.
pub(crate) fn length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_leaves_half_of_the_memory_to_others() {
        let uploads = Arc::<Uploads>::default();
        let own: Vec<_> = (0..30).filter_map(|_| uploads.take("viewer", 16 << 20).ok()).collect();
        assert_eq!(own.len(), 2);
        let other = uploads.take("editor", 32 << 20).expect("half is left");
        assert!(uploads.take("admin", 1).is_err(), "all of it is taken");
        drop((own, other));
        assert!(uploads.0.lock().is_empty());
    }
}
