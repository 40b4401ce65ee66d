//! Rules as data: versions of rule documents, key overrides, tokens and the audit log, in SQLite (embedded, one file) or
//! PostgreSQL (a fleet).
//!
//! [`RuleStore`] is the only place with SQL. A version is an immutable set of documents (the YAML that a person wrote).
//! Publishing one is a single transaction that names the version it was made on, so of two concurrent editors one gets a
//! conflict, with the other's changes. Overrides and bans of single keys are separate rows.
//!
//! Nothing here decides about requests, and no data plane crate may depend on it: a node starts and decides without a
//! database. Times are parameters; only the databases and [`Watch`] wait for anything.

mod audit;
mod connect;
mod diff;
mod document;
mod edit;
mod error;
mod file;
mod grant;
mod issue;
mod override_changes;
mod overrides;
mod schema;
mod secret;
mod sessions;
mod tokens;
mod versions;
mod watch;

pub use audit::{AUDIT_ACTIONS, Actor, AuditEntry, AuditFilter};
pub use connect::{DatabaseUrl, Kind, RuleStore};
pub use diff::{Change, Diff, DocumentDiff, RuleChange};
pub use document::{Document, DocumentSet, SplitError};
pub use edit::{EditError, put_rule, remove_rule};
pub use error::Error;
pub use grant::{Grant, Origin};
pub use override_changes::{MOST_CHANGES, OverrideChange};
pub use overrides::{Action, KeyOverride, MOST_OVERRIDES, NewOverride, OverrideFilter, ended_long_ago};
pub use schema::SCHEMA_VERSION;
pub use secret::Secret;
pub use sessions::Redeem;
pub use tokens::{NewToken, Role, StoredToken, TokenKind};
pub use versions::{Marks, Publication, PublishError, Revision, Version};
pub use watch::Watch;
