//! Any values as the answers of a Redis: whoever can write there chooses them. Each call is answered or fails, and nothing
//! panics: cells, heartbeats with what is published and asked, notes, sets, answers to questions, history, records.
//!
//! The store is the real one, on a connection to a server in this process that answers with the input. Inputs are random.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tidegate_core::{Ask, FixedWindow, Group, Limit, Micros, Scope, SlidingWindow, Touch};
use tidegate_fleet::{FleetHistory, FleetStore as _};
use tidegate_store::{CellKey, Record, Request, Spend, Store};
use tidegate_store_redis::{RedisConfig, RedisStore};
use tokio::runtime::Runtime;

/// The most values in one answer, and how deep they are nested.
const MOST_VALUES: usize = 8;
const DEEPEST: usize = 4;

struct World {
    runtime: Runtime,
    store: RedisStore,
    answers: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("it is bound"));
    let answers = Arc::new(Mutex::new(VecDeque::new()));
    let given = answers.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let given = given.clone();
            std::thread::spawn(move || serve(stream, &given));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let config = RedisConfig::default().timeout(Duration::from_secs(5));
    let store = RedisStore::new(&url.parse().expect("a URL"), &config).expect("a store");
    World { runtime, store, answers }
});

/// Answers every command with the next of the input, and what makes a connection as a Redis does.
fn serve(stream: TcpStream, given: &Mutex<VecDeque<Vec<u8>>>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let name = command(&mut reader)?;
        let answer = match &name[..] {
            b"PING" => b"+PONG\r\n".to_vec(),
            b"SELECT" | b"CLIENT" | b"HELLO" => b"+OK\r\n".to_vec(),
            _ => given.lock().expect("no panic").pop_front().unwrap_or_else(|| b"$-1\r\n".to_vec()),
        };
        writer.write_all(&answer).ok()?;
    }
}

/// The name of the next command.
fn command(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let words = length(reader)?;
    let mut name = Vec::new();
    for place in 0..words {
        let mut word = vec![0; length(reader)? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        if place == 0 {
            name = word.to_ascii_uppercase();
        }
    }
    Some(name)
}

fn length(reader: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    line.get(1..)?.trim_end().parse().ok()
}

/// Writes the value that the next bytes stand for.
fn write_value(input: &mut &[u8], depth: usize, out: &mut Vec<u8>) {
    let mut next = || {
        let (first, rest) = input.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        *input = rest;
        first
    };
    match next() % 8 {
        0 => out.extend_from_slice(b"$-1\r\n"),
        1 => out.extend_from_slice(format!(":{}\r\n", next()).as_bytes()),
        2 => {
            let number = i64::from_le_bytes([(); 8].map(|()| next()));
            out.extend_from_slice(format!(":{number}\r\n").as_bytes());
        }
        3 => out.extend_from_slice(b"-ERR no\r\n"),
        4 | 5 => {
            let (long, length) = (next(), usize::from(next()));
            // What scripts answer is eight bytes each.
            let length = if long % 2 == 0 { length % 17 * 8 } else { length };
            let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
            out.extend_from_slice(format!("${length}\r\n").as_bytes());
            out.extend_from_slice(&bytes);
            out.extend_from_slice(b"\r\n");
        }
        _ => {
            let many = if depth == 0 { 0 } else { usize::from(next()) % (MOST_VALUES + 1) };
            out.extend_from_slice(format!("*{many}\r\n").as_bytes());
            (0..many).for_each(|_| write_value(input, depth - 1, out));
        }
    }
}

/// Has every call answered with what `bytes` stand for, until they are used up.
pub(crate) fn answer_with(bytes: &[u8]) {
    let World { runtime, store, answers } = &*WORLD;
    let mut rest = bytes;
    let mut given = VecDeque::new();
    while !rest.is_empty() {
        let mut answer = Vec::new();
        write_value(&mut rest, DEEPEST, &mut answer);
        given.push_back(answer);
    }
    *answers.lock().expect("no panic") = given;
    let window = Micros::from_secs(60);
    let limits = [
        Limit::FixedWindow(FixedWindow::new(10, window).expect("it is valid")),
        Limit::SlidingWindow(SlidingWindow::new(10, window).expect("it is valid")),
    ];
    let scope = Scope::new(&[b"a"]);
    let cell = CellKey { scope: &scope, key: b"k", tag: b"k" };
    let spends = limits
        .each_ref()
        .map(|limit| Spend { cell, touch: Touch { limit, ask: Ask::hits(1), group: Group::ENFORCED } });
    let (one, two) = ([spends[0]], [spends[0], spends[1]]);
    let batch = [Request::once(&one), Request { spends: &two, count: 3.try_into().expect("not 0") }];
    runtime.block_on(async {
        // Whatever it is, it is one of both.
        let _ = store.decide(&batch).answer().await;
        let _ = store.decide(&batch[..1]).answer().await;
        let _ = store.heartbeat(7, Micros::from_secs(5)).answer().await;
        let _ = (
            store.with_heartbeat().published().borrow().clone(),
            store.with_heartbeat().questions().borrow().clone(),
        );
        let _ = store.notes().await;
        let _ = store.published().await;
        let _ = store.published_changes().await;
        let _ = store.counted(FleetHistory::Seconds, 1).await;
        let _ = store.counted(FleetHistory::Minutes, 1).await;
        let _ = store.answers(1).await;
        let _ = store.put_record(Record { name: b"n", value: b"v" }, window).answer().await;
        let _ = store.replace_record(Record { name: b"n", value: b"v" }, Some(b"w"), window).answer().await;
        let _ = store.check_servers().await;
        let _ = store.estimate_keys().await;
    });
}

#[test]
fn any_answer_of_a_redis_is_read_or_refused() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..1_000 {
        let bytes: Vec<u8> = (0..random() % 600).map(|_| random().to_le_bytes()[0]).collect();
        answer_with(&bytes);
    }
}
