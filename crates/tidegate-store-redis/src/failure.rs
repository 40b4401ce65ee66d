//! Failed calls, by outcome: certainly not applied, or unknown.

use std::time::Duration;

use redis::ServerError;
use tidegate_store::{BoxError, StoreError};

use crate::observer::Reason;
use crate::url::Endpoint;

/// A call that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered with an error.
    Answered(ServerError),
    /// The call was never sent.
    NotSent(Reason, BoxError),
    /// After the call was sent, the connection was lost or returned garbage.
    Lost(BoxError),
    /// No answer in time.
    TimedOut(Duration),
}

/// Errors from a server that did not run the script, or stopped it at its first write.
///
/// A script finishes all checks before its first write, and Redis refuses the first write or none.
const NOT_APPLIED: &[&str] = &[
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "DENIED",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "WRONGPASS",
    "WRONGTYPE",
];

/// The location of a slot, according to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Permanently.
    Moved { slot: u16, to: Endpoint },
    /// For this call only.
    Ask { to: Endpoint },
}

impl Failure {
    /// The code of a server error.
    ///
    /// Before version 7, Redis embeds the error of a command inside a script in a longer text.
    pub(crate) fn code(&self) -> Option<&str> {
        let Failure::Answered(error) = self else { return None };
        let code = error.code();
        if code != "ERR" {
            return Some(code);
        }
        let details = error.details().unwrap_or_default();
        let quoted = |code: &&&str| details.split(&format!("-{code} ")).nth(1).is_some();
        Some(NOT_APPLIED.iter().find(quoted).copied().unwrap_or(code))
    }

    pub(crate) fn is_certainly_not_applied(&self) -> bool {
        match self {
            Failure::NotSent(..) => true,
            Failure::Answered(_) => self.code().is_some_and(|code| NOT_APPLIED.contains(&code)),
            Failure::Lost(_) | Failure::TimedOut(_) => false,
        }
    }

    /// The server does not have the script, and did nothing.
    pub(crate) fn is_unknown_script(&self) -> bool {
        self.code() == Some("NOSCRIPT")
    }

    /// The server is not, or no longer, the master.
    pub(crate) fn is_from_a_replica(&self) -> bool {
        matches!(self.code(), Some("READONLY" | "MASTERDOWN"))
    }

    /// The cluster's redirect. `asked` is the server that answered: an empty host means that server.
    pub(crate) fn redirect(&self, asked: &Endpoint) -> Option<Redirect> {
        let Failure::Answered(error) = self else { return None };
        let mut words = error.details()?.split(' ');
        let slot = words.next()?.parse().ok()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let host = if host.is_empty() { &asked.host } else { host };
        let to = Endpoint { host: host.to_owned(), port: port.parse().ok()? };
        match error.code() {
            "MOVED" => Some(Redirect::Moved { slot, to }),
            "ASK" => Some(Redirect::Ask { to }),
            _ => None,
        }
    }

    pub(crate) fn reason(&self) -> Reason {
        match self {
            Failure::NotSent(reason, _) => *reason,
            Failure::Lost(_) => Reason::ConnectionLost,
            Failure::TimedOut(_) => Reason::Timeout,
            Failure::Answered(_) => match self.code().unwrap_or_default() {
                "LOADING" => Reason::Loading,
                "READONLY" | "MASTERDOWN" => Reason::ReadOnly,
                "OOM" => Reason::OutOfMemory,
                "NOREPLICAS" => Reason::NoReplicas,
                "ASK" | "CLUSTERDOWN" | "CROSSSLOT" | "MOVED" | "TRYAGAIN" => Reason::Cluster,
                "DENIED" | "NOAUTH" | "NOPERM" | "WRONGPASS" => Reason::NotAllowed,
                _ => Reason::Other,
            },
        }
    }

    /// Converts this into the error that the store returns.
    pub(crate) fn into_store_error(self, endpoint: String) -> StoreError {
        let applied_is_unknown = !self.is_certainly_not_applied();
        let source: BoxError = match self {
            Failure::TimedOut(waited) => return StoreError::TimedOut { endpoint, waited },
            Failure::Answered(error) => Box::new(Said(error)),
            Failure::NotSent(_, source) | Failure::Lost(source) => source,
        };
        if applied_is_unknown {
            StoreError::FateUnknown { endpoint, source }
        } else {
            StoreError::NotApplied { endpoint, source }
        }
    }
}

/// A server error, verbatim.
#[derive(Debug, thiserror::Error)]
#[error("{} {}", .0.code(), .0.details().unwrap_or_default())]
struct Said(ServerError);

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn answered(line: &str) -> Failure {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => Failure::Answered(error),
            other => panic!("not an error: {other:?}"),
        }
    }

    fn endpoint(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    #[test]
    fn what_a_server_did_not_run_was_certainly_not_applied() {
        for line in [
            "NOSCRIPT No matching script. Please use EVAL.",
            "MOVED 3999 127.0.0.1:6381",
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica. script: f, on @user_script:1.",
            "OOM command not allowed when used memory > 'maxmemory'. script: f, on @user_script:9.",
            "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -OOM command not allowed",
            "CLUSTERDOWN The cluster is down",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ] {
            assert!(answered(line).is_certainly_not_applied(), "{line}");
        }
    }

    #[test]
    fn what_nobody_foresaw_may_have_been_applied() {
        for line in
            ["ERR user_script:9: attempt to index a nil value script: f", "UNKILLABLE Sorry", "ERR what"]
        {
            assert!(!answered(line).is_certainly_not_applied(), "{line}");
        }
        assert!(!Failure::TimedOut(Duration::ZERO).is_certainly_not_applied());
        assert!(!Failure::Lost("cut".into()).is_certainly_not_applied());
    }

    #[test]
    fn a_redirect_names_slot_and_server() {
        let asked = endpoint("10.0.0.1", 1);
        let moved = answered("MOVED 3999 127.0.0.1:6381").redirect(&asked);
        assert_eq!(moved, Some(Redirect::Moved { slot: 3999, to: endpoint("127.0.0.1", 6381) }));
        let ask = answered("ASK 7 ::1:6381").redirect(&asked);
        assert_eq!(ask, Some(Redirect::Ask { to: endpoint("::1", 6381) }));
        let same_host = answered("MOVED 7 :6381").redirect(&asked);
        assert_eq!(same_host, Some(Redirect::Moved { slot: 7, to: endpoint("10.0.0.1", 6381) }));
        assert_eq!(answered("TRYAGAIN later").redirect(&asked), None);
    }
}
