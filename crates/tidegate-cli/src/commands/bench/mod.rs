//! `tidegate bench`: offers load to a server and reports its latency.
//!
//! The client often shares its cores with the server it measures, so it is built to be cheap: a runtime per thread, no work
//! between threads, requests encoded beforehand, and one histogram per thread. To add a protocol, write a `drive` function
//! beside `http1`, `grpc` and `resp`, and an encoder in `payload`.

mod alarm;
mod grpc;
mod http1;
mod lane;
mod payload;
mod plan;
mod report;
mod resp;
mod schedule;
mod tally;

use std::io;
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;

use crate::args::{BenchArgs, Protocol};
use crate::clock;
use crate::failure::Failure;
use alarm::Alarm;
use lane::{Crew, Lane};
use payload::Payloads;
use plan::Plan;
use report::BenchReport;
use schedule::Schedule;
use tally::Tally;

const PROGRESS_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let plan = Arc::new(Plan::new(args)?);
    reach(&plan)?;
    let payloads = Payloads::encode(&plan);
    let schedule = Arc::new(Schedule::new(clock::now(), plan.warm_up, plan.duration, plan.pace));
    let tally = measure(&plan, &payloads, &schedule)?;
    let report = BenchReport { plan: &plan, tally: &tally, measured: schedule.measured(tally.last_answer) };
    report.write(&mut io::stdout().lock(), args.output.output)?;
    if tally.decided() == 0 {
        let reason = tally.first_complaint.unwrap_or_else(|| "the run was too short".to_owned());
        return Err(Failure::new(format!("no request was decided: {reason}")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Connects once, so that a missing server is an error and not a table of zeros.
fn reach(plan: &Plan) -> Result<(), Failure> {
    TcpStream::connect_timeout(&plan.address, plan.timeout).map_err(|error| {
        Failure::new(format!("cannot connect to {}: {error}", plan.endpoint))
            .hint("start a server with `tidegate serve`, or name another one with --address")
    })?;
    Ok(())
}

/// Runs the threads, and shows their progress.
fn measure(plan: &Arc<Plan>, payloads: &Payloads, schedule: &Arc<Schedule>) -> Result<Tally, Failure> {
    let answered = Arc::new(AtomicU64::new(0));
    let (done, results) = mpsc::channel();
    for thread in 0..plan.threads {
        let (plan, payloads, schedule) = (plan.clone(), payloads.clone(), schedule.clone());
        let (answered, done) = (answered.clone(), done.clone());
        thread::spawn(move || {
            // The receiver is gone only if another thread failed, and that error is reported.
            let _ = done.send(run_thread(thread, plan, payloads, schedule, answered));
        });
    }
    drop(done);
    let progress = Progress::start(schedule, &plan.warm_up, &plan.duration);
    let mut total = Tally::new();
    loop {
        match results.recv_timeout(PROGRESS_EVERY) {
            Ok(part) => {
                total.merge(&part.map_err(|error| Failure::new(format!("cannot start a client: {error}")))?)
            }
            Err(RecvTimeoutError::Timeout) => progress.update(answered.load(Ordering::Relaxed)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    progress.finish();
    for (count, waited) in schedule.never_sent() {
        total.never_sent(count, waited);
    }
    Ok(total)
}

/// One client thread: its own runtime, its share of the connections.
fn run_thread(
    thread: u32,
    plan: Arc<Plan>,
    payloads: Payloads,
    schedule: Arc<Schedule>,
    answered: Arc<AtomicU64>,
) -> io::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let alarm = Alarm::new()?;
        let tally = Mutex::new(Tally::new());
        let crew = Arc::new(Crew { plan, payloads, schedule, alarm, answered, tally });
        let ticking = tokio::spawn({
            let alarm = crew.alarm.clone();
            async move { alarm.run().await }
        });
        let mut connections = JoinSet::new();
        let mine = (0..crew.plan.connections).filter(|number| number % crew.plan.threads == thread);
        for connection in mine {
            open(&mut connections, &crew, connection);
        }
        while let Some(ended) = connections.join_next().await {
            ended.expect("a connection does not panic");
        }
        ticking.abort();
        let tally = crew.tally().clone();
        Ok(tally)
    })
}

fn open(connections: &mut JoinSet<()>, crew: &Arc<Crew>, number: u32) {
    let in_flight = u64::from(crew.plan.in_flight);
    let lane = |slot| Lane::new(crew.clone(), u64::from(number) * in_flight + slot);
    match crew.plan.protocol {
        Protocol::Http => connections.spawn(http1::drive(crew.clone(), lane(0))),
        Protocol::Resp => connections.spawn(resp::drive(crew.clone(), lane(0))),
        Protocol::Grpc => connections.spawn(grpc::drive(crew.clone(), (0..in_flight).map(lane).collect())),
    };
}

/// A progress bar on stderr; nothing if that is not a terminal.
struct Progress<'a> {
    bar: ProgressBar,
    schedule: &'a Schedule,
}

impl<'a> Progress<'a> {
    fn start(schedule: &'a Schedule, warm_up: &Duration, duration: &Duration) -> Self {
        let bar = ProgressBar::new((*warm_up + *duration).as_millis() as u64);
        let style =
            ProgressStyle::with_template("{elapsed_precise} [{bar:40}] {msg}").expect("a valid template");
        bar.set_style(style.progress_chars("=> "));
        Progress { bar, schedule }
    }

    fn update(&self, answered: u64) {
        let elapsed = clock::now() - self.schedule.start();
        self.bar.set_position(elapsed.as_millis() as u64);
        let rate = answered as f64 / elapsed.as_secs_f64();
        self.bar.set_message(format!("{answered} answers, {rate:.0}/s"));
    }

    fn finish(self) {
        self.bar.finish_and_clear();
    }
}
