//! Who was refused, and was that right: a sampled log of decisions, and the busiest callers of every rule.
//!
//! A [`DecisionLog`] hears every decision and keeps few: refusals up to a rate, one in so many admissions, and each line
//! says how many it stands for. What names a caller is hashed with a secret unless the configuration lists it as clear. Lines go
//! to a ring of bounded size, which can be searched, and to a file or stdout through a thread of their own that no
//! request waits for. [`TopCallers`] counts what was kept, in bounded memory, with an error that it states, and [`Demand`] how much
//! callers ask for at their busiest, so that a limit can be suggested. Releases, renewals and refunds are lines of their own, so that decisions can be played again. What nodes know of the same callers can be joined.

mod also;
mod config;
mod demand;
mod event;
mod histogram;
mod log;
mod record;
mod ring;
mod sample;
mod sink;
mod table;
mod top;

pub use also::{AlsoAsked, OwnLimit};
pub use config::{Clear, DecisionLogConfig, FileConfig};
pub use demand::{
    Demand, LimitDemand, NamedPeak, Peak, Run, SuggestedLimit, confidence_percent, join_demands,
};
pub use event::{Entry, Event, EventKind};
pub use histogram::Histogram;
pub use log::{DecisionLog, LogStats};
pub use record::{Digester, Record, Verdict, is_hash};
pub use ring::{Found, Query};
pub use top::{By, RuleTop, Top, TopCaller, TopCallers, merge};
