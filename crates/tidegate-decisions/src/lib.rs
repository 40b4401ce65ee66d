//! The decision log: a sample of decisions, the top callers of every rule, and the demand on every limit.
//!
//! A [`DecisionLog`] observes every decision and keeps few: refusals up to a rate, a sample of admissions; each line says
//! how many decisions it stands for. Attribute values are hashed with a secret unless the configuration lists the attribute
//! as clear. Lines go to a ring of bounded size, which can be searched, and to a file or stdout through a separate thread
//! that no request waits for. [`TopCallers`] ranks the callers in logged decisions, in bounded memory, with a stated error.
//! [`Demand`] tracks their peak usage, to suggest limits; [`SideCallers`] counts those on the sides of an experiment. Releases, renewals and refunds are lines of their own, so that
//! decisions can be replayed. The data of several nodes can be merged.

mod config;
mod demand;
mod event;
mod extra_descriptors;
mod histogram;
mod log;
mod record;
mod ring;
mod sample;
mod sides;
mod sink;
mod table;
mod top;

pub use config::{Clear, DecisionLogConfig, FileConfig};
pub use demand::{
    Demand, LimitDemand, NamedPeak, Peak, Run, SuggestedLimit, confidence_percent, join_demands,
};
pub use event::{Entry, Event, EventKind};
pub use extra_descriptors::{AlsoAsked, OwnLimit};
pub use histogram::Histogram;
pub use log::{DecisionLog, LogStats};
pub use record::{Digester, Record, Verdict, is_hash};
pub use ring::{Found, Query, Steps};
pub use sides::SideCallers;
pub use top::{RankBy, RuleTop, Top, TopCaller, TopCallers, merge};
