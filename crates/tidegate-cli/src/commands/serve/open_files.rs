//! The limit on open files, and how many connections fit into it.
//!
//! The limit is raised as far as possible. If that is not enough, each listener gets an equal share, so that none can take
//! what another needs, and accepting never fails for lack of a file.

use std::num::NonZeroUsize;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_runtime::MOST_LEAVING;

use crate::failure::Failure;
use crate::settings::Settings;

/// Open files other than connections: standard streams, listeners, event queues, rule files while they are read, the admin
/// listener's connections, and some spare.
const RESERVED: u64 = 256;
/// A worker's connections to the store, and its event queue.
const PER_WORKER: u64 = 32;
/// Fewer open files than this are too few for production.
const FEW: u64 = 4_096;
/// Fewer connections than this are useless.
const FEWEST: u64 = 16;

/// What needs files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    listeners: u64,
    /// A proxied connection has another one behind it.
    proxies: u64,
    workers: u64,
}

impl Needs {
    pub(super) fn of(settings: &Settings, workers: NonZeroUsize) -> Self {
        let plain = [settings.http, settings.grpc, settings.resp].into_iter().flatten().count();
        Needs {
            listeners: plain as u64 + u64::from(settings.proxy.is_some()),
            proxies: u64::from(settings.proxy.is_some()),
            workers: workers.get() as u64,
        }
    }

    /// Connections per listener if `files` may be open; `None` if those are too few.
    fn fit(&self, files: u64) -> Option<u64> {
        let others = RESERVED + PER_WORKER * self.workers + MOST_LEAVING as u64 * self.listeners;
        let each = files.checked_sub(others)? / (self.listeners + self.proxies).max(1);
        (each >= FEWEST).then_some(each)
    }
}

/// Raises the limit, and returns how many connections each listener may have: `wanted`, or what fits.
pub(super) fn fit(wanted: NonZeroUsize, needs: &Needs) -> Result<NonZeroUsize, Failure> {
    let files = raise();
    let too_few = || {
        Failure::new(format!("the system allows {files} open files, which is too few to serve anybody"))
            .hint("raise it: `ulimit -n 65536`, or LimitNOFILE= of a systemd unit")
    };
    let fits = usize::try_from(needs.fit(files).ok_or_else(too_few)?).unwrap_or(usize::MAX);
    if fits < wanted.get() {
        // A shell's usual limit is enough to try things with, so only less than that is worth a warning.
        if files < FEW {
            tracing::warn!(
                open_files = files,
                connections = fits,
                "few open files are allowed, so few connections fit: raise it with `ulimit -n` or LimitNOFILE="
            );
        } else {
            tracing::info!(
                connections = fits,
                "each listener takes this many connections, as many as open files allow"
            );
        }
    }
    Ok(NonZeroUsize::new(fits.min(wanted.get())).unwrap_or(NonZeroUsize::MIN))
}

/// Raises the soft limit to the hard one, and returns the result.
fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        tracing::debug!("the system does not let the limit on open files be raised");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_what_the_system_allows() {
        let needs = Needs { listeners: 3, proxies: 0, workers: 2 };
        assert_eq!(needs.fit(1_024), Some((1_024 - 256 - 64 - 192) / 3));
        assert_eq!(needs.fit(300), None);
        let with_proxy = Needs { listeners: 4, proxies: 1, workers: 2 };
        assert_eq!(with_proxy.fit(65_536), Some((65_536 - 256 - 64 - 256) / 5));
    }
}
