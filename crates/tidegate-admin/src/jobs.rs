//! Work on whole rule sets that a caller waits for: few jobs at once, one per caller, and none for a caller who has left.
//!
//! Each may take seconds of a core and hundreds of megabytes. A caller's next job waits for its own first one and only then
//! for a place, so that places go round among callers however many jobs one of them asks for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::low_priority::at_low_priority;

/// The most jobs of a kind at once.
const AT_ONCE: usize = 2;

/// Compiling, showing and comparing rules.
pub(crate) static RULES: LazyLock<Jobs> = LazyLock::new(|| Jobs::new(16, 64));
/// Replaying recorded requests, which takes longer. Each that waits has a log of up to 24 MB.
pub(crate) static REPLAYS: LazyLock<Jobs> = LazyLock::new(|| Jobs::new(4, 8));

/// The jobs of one kind.
pub(crate) struct Jobs {
    /// The most jobs of one caller and of all, including those that wait.
    most: [usize; 2],
    places: Semaphore,
    /// The callers with a job.
    lanes: Mutex<HashMap<String, JobLane>>,
}

/// The jobs of one caller: how many there are, and the turn of the one that may run.
#[derive(Clone)]
struct JobLane {
    jobs: usize,
    turn: Arc<Semaphore>,
}

/// Too many jobs wait already.
#[derive(Debug)]
pub(crate) enum TooManyJobs {
    /// Of this caller.
    Own(usize),
    /// Of all callers together.
    All(usize),
}

/// Nobody waits for a job any longer.
#[derive(Debug)]
pub(crate) struct CallerLeft;

/// A job that is under way.
#[derive(Clone, Default)]
pub(crate) struct Job {
    left: Arc<AtomicBool>,
}

impl Job {
    /// Whether its caller still waits. Work that takes long should look at this every few milliseconds.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.left.load(Ordering::Relaxed)
    }

    /// Between two pieces of the work: whether to do the next.
    ///
    /// # Errors
    /// Its caller has left.
    pub(crate) fn go_on(&self) -> Result<(), CallerLeft> {
        if self.is_wanted() { Ok(()) } else { Err(CallerLeft) }
    }

    /// One whose caller has left.
    #[cfg(test)]
    pub(crate) fn left() -> Self {
        let job = Job::default();
        drop(Leaving(job.clone()));
        job
    }
}

impl Jobs {
    fn new(most_each: usize, most: usize) -> Self {
        Jobs { most: [most_each, most], places: Semaphore::new(AT_ONCE), lanes: Mutex::default() }
    }

    /// Runs `work` at low priority once `caller` and the others leave a place. Dropping the future, as happens when its client
    /// hangs up, ends the job: at once if it waits, and otherwise as soon as `work` looks. It keeps its place until then.
    ///
    /// # Errors
    /// Too many wait already.
    pub(crate) async fn run<T: Send + 'static>(
        &'static self,
        caller: &str,
        work: impl FnOnce(&Job) -> T + Send + 'static,
    ) -> Result<T, TooManyJobs> {
        let seat = self.enter(caller)?;
        let turn = seat.turn.clone().acquire_owned().await.expect("turns never end");
        let place = self.places.acquire().await.expect("places never end");
        let job = Job::default();
        let _leaving = Leaving(job.clone());
        let done = at_low_priority(move || {
            let _until_done = (place, turn, seat);
            work(&job)
        });
        Ok(done.await)
    }

    fn enter(&'static self, caller: &str) -> Result<JobSeat, TooManyJobs> {
        let mut lanes = self.lanes.lock();
        let [most_each, most] = self.most;
        if lanes.values().map(|lane| lane.jobs).sum::<usize>() >= most {
            return Err(TooManyJobs::All(most));
        }
        let new = || JobLane { jobs: 0, turn: Arc::new(Semaphore::new(1)) };
        let lane = lanes.entry(caller.to_owned()).or_insert_with(new);
        if lane.jobs >= most_each {
            return Err(TooManyJobs::Own(most_each));
        }
        lane.jobs += 1;
        Ok(JobSeat { of: self, caller: caller.to_owned(), turn: lane.turn.clone() })
    }
}

