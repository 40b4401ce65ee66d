//! Watches real Redis servers during an attack: how long each waited for a core, what its slow log holds, and which of its
//! keys never expire.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_testkit::Redis;
use tidegate_testkit::resp::Value;

use crate::checker::{Schedule, Script, Span, Violation, keys_without_ttl};
use crate::world::{pass, wall};

/// Between two looks at the scheduler.
const EVERY: Duration = Duration::from_millis(50);

/// Looks at the scheduler until it is asked for what it saw.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<Schedule>,
}

impl Watch {
    pub(crate) fn start(redis: &Redis) -> Self {
        for setting in [["slowlog-log-slower-than", "2000"], ["slowlog-max-len", "4096"]] {
            redis.cmd(&["CONFIG", "SET", setting[0], setting[1]]);
        }
        redis.cmd(&["SLOWLOG", "RESET"]);
        let stop = Arc::new(AtomicBool::new(false));
        let (pid, stopped) = (redis.process().pid(), stop.clone());
        let watcher = std::thread::spawn(move || {
            let mut schedule = Schedule::default();
            let (mut from, mut before) = (wall(), stood_still(pid));
            while !stopped.load(Ordering::Relaxed) {
                pass(EVERY);
                let (until, waited) = (wall(), stood_still(pid));
                schedule.0.push(Span { from, until, waited: waited.saturating_sub(before) });
                (from, before) = (until, waited);
            }
            schedule
        });
        Watch { stop, watcher }
    }

    pub(crate) fn finish(self) -> Schedule {
        self.stop.store(true, Ordering::Relaxed);
        self.watcher.join().expect("watching does not fail")
    }
}

/// How long the main thread of `pid` waited for a core since it began, and what the machine itself was denied.
fn stood_still(pid: u32) -> Duration {
    let schedstat = fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap_or_default();
    let waited = schedstat.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
    let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal: in hundredths of a second.
    let stolen = machine.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse::<u64>().ok());
    Duration::from_nanos(waited) + Duration::from_millis(10 * stolen.unwrap_or(0))
}

/// The script calls in Redis's slow log.
pub(crate) fn slow_log(redis: &Redis) -> Vec<Script> {
    let Value::Array(entries) = redis.cmd(&["SLOWLOG", "GET", "-1"]) else { return Vec::new() };
    let script = |entry: &Value| {
        let fields = entry.array();
        let words: Vec<String> = fields[3].array().iter().take(6).map(Value::text).collect();
        let is_script = words.first().is_some_and(|word| word.to_ascii_lowercase().starts_with("eval"));
        is_script.then(|| Script {
            logged: Duration::from_secs(fields[1].int().try_into().unwrap_or(0)),
            took: Duration::from_micros(fields[2].int().try_into().unwrap_or(0)),
            words: words.join(" ").chars().take(200).collect(),
        })
    };
    entries.iter().filter_map(script).collect()
}

/// Whether `redis` runs and holds the truth.
pub(crate) fn is_master(redis: &Redis) -> bool {
    redis.process().is_running() && redis.info("role").is_some_and(|role| role == "master")
}

/// Every key of `redis`.
pub(crate) fn keys_of(redis: &Redis) -> Vec<Vec<u8>> {
    let mut client = redis.client();
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    loop {
        let page = client.cmd(&["SCAN", &cursor, "COUNT", "1000"]);
        let [next, page] = page.array() else { panic!("not a page: {page:?}") };
        keys.extend(page.array().iter().filter_map(|key| match key {
            Value::Bulk(key) => Some(key.clone()),
            _ => None,
        }));
        cursor = next.text();
        if cursor == "0" {
            return keys;
        }
    }
}

/// Every key of `redis` that would stay for ever.
pub(crate) fn immortal_keys(redis: &Redis) -> Vec<Violation> {
    let (keys, mut client) = (keys_of(redis), redis.client());
    let mut found = Vec::new();
    for keys in keys.chunks(500) {
        let asks: Vec<Vec<&[u8]>> = keys.iter().map(|key| vec![b"PTTL".as_slice(), key]).collect();
        let ttls: Vec<i64> = client.pipeline(&asks).iter().map(Value::int).collect();
        let names = keys.iter().map(|key| String::from_utf8_lossy(key).into_owned());
        found.extend(keys_without_ttl(names.zip(ttls)));
    }
    found
}
