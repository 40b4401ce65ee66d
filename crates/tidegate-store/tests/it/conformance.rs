use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tidegate_core::Timestamp;
use tidegate_store::conformance::{Broken, Subject, check};
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore, Store};

struct Memory(MemoryStore<ManualClock>);

impl Subject for Memory {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn set_time(&self, now: Timestamp) {
        self.0.clock().set(now);
    }
}

/// Memory answers at once: a runtime would have nothing to do.
fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("memory made somebody wait"),
    }
}

#[test]
fn memory_is_a_store() {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let memory = Memory(MemoryStore::with_clock(MemoryConfig::default(), clock));
    now_or_never(check(&memory, 0..3_000));
}

/// As on a board without a battery: it starts in 1970 and hears what time it is a moment later.
#[test]
fn memory_whose_clock_leaps_from_1970_is_a_store() {
    let memory = Memory(MemoryStore::with_clock(MemoryConfig::default(), ManualClock::default()));
    now_or_never(check(&memory, 0..300));
}

struct NoRecords(Broken);

impl Subject for NoRecords {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn set_time(&self, _: Timestamp) {}
}

#[test]
#[should_panic(expected = "Subject::keeps_records")]
fn a_store_without_records_must_say_so_and_hears_how() {
    now_or_never(check(&NoRecords(Broken::AWAY), 0..1));
}
