//! Compiles rule files into a matcher, or into diagnostics that show what is wrong and where.
//!
//! [`RuleSet::compile`] reads our own format or envoyproxy/ratelimit's; [`RuleSet::matches`] returns the rules that count
//! for a request, with their limits and the keys of their cells. Nothing here decides whether a request is admitted, reads a
//! clock or uses the network; only [`load`] touches files.
//!
//! A set is immutable: new rules are a new set, and the old one serves until it is swapped out. Whatever the content of a
//! file or a request, nothing panics and every cost is bounded.

mod algorithms;
mod calendar;
mod changes;
mod choice;
pub mod code;
mod diagnostics;
mod digest;
mod envoy;
mod explain;
mod fields;
mod flags;
mod glob;
mod homes;
pub mod import;
mod into_rules;
mod limits;
mod load;
mod lost;
mod matching;
mod native;
mod outline;
mod placed;
mod policy;
mod quantity;
mod renumber;
mod room;
mod rule;
mod ruleset;
mod runtime;
mod schema;
mod secret;
mod split;
mod values;
mod yaml;

pub use changes::RuleChanges;
pub use diagnostics::{Colour, Diagnostic, Diagnostics, Severity};
pub use envoy::listing::envoy_unit;
pub use explain::{Explanation, LimitExplanation, RuleExplanation, RuleOutcome};
pub use flags::{Flags, FollowedFlag};
pub use into_rules::IntoRules;
pub use load::{LoadError, Source, load};
pub use lost::LostCounters;
pub use matching::{
    CellKeyBytes, Descriptor, Foreseen, KeyPlan, LimitsFrom, Match, MatchedLimits, Matches, SoleLimit,
    Variant,
};
pub use outline::{Outline, RulePlace, outline};
pub use policy::Policy;
pub use quantity::{QuantityError, parse_duration, parse_rate};
pub use renumber::{shadow_of, with_limit};
pub use room::RoomOf;
pub use rule::{
    Autopilot, Coordination, Mode, OnHangup, OnMissingKey, OnStoreFailure, Priority, Rule, RuleLimit,
};
pub use ruleset::{Format, RuleSet, UnknownDomain};
pub use runtime::{OverrideEffect, OverrideProblem, RuntimeOverride};
pub use schema::SCHEMA;
pub use secret::is_secret_name;
pub use split::Share;
pub use tidegate_core::{Scope, Timestamp};
pub use values::ValuesRead;
