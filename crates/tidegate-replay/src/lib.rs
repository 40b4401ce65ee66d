//! Plays recorded traffic through rules, and says what they would have done.
//!
//! A [`Reader`] takes lines from a log, a [`Parser`] reads who asked what and when, and [`Replay`] decides each request as a
//! server would have: by the same limiter, on the memory store, under a clock that shows the time of the line. A
//! [`Report`] says what each rule would have refused, whom and when, what other rules would have refused instead, and how
//! much callers ask for at their busiest.
//!
//! The same input gives the same report, byte for byte. Memory is bounded by the cells that are alive and by a number of
//! callers per rule, beyond which callers are sampled and the report says so. A line that cannot be read is counted and
//! shown. Nothing here opens a socket or reads a clock.

mod asked;
mod callers;
mod demand;
mod engine;
mod latest;
mod leases;
mod merge;
mod parse;
mod past;
mod penalties;
mod race_order;
mod reader;
mod render;
mod report;
mod ruled;
mod summary;
mod timeline;

pub use engine::{Options, Replay, Verdicts};
pub use merge::{LogSource, MergeByTime, MergedLine, OpenLog};
pub use parse::{
    Also, Attributes, BadLine, Format, Own, Parser, Rank, Recorded, Tells, UnknownFormat, decision_line,
};
pub use past::HashedValues;
pub use reader::{Line, MOST_LINE_BYTES, Reader};
pub use render::{Chart, html, svg, text};
pub use report::{
    BadLineExample, CallerReport, Counts, LimitReport, Lines, Otherwise, Peak, Report, RuleChange,
    RuleReport, Suggestion, Timeline,
};
