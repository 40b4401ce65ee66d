//! A limiter without HTTP, without async, without anything else: worker threads that send mail for several tenants.
//!
//! No tenant may send more than its share, and the mail server takes two connections at a time, whoever opens them.
//!
//! ```text
//! cargo run -p example-jobs
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use tidegate::{Ask, Limiter};

const RULES: &str = "
domain: mail
rules:
  - name: per-tenant
    match: { step: queue }
    key: [tenant]
    tiers: { on: plan, default: free, free: [3/hour], pro: [20/hour] }
  - name: connections
    match: { step: connect }
    limits: [{ algorithm: concurrency, limit: 2, ttl: 10s }]
";

struct Job {
    tenant: &'static str,
    plan: &'static str,
}

/// How many connections are open, and how many were at most.
#[derive(Default)]
struct Connections {
    open: AtomicUsize,
    most: AtomicUsize,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let limiter = tidegate::in_memory(RULES)?;
    let connections = Arc::new(Connections::default());
    let (queue, jobs) = mpsc::channel();
    let (mut queued, mut put_off) = (0, 0);
    for number in 0..24 {
        let job = if number % 2 == 0 {
            Job { tenant: "acme", plan: "pro" }
        } else {
            Job { tenant: "shop", plan: "free" }
        };
        let ask = Ask::new("mail").with("step", "queue").with("tenant", job.tenant).with("plan", job.plan);
        let decision = ask.check_blocking(&limiter)?;
        if decision.allowed {
            queued += 1;
            queue.send(job)?;
        } else {
            put_off += 1;
            if put_off == 1 {
                let wait = decision.retry_after().ok_or("a window ends")?;
                println!("{} must wait for {} s", job.tenant, wait.as_secs() + 1);
            }
        }
    }
    drop(queue);
    println!("queued {queued}, put off {put_off}");

    let jobs = Arc::new(Mutex::new(jobs));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (limiter, connections, jobs) = (limiter.clone(), connections.clone(), jobs.clone());
            thread::spawn(move || work(&limiter, &connections, &jobs))
        })
        .collect();
    let mut sent = 0;
    for worker in workers {
        sent += worker.join().expect("a worker does not panic")?;
    }
    println!("sent {sent} with at most {} connections at once", connections.most.load(Ordering::SeqCst));
    Ok(())
}

/// Sends what is queued, whenever there is a connection to be had.
fn work(
    limiter: &Limiter,
    connections: &Connections,
    jobs: &Mutex<mpsc::Receiver<Job>>,
) -> Result<usize, Error> {
    let mut sent = 0;
    while let Some(job) = next(jobs) {
        let ask = Ask::new("mail").with("step", "connect");
        let lease = loop {
            match ask.spend_blocking(limiter)?.into_lease() {
                Some(lease) => break lease,
                None => thread::yield_now(),
            }
        };
        let open = connections.open.fetch_add(1, Ordering::SeqCst) + 1;
        connections.most.fetch_max(open, Ordering::SeqCst);
        send(&job);
        connections.open.fetch_sub(1, Ordering::SeqCst);
        drop(lease);
        sent += 1;
    }
    Ok(sent)
}

fn next(jobs: &Mutex<mpsc::Receiver<Job>>) -> Option<Job> {
    jobs.lock().expect("no worker panics while it holds the queue").recv().ok()
}

/// Where mail would be sent; here it is enough to be busy for a moment.
fn send(job: &Job) {
    let letter = format!("to a customer of {} ({})", job.tenant, job.plan);
    for _ in 0..50 {
        thread::yield_now();
    }
    assert!(!letter.is_empty());
}
