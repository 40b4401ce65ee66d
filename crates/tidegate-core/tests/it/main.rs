//! Every algorithm beside a slow oracle that keeps whole histories in 128-bit integers, and the promises that all of them
//! make: bounds, tight retries, refusals that change nothing, clocks that jump.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod bytes;
mod crossing;
mod derived;
mod folds;
mod generate;
mod groups;
mod live_changes;
mod long_run;
mod oracle;
mod over;
mod promises;
mod published;
mod purses;
mod requests;
mod shares;