/// One job in its caller's lane.
struct JobSeat {
    of: &'static Jobs,
    caller: String,
    turn: Arc<Semaphore>,
}

impl Drop for JobSeat {
    fn drop(&mut self) {
        let mut lanes = self.of.lanes.lock();
        if let Some(lane) = lanes.get_mut(&self.caller) {
            lane.jobs -= 1;
            if lane.jobs == 0 {
                lanes.remove(&self.caller);
            }
        }
    }
}

/// Tells a job that its caller is gone.
struct Leaving(Job);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.left.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    const MOST_EACH: usize = 6;

    fn jobs() -> &'static Jobs {
        Box::leak(Box::new(Jobs::new(MOST_EACH, 2 * MOST_EACH)))
    }

    /// A job of `caller` that has begun, and ends when told, or when nobody waits for it.
    async fn begun(jobs: &'static Jobs, caller: &'static str) -> (JoinHandle<()>, mpsc::Sender<()>) {
        let (began, begins) = oneshot::channel();
        let (end, ends) = mpsc::channel();
        let job = tokio::spawn(async move {
            let work = move |job: &Job| {
                began.send(()).unwrap();
                while job.is_wanted() && ends.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    std::thread::yield_now();
                }
            };
            jobs.run(caller, work).await.unwrap();
        });
        begins.await.unwrap();
        (job, end)
    }

    #[tokio::test]
    async fn caller_with_many_jobs_leaves_a_place_to_others() {
        let jobs = jobs();
        let (_first, _end) = begun(jobs, "mallory").await;
        let more: Vec<_> = (1..MOST_EACH).map(|_| tokio::spawn(jobs.run("mallory", |_| ()))).collect();
        // Those ask before anybody else does.
        tokio::task::yield_now().await;
        assert_eq!(jobs.run("ann", |_| 1).await.unwrap(), 1);
        assert!(more.iter().all(|job| !job.is_finished()), "they wait for the first");
        more.iter().for_each(JoinHandle::abort);
    }

    #[tokio::test]
    async fn jobs_of_who_left_end_and_give_their_places_back() {
        let jobs = jobs();
        for (caller, other) in [("ann", "bob"), ("ann", "bob")] {
            let (one, _end) = begun(jobs, caller).await;
            let (two, _end_too) = begun(jobs, other).await;
            // Their clients hang up.
            one.abort();
            two.abort();
        }
        assert_eq!(jobs.run("carol", |_| 3).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn third_caller_waits_for_a_place() {
        let jobs = jobs();
        let (_one, end) = begun(jobs, "ann").await;
        let (_two, _end_too) = begun(jobs, "bob").await;
        let third = tokio::spawn(jobs.run("carol", |_| 3));
        tokio::task::yield_now().await;
        assert!(!third.is_finished() && jobs.places.available_permits() == 0);
        end.send(()).unwrap();
        assert_eq!(third.await.unwrap().unwrap(), 3);
    }

    #[tokio::test]
    async fn jobs_of_one_caller_are_bounded_and_forgotten() {
        let jobs = jobs();
        let (first, end) = begun(jobs, "mallory").await;
        let waiting: Vec<_> = (1..MOST_EACH).map(|_| tokio::spawn(jobs.run("mallory", |_| ()))).collect();
        tokio::task::yield_now().await;
        assert!(matches!(jobs.run("mallory", |_| ()).await, Err(TooManyJobs::Own(MOST_EACH))));
        waiting.iter().for_each(JoinHandle::abort);
        end.send(()).unwrap();
        first.await.unwrap();
        for job in waiting {
            assert!(job.await.unwrap_err().is_cancelled());
        }
        jobs.run("ann", |_| ()).await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(jobs.lanes.lock().keys().filter(|caller| *caller == "mallory").count(), 0);
    }
}
