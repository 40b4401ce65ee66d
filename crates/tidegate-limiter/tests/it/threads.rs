//! One limiter shared by the threads of a real runtime: what the simulation cannot show, because it has only one.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::{Hits, Limit};
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, Limiter, LimiterConfig, NoObserver, RemoteConfig, Source,
    TokioRuntime,
};
use tidegate_store::{
    BatchOutcomes, CellCharge, CellKey, LeaseRef, MemoryConfig, MemoryStore, Refund, Reply, Request, Stamped,
    Store,
};

use crate::world::compile;

/// Memory that lets others run before it answers.
struct Polite {
    memory: MemoryStore,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

impl Polite {
    fn new() -> Arc<Self> {
        let memory = MemoryStore::new(MemoryConfig::new().max_cells(10_000).max_log_bytes(1 << 20));
        Arc::new(Polite { memory, at_once: AtomicUsize::new(0), most_at_once: AtomicUsize::new(0) })
    }
}

impl Store for Polite {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        Reply::Later(Box::pin(async move {
            let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            self.at_once.fetch_sub(1, Ordering::SeqCst);
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

fn limiter(store: Arc<dyn Store>, rules: &str) -> Arc<Limiter> {
    let mut remote = RemoteConfig::new(Arc::new(TokioRuntime));
    // A machine under load may take a while to run everybody; that is not what is tested.
    remote.timeout = tidegate_core::Micros::from_secs(60);
    let config = LimiterConfig::new(compile(rules), store, Arc::new(NoObserver));
    Arc::new(Limiter::new(config.over_a_network(remote)))
}

async fn check(limiter: &Limiter, user: &str) -> Decision {
    check_cost(limiter, user, Hits::ONE).await
}

async fn check_cost(limiter: &Limiter, user: &str, cost: Hits) -> Decision {
    let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
    let asks = [DescriptorAsk::one(&entries).cost(cost)];
    let request = CheckRequest::new("api", &asks);
    limiter.check(&request).await.unwrap()
}

/// How many leases `user` may still take.
async fn left(limiter: &Limiter, user: &str) -> u64 {
    let look = check_cost(limiter, user, Hits::ZERO).await;
    look.governing().unwrap().limit().unwrap().outcome.remaining
}

fn on_threads<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), work).await.expect("somebody hangs")
    })
}

const THOUSAND: &str =
    "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }";

#[test]
fn threads_that_share_a_limiter_admit_exactly_the_limit_with_one_call_at_a_time() {
    let store = Polite::new();
    let limiter = limiter(store.clone(), THOUSAND);
    let admitted = on_threads(async {
        let clients: Vec<_> = (0..64)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..50 {
                        admitted += usize::from(check(&limiter, "one").await.allowed);
                    }
                    admitted
                })
            })
            .collect();
        let mut admitted = 0;
        for client in clients {
            admitted += client.await.unwrap();
        }
        admitted
    });
    assert_eq!(admitted, 1_000);
    assert_eq!(store.most_at_once.load(Ordering::SeqCst), 1);
}

#[test]
fn tasks_aborted_on_other_threads_leak_nothing() {
    let store = Polite::new();
    let limiter =
        limiter(store, "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 5, ttl: 1h }] }");
    on_threads(async {
        let background = tokio::spawn(limiter.maintain());
        for round in 0..300 {
            let clients: Vec<_> = (0..8)
                .map(|client| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        let decision = check(&limiter, &(client % 3).to_string()).await;
                        // From here on it is the caller's to give back, also when it is told to stop.
                        let lease = decision.lease.clone();
                        tokio::spawn(async move {
                            if let Some(lease) = lease {
                                limiter.release(&lease).await.unwrap();
                            }
                        });
                    })
                })
                .collect();
            for _ in 0..round % 12 {
                tokio::task::yield_now().await;
            }
            clients.iter().for_each(|client| client.abort());
            for client in clients {
                let _ = client.await;
            }
        }
        // What was left behind goes back within a round of the background's, and all that is waited for is that.
        for user in ["0", "1", "2"] {
            while left(&limiter, user).await < 5 {
                tokio::task::yield_now().await;
            }
        }
        background.abort();
        // Who asked has its answer a moment before the task that brought it is done.
        while limiter
            .remote_stats()
            .is_none_or(|stats| (stats.calls, stats.waiting, stats.orphans) != (0, 0, 0))
        {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_runtime_that_ends_lets_nobody_wait_for_ever() {
    let limiter =
        limiter(Polite::new(), &THOUSAND.replace("key: [user],", "key: [user], on_store_failure: closed,"));
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut waiting = Box::pin({
        let limiter = limiter.clone();
        async move { check(&limiter, "one").await }
    });
    // The call is under way on a runtime that goes away.
    first.block_on(async {
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("it was answered too soon"),
            () = async { tokio::task::yield_now().await } => {}
        }
    });
    drop(first);
    let decision = on_threads(waiting);
    assert_eq!((decision.allowed, decision.source), (false, Source::FallbackClosed));
    assert_eq!(on_threads(check(&limiter, "one")).source, Source::Store);
}

#[test]
fn a_runtime_that_ends_before_it_runs_the_call_lets_nobody_wait_for_ever() {
    let limiter =
        limiter(Polite::new(), &THOUSAND.replace("key: [user],", "key: [user], on_store_failure: closed,"));
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut waiting = Box::pin({
        let limiter = limiter.clone();
        async move { check(&limiter, "one").await }
    });
    // Asked once, and the runtime goes away before it has run anything else.
    first.block_on(std::future::poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    }));
    drop(first);
    assert_eq!(on_threads(waiting).source, Source::FallbackClosed);
    assert_eq!(on_threads(check(&limiter, "one")).source, Source::Store);
}
