//! A connection that left HTTP (usually a WebSocket): copies bytes both ways until both sides end, or are silent.

use std::sync::Arc;
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::watch;

/// The buffer of one direction.
const BUFFER: usize = 16 * 1024;
/// Once one side has ended, the other has this long between bytes: most such peers are gone, which only a write would show.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Both ends, still in HTTP, and the resources that must live as long as the tunnel.
pub(crate) struct Tunnel<H> {
    pub(crate) client: OnUpgrade,
    pub(crate) upstream: OnUpgrade,
    pub(crate) idle: Duration,
    pub(crate) _holds: H,
}

/// Holds a connection's tunnel until HTTP has released the connection.
pub(crate) type Slot<H> = Arc<Mutex<Option<Tunnel<H>>>>;

impl<H> Tunnel<H> {
    /// Runs to its end.
    pub(crate) async fn run(self) {
        let both = async { tokio::try_join!(self.client, self.upstream) };
        let Ok(Ok((client, upstream))) = tokio::time::timeout(self.idle, both).await else {
            return tracing::debug!("an upgrade was announced but did not happen");
        };
        carry(TokioIo::new(client), TokioIo::new(upstream), self.idle).await;
    }
}

/// Copies both ways until both directions have ended, one breaks, or nothing moves for too long.
async fn carry<A, B>(client: A, upstream: B, idle: Duration)
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = tokio::io::split(client);
    let (from_upstream, to_upstream) = tokio::io::split(upstream);
    let (moved, mut moves) = watch::channel(Ends::Both);
    let both = async {
        let up = one_way(from_client, to_upstream, &moved);
        let down = one_way(from_upstream, to_client, &moved);
        // A direction that ends normally leaves the other open; an error ends both.
        let _ = tokio::try_join!(up, down);
    };
    let silence = async {
        loop {
            let patience = match *moves.borrow_and_update() {
                Ends::Both => idle,
                Ends::One => idle.min(LAST_WORDS),
            };
            let Ok(Ok(())) = tokio::time::timeout(patience, moves.changed()).await else { break };
        }
    };
    tokio::select! {
        () = both => {}
        () = silence => tracing::debug!(?idle, "a tunnel was silent for too long"),
    }
}

/// How many ends still send.
#[derive(Clone, Copy)]
enum Ends {
    Both,
    One,
}

async fn one_way<A, B>(
    mut from: ReadHalf<A>,
    mut to: WriteHalf<B>,
    moved: &watch::Sender<Ends>,
) -> std::io::Result<()>
where
    A: AsyncRead,
    B: AsyncWrite,
{
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            moved.send_replace(Ends::One);
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
        moved.send_modify(|_| {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test]
    async fn bytes_go_both_ways_and_an_end_is_passed_on() {
        let (mut client, ours) = duplex(64);
        let (mut upstream, theirs) = duplex(64);
        let carried = tokio::spawn(carry(ours, theirs, Duration::from_secs(60)));
        client.write_all(b"ping").await.unwrap();
        let mut got = [0; 4];
        upstream.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"ping");
        client.shutdown().await.unwrap();
        assert_eq!(upstream.read(&mut got).await.unwrap(), 0);
        // Only one direction has ended.
        upstream.write_all(b"last").await.unwrap();
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"last");
        drop(upstream);
        carried.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_tunnel_ends_and_one_that_is_used_does_not() {
        let (mut client, ours) = duplex(64);
        let (upstream, theirs) = duplex(64);
        let carried = tokio::spawn(carry(ours, theirs, Duration::from_secs(10)));
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(9)).await;
            client.write_all(b"x").await.unwrap();
        }
        assert!(!carried.is_finished());
        tokio::time::timeout(Duration::from_secs(11), carried).await.unwrap().unwrap();
        drop(upstream);
    }
}
