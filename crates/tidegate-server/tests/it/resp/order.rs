//! A slow store: replies keep their order, and a pipeline waits once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tidegate_core::{Limit, Timestamp};
use tidegate_server::resp::RespSettings;
use tidegate_store::{
    BatchOutcomes, CellCharge, CellKey, LeaseRef, ManualClock, MemoryConfig, MemoryStore, Refund, Reply,
    Request, Stamped, Store,
};
use tidegate_testkit::resp::Value;

use super::world::{World, ask, integers};

/// The memory store with a delay, like a remote one.
struct Distant {
    memory: MemoryStore<Arc<ManualClock>>,
    /// The number of requests in each call.
    calls: Mutex<Vec<usize>>,
    waits: AtomicUsize,
}

impl Store for Distant {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        self.calls.lock().unwrap().push(batch.len());
        // Later calls wait less: answering in order of completion would be the wrong order.
        let turns = 40usize.saturating_sub(self.waits.fetch_add(1, Ordering::Relaxed)).max(1);
        Reply::Later(Box::pin(async move {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            self.memory.decide(batch).answer().await
        }))
    }
    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        self.memory.refund(refunds)
    }
    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        self.memory.charge(charges)
    }
    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, Stamped<()>> {
        self.memory.reset(cell, limit)
    }
    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        self.memory.renew(lease)
    }
    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        self.memory.release(lease)
    }
}

fn distant() -> (World, Arc<Distant>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_800_057_600_000_000)));
    let memory =
        MemoryStore::with_clock(MemoryConfig::new().max_cells(10_000).max_log_bytes(1 << 20), clock.clone());
    let store = Arc::new(Distant { memory, calls: Mutex::default(), waits: AtomicUsize::new(0) });
    (World::on(store.clone(), clock, RespSettings::default()), store)
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

#[test]
fn replies_come_in_the_order_of_their_commands_whatever_they_wait_for() {
    let (world, _) = distant();
    let mut client = world.client();
    let mut commands = Vec::new();
    for number in 0..20 {
        commands.push(words("CL.THROTTLE k 99 1 60"));
        commands.push(words(&format!("ECHO {number}")));
        commands.push(words("CL.THROTTLE k 99 1 60"));
        commands.push(words(&format!("TG.CHECK api user {number}")));
        commands.push(words("CL.THROTTLE k -1 1 60"));
        commands.push(words("NONSENSE"));
        commands.push(words(&format!("TG.CHECK api user {number}")));
        commands.push(words(&format!("TG.CHECK nowhere user {number}")));
    }
    let replies = client.pipeline(&commands);
    for (number, replies) in replies.chunks(8).enumerate() {
        let number = i64::try_from(number).unwrap();
        let [first, echo, second, check, negative, nonsense, again, nowhere] = replies else { panic!() };
        assert_eq!(integers(first)[..3], [0, 100, 99 - 2 * number]);
        assert_eq!(echo.text(), number.to_string());
        assert_eq!(integers(second)[..3], [0, 100, 98 - 2 * number]);
        assert_eq!(check.array()[2], Value::Int(2));
        assert_eq!(negative.text(), "ERR max_burst must not be negative");
        assert!(nonsense.text().starts_with("ERR unknown command"));
        assert_eq!(again.array()[2], Value::Int(1));
        assert!(nowhere.text().starts_with("ERR unknown domain"), "{nowhere:?}");
    }
}

#[test]
fn each_check_of_a_pipeline_says_as_much_as_it_was_asked_for() {
    let (world, _) = distant();
    let mut client = world.client();
    ask(&mut client, "TG.CHECK api user first");
    let commands = [
        "TG.CHECK api user 42",
        "TG.CHECK api SPENT user 42",
        "TG.REFUND api user 42",
        "TG.CHECK api user 42",
    ];
    let replies = client.pipeline(&commands.map(words));
    let elements = [0, 1, 3].map(|place: usize| replies[place].array().len());
    assert_eq!((elements, replies[2].int()), ([8, 9, 8], 1), "{replies:?}");
    assert_eq!(replies[3].array()[2].int(), 1, "the refund ran between its neighbours");
}

#[test]
fn a_pipeline_waits_once_for_all_its_throttles_and_once_for_all_its_checks() {
    let (world, store) = distant();
    let mut client = world.client();
    // The first of each detects that the store is slow.
    ask(&mut client, "CL.THROTTLE k 99 1 60");
    ask(&mut client, "TG.CHECK api user first");
    store.calls.lock().unwrap().clear();
    let throttles: Vec<_> = (0..64).map(|number| words(&format!("CL.THROTTLE k{number} 9 1 60"))).collect();
    client.pipeline(&throttles);
    let checks: Vec<_> = (0..64).map(|number| words(&format!("TG.CHECK api user {number}"))).collect();
    client.pipeline(&checks);
    assert_eq!(*store.calls.lock().unwrap(), [64, 64]);
}

#[test]
fn a_long_pipeline_is_asked_for_in_parts() {
    let (world, store) = distant();
    let mut client = world.client();
    ask(&mut client, "CL.THROTTLE k 999 1 60");
    store.calls.lock().unwrap().clear();
    let replies = client.pipeline(&vec![words("CL.THROTTLE k 999 1 60"); 500]);
    let remaining: Vec<i64> = replies.iter().map(|reply| integers(reply)[2]).collect();
    assert_eq!(remaining, (499..999).rev().collect::<Vec<_>>());
    let calls = store.calls.lock().unwrap();
    assert_eq!((calls.iter().sum::<usize>(), calls.iter().max()), (500, Some(&128)));
}

#[test]
fn a_typed_line_waits_too() {
    let (world, _) = distant();
    world
        .raw()
        .send("CL.THROTTLE k 1 1 60\r\nCL.THROTTLE 'k' 1 1 60\r\nPING\r\n")
        .expect("*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:120\r\n+PONG\r\n");
}
