//! Alerts: what an operator should be told without having asked, once per fleet.
//!
//! Each node reads its own [`Signals`] from its metrics. Whoever holds the fleet's lease ([`Duty`]) has a [`Detector`] look
//! at all of them, keeps the [`Book`] of what is the matter, and has changes [delivered](Courier). Everything but the
//! courier is plain code on an injected clock; [`synthetic`] measures how often it is right.

mod baseline;
mod book;
mod deliver;
mod detect;
mod duty;
mod signals;
pub mod synthetic;

pub use baseline::{Baseline, Deviation, Unusual};
pub use book::{Alert, Book, MOST_ACTIVE, Notice, Silence};
pub use deliver::{Courier, CourierStats, Payload, Receiver, signature};
pub use detect::{Detector, Finding, Kind, Severity, Thresholds};
pub use duty::{Duty, Role};
pub use signals::{CallerShare, RuleCounts, Signals};
