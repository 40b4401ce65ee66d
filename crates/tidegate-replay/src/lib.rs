//! Replays recorded traffic through rules, and reports what they would have done.
//!
//! A [`Reader`] splits a log into lines, a [`Parser`] extracts the request and its time, and [`Replay`] decides each request
//! as a server would have: with the same limiter, on the memory store, with the clock set to the time of the line. A
//! [`Report`] says what each rule would have refused, for whom and when, what other rules would have refused instead, and
//! the peak demand of callers.
//!
//! The same input gives the same report, byte for byte. Memory is bounded by the live cells and by a number of callers per
//! rule; beyond that callers are sampled, and the report says so. Unreadable lines are counted, and some are shown. Nothing
//! here opens a socket or reads a clock.

mod asked;
mod callers;
mod caveats;
mod demand;
mod engine;
mod latest;
mod leases;
mod merge;
mod parse;
mod race_order;
mod reader;
mod render;
mod reorder;
mod report;
mod side;
mod summary;
mod timeline;

pub use caveats::HashedValues;
pub use engine::{Options, Replay, Verdicts};
pub use merge::{LogSource, MergeByTime, MergedLine, OpenLog};
pub use parse::{
    Also, Attributes, BadLine, Format, Own, Parser, Rank, Recorded, Tells, UnknownFormat, decision_line,
};
pub use reader::{Line, MOST_LINE_BYTES, Reader};
pub use render::{Chart, html, svg, text};
pub use reorder::Order;
pub use report::{
    BadLineExample, CallerReport, Counts, LimitReport, Lines, Otherwise, Peak, Report, RuleChange,
    RuleReport, Suggestion, Timeline,
};
