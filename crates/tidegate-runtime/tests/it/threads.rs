//! The data plane's threads and sockets, with a protocol of a few lines.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tidegate_access::Stream;
use tidegate_runtime::{
    Connection, DataPlane, Drained, Listener, Protocol, RuntimeError, Serving, Settings, WorkerId,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Always busy: it never makes room. Answers `w` with the worker's number, `p` with a panic, `s` with a last word before a
/// silence that ignores drains, `h` with the same before it hangs its worker's thread until the client leaves, and says `bye`
/// when drained.
struct Letters(WorkerId);

impl Protocol for Letters {
    fn serve(&self, connection: Connection) -> Serving {
        let Connection { mut stream, drain, seat, .. } = connection;
        let WorkerId(worker) = self.0;
        Box::pin(async move {
            let _under_way = seat.begin();
            let mut drain = Box::pin(drain.requested());
            loop {
                let mut letter = [0];
                tokio::select! {
                    () = &mut drain => {
                        let _ = stream.write_all(b"bye").await;
                        return;
                    }
                    read = stream.read_exact(&mut letter) => if read.is_err() { return },
                }
                match &letter {
                    b"w" => stream.write_all(&[u8::try_from(worker).unwrap()]).await.unwrap(),
                    b"p" => panic!("asked to"),
                    b"s" => {
                        stream.write_all(b"s").await.unwrap();
                        std::future::pending::<()>().await;
                    }
                    b"h" => {
                        stream.write_all(b"h").await.unwrap();
                        let Stream::Plain(socket) = stream else { unreachable!("there is no TLS here") };
                        let mut socket = socket.into_std().unwrap();
                        socket.set_nonblocking(false).unwrap();
                        let _ = socket.read(&mut letter);
                        return;
                    }
                    other => panic!("no such letter: {other:?}"),
                }
            }
        })
    }
}

fn settings(workers: usize) -> Settings {
    Settings { workers: NonZeroUsize::new(workers).unwrap(), ..Settings::default() }
}

fn start(settings: &Settings) -> DataPlane {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind("letters", any, |worker| Arc::new(Letters(worker))).unwrap();
    DataPlane::start(settings, vec![listener]).unwrap()
}

fn connect(plane: &DataPlane) -> TcpStream {
    let stream = TcpStream::connect(plane.addresses()[0].1).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, letter: u8) -> u8 {
    let mut answer = [0];
    stream.write_all(&[letter]).unwrap();
    stream.read_exact(&mut answer).unwrap();
    answer[0]
}

/// Whether the server closed without a word.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn few_long_lived_connections_are_spread_evenly_over_the_workers() {
    let plane = start(&settings(3));
    let mut clients: Vec<_> = (0..6).map(|_| connect(&plane)).collect();
    let mut workers: Vec<_> = clients.iter_mut().map(|client| ask(client, b'w')).collect();
    workers.sort_unstable();
    assert_eq!(workers, [0, 0, 1, 1, 2, 2]);
    assert_eq!(plane.loads().read().next().unwrap().open, [2, 2, 2]);
}

#[test]
fn a_connection_beyond_the_bound_is_closed_at_once_and_counted() {
    let plane = start(&Settings { max_connections: NonZeroUsize::new(2).unwrap(), ..settings(2) });
    let mut held: Vec<_> = (0..2).map(|_| connect(&plane)).collect();
    for client in &mut held {
        ask(client, b'w');
    }
    assert!(is_closed(&mut connect(&plane)));
    let load = plane.loads().read().next().unwrap();
    assert_eq!((load.accepted, load.refused), (2, 1));
    // Connections that are open stay open.
    ask(&mut held[0], b'w');
}

#[test]
fn a_worker_that_hangs_has_no_pulse_until_it_runs_again() {
    let plane = start(&settings(2));
    let pulse = plane.pulse();
    let long = Duration::from_secs(10);
    assert_eq!(pulse.silent(long), 0);
    let mut client = connect(&plane);
    ask(&mut client, b'h');
    assert_eq!(pulse.silent(Duration::from_millis(200)), 1);
    drop(client);
    assert_eq!(pulse.silent(long), 0);
    let _ = plane.drain();
    assert_eq!(pulse.silent(long), 2, "they have ended");
}

#[test]
fn a_panic_closes_only_the_connection_it_served() {
    let plane = start(&settings(1));
    let [mut doomed, mut neighbour] = [connect(&plane), connect(&plane)];
    doomed.write_all(b"p").unwrap();
    assert!(is_closed(&mut doomed));
    assert_eq!(ask(&mut neighbour, b'w'), 0);
    assert_eq!(plane.loads().read().next().unwrap().open, [1]);
}

#[test]
fn a_drain_lets_every_connection_say_goodbye() {
    let plane = start(&settings(2));
    let mut clients: Vec<_> = (0..4).map(|_| connect(&plane)).collect();
    for client in &mut clients {
        ask(client, b'w');
    }
    assert_eq!(plane.drain(), Drained { cut: 0 });
    for client in &mut clients {
        let mut words = String::new();
        client.read_to_string(&mut words).unwrap();
        assert_eq!(words, "bye");
    }
}

#[test]
fn a_drained_port_accepts_nobody() {
    let plane = start(&settings(1));
    let address = plane.addresses()[0].1;
    let _ = plane.drain();
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_connection_that_outlasts_the_deadline_is_cut_and_counted() {
    let plane = start(&Settings { drain_deadline: Duration::from_millis(50), ..settings(2) });
    let [mut stuck, mut fine] = [connect(&plane), connect(&plane)];
    ask(&mut stuck, b's');
    ask(&mut fine, b'w');
    assert_eq!(plane.drain(), Drained { cut: 1 });
    assert!(is_closed(&mut stuck));
}

#[test]
fn a_taken_address_is_an_error_that_names_it() {
    let plane = start(&settings(1));
    let (_, address) = plane.addresses()[0];
    let Err(error) = Listener::bind("second", address, |worker| Arc::new(Letters(worker))) else {
        panic!("bound twice");
    };
    assert!(matches!(error, RuntimeError::Bind { .. }));
    assert_eq!(error.to_string(), format!("cannot listen for second on {address}"));
}
