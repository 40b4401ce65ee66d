//! A service with a fixed number of workers and a queue before them, behind the real shed machine, in virtual time.
//!
//! Nothing here decides who is shed. Also the model behind `examples/shedding.rs`, which draws what it sees.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroUsize;

use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{Capacity, LevelConfig, ShedMachine, Thresholds};
use tidegate_rules::Priority;

/// Most critical first.
pub(crate) const CLASSES: [Priority; 4] = [Priority::P0, Priority::P1, Priority::P2, Priority::P3];

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// A service, and what it is asked for.
pub(crate) struct Overload {
    pub(crate) workers: usize,
    /// How long a worker takes on average; exponentially distributed.
    pub(crate) work: Micros,
    /// An answer after this long is of no use.
    pub(crate) in_time: Micros,
    /// How many workers the shedder believes there are: more than anybody needs, and it sheds nobody.
    pub(crate) believed: usize,
    /// Requests a second of each class, one after the other, each for so many seconds.
    pub(crate) phases: Vec<(u64, [f64; 4])>,
}

/// What one second saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Second {
    /// By class, in the order of [`CLASSES`].
    pub(crate) sent: [u32; 4],
    pub(crate) good: [u32; 4],
    pub(crate) shed: [u32; 4],
    /// As it is at the end of the second.
    pub(crate) level: f64,
    /// The greatest of the second.
    pub(crate) queued: usize,
}

/// A request on its way.
#[derive(Clone, Copy)]
struct Job {
    class: usize,
    came: Timestamp,
}

/// What happens next: at its time, and in the order it was planned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives(usize),
    IsDone { class: usize, came: Timestamp },
}

struct World {
    machine: ShedMachine,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    planned: u64,
    random: Random,
    busy: usize,
    queue: VecDeque<Job>,
    seconds: Vec<Second>,
}

impl Overload {
    /// Twenty workers of 50 ms: 400 requests a second, of which P0 asks for a quarter. Calm, four times too much, calm.
    pub(crate) fn fourfold() -> Self {
        let calm = [100.0, 20.0, 20.0, 10.0];
        let busy = [100.0, 300.0, 400.0, 800.0];
        Overload {
            workers: 20,
            work: Micros::from_millis(50),
            in_time: Micros::from_millis(500),
            believed: 20,
            phases: vec![(60, calm), (240, busy), (300, calm)],
        }
    }

    /// Plays it through; the same seed gives the same seconds.
    pub(crate) fn run(&self, seed: u64) -> Vec<Second> {
        let capacity = Capacity::Workers(NonZeroUsize::new(self.believed).expect("somebody works"));
        let total: u64 = self.phases.iter().map(|(seconds, _)| seconds).sum();
        let mut world = World {
            machine: ShedMachine::new(capacity, Thresholds::default(), LevelConfig::default()),
            events: BinaryHeap::new(),
            planned: 0,
            random: Random(seed),
            busy: 0,
            queue: VecDeque::new(),
            seconds: vec![Second::default(); usize::try_from(total).expect("a short play")],
        };
        (0..4).for_each(|class| world.plan_arrival(self, class, START));
        while let Some(Reverse((now, _, event))) = world.events.pop() {
            match event {
                Event::Arrives(class) => world.arrives(self, class, now),
                Event::IsDone { class, came } => world.is_done(self, Job { class, came }, now),
            }
        }
        world.seconds
    }

    /// How often a class asks at this time; none once it is over.
    fn rate(&self, class: usize, now: Timestamp) -> Option<f64> {
        let mut left = now.since(START).get() / 1_000_000;
        for (seconds, rates) in &self.phases {
            if left < *seconds {
                return Some(rates[class]);
            }
            left -= seconds;
        }
        None
    }
}

impl World {
    fn plan(&mut self, at: Timestamp, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    fn plan_arrival(&mut self, play: &Overload, class: usize, now: Timestamp) {
        let Some(rate) = play.rate(class, now) else { return };
        let pause = self.random.exponential(1_000_000.0 / rate);
        self.plan(now + pause, Event::Arrives(class));
    }

    fn arrives(&mut self, play: &Overload, class: usize, now: Timestamp) {
        self.plan_arrival(play, class, now);
        let World { machine, random, .. } = self;
        let verdict = machine.enter(CLASSES[class], now, || random.part());
        let Some(second) = self.second(now) else { return };
        second.sent[class] += 1;
        match verdict {
            Err(_) => second.shed[class] += 1,
            Ok(()) => {
                self.queue.push_back(Job { class, came: now });
                self.begin_work(play, now);
            }
        }
    }

    fn begin_work(&mut self, play: &Overload, now: Timestamp) {
        while self.busy < play.workers
            && let Some(Job { class, came }) = self.queue.pop_front()
        {
            self.busy += 1;
            let takes = self.random.exponential(play.work.get() as f64);
            self.plan(now + takes, Event::IsDone { class, came });
        }
        let queued = self.queue.len();
        if let Some(second) = self.second(now) {
            second.queued = second.queued.max(queued);
        }
    }

    fn is_done(&mut self, play: &Overload, job: Job, now: Timestamp) {
        self.busy -= 1;
        self.machine.leave(now);
        let level = self.machine.level();
        if let Some(second) = self.second(now) {
            second.good[job.class] += u32::from(now.since(job.came) <= play.in_time);
            second.level = level;
        }
        self.begin_work(play, now);
    }

    /// The second that it is; none after the last.
    fn second(&mut self, now: Timestamp) -> Option<&mut Second> {
        let number = usize::try_from(now.since(START).get() / 1_000_000).ok()?;
        self.seconds.get_mut(number)
    }
}

/// A small generator, seeded.
struct Random(u64);

impl Random {
    /// Above 0, below 1.
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (((mixed ^ (mixed >> 33)) >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// A span with this mean, in microseconds.
    fn exponential(&mut self, mean_us: f64) -> Micros {
        Micros::new((-self.part().ln() * mean_us) as u64)
    }
}
