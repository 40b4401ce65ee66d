//! Decides, from state and time, whether a request may pass.
//!
//! Every algorithm is a pure transition: it takes a [`Limit`], the [`Cell`] of one key, the time and the ask, returns an
//! [`Outcome`] and updates the cell. Nothing here reads a clock, does I/O, locks, logs or depends on another crate.
//!
//! Each algorithm has a Lua twin, which counts in doubles. So every intermediate value here stays within [`EXACT_MAX`]
//! (2^53), and creating a limit whose arithmetic would not fit fails with a [`LimitError`] that says what to change.
//!
//! ```
//! use tidegate_core::{Ask, Cell, Limit, Micros, Rate, Timestamp, TokenBucket};
//!
//! let limit = Limit::TokenBucket(TokenBucket::new(Rate::new(10, Micros::from_secs(1))?, 2)?);
//! let mut cell = Cell::Vacant;
//! let now = Timestamp::from_micros(1_800_000_000_000_000);
//!
//! assert!(limit.decide(&mut cell, now, Ask::hits(2)).is_admitted());
//! let refused = limit.decide(&mut cell, now, Ask::hits(1));
//! assert_eq!(refused.retry_after(), Some(Micros::from_millis(100)));
//! # Ok::<(), tidegate_core::LimitError>(())
//! ```

mod algorithm;
mod bytes;
mod cell;
mod concurrency;
mod crossing;
mod error;
mod fingerprint;
mod fixed_window;
mod fold;
mod group;
mod key_room;
mod last_answer;
mod leaky_bucket;
mod limit;
mod meter;
mod outcome;
mod over;
mod request;
mod ring;
mod scope;
mod shares;
mod sliding_log;
mod sliding_window;
mod token_bucket;
mod units;

pub use algorithm::Algorithm;
pub use cell::{Cell, CellForm, CounterBits};
pub use concurrency::{Concurrency, LeaseId, Leases};
pub use error::LimitError;
pub use fingerprint::{LimitFingerprint, RefusalHolds};
pub use fixed_window::{FixedWindow, WindowCell};
pub use fold::{Fold, decide_fold};
pub use group::{Group, Stance};
pub use key_room::KeyRoom;
pub use last_answer::LastAnswer;
pub use leaky_bucket::LeakyBucket;
pub use limit::{Charge, Limit};
pub use meter::{Meter, MeterCell, Rate};
pub use outcome::{Outcome, Verdict};
pub use over::{DEBT_REPAID_WITHIN, Over};
pub use request::{Ask, Touch, decide_in_order, decide_request};
pub use scope::{Scope, append_part, take_part};
pub use shares::{Claim, Holder, Lender, Lending, Prepaid, Purse, Returned, Share, divide};
pub use sliding_log::{Log, RefusedHits, SlidingLog};
pub use sliding_window::{SlidingCell, SlidingWindow};
pub use token_bucket::TokenBucket;
pub use units::{EXACT_MAX, Hits, Micros, Timestamp};
