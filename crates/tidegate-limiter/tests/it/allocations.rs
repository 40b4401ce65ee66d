//! A check on the memory store allocates nothing: counted by an allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use tidegate_limiter::{CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver};
use tidegate_store::{MemoryConfig, MemoryStore};

use crate::world::{at_once, compile};

#[global_allocator]
static HEAP: Counting = Counting;

thread_local! {
    /// Per thread, so that tests that run beside this one do not count.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[expect(unsafe_code, reason = "an allocator that counts and passes on")]
// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counter any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// How often `work` allocates.
pub(crate) fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

fn per_check(rules: &str) -> u64 {
    let store = Arc::new(MemoryStore::new(MemoryConfig::new().max_cells(1_000).max_log_bytes(1 << 20)));
    let limiter = Limiter::new(LimiterConfig::new(compile(rules), store, Arc::new(NoObserver)));
    let entries: [(&str, &[u8]); 2] =
        [("user", b"somebody-with-a-name-of-40-characters-or-so"), ("path", b"/a")];
    let descriptors = [DescriptorAsk::one(&entries)];
    let request = CheckRequest::new("api", &descriptors);
    let check = || drop(at_once(limiter.check(&request)).unwrap());
    // The first makes the cell, and whatever threads and tables need once.
    check();
    allocations(|| (0..100).for_each(|_| check()))
}

#[test]
fn a_check_of_one_limit_allocates_nothing() {
    assert_eq!(per_check("- { name: a, key: [user], limits: [1000000/minute] }"), 0);
}

#[test]
fn neither_does_one_of_two_limits_under_two_rules() {
    let rules = "- { name: a, key: [user], limits: [1000000/minute] }\n\
                 - { name: b, match: { path: '/*' }, key: [path], limits: [1000000/day] }";
    assert_eq!(per_check(rules), 0);
}

#[test]
fn one_of_four_limits_allocates_once_for_its_outcomes_and_once_for_its_reports() {
    let rules = "- { name: a, key: [user], limits: [1000000/minute, 1000000/hour] }\n\
                 - { name: b, match: { path: '/*' }, key: [path], limits: [{ algorithm: token_bucket, rate: 1000000/s, burst: 9999 }, 1000000/day] }";
    assert_eq!(per_check(rules), 200);
}

#[test]
fn neither_does_a_refusal() {
    assert_eq!(per_check("- { name: a, key: [user], limits: [1/day] }"), 0);
}
