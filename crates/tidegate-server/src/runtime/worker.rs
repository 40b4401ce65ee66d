//! One core's thread: a single-threaded runtime that serves the connections dealt to it.

use super::load::Place;
use super::{Connection, Drain, MakeProtocol, Protocol, Settings, WorkerId};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// A connection on its way from the acceptor to a worker.
pub(super) struct Dealt {
    pub(super) stream: std::net::TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) place: Place,
}

pub(super) type Queue = mpsc::Sender<Dealt>;

pub(super) struct Handle {
    queue: Queue,
    metrics: tokio::runtime::RuntimeMetrics,
    thread: JoinHandle<usize>,
}

impl Handle {
    pub(super) fn queue(&self) -> Queue {
        self.queue.clone()
    }

    pub(super) fn busy(&self) -> Duration {
        self.metrics.worker_total_busy_duration(0)
    }

    /// Gives up this end of the queue; the thread then ends, and yields how many connections it cut.
    pub(super) fn close(self) -> JoinHandle<usize> {
        self.thread
    }
}

pub(super) fn spawn(
    id: WorkerId,
    makers: Vec<MakeProtocol>,
    settings: &Settings,
    drain: Drain,
) -> io::Result<Handle> {
    // Every dealt connection holds a place, so no listener can have more than this many waiting.
    let most = settings.max_connections.get().saturating_mul(makers.len().max(1));
    let (queue, dealt) = mpsc::channel(most.min(Semaphore::MAX_PERMITS));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let metrics = runtime.metrics();
    let deadline = settings.drain_deadline;
    let thread = std::thread::Builder::new().name(format!("tidegate-{}", id.0)).spawn(move || {
        let cut = runtime.block_on(async move {
            let protocols = makers.iter().map(|make| make(id)).collect();
            Worker { protocols, drain, serving: JoinSet::new() }.run(dealt, deadline).await
        });
        // Tasks of connections that were cut must not hold the thread.
        runtime.shutdown_background();
        cut
    })?;
    Ok(Handle { queue, metrics, thread })
}

struct Worker {
    protocols: Vec<Arc<dyn Protocol>>,
    drain: Drain,
    serving: JoinSet<()>,
}

impl Worker {
    async fn run(mut self, mut dealt: mpsc::Receiver<Dealt>, deadline: Duration) -> usize {
        loop {
            tokio::select! {
                next = dealt.recv() => match next {
                    Some(next) => self.serve(next),
                    None => break,
                },
                Some(ended) = self.serving.join_next() => report(ended),
            }
        }
        let finish = async {
            while let Some(ended) = self.serving.join_next().await {
                report(ended);
            }
        };
        let _ = tokio::time::timeout(deadline, finish).await;
        self.serving.len()
    }

    fn serve(&mut self, Dealt { stream, peer, place }: Dealt) {
        let stream = match tokio::net::TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%peer, %error, "cannot register a connection"),
        };
        let protocol = Arc::clone(&self.protocols[place.listener()]);
        let connection = Connection { stream, peer, drain: self.drain.clone() };
        self.serving.spawn(async move {
            let _place = place;
            protocol.serve(connection).await;
        });
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's handler panicked; the connection is closed");
    }
}
