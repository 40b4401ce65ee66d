//! Alerts: problems that an operator should hear of without asking, once per fleet.
//!
//! Each node reads its own [`Signals`] from its metrics, and they travel with its heartbeat. On every node a [`Detector`]
//! checks those of all nodes, so that none starts without data, and a [`ActiveAlerts`] keeps the alerts. The node that holds the
//! fleet's lease ([`SenderLease`]) has changes [delivered](WebhookQueue). Everything but the queue is plain code on an injected clock;
//! [`synthetic`] measures its precision and recall.

mod active;
mod baseline;
mod bursts;
mod calls;
mod deliver;
mod detect;
mod found;
mod kinds;
mod minutes;
mod payload;
mod sender;
mod shared;
mod shares;
mod signals;
mod silences;
pub mod synthetic;
mod traffic;

pub use active::{ActiveAlerts, Alert, MOST_ACTIVE, Notice, Sender};
pub use baseline::{Baseline, Deviation, Unusual};
pub use calls::CallSpans;
pub use deliver::{Payload, Receiver, WebhookQueue, WebhookStats};
pub use detect::{Detector, Thresholds};
pub use found::{Found, OthersHeard};
pub use kinds::{Finding, Kind, RuleName, Severity};
pub use minutes::{Counts, Minute, Minutes, RuleCounts};
pub use payload::signature;
pub use sender::{SenderLease, SenderRole};
pub use shared::{AlertStats, SharedAlerts};
pub use signals::{RuleCallers, Signals, rule_counts};
pub use silences::{MOST_SILENCES, Silence, Silences};
pub use traffic::{MOST_BASELINES, TrafficStats};
