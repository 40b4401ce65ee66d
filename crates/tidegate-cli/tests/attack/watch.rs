//! Watches real Redis servers during an attack: how long each waited for a core, what its slow log holds, and which of its
//! keys never expire.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_testkit::Redis;
use tidegate_testkit::resp::{Client, Value};

use crate::checker::{Look, Pace, Script, Span, Violation, keys_without_ttl};
use crate::world::{PATIENCE, now, pass, wall};

/// Between two looks: about as long as a slow script, so that what is seen of the scheduler is what the script met.
pub(crate) const EVERY: Duration = Duration::from_millis(5);

/// A server that answers nobody for this long may be taken for one that has failed, and so may one that answers everything
/// later than `LATE` for `ALWAYS_LATE`. A little less than tidegate says: the two do not look at the same moments.
const SILENT: Duration = Duration::from_millis(120);
const LATE: Duration = Duration::from_millis(8);
const ALWAYS_LATE: Duration = Duration::from_millis(1_500);

/// Looks at the scheduler and the slow log until it is asked for what it saw.
pub(crate) struct Watch {
    pace: Pace,
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<Watched>,
}

/// What was seen of one server.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) looks: Vec<Look>,
    /// When the machine kept the server from answering, though nobody stopped it: from, until.
    pub(crate) away: Vec<(Instant, Instant)>,
}

impl Watched {
    /// A round trip from `sent` to `received`; `late_since` is when the first of those began that were all late.
    pub(crate) fn note(&mut self, sent: Instant, received: Instant, late_since: &mut Option<Instant>) {
        let took = received - sent;
        let since = if took > LATE { Some(late_since.unwrap_or(sent)) } else { None };
        *late_since = since;
        let always_late = since.filter(|since| received - *since > ALWAYS_LATE);
        let silent = (took > SILENT).then_some(sent);
        let Some(from) = always_late.or(silent) else { return };
        match self.away.last_mut().filter(|(_, until)| from <= *until) {
            Some((_, until)) => *until = received,
            None => self.away.push((from, received)),
        }
    }
}

impl Watch {
    pub(crate) fn start(redis: &Redis) -> Self {
        let pace = pace_of(redis);
        for setting in [["slowlog-log-slower-than", "2000"], ["slowlog-max-len", "4096"]] {
            redis.cmd(&["CONFIG", "SET", setting[0], setting[1]]);
        }
        redis.cmd(&["SLOWLOG", "RESET"]);
        let stop = Arc::new(AtomicBool::new(false));
        let (pid, mut client, stopped) = (redis.process().pid(), redis.client(), stop.clone());
        client.set_patience(PATIENCE).expect("patience is not zero");
        let watcher = std::thread::spawn(move || {
            let (mut watched, mut late_since) = (Watched::default(), None);
            // Before each look, for the next: a look waits for the script that runs.
            let (mut from, mut before, mut last) = (wall(), stood_still(pid), false);
            while !last {
                last = stopped.load(Ordering::Relaxed);
                pass(EVERY);
                let (next, sent) = ((wall(), stood_still(pid)), now());
                // One that was killed says nothing more.
                let Ok(scripts) = take_slow_log(&mut client) else { break };
                watched.note(sent, now(), &mut late_since);
                let span = Span { from, until: wall(), waited: stood_still(pid).saturating_sub(before) };
                watched.looks.extend((!scripts.is_empty()).then_some(Look { span, scripts }));
                (from, before) = next;
            }
            watched
        });
        Watch { pace, stop, watcher }
    }

    /// What was seen, and how slow Redis was before.
    pub(crate) fn finish(self) -> (Watched, Pace) {
        self.stop.store(true, Ordering::Relaxed);
        (self.watcher.join().expect("watching does not fail"), self.pace)
    }
}

/// How slow `redis` is now.
pub(crate) fn pace_of(redis: &Redis) -> Pace {
    let spent = || {
        let stats = redis.cmd(&["INFO", "commandstats"]).text();
        let eval = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:")).unwrap_or_default();
        let usec = eval.split(',').find_map(|field| field.strip_prefix("usec=")?.parse().ok());
        Duration::from_micros(usec.unwrap_or(0))
    };
    let once = |_| {
        let before = spent();
        redis.cmd(&["EVAL", Pace::SCRIPT, "0"]);
        spent() - before
    };
    Pace::of(&(0..10).map(once).collect::<Vec<_>>())
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

/// Empties the slow log: how long each script call in it took, and its first words.
fn take_slow_log(client: &mut Client) -> io::Result<Vec<Script>> {
    client.try_cmd(&["MULTI"])?;
    client.try_cmd(&["SLOWLOG", "GET", "-1"])?;
    client.try_cmd(&["SLOWLOG", "RESET"])?;
    let replies = client.try_cmd(&["EXEC"])?;
    let script = |entry: &Value| {
        let fields = entry.array();
        let words: Vec<String> = fields[3].array().iter().take(6).map(Value::text).collect();
        let is_script = words.first().is_some_and(|word| word.to_ascii_lowercase().starts_with("eval"));
        let took = Duration::from_micros(fields[2].int().try_into().unwrap_or(0));
        is_script.then(|| Script { took, words: words.join(" ").chars().take(200).collect() })
    };
    Ok(replies.array()[0].array().iter().filter_map(script).collect())
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
