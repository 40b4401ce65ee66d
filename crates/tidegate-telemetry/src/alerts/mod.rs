//! Alerts: problems that an operator should hear of without asking, once per fleet.
//!
//! Each node reads its own [`Signals`] from its metrics, and they travel with its heartbeat. On every node a [`Detector`]
//! checks those of all nodes, so that none starts without data, and a [`Book`] keeps the alerts. The node that holds the
//! fleet's lease ([`Duty`]) has changes [delivered](Courier). Everything but the courier is plain code on an injected clock;
//! [`synthetic`] measures its precision and recall.

mod baseline;
mod book;
mod bursts;
mod deliver;
mod detect;
mod duty;
mod found;
mod kinds;
mod minutes;
mod payload;
mod signals;
mod silences;
pub mod synthetic;
mod traffic;

pub use baseline::{Baseline, Deviation, Unusual};
pub use book::{Alert, Book, MOST_ACTIVE, Notice, Telling};
pub use deliver::{Courier, CourierStats, Payload, Receiver};
pub use detect::{Detector, Thresholds};
pub use duty::{Duty, Role};
pub use found::{Found, OthersHeard};
pub use kinds::{Finding, Kind, RuleName, Severity};
pub use minutes::{Counts, Minute, Minutes, RuleCounts};
pub use payload::signature;
pub use signals::{RuleCallers, Signals, rule_counts};
pub use silences::{MOST_SILENCES, Silence, Silences};
pub use traffic::{MOST_BASELINES, TrafficStats};
