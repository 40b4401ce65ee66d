//! One file per subcommand: each takes its arguments, prints its answer on stdout and returns its exit code.

pub(crate) mod admin_client;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod explain;
pub(crate) mod import;
pub(crate) mod import_env;
pub(crate) mod keys;
pub(crate) mod login;
pub(crate) mod man;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod rules;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod top;
pub(crate) mod validate;
pub(crate) mod why;
