//! All sources of metrics of this process.
//!
//! Sources are read each time; nothing is precomputed. A part that does not exist (a store without local cells, no data
//! plane) has no metrics: a zero would be wrong.

use std::fmt;
use std::sync::Arc;

use crate::counters::Metrics;
use crate::family::Families;
use crate::process;

/// All metrics, read anew each time.
pub struct Registry(Vec<MetricSource>);

type MetricSource = Box<dyn Fn(&mut Families) + Send + Sync>;

/// Something that metrics can be made of.
pub trait Describe {
    /// Adds its metrics.
    fn describe(&self, families: &mut Families);
}

impl<D: Describe> Describe for Arc<D> {
    fn describe(&self, families: &mut Families) {
        D::describe(self, families);
    }
}

impl Registry {
    /// The counts of `metrics`, and the metrics of this process.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let started_seconds = process::now_seconds();
        Registry(vec![
            Box::new(move |families| metrics.describe(families)),
            Box::new(|families| {
                families.info("build", "The version that runs.", "version", env!("CARGO_PKG_VERSION"));
            }),
            Box::new(move |families| process::describe(started_seconds, families)),
        ])
    }

    /// Also describes what `read` returns.
    #[must_use]
    pub fn with<D: Describe>(mut self, read: impl Fn() -> D + Send + Sync + 'static) -> Self {
        self.0.push(Box::new(move |families| read().describe(families)));
        self
    }

    /// The current metrics.
    #[must_use]
    pub fn read(&self) -> Families {
        self.read_into(Families::default())
    }

    /// The current metrics, without labelled counters at 0.
    #[must_use]
    pub fn read_without_zeros(&self) -> Families {
        self.read_into(Families::without_zeros())
    }

    fn read_into(&self, mut families: Families) -> Families {
        self.0.iter().for_each(|source| source(&mut families));
        families
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry of {} sources", self.0.len())
    }
}
